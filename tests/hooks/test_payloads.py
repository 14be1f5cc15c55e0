"""Payloads: built by hand, guarded where nothing may change, copied so that an edit reaches nobody it should not."""

from __future__ import annotations

import copy as copying
import json
import os
import pickle
from collections import namedtuple
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.hooks.payloads import PAYLOADS, BeforeToolInput, HookInput, payload_type, private_copy
from agent_engine.hooks.registry import HookRegistry
from agent_engine.testing import run_hook


@pytest.mark.parametrize("kind", PAYLOADS.values(), ids=lambda kind: kind.__name__)
def test_every_payload_can_be_built_by_hand_and_becomes_json(kind: type[HookInput]) -> None:
    payload = kind()
    plain = payload.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert {"session_id", "cwd", "event_name", "timestamp", "agent_name", "run_id", "extra"} <= set(plain)
    times = [name for name in plain if name.endswith("_ms")]
    assert all(type(plain[name]) is float for name in times)


def test_time_and_place_are_filled_when_first_read_and_stay() -> None:
    payload = BeforeToolInput()
    first = payload.timestamp
    assert payload.timestamp == first
    assert first.endswith("Z")
    assert datetime.fromisoformat(first).utcoffset() == timedelta(0)
    assert payload.cwd == os.getcwd()
    assert BeforeToolInput(cwd="/there", timestamp="then").to_dict()["cwd"] == "/there"


@pytest.mark.parametrize("kind", PAYLOADS.values(), ids=lambda kind: kind.__name__)
def test_only_changeable_fields_take_an_assignment(kind: type[HookInput]) -> None:
    payload = kind()
    for name in payload._names():
        if name in kind._changes:
            value = kind._kinds.get(name, (str, "text"))[0]()
            setattr(payload, name, value)
            assert getattr(payload, name) is value
        else:
            with pytest.raises(AttributeError, match=f"'{name}' cannot be changed at {kind.event}"):
                setattr(payload, name, "changed")


def test_a_misspelt_field_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match="BeforeToolInput has no field 'tool_nme'; its fields are .*tool_name"):
        _ = BeforeToolInput().tool_nme
    with pytest.raises(AttributeError, match="cannot be changed"):
        BeforeToolInput().tool_nme = 1  # type: ignore[attr-defined]  # the point of the test


def test_extra_never_overrides_a_field() -> None:
    payload = BeforeToolInput(tool_name="rm", extra={"tool_name": "ls", "more": 1})
    assert payload.to_dict()["tool_name"] == "rm"
    assert payload.to_dict()["more"] == 1


def test_containers_are_real_ones() -> None:
    payload = BeforeToolInput(tool_input={"a": [1]})
    assert isinstance(payload.tool_input, dict)
    assert payload.tool_input == {"a": [1]}
    assert json.dumps(payload.tool_input) == '{"a": [1]}'


def test_a_copy_shares_no_container() -> None:
    payload = BeforeToolInput(tool_name="t", tool_input={"a": {"b": [1]}}, extra={"x": [1]})
    copy = payload._copy()
    assert copy == payload
    copy.tool_input["a"]["b"].append(2)
    copy.extra["x"].append(2)
    assert payload.tool_input == {"a": {"b": [1]}}
    assert payload.extra == {"x": [1]}


def test_the_payload_type_of_every_event_is_found_by_any_of_its_names() -> None:
    assert payload_type("before_tool") is payload_type("BEFORE_TOOL") is BeforeToolInput
    assert payload_type("on_run_error") is BaseException


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=10,
)


def _containers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(c for item in value.values() for c in _containers(item))]
    if isinstance(value, list):
        return [value, *(c for item in value for c in _containers(item))]
    if isinstance(value, tuple):
        return [c for item in value for c in _containers(item)]
    return []


@given(_values)
def test_a_private_copy_is_equal_and_shares_no_mutable_container(value: Any) -> None:
    copy = private_copy(value)
    assert copy == value
    assert not {id(one) for one in _containers(value)} & {id(one) for one in _containers(copy)}


class _Pair(namedtuple("_Pair", "left right")):
    """A named tuple with a constructor of its own."""

    def __new__(cls, both: Any) -> _Pair:
        return super().__new__(cls, both, both)


class _Selfish(dict[str, Any]):
    def copy(self) -> _Selfish:  # type: ignore[override]
        return self


