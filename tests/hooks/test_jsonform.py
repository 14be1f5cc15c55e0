"""The JSON form of payloads: what it is for every kind of value, and an error with a path where there is none."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import uuid
from collections import OrderedDict, UserDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, SecretStr
from pydantic.dataclasses import dataclass as pydantic_dataclass

from agent_engine.hooks import jsonform
from agent_engine.hooks.errors import HookExecutionError, RunBlocked
from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.jsonform import JsonFormError, payload_json, to_json, to_plain
from agent_engine.hooks.managed import AuthContext, McpRequestContext, RunContext, ToolResultContext
from agent_engine.hooks.payloads import AfterToolInput, BeforeToolInput
from agent_engine.testing import payload


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    name: str


@pydantic_dataclass
class Checked:
    size: int


class Model(BaseModel):
    when: datetime
    hidden: str = Field(default="no", exclude=True)
    renamed: int = Field(default=1, alias="other")


class Open(BaseModel, extra="allow"):
    a: int = 1


class Numbers(RootModel[list[int]]):
    pass


class Account(BaseModel):
    key: SecretStr


class Colour(enum.Enum):
    RED = "red"
    MIXED = (1, "two")


class Level(enum.IntEnum):
    HIGH = 3


class Pair(NamedTuple):
    left: int
    right: str


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=timezone(timedelta(hours=2)))
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (2**70, 1180591620717411303424),
        (-(2**70), -1180591620717411303424),
        (1.5, 1.5),
        ("é", "é"),
        (Text("own"), "own"),
        (MOMENT, "2024-05-06T07:08:09.123000+02:00"),
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00+00:00"),
        (date(2024, 1, 2), "2024-01-02"),
        (time(3, 4), "03:04:00"),
        (b"\x00\xff", "AP8="),
        (bytearray(b"ab"), "YWI="),
        (memoryview(b"ab"), "YWI="),
        (Decimal("1.10"), "1.10"),
        (ID, str(ID)),
        (PurePosixPath("/a/b"), "/a/b"),
        (Path("rel"), "rel"),
        (Colour.RED, "red"),
        (Colour.MIXED, [1, "two"]),
        (Level.HIGH, 3),
        (HookEvent.BEFORE_TOOL, "before_tool"),
        ((1, [2, {"a": (3,)}]), [1, [2, {"a": [3]}]]),
        (Pair(1, "r"), [1, "r"]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (UserDict({"a": b"a"}), {"a": "YQ=="}),
        (
            {1: "a", None: "b", True and "t": "c", Level.HIGH: "d", ID: "e", date(2024, 1, 2): "f"},
            {"1": "a", "null": "b", "t": "c", "3": "d", str(ID): "e", "2024-01-02": "f"},
        ),
        (Point(1, Slotted("s")), {"x": 1, "y": {"name": "s"}}),
        (Checked(size=2), {"size": 2}),
        (Model(when=MOMENT), {"when": "2024-05-06T07:08:09.123000+02:00", "renamed": 1}),
        (Open.model_validate({"a": 2, "b": b"b"}), {"a": 2, "b": "Yg=="}),
        (Numbers([1, 2]), [1, 2]),
        (Account(key=SecretStr("s3cret")), {"key": "***"}),
    ],
)
def test_the_form_of_every_kind_of_value(value: Any, plain: Any) -> None:
    assert to_plain(value) == plain
    assert json.loads(to_json(value)) == plain
    assert [type(one) for one in _leaves(to_plain(value))] == [type(one) for one in _leaves(plain)]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in (key, *_leaves(item))]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


def _cycle() -> dict[str, Any]:
    loop: dict[str, Any] = {"a": [1]}
    loop["a"].append({"back": loop})
    return loop


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ({"a": {"b": [1, math.nan]}}, "a['b'][1]", "is nan"),
        ({"x": math.inf}, "x", "is inf"),
        ([-math.inf], "[0]", "is -inf"),
        ({"d": Decimal("NaN")}, "d", "is Decimal NaN"),
        ({"d": Decimal("-Infinity")}, "d", "is Decimal -Infinity"),
        (_cycle(), "a[1]['back']", "refers back"),
        ({"f": object()}, "f", "is a builtins.object"),
        ({"s": {1, 2}}, "s", "is a builtins.set"),
        ({"t": timedelta(1)}, "t", "datetime.timedelta"),
        ({"n": SimpleNamespace(a=1)}, "n", "types.SimpleNamespace"),
        ({"c": Point}, "c", "is a builtins.type"),
        ({"m": Model}, "m", "ModelMetaclass"),
        ({"g": (one for one in ())}, "g", "generator"),
        ({"e": ValueError("user input")}, "e", "builtins.ValueError"),
        ({"j": 1j}, "j", "builtins.complex"),
        ({"k": {(1, 2): 3}}, "k", "a key of type tuple"),
        ({"k": {1: "a", "1": "b"}}, "k", "two keys that both read '1'"),
        ({"i": 10**5000}, "i", "too long to write down"),
        ({"p": Point(1, {"z": math.nan})}, "p.y['z']", "is nan"),
        ({"p": Point(1, math.nan)}, "p.y", "is nan"),
    ],
)
def test_what_json_cannot_carry_is_an_error_that_names_its_path(value: Any, path: str, says: str) -> None:
    with pytest.raises(JsonFormError) as caught:
        to_json(value)

    assert caught.value.path == path
    assert says in str(caught.value)
    assert str(caught.value).startswith(path)


def test_200_levels_have_a_form_and_201_and_5000_have_none() -> None:
    assert json.loads(to_json(_deep(200))) == _deep(200)
    for levels in (201, 5000):
        with pytest.raises(JsonFormError, match="nested more than 200 levels"):
            to_json(_deep(levels))


def test_an_object_in_an_object_counts_as_a_level_and_so_does_an_enum() -> None:
    inner: Any = 1
    for _ in range(201):
        inner = Point(1, inner)
    with pytest.raises(JsonFormError, match="nested more than 200 levels"):
        to_json(inner)


def test_deep_in_a_stack_it_is_still_a_json_form_error() -> None:
    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
        else:
            to_json(_deep(200))

    with pytest.raises(JsonFormError, match="deeper than the stack"):
        descend(700)


def test_what_unfolds_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jsonform.MAX_NODES == 5_000_000
    monkeypatch.setattr(jsonform, "MAX_NODES", 50_000)
    value: Any = [1] * 1000
    for _ in range(40):
        value = [value, value]
    with pytest.raises(JsonFormError, match="more than 50,000 values"):
        to_json(value)


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = {"a": 1}

    plain = to_plain([shared, shared])

    assert plain == [shared, shared]
    assert plain[0] is not shared


def test_a_lone_surrogate_is_escaped_and_a_reader_gets_it_back() -> None:
    document = to_json({"s": "a\ud800b", "t": "\\\udfff", "ok": "\U0001f600é"})

    assert b"\\ud800" in document
    document.decode("utf-8")
    assert json.loads(document) == {"s": "a\ud800b", "t": "\\\udfff", "ok": "\U0001f600é"}


def test_20_mb_is_no_trouble() -> None:
    assert len(to_json({"q": "é" * 10_000_000})) > 20_000_000


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_json)
def test_json_data_is_its_own_form(value: Any) -> None:
    assert to_plain(value) == value
    assert json.loads(to_json(value)) == value


# --- payloads ---------------------------------------------------------------------------------------------------------


def test_a_payload_is_its_fields() -> None:
    document = json.loads(payload_json(BeforeToolInput(tool_name="t", tool_input={"a": b"a"}), "before_tool"))

    assert document["event_name"] == "before_tool"
    assert document["tool_input"] == {"a": "YQ=="}
    assert set(document) == {one.name for one in dataclasses.fields(BeforeToolInput)}


def test_what_is_extra_stands_beside_the_fields_and_overrides_none() -> None:
    given = BeforeToolInput(tool_name="t", event_name="before_tool", extra={"pass": 2, "tool_name": "evil"})

    document = json.loads(payload_json(given, "before_tool"))

    assert (document["pass"], document["tool_name"]) == (2, "t")
    assert document == given.to_dict()


def test_the_error_of_a_payload_names_the_field_as_a_hook_would_reach_it() -> None:
    given = AfterToolInput(tool_output={"rows": [{"x": math.nan}]})

    for form in (lambda: payload_json(given, "after_tool"), given.to_dict):
        with pytest.raises(JsonFormError) as caught:
            form()
        assert caught.value.path == "tool_output['rows'][0]['x']"


@pytest.mark.parametrize("event", list(CATALOGUE))
def test_every_payload_has_a_form_with_its_event(event: HookEvent) -> None:
    document = json.loads(payload_json(payload(event), event))

    assert document["event_name"] == event.value


def test_secrets_of_contexts_are_masked() -> None:
    context = RunContext(
        user_id="u", auth_context=AuthContext(inbound_access_token="t0ken"), metadata={"api_key": "k3y"}
    )
    request = McpRequestContext(server_id="s", headers={"Authorization": "Bearer t0ken"})

    for form in (
        to_json(context),
        payload_json(context, "on_run_start"),
        to_json({"extra": {"c": context, "r": request}}),
    ):
        assert b"t0ken" not in form
        assert b"k3y" not in form
        assert b"***" in form
    assert to_plain({"h": request.headers}) == {"h": {"Authorization": "***"}}
    assert b"t0ken" not in to_json(dataclasses.asdict(context))


def test_the_point_that_changes_a_result_sees_it_and_no_other_form_does() -> None:
    context = ToolResultContext(tool_name="t", result="the body")

    assert json.loads(payload_json(context, "transform_tool_result"))["result"] == "the body"
    assert b"the body" not in to_json(context)


def test_an_error_is_told_by_its_type_and_by_its_text_only_where_it_is_the_engines() -> None:
    assert json.loads(payload_json(ValueError("user input"), "on_run_error")) == {
        "error_type": "ValueError",
        "event_name": "on_run_error",
    }
    blocked = json.loads(payload_json(RunBlocked("before_llm", "gate", "policy"), "on_run_error"))
    assert blocked["error_message"] == "Blocked by policy: policy"
    failed = HookExecutionError("on_run_start", "gate", ValueError("user input"))
    assert "user input" not in payload_json(failed, "on_run_error").decode()


def test_a_payload_is_an_object() -> None:
    with pytest.raises(JsonFormError, match="a payload has fields"):
        payload_json([1], "before_tool")
