"""The payload during a dispatch: what is the same, what has changed, and what may."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.hooks.callbacks import Answer
from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.folding import BadEdit, Folding, copy_of, same
from agent_engine.hooks.managed import McpRequestContext, RunContext, ToolResultContext
from agent_engine.hooks.payloads import (
    AfterLLMInput,
    BeforeCompactionInput,
    BeforeLLMInput,
    BeforeToolInput,
    UserPromptSubmitInput,
    private_copy,
)

E = HookEvent


def folding(event: HookEvent, payload: Any) -> Folding:
    return Folding(CATALOGUE[event], type(payload))


class Odd:
    """Compares with nothing."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]  # as an array


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1) | st.floats(-1, 1) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", 1]), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(0, 3), max_size=2)
    ),
    max_leaves=8,
)


@given(_values, _values)
def test_the_same_is_equal_and_of_equal_types_all_the_way(one: Any, other: Any) -> None:
    assert same(one, private_copy(one))
    assert same(one, other) is (repr(one) == repr(other) or (one == other and _types(one) == _types(other)))


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [_types(item) for item in value])
    return type(value).__name__


def test_one_is_not_true_and_a_tuple_is_no_list() -> None:
    for one, other in [(1, True), (1, 1.0), ([1], (1,)), ({"a": 1}, {"a": True}), ([0, [1]], [0, [1.0]])]:
        assert one == other or isinstance(one, list)
        assert not same(one, other)


def test_containers_of_one_length_are_not_the_same_for_that() -> None:
    for one, other in [([], {}), ({}, []), ({"a": 1}, {"b": 1}), ({"a": {"b": 1}}, {"a": {"c": 1}}), ({"a": 1}, [1])]:
        assert not same(one, other)
    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})


def test_what_cannot_be_compared_is_another_value_unless_it_is_the_very_same() -> None:
    odd = Odd()
    assert same([odd], [odd])
    assert not same([odd], [Odd()])


def test_a_cycle_is_compared_once() -> None:
    one: list[Any] = [1]
    one.append(one)
    two = private_copy(one)
    assert same(one, two)
    two[0] = 2
    assert not same(one, two)


def test_a_snapshot_is_safe_from_edits_in_place() -> None:
    payload = AfterLLMInput(response="r", tool_calls=[{"id": "1"}])
    fold = folding(E.AFTER_LLM, payload)
    before = fold.snapshot(payload)
    assert before == {"response": "r", "tool_calls": [{"id": "1"}]}
    payload.tool_calls[0]["id"] = "2"
    assert before["tool_calls"] == [{"id": "1"}]
    assert fold.changed(payload, before) == ("tool_calls",)
    payload.response = "s"
    assert fold.changed(payload, before) == ("response", "tool_calls")


@pytest.mark.parametrize(
    ("event", "payload", "flat", "kept"),
    [
        (E.USER_PROMPT_SUBMIT, UserPromptSubmitInput(prompt="p"), True, {"prompt": "p"}),
        (E.BEFORE_TOOL, BeforeToolInput(tool_input={"a": 1}), False, {"tool_input": {"a": 1}}),
        (E.BEFORE_COMPACTION, BeforeCompactionInput(), True, {}),
        (E.ON_RUN_START, RunContext(), False, None),
        (
            E.BEFORE_LLM,
            BeforeLLMInput(messages=[{}], model="m"),
            False,
            {"max_tokens": None, "messages": [{}], "model": "m", "temperature": None},
        ),
    ],
)
def test_what_is_kept_can_be_named(event: HookEvent, payload: Any, flat: bool, kept: dict[str, Any] | None) -> None:
    fold = folding(event, payload)
    assert fold.flat is flat
    if kept is not None:
        assert fold.named(fold.keep(payload)) == kept == fold.snapshot(payload)
    for name, value in fold.named(fold.keep(payload)).items():
        if isinstance(value, (dict, list)):
            assert value is not getattr(payload, name)