def test_a_private_copy_of_odd_containers_is_one_and_leaves_them_alone() -> None:
    pair, selfish = _Pair([1]), _Selfish(a=[1])
    copied = private_copy({"pair": pair, "selfish": selfish})
    assert (copied["pair"], type(copied["pair"]), copied["selfish"]) == (pair, _Pair, {"a": [1]})
    copied["pair"].left.append(2)
    copied["selfish"]["a"].append(2)
    assert (pair.left, selfish) == ([1], {"a": [1]})


class _Box(dict[str, Any]):
    """A dict with attributes and a constructor of its own."""

    def __init__(self, *, label: str, **items: Any) -> None:
        super().__init__(**items)
        self.label = label


class _Row(list[Any]):
    pass


class _Tags(set[str]):
    pass


class _Point(tuple[Any, ...]):
    def __new__(cls, *, at: Any) -> _Point:
        point = super().__new__(cls, (at,))
        point.unit = "m"
        return point

    unit: str


class _Locked(dict[str, Any]):
    """Takes nothing any more, as it stands."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("locked")


def _of_a_kind() -> list[Any]:
    return [_Box(label="b", a=[1]), _Row([[1]]), _Tags({"a"}), _Point(at=[1])]


@pytest.mark.parametrize("value", _of_a_kind(), ids=lambda value: type(value).__name__)
def test_a_private_copy_is_of_the_same_kind(value: Any) -> None:
    copied = private_copy({"value": value})["value"]
    assert (type(copied), copied) == (type(value), value)
    assert getattr(copied, "__dict__", None) == getattr(value, "__dict__", None)
    assert copied is not value
    assert not {id(one) for one in _containers(value)} & {id(one) for one in _containers(copied)}


def test_a_private_copy_of_a_kind_that_takes_nothing_is_a_plain_one() -> None:
    locked = _Locked()
    dict.__setitem__(locked, "a", [1])
    copied = private_copy({"locked": locked})["locked"]
    copied["a"].append(2)
    assert (type(copied), copied, locked) == (dict, {"a": [1, 2]}, {"a": [1]})


@pytest.mark.parametrize("value", _of_a_kind(), ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("keywords", [{}, {"inline": True}, {"sequential": True}, {"observe": True}])
def test_a_hook_that_does_nothing_leaves_a_container_of_a_kind_of_its_own(value: Any, keywords: dict[str, Any]) -> None:
    registry = HookRegistry()
    registry.register_function("after_tool", lambda payload: None, **keywords)
    registry.register_function("after_tool", _silent, sequential=keywords.get("sequential"))
    registry.register_command("after_tool", "exit 0", failure_policy="warn")
    verdict = run_hook(registry, "after_tool", tool_output=value)
    assert (verdict.decision, type(verdict.payload.tool_output)) == ("allow", type(value))


async def _silent(payload: Any) -> None:
    pass


def test_a_private_copy_shares_what_is_no_container() -> None:
    thing = object()
    assert private_copy({"a": [thing]})["a"][0] is thing
    assert private_copy(thing) is thing


@pytest.mark.parametrize("kind", PAYLOADS.values(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("copied", [copying.copy, copying.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_every_payload_can_be_copied_and_pickled(kind: type[HookInput], copied: Callable[[Any], Any]) -> None:
    payload = kind(session_id="s", extra={"deep": [1]})
    new = copied(payload)
    assert (type(new), new) == (kind, payload)
    assert (new.extra["deep"] is payload.extra["deep"]) is (copied is copying.copy)


@pytest.mark.parametrize("keywords", [{}, {"observe": True}, {"inline": True}, {"sequential": False}])
def test_a_hook_may_keep_a_deep_copy_of_what_it_was_given(keywords: dict[str, Any]) -> None:
    kept: list[Any] = []
    registry = HookRegistry()
    registry.register_function("before_agent", lambda payload: kept.append(copying.deepcopy(payload)), **keywords)
    given = {"prompt": "hello", "conversation_history": [{"role": "user"}]}
    verdict = run_hook(registry, "before_agent", **given)
    kept[0].conversation_history[0]["role"] = "edited"
    kept[0].conversation_history.append("more")
    assert kept[0].conversation_history == [{"role": "edited"}, "more"]
    assert (verdict.decision, verdict.payload.conversation_history) == ("allow", [{"role": "user"}])


def test_a_private_copy_of_a_cycle_is_a_cycle() -> None:
    value: dict[str, Any] = {}
    value["me"] = value
    copy = private_copy(value)
    assert copy["me"] is copy
    assert copy is not value


def test_a_private_copy_ends_at_depth_200() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    copy = private_copy(deep)
    depth, one, other = 0, copy, deep
    while one is not other:
        one, other, depth = one[0], other[0], depth + 1
    assert depth == 200
