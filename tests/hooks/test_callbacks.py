"""What a callback's return value means, row by row, and driving a coroutine in a context of its own."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.hooks.callbacks import ALLOW, NO_ANSWER, Answer, BadReturn, in_context, reader_of
from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.managed import RunContext, ToolRequestContext, ToolResultContext
from agent_engine.hooks.payloads import AfterLLMInput, AfterToolInput, BeforeToolInput, OnPermissionAskInput
from agent_engine.hooks.result import HookOutput, HookResult, Undecided

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def read(event: HookEvent, value: Any, given: Any = None) -> Answer:
    return reader_of(CATALOGUE[event])(value, given)


async def coroutine() -> None:
    return None


def generator() -> Any:
    yield None


ORDINARY = [HookEvent.AFTER_LLM, HookEvent.BEFORE_TOOL, HookEvent.AFTER_TOOL, HookEvent.ON_ERROR]


@pytest.mark.parametrize("event", ORDINARY)
def test_none_true_and_the_payload_itself_let_through(event: HookEvent) -> None:
    payload = AfterLLMInput()
    assert read(event, None) is ALLOW
    assert read(event, True) is ALLOW
    assert read(event, payload, payload) is ALLOW


@pytest.mark.parametrize("event", ORDINARY)
def test_false_refuses_with_the_text_that_callers_match(event: HookEvent) -> None:
    assert read(event, False) == Answer("deny", "Denied by hook")


@pytest.mark.parametrize("event", [HookEvent.AFTER_LLM, HookEvent.BEFORE_TOOL, HookEvent.ON_ERROR])
def test_text_refuses_with_that_reason(event: HookEvent) -> None:
    assert read(event, "not today") == Answer("deny", "not today")
    assert read(event, "") == Answer("deny", "Denied by hook")


@pytest.mark.parametrize("value", ["", "text", 0, 1, 2.5, [1], {"a": 1}, (), b"x", {"reason": "no decision here"}])
def test_on_after_tool_any_other_value_is_the_new_output(value: Any) -> None:
    answer = read(HookEvent.AFTER_TOOL, value)
    assert answer.decision == "allow"
    assert answer.changes == {"tool_output": value}


@pytest.mark.parametrize(
    "value",
    [HookOutput(), HookOutput(decision="deny"), ValueError("returned, not raised"), generator()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_never_an_answer_is_no_output_either(value: Any) -> None:
    for event in ORDINARY:
        with pytest.raises(BadReturn, match=f"returned a {type(value).__name__}; allowed are"):
            read(event, value)


@pytest.mark.parametrize("event", [HookEvent.AFTER_LLM, HookEvent.BEFORE_TOOL, HookEvent.ON_ERROR])
@pytest.mark.parametrize("value", [0, 1, 2.5, [], {}, {"reason": "x"}, object(), AfterLLMInput(), ToolResultContext()])
def test_anything_else_is_a_failure_that_names_it(event: HookEvent, value: Any) -> None:
    with pytest.raises(BadReturn, match=f"returned a {type(value).__name__}; allowed are None, True, False, text"):
        read(event, value)


@pytest.mark.parametrize("word", ["deny", "block"])
def test_a_result_or_a_dict_that_refuses(word: str) -> None:
    assert read(HookEvent.AFTER_LLM, HookResult(word, "why")) == Answer("deny", "why")
    assert read(HookEvent.AFTER_LLM, HookResult(word)) == Answer("deny", "Denied by hook")
    assert read(HookEvent.AFTER_LLM, {"decision": word, "reason": "why"}) == Answer("deny", "why")


@pytest.mark.parametrize(
    "beside", [{"modified_input": 7}, {"reason": 7}, {"additional_context": []}, {"system_message": 7}, {"strange": 1}]
)
def test_a_refusal_counts_whatever_else_is_wrong_with_it(beside: dict[str, Any]) -> None:
    for event in ORDINARY:
        assert read(event, {"decision": "deny", **beside}).decision == "deny"


def test_a_result_that_allows_says_all_it_has() -> None:
    result = HookResult("allow", "fine", {"response": "x"}, "context", True, "message")
    assert read(HookEvent.AFTER_LLM, result) == Answer(
        "allow", "fine", {"response": "x"}, None, "context", True, "message"
    )
    assert read(HookEvent.AFTER_LLM, HookResult.modify(response="x")).changes == {"response": "x"}
    assert read(HookEvent.AFTER_LLM, HookResult("allow", modified_input={})).changes is None


def test_an_ask_counts_before_a_tool_and_refuses_elsewhere() -> None:
    assert read(HookEvent.BEFORE_TOOL, HookResult.ask("sure?")) == Answer("ask", "sure?")
    assert read(HookEvent.AFTER_LLM, HookResult.ask("sure?")) == Answer("deny", "sure?")
    assert read(HookEvent.AFTER_LLM, HookResult.ask()) == Answer("deny", "Denied by hook")
    assert read(HookEvent.BEFORE_TOOL_CALL, HookResult.ask()) == Answer("deny", "Denied by hook")


@pytest.mark.parametrize("word", ["DENY", "Allow", "yes", "", None, 1, True, ["allow"]])
def test_any_other_decision_is_a_failure(word: Any) -> None:
    for event in ORDINARY:
        with pytest.raises(BadReturn, match="allowed are allow, modify, ask, deny, block"):
            read(event, HookResult(word))
        with pytest.raises(BadReturn, match="gave the decision"):
            read(event, {"decision": word})


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (HookResult(modified_input=[("a", 1)]), "modified_input that is a list; it is a dict"),  # type: ignore[arg-type]
        (HookResult(modified_input={1: 2}), "with text as keys"),  # type: ignore[dict-item]
        (HookResult(reason=7), "a reason that is a int"),  # type: ignore[arg-type]
        (HookResult(additional_context=["x"]), "an? additional_context that is a list"),  # type: ignore[arg-type]
        (HookResult(system_message={}), "a system_message that is a dict"),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_the_wrong_kind_is_a_failure(result: HookResult, words: str) -> None:
    with pytest.raises(BadReturn, match=words):
        read(HookEvent.AFTER_LLM, result)


def test_a_dict_with_an_unknown_key_is_a_failure_that_lists_the_known_ones() -> None:
    with pytest.raises(BadReturn, match=r"the key 'messsage'; known keys are additional_context, decision"):
        read(HookEvent.AFTER_LLM, {"decision": "allow", "messsage": "x"})


@pytest.mark.parametrize("point", [HookEvent.BEFORE_TOOL_CALL, HookEvent.ON_RUN_END, HookEvent.BEFORE_MCP_REQUEST])
def test_a_managed_point_takes_none_its_own_context_or_a_result(point: HookEvent) -> None:
    given = ToolRequestContext(tool_name="t")
    assert read(point, None, given) is ALLOW
    assert read(point, given, given) is ALLOW
    assert read(point, HookResult.deny("no"), given) == Answer("deny", "no")
    other = ToolRequestContext(tool_name="u")
    assert read(point, other, given).replaced is other


@pytest.mark.parametrize("value", [True, False, "text", "", 0, {"decision": "deny"}, {}, RunContext(), object()])
def test_a_managed_point_takes_nothing_else(value: Any) -> None:
    with pytest.raises(BadReturn, match="allowed are None, a ToolRequestContext or a HookResult"):
        read(HookEvent.BEFORE_TOOL_CALL, value, ToolRequestContext())


def test_transforming_a_result_takes_a_context_and_no_none() -> None:
    given = ToolResultContext(result="r")
    with pytest.raises(BadReturn, match="returned None; allowed are a ToolResultContext or a HookResult"):
        read(HookEvent.TRANSFORM_TOOL_RESULT, None, given)
    assert read(HookEvent.TRANSFORM_TOOL_RESULT, given, given) is ALLOW
    assert read(HookEvent.TRANSFORM_TOOL_RESULT, given.with_result("s"), given).replaced == given.with_result("s")


def test_an_exception_is_no_context_to_give_back() -> None:
    error = ValueError("the run failed")
    assert read(HookEvent.ON_RUN_ERROR, error, error) is ALLOW
    with pytest.raises(BadReturn):
        read(HookEvent.ON_RUN_ERROR, ValueError("another"), error)


def test_a_yes_is_said_clearly_or_not_at_all() -> None:
    event, payload = HookEvent.ON_PERMISSION_ASK, OnPermissionAskInput()
    for yes in (True, HookResult.allow(), {"decision": "allow"}):
        assert read(event, yes, payload).decision == "allow"
    for nothing in (None, payload, Undecided(), Undecided(additional_context="text"), HookResult.modify(tool_input={})):
        assert read(event, nothing, payload).decision == "none"
    assert read(event, {"decision": "modify", "modified_input": {"tool_input": {}}}, payload).decision == "none"
    assert read(event, Undecided(additional_context="text"), payload).additional_context == "text"
    assert read(event, None, payload) is NO_ANSWER
    for no in (False, "no", HookResult.deny(), HookResult.block(), HookResult.ask(), {"decision": "ask"}):
        assert read(event, no, payload).decision == "deny"


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.floats() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["decision", "reason", "x"]), inner),
    max_leaves=5,
)


@given(_anything, st.sampled_from([event for event in HookEvent if event is not HookEvent.AFTER_TOOL]))
def test_only_what_the_table_lists_is_an_allow(value: Any, event: HookEvent) -> None:
    spec = CATALOGUE[event]
    try:
        answer = read(event, value, object())
    except BadReturn:
        return
    if answer.decision != "allow":
        return
    said = isinstance(value, dict) and value.get("decision") in ("allow", "modify") and not spec.managed
    nothing = value is None and event not in (HookEvent.TRANSFORM_TOOL_RESULT, HookEvent.ON_PERMISSION_ASK)
    assert said or nothing or (value is True and not spec.managed)


@given(_anything)
def test_on_after_tool_a_dict_with_a_decision_is_never_an_output(value: Any) -> None:
    if isinstance(value, dict) and "decision" in value:
        try:
            answer = read(HookEvent.AFTER_TOOL, value, AfterToolInput())
        except BadReturn:
            return
        assert answer.changes is None or answer.changes == value.get("modified_input")


async def test_a_coroutine_in_a_context_keeps_what_it_sets_there_and_its_task() -> None:
    context = contextvars.copy_context()
    here = asyncio.current_task()

    async def work() -> str:
        VARIABLE.set("first")
        await asyncio.sleep(0)
        assert VARIABLE.get() == "first"
        VARIABLE.set("second")
        assert asyncio.current_task() is here
        return "done"

    assert await in_context(context, work()) == "done"
    assert VARIABLE.get() == "unset"
    assert context[VARIABLE] == "second"


async def test_errors_and_cancellation_go_through_a_context() -> None:
    seen: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    async def waits() -> None:
        VARIABLE.set("inside")
        try:
            await asyncio.sleep(30)
        finally:
            seen.append(VARIABLE.get())

    with pytest.raises(KeyError):
        await in_context(contextvars.copy_context(), fails())
    task = asyncio.create_task(_wrap(in_context(contextvars.copy_context(), waits())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["inside"]


async def test_closing_closes_in_the_context() -> None:
    seen: list[str] = []

    async def waits() -> None:
        VARIABLE.set("inside")
        try:
            await asyncio.sleep(30)
        finally:
            seen.append(VARIABLE.get())

    driven: Any = in_context(contextvars.copy_context(), waits())
    driven.send(None)
    driven.close()
    assert seen == ["inside"]


async def test_a_time_limit_works_inside_a_context() -> None:
    async def waits() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            return "fell back"
        return "never"

    assert await in_context(contextvars.copy_context(), waits()) == "fell back"


async def _wrap(awaitable: Any) -> Any:
    return await awaitable


def test_a_payload_of_another_event_is_no_answer() -> None:
    with pytest.raises(BadReturn):
        read(HookEvent.BEFORE_TOOL, BeforeToolInput(), BeforeToolInput())