def test_an_answer_that_names_nothing_changes_nothing() -> None:
    payload = AfterLLMInput(response="r")
    fold = folding(E.AFTER_LLM, payload)
    nothing: tuple[dict[str, Any] | None, ...] = (None, {})
    for changes in nothing:
        assert fold.apply(payload, Answer("allow", changes=changes)) is payload
    assert payload.response == "r"


def test_nothing_is_applied_where_one_name_is_wrong() -> None:
    payload = AfterLLMInput(response="r")
    fold = folding(E.AFTER_LLM, payload)
    for changes in ({"response": "s", "model": "x"}, {"response": "s", "tool_calls": None}):
        with pytest.raises(BadEdit):
            fold.apply(payload, Answer("allow", changes=changes))
    assert payload.response == "r"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"response": None}, "makes 'response' a NoneType; it is text"),
        ({"tool_calls": "x"}, "makes 'tool_calls' a str; it is a list"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(changes: dict[str, Any], words: str) -> None:
    payload = AfterLLMInput()
    with pytest.raises(BadEdit, match=words):
        folding(E.AFTER_LLM, payload).apply(payload, Answer("allow", changes=changes))


def test_a_field_that_may_be_none_takes_any_value() -> None:
    payload = BeforeLLMInput(temperature=0.5)
    folding(E.BEFORE_LLM, payload).apply(payload, Answer("allow", changes={"temperature": None, "max_tokens": 5}))
    assert (payload.temperature, payload.max_tokens) == (None, 5)


def test_a_copy_that_was_worked_on_is_taken_over() -> None:
    payload = AfterLLMInput(response="r", tool_calls=[{}])
    copy = copy_of(payload)
    copy.response = "s"
    copy.tool_calls.append({})
    assert (payload.response, payload.tool_calls) == ("r", [{}])
    fold = folding(E.AFTER_LLM, payload)
    assert fold.take_over(payload, copy) is payload
    assert (payload.response, payload.tool_calls) == ("s", [{}, {}])


def test_a_context_is_replaced_and_only_where_it_differs() -> None:
    request = McpRequestContext(url="https://x/")
    fold = folding(E.BEFORE_MCP_REQUEST, request)
    assert fold.take_over(request, copy_of(request)) is request
    changed = fold.take_over(request, request.with_headers({"A": "1"}))
    assert dict(changed.headers) == {"A": "1"}
    assert dict(request.headers) == {}
    applied = fold.apply(request, Answer("modify", changes={"headers": {"B": "2"}}))
    assert (dict(applied.headers), applied.url) == ({"B": "2"}, "https://x/")


def test_only_what_may_change_is_accepted_in_a_context() -> None:
    result = ToolResultContext(tool_name="t", result="r")
    fold = folding(E.TRANSFORM_TOOL_RESULT, result)
    assert fold.apply(result, Answer("allow", replaced=result.with_result("s"))).result == "s"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tool_name": "u"}, "changes 'tool_name'"),
        ({"result": 5}, "makes 'result' a int"),
    ]
    for changes, words in wrong:
        with pytest.raises(BadEdit, match=words):
            fold.apply(result, Answer("allow", replaced=result._with(**changes)))


def test_what_may_not_change_in_a_context_is_restored() -> None:
    run = RunContext(metadata={"a": 1})
    result = ToolResultContext(metadata={"a": [1]})
    fold = folding(E.TRANSFORM_TOOL_RESULT, result)
    guard = fold.guard(result)
    result.metadata["a"].append(2)
    fold.restore(result, guard)
    assert result.metadata == {"a": [1]}
    result.metadata["a"].append(3)
    fold.restore(result, guard)
    assert result.metadata == {"a": [1]}
    assert folding(E.ON_RUN_START, run).guard(run) is None
    assert folding(E.AFTER_LLM, AfterLLMInput()).guard(AfterLLMInput()) is None
    fold.restore(result, None)


def test_an_exception_is_shared_and_not_copied() -> None:
    error = ValueError()
    assert copy_of(error) is error
    assert folding(E.ON_RUN_ERROR, error).snapshot(error) == {}
