"""How results read, odd ones too: never an error, always clear text."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from agent_engine.tools.result import error_for_model, for_model, plain, text_of


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Size:
    width: int
    when: date


class Login(BaseModel):
    user: str
    password: SecretStr


@dataclass
class Masked:
    token: str

    def to_dict(self) -> dict[str, str]:
        return {"token": "***"}


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Plain:
    pass


Pair = namedtuple("Pair", "left right")

CASES: list[tuple[Any, Any]] = [
    (None, None),
    (3, 3),
    (2**70, 2**70),
    (1.5, 1.5),
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
    (10**5000, f"<integer of {(10**5000).bit_length()} bits>"),
    (b"\xff\x00", "/wA="),
    (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
    (timedelta(seconds=90), "0:01:30"),
    (Decimal("1.10"), "1.10"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Path("/tmp/x"), "/tmp/x"),
    (Colour.RED, "red"),
    (Level.HIGH, 3),
    ({3, 1, 2}, [1, 2, 3]),
    ((1, "a"), [1, "a"]),
    (Pair(1, 2), {"left": 1, "right": 2}),
    (Size(3, date(2026, 1, 2)), {"width": 3, "when": "2026-01-02"}),
    (Login(user="ada", password=SecretStr("hunter2")), {"user": "ada", "password": "***"}),
    (Masked("sk-123"), {"token": "***"}),
    (ValueError("its text may quote anything"), "<ValueError>"),
    (Plain(), "<Plain object>"),
    (Plain, "<class Plain>"),
    (Broken(), "<Broken: RuntimeError while reading it>"),
    (range(3), "range(0, 3)"),
]


@pytest.mark.parametrize(
    ("value", "shaped"), CASES, ids=[type(value).__name__ + str(n) for n, (value, _) in enumerate(CASES)]
)
def test_any_value_reads_as_json(value: Any, shaped: Any) -> None:
    assert plain(value) == shaped
    assert json.loads(text_of(value)) == shaped
    assert json.loads(for_model(value)) == {"result": shaped}
    assert json.loads(for_model({"inside": [value]})) == {"inside": [shaped]}


def test_text_is_read_as_it_is() -> None:
    assert text_of("two\nlines “quoted”") == for_model("two\nlines “quoted”") == "two\nlines “quoted”"


def test_dict_and_list_are_read_as_json_and_an_error_as_an_error() -> None:
    assert for_model({"a": [1, "ü"]}) == '{"a": [1, "ü"]}'
    assert for_model([1, 2]) == "[1, 2]"
    assert for_model(OrderedDict(a=1)) == '{"a": 1}'
    assert error_for_model("no such note") == '{"error": "no such note"}'


def test_keys_that_are_no_text_become_text() -> None:
    value = {1: "a", None: "b", Colour.RED: "c", (1, 2): "d", b"k": "e"}
    assert plain(value) == {"1": "a", "null": "b", "red": "c", "[1, 2]": "d", "aw==": "e"}


def test_a_cycle_says_so_and_a_shared_value_does_not() -> None:
    shared = [1]
    assert plain([shared, shared]) == [[1], [1]]
    loop: list[Any] = [1]
    loop.append(loop)
    assert json.loads(for_model(loop)) == [1, "<cycle>"]


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_deep_nesting_ends_in_words(wrap: Any) -> None:
    deep: Any = "bottom"
    for _ in range(5000):
        deep = wrap(deep)
    text = for_model(deep)
    assert "nested deeper than 200 levels" in text or "while reading it" in text
    assert text_of(deep) == text


def test_twenty_megabytes_go_through_whole() -> None:
    text = "x" * 20_000_000
    assert text_of(text) == text
    assert len(for_model({"text": text})) == len(text) + 12


def test_a_small_value_that_unfolds_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.tools.result._MAX_VALUES", 1000)
    doubled: Any = ["x"]
    for _ in range(60):
        doubled = [doubled, doubled]
    text = for_model(doubled)
    assert "while reading it" in text
    assert len(text) < 100_000


@pytest.mark.parametrize("value", ["lone \udc00", {"k\udc00": "v\ud800"}, ["\udfff"], {"a": {"\ud800"}}])
def test_a_lone_surrogate_is_escaped(value: Any) -> None:
    for text in (text_of(value), for_model(value)):
        text.encode("utf-8")
        assert "\\ud" in text


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates()),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner)),
        max_leaves=20,
    )
)
def test_no_value_breaks_the_text(value: Any) -> None:
    text = for_model(value)
    text.encode("utf-8")
    if not isinstance(value, str):
        json.loads(text)
