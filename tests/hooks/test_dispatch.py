"""One dispatch: decisions, order, edits and failures, for every kind of hook in both modes."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
from contextvars import ContextVar
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from agent_engine.hooks.definition import FunctionHook
from agent_engine.hooks.errors import GuardrailBlocked, HookExecutionError, HookRegistrationError
from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.managed import (
    AuthContext,
    HookInvocation,
    McpRequestContext,
    RunContext,
    RunEndContext,
    ToolCallContext,
    ToolRequestContext,
    ToolResultContext,
)
from agent_engine.hooks.payloads import (
    AfterLLMInput,
    AfterToolInput,
    BeforeAgentInput,
    BeforeLLMInput,
    BeforeToolInput,
    NotificationInput,
    OnErrorInput,
    OnPermissionAskInput,
)
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookResult, HookRun
from agent_engine.hooks.scope import HookScope
from agent_engine.hooks.site import Site

E = HookEvent


def nothing(payload: Any) -> None:
    return None


def noted(ran: list[Any], what: Any, value: Any) -> Any:
    ran.append(what)
    return value


# Decisions


async def test_hooks_that_say_nothing_let_through_what_they_were_given(
    kernel: Any, kind: str, sequential: bool
) -> None:
    for value in (None, True):
        kernel.add(E.AFTER_LLM, lambda payload, value=value: value, kind, sequential=sequential)
    kernel.add(E.AFTER_LLM, lambda payload: payload, kind, sequential=sequential)
    payload = AfterLLMInput(response="text", tool_calls=[{"id": "1"}])
    verdict = await kernel.dispatch(E.AFTER_LLM, payload)
    assert (verdict.decision, verdict.changed, verdict.denied, verdict.asked) == ("allow", False, False, False)
    assert (verdict.reason, verdict.hook, verdict.broke, verdict.public_reason) == (None, None, False, None)
    assert verdict.payload == AfterLLMInput(
        response="text", tool_calls=[{"id": "1"}], cwd=payload.cwd, timestamp=payload.timestamp
    )
    assert verdict.additional_context == ()


@pytest.mark.parametrize("count", [1, 3])
async def test_a_refusal_names_its_hook_and_reason(kernel: Any, kind: str, sequential: bool, count: int) -> None:
    for _ in range(count - 1):
        kernel.add(E.BEFORE_TOOL, nothing, kind, sequential=sequential)
    kernel.add(E.BEFORE_TOOL, lambda payload: "no deletions", kind, sequential=sequential, name="guard")
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(tool_name="rm"))
    assert (verdict.decision, verdict.reason, verdict.hook) == ("deny", "no deletions", "guard")
    assert (verdict.broke, verdict.public_reason) == (False, "no deletions")


async def test_a_guardrail_raised_is_a_decision_and_no_failure(kernel: Any, kind: str, sequential: bool) -> None:
    def hook(payload: Any) -> None:
        raise GuardrailBlocked("contains PII")

    kernel.add(E.AFTER_TOOL, hook, kind, sequential=sequential, failure_policy="fail")
    verdict = await kernel.dispatch(E.AFTER_TOOL, AfterToolInput())
    assert (verdict.decision, verdict.reason, verdict.broke) == ("deny", "contains PII", False)


class PlainBlocked(GuardrailBlocked):
    def __init__(self, rule: int) -> None:
        self.rule = rule


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (PlainBlocked(7), "Blocked by guardrail"),
        (GuardrailBlocked(""), "Denied by hook"),
        (GuardrailBlocked(7), "7"),  # type: ignore[arg-type]
        (ExceptionGroup("tasks", [KeyError(1), ExceptionGroup("more", [GuardrailBlocked("PII")])]), "PII"),
    ],
)
async def test_a_guardrail_is_a_no_however_it_is_raised(
    kernel: Any, kind: str, sequential: bool, raised: Exception, reason: str
) -> None:
    def hook(payload: Any) -> None:
        raise raised

    kernel.add(E.BEFORE_TOOL, hook, kind, sequential=sequential, failure_policy="warn")
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert (verdict.decision, verdict.reason, verdict.broke) == ("deny", reason, False)


class Unreadable:
    def __bool__(self) -> bool:
        raise ValueError("neither")

    __str__ = __eq__ = __bool__  # type: ignore[assignment]
    __hash__ = object.__hash__


class OddText(str):
    __bool__ = Unreadable.__bool__


@pytest.mark.parametrize(
    "no",
    [
        HookResult("deny", Unreadable()),  # type: ignore[arg-type]
        HookResult("block", None, Unreadable(), Unreadable()),  # type: ignore[arg-type]
        {"decision": "deny", "reason": Unreadable(), Unreadable(): 1},
        OddText("no"),
    ],
)
async def test_a_no_is_a_no_whatever_stands_beside_it(kernel: Any, kind: str, no: Any) -> None:
    kernel.add(E.BEFORE_TOOL, lambda payload: no, kind, failure_policy="warn")
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert (verdict.decision, verdict.reason, verdict.broke) == ("deny", "Denied by hook", False)


class Nameless:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise ValueError("no class")


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


@pytest.mark.parametrize("rows", [False, True])
async def test_what_cannot_even_be_looked_at_is_a_failure(kernel: Any, kind: str, sequential: bool, rows: bool) -> None:
    def mute(payload: Any) -> None:
        raise Mute

    for hook in (lambda payload: Nameless(), mute):
        kernel.registry.clear()
        kernel.add(E.BEFORE_TOOL, hook, kind, sequential=sequential)
        plan = kernel.scope.plan(E.BEFORE_TOOL)
        if rows:
            verdict, (row,) = await plan.dispatch_rows(BeforeToolInput(), Site())
            assert not row.success
        else:
            verdict = await plan.dispatch(BeforeToolInput(), Site())
        assert (verdict.decision, verdict.broke) == ("deny", True)


@pytest.mark.parametrize("event", [E.BEFORE_TOOL, E.AFTER_TOOL])
async def test_what_would_still_have_to_be_awaited_is_no_answer(kernel: Any, sequential: bool, event: E) -> None:
    loop = asyncio.get_running_loop()

    async def forgot(payload: Any) -> Any:
        return loop.create_future()

    async def forgot_after_a_while(payload: Any) -> Any:
        await asyncio.sleep(0)
        return loop.create_future()

    for hook in (forgot, forgot_after_a_while, lambda payload: forgot(payload)):
        kernel.registry.clear()
        kernel.registry.register_function(event, hook, sequential=sequential)
        verdict = await kernel.dispatch(event, BeforeToolInput() if event is E.BEFORE_TOOL else AfterToolInput())
        assert (verdict.decision, verdict.broke) == ("deny", True)


async def test_another_payload_is_no_output_of_a_tool(kernel: Any, kind: str) -> None:
    kernel.add(E.AFTER_TOOL, lambda payload: AfterToolInput(tool_output="masked"), kind)
    assert (await kernel.dispatch(E.AFTER_TOOL, AfterToolInput(tool_output="secret"))).broke


async def test_the_strictest_wins_in_every_order(kernel: Any, kind: str, sequential: bool) -> None:
    said = [None, HookResult.modify(x=1), HookResult.ask("sure?"), "no"]
    for order in itertools.permutations(said):
        kernel.registry.clear()
        for value in order:
            kernel.add(E.BEFORE_TOOL, lambda payload, value=value: value, kind, sequential=sequential)
        assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).decision == "deny"
    for order in itertools.permutations(said[:3]):
        kernel.registry.clear()
        for value in order:
            kernel.add(E.BEFORE_TOOL, lambda payload, value=value: value, kind, sequential=sequential)
        verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
        assert (verdict.decision, verdict.reason, verdict.asked) == ("ask", "sure?", True)
        assert verdict.payload.tool_input == ({"x": 1} if sequential else {})


async def test_a_refusal_ends_a_sequential_group_and_all_after_it(kernel: Any, kind: str) -> None:
    ran: list[str] = []
    kernel.add(E.BEFORE_TOOL, lambda payload: ran.append("first"), kind, sequential=True)
    kernel.add(E.BEFORE_TOOL, lambda payload: noted(ran, "second", "no"), kind, sequential=True)
    kernel.add(E.BEFORE_TOOL, lambda payload: ran.append("third"), kind, sequential=True)
    kernel.add(E.BEFORE_TOOL, lambda payload: ran.append("parallel"), kind, sequential=False)
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).denied
    assert ran == ["first", "second"]


async def test_in_a_parallel_group_all_run_and_then_the_refusal_counts(kernel: Any, kind: str) -> None:
    ran: list[int] = []

    def hook(number: int) -> Any:
        return lambda payload: noted(ran, number, f"no {number}" if number else None)

    for number in range(3):
        kernel.add(E.BEFORE_TOOL, hook(number), kind, sequential=False, name=f"hook{number}")
    kernel.add(E.BEFORE_TOOL, hook(9), kind, sequential=True, priority=200)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert sorted(ran) == [0, 1, 2]
    assert (verdict.reason, verdict.hook) == ("no 1", "hook1")


async def test_priority_decides_over_the_border_of_modes(kernel: Any) -> None:
    ran: list[str] = []
    for name, mode, priority in [
        ("d", True, 300),
        ("b", False, 20),
        ("c", True, 100),
        ("a", True, 10),
        ("bb", False, 20),
    ]:
        kernel.add(
            E.AFTER_LLM,
            lambda payload, name=name: ran.append(name),
            "async",
            sequential=mode,
            priority=priority,
            name=name,
        )
    await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())
    assert ran == ["a", "b", "bb", "c", "d"]


async def test_context_messages_and_suppression_come_together_in_order(
    kernel: Any, kind: str, sequential: bool
) -> None:
    kernel.add(
        E.BEFORE_TOOL,
        lambda payload: HookResult(additional_context="one", system_message="first", suppress_output=True),
        kind,
        sequential=sequential,
    )
    kernel.add(E.BEFORE_TOOL, nothing, kind, sequential=sequential)
    kernel.add(
        E.BEFORE_TOOL,
        lambda payload: {"decision": "allow", "additional_context": "two", "system_message": "second"},
        kind,
        sequential=sequential,
    )
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert verdict.decision == "allow"
    assert verdict.additional_context == ("one", "two")
    assert verdict.system_message == "first\nsecond"
    assert verdict.suppress_output is True


# Edits


async def test_sequential_hooks_see_each_others_edits_and_so_does_the_step(kernel: Any, kind: str) -> None:
    def in_place(payload: AfterLLMInput) -> None:
        payload.response += "1"
        payload.tool_calls.append({"id": payload.response})

    kernel.add(E.AFTER_LLM, in_place, kind)
    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response=payload.response + "2"), kind)
    kernel.add(E.AFTER_LLM, in_place, kind)
    payload = AfterLLMInput(response="0")
    verdict = await kernel.dispatch(E.AFTER_LLM, payload)
    assert (verdict.decision, verdict.payload.response) == ("modify", "0121")
    assert verdict.payload.tool_calls == [{"id": "01"}, {"id": "0121"}]
    assert verdict.payload is payload


@pytest.mark.parametrize("others", [(), ("inline",), ("worker",), ("async", "worker")])
async def test_an_edit_in_place_is_a_change_whatever_the_neighbours_are(
    kernel: Any, kind: str, others: tuple[str, ...]
) -> None:
    def edit(payload: BeforeToolInput) -> None:
        payload.tool_input["nested"]["list"].append(1)

    kernel.add(E.BEFORE_TOOL, edit, kind, sequential=True)
    for other in others:
        kernel.add(E.BEFORE_TOOL, nothing, other, sequential=True)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(tool_input={"nested": {"list": []}}))
    assert verdict.changed
    assert verdict.payload.tool_input == {"nested": {"list": [1]}}


async def test_one_and_true_are_not_the_same_argument(kernel: Any, kind: str) -> None:
    def edit(payload: BeforeToolInput) -> None:
        payload.tool_input["count"] = True

    kernel.add(E.BEFORE_TOOL, edit, kind, sequential=True)
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(tool_input={"count": 1}))).changed


async def test_a_change_that_changes_nothing_is_none(kernel: Any, kind: str) -> None:
    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response=payload.response), kind)
    assert (await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(response="same"))).decision == "allow"


async def test_a_silent_hook_wipes_no_rewrite(kernel: Any, kind: str) -> None:
    for order in (0, 1):
        kernel.registry.clear()
        kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response="rewritten"), kind, priority=100)
        kernel.add(E.AFTER_LLM, nothing, kind, priority=99 + 2 * order)
        assert (await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(response="raw"))).payload.response == "rewritten"


async def test_on_after_tool_a_value_is_the_new_output(kernel: Any, kind: str) -> None:
    kernel.add(E.AFTER_TOOL, lambda payload: {"masked": payload.tool_output}, kind)
    kernel.add(E.AFTER_TOOL, lambda payload: f"{payload.tool_output}", kind)
    verdict = await kernel.dispatch(E.AFTER_TOOL, AfterToolInput(tool_output=5))
    assert verdict.payload.tool_output == "{'masked': 5}"
    assert verdict.changed


async def test_before_a_tool_the_names_are_arguments(kernel: Any, kind: str) -> None:
    kernel.add(E.BEFORE_TOOL, lambda payload: HookResult.modify(path="b", force=False), kind, sequential=True)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(tool_input={"path": "a", "deep": 1}))
    assert verdict.payload.tool_input == {"path": "b", "deep": 1, "force": False}


async def test_a_parallel_rewrite_is_discarded_with_a_warning(
    kernel: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.add(E.BEFORE_TOOL, lambda payload: HookResult.modify(path="b"), kind, sequential=False, name="my.rewriter")
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(tool_input={"path": "a"}))
    assert (verdict.decision, verdict.payload.tool_input) == ("allow", {"path": "a"})
    assert [record.getMessage() for record in caplog.records] == [
        "Parallel hook 'my.rewriter' returned modified_input which is discarded; "
        "register it with sequential=True to apply it."
    ]


@pytest.mark.parametrize("company", [False, True])
async def test_a_parallel_edit_in_place_goes_nowhere_with_a_warning(
    kernel: Any, kind: str, company: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def edit(payload: BeforeLLMInput) -> Any:
        payload.messages[0]["content"] = "edited"
        return HookResult(additional_context="counts") if company else None

    kernel.add(E.BEFORE_LLM, edit, kind, sequential=False, name="editor")
    verdict = await kernel.dispatch(E.BEFORE_LLM, BeforeLLMInput(messages=[{"content": "raw"}]))
    assert (verdict.decision, verdict.payload.messages) == ("allow", [{"content": "raw"}])
    assert [record.getMessage() for record in caplog.records] == [
        "Parallel hook 'editor' edited messages in place which is discarded; "
        "register it with sequential=True to apply it."
    ]


async def test_what_cannot_be_compared_counts_as_a_parallel_edit(
    kernel: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

    def edit(payload: BeforeLLMInput) -> None:
        payload.messages[0]["content"] = Incomparable()

    kernel.add(E.BEFORE_LLM, edit, kind, sequential=False, name="editor")
    verdict = await kernel.dispatch(E.BEFORE_LLM, BeforeLLMInput(messages=[{"content": Incomparable()}]))
    assert verdict.decision == "allow"
    assert "'editor' edited messages in place" in caplog.text


async def test_another_key_is_a_failure_that_names_it(kernel: Any, kind: str, sequential: bool) -> None:
    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(respnse="x"), kind, sequential=sequential, name="typo")
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(response="raw"))
    assert (verdict.decision, verdict.broke) == ("deny", True)
    assert verdict.reason == "Hook 'typo' changes 'respnse'; what can be changed at after_llm: response, tool_calls"


async def test_where_nothing_can_be_changed_a_change_is_a_failure(kernel: Any, kind: str) -> None:
    kernel.add(E.BEFORE_COMPACTION, lambda payload: HookResult.modify(limit=3), kind)
    verdict = await kernel.dispatch(E.BEFORE_COMPACTION, kernel.scope and _payload(E.BEFORE_COMPACTION))
    assert verdict.broke
    assert "what can be changed at before_compaction: nothing" in (verdict.reason or "")


async def test_assigning_a_field_that_may_not_change_is_a_failure(kernel: Any, kind: str, sequential: bool) -> None:
    def hook(payload: BeforeToolInput) -> None:
        payload.tool_name = "other"  # the point of the test

    kernel.add(E.BEFORE_TOOL, hook, kind, sequential=sequential)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(tool_name="t"))
    assert (verdict.broke, verdict.payload.tool_name) == (True, "t")


@pytest.mark.parametrize("how", ["assigned", "named"])
async def test_a_value_of_the_wrong_kind_is_a_failure(kernel: Any, kind: str, how: str) -> None:
    def assign(payload: AfterLLMInput) -> None:
        payload.response = None  # type: ignore[assignment]  # the point of the test

    kernel.add(E.AFTER_LLM, assign if how == "assigned" else lambda payload: HookResult.modify(response=None), kind)
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(response="raw"))
    assert verdict.broke
    assert verdict.payload.response == "raw"


async def test_an_edit_where_none_is_allowed_reaches_nobody(kernel: Any, kind: str, sequential: bool) -> None:
    seen: list[Any] = []

    def hook(payload: BeforeAgentInput) -> None:
        seen.append(
            (len(payload.conversation_history), payload.conversation_history[0]["content"], dict(payload.extra))
        )
        payload.conversation_history[0]["content"] = "edited"
        payload.conversation_history.append({})
        payload.extra["mine"] = 1

    history = [{"content": "raw"}]
    for _ in range(3):
        kernel.add(E.BEFORE_AGENT, hook, kind, sequential=True)
    kernel.add(E.BEFORE_AGENT, hook, kind, sequential=sequential, priority=200)
    payload = BeforeAgentInput(conversation_history=history)
    verdict = await kernel.dispatch(E.BEFORE_AGENT, payload)
    assert seen == [(1, "raw", {})] * 4
    assert history == [{"content": "raw"}]
    assert verdict.payload.conversation_history == history
    assert verdict.payload.extra == {}
    assert verdict.decision == "allow"
    payload.extra["later"] = 1
    assert payload.extra == {"later": 1}, "after the dispatch the payload is its owner's again"


async def test_a_container_that_may_not_change_is_a_real_one(kernel: Any, kind: str, sequential: bool) -> None:
    found: list[Any] = []

    def hook(payload: AfterLLMInput) -> None:
        found.append((type(payload.messages), payload.messages == [{"a": 1}], payload.messages is payload.messages))

    kernel.add(E.AFTER_LLM, hook, kind, sequential=sequential)
    await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(messages=[{"a": 1}]))
    assert found == [(list, True, True)]


# Failures


class OwnError(Exception):
    pass


class OwnBaseError(BaseException):
    pass


ERRORS: list[type[BaseException]] = [
    PermissionError, KeyError, AssertionError, OwnError, OwnBaseError, SystemExit, GeneratorExit, TimeoutError,
    asyncio.CancelledError, StopIteration, StopAsyncIteration, RecursionError, MemoryError,
]  # fmt: skip


async def test_whatever_a_hook_raises_refuses_the_step(kernel: Any, kind: str, sequential: bool) -> None:
    raised: list[type[BaseException]] = []

    def hook(payload: Any) -> None:
        raise raised[-1]("a secret of the user")

    kernel.add(E.BEFORE_TOOL, nothing, kind, sequential=sequential)
    kernel.add(E.BEFORE_TOOL, hook, kind, sequential=sequential, name="gate")
    for error in ERRORS:
        raised.append(error)
        verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
        assert (verdict.decision, verdict.hook, verdict.broke, verdict.public_reason) == ("deny", "gate", True, None)
        # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
        named = {error.__name__, "RuntimeError"} if error in (StopIteration, StopAsyncIteration) else {error.__name__}
        assert verdict.reason in {f"Hook 'gate' raised: {name}" for name in named}


async def test_under_fail_the_operation_aborts(kernel: Any, kind: str, sequential: bool) -> None:
    def hook(payload: Any) -> None:
        raise KeyError("a secret of the user")

    kernel.add(E.BEFORE_TOOL, hook, kind, sequential=sequential, failure_policy="fail", name="gate")
    with pytest.raises(HookExecutionError) as caught:
        await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert (caught.value.point, caught.value.ref) == ("before_tool", "gate")
    assert isinstance(caught.value.cause, KeyError)
    assert caught.value.__cause__ is caught.value.cause
    assert "secret" not in str(caught.value)


async def test_under_warn_it_is_as_if_the_hook_were_not_there(
    kernel: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(payload: AfterLLMInput) -> None:
        payload.response = "half done"
        payload.tool_calls.append({})
        raise KeyError("a secret of the user")

    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response="first"), kind)
    kernel.add(E.AFTER_LLM, hook, kind, failure_policy="warn", name="audit")
    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response=payload.response + " last"), kind)
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())
    assert (verdict.decision, verdict.payload.response, verdict.payload.tool_calls) == ("modify", "first last", [])
    assert [record.getMessage() for record in caplog.records] == ["Hook 'audit' failed at after_llm: KeyError"]


async def test_a_hook_under_warn_that_works_counts(kernel: Any, kind: str) -> None:
    def edit(payload: AfterLLMInput) -> None:
        payload.tool_calls.append({"id": "1"})
        payload.response = "edited"

    kernel.add(E.AFTER_LLM, edit, kind, failure_policy="warn")
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())
    assert (verdict.payload.response, verdict.payload.tool_calls) == ("edited", [{"id": "1"}])
    kernel.add(E.AFTER_LLM, lambda payload: "no", kind, failure_policy="warn")
    assert (await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())).denied


async def test_a_strict_site_raises_the_hooks_own_exception(kernel: Any, kind: str, sequential: bool) -> None:
    def hook(payload: Any) -> None:
        raise OwnError("mine")

    hook_id = kernel.add(E.BEFORE_TOOL, hook, kind, sequential=sequential)
    with pytest.raises(OwnError, match="mine"):
        await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), Site(strict=True))
    kernel.registry.unregister(hook_id)
    kernel.add(E.BEFORE_TOOL, hook, kind, sequential=sequential, failure_policy="warn")
    kernel.add(E.BEFORE_TOOL, lambda payload: "no", kind, sequential=sequential)
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), Site(strict=True))).denied


async def test_a_bad_return_is_a_failure_that_says_what_is_allowed(kernel: Any, kind: str, sequential: bool) -> None:
    kernel.add(E.BEFORE_TOOL, lambda payload: 42, kind, sequential=sequential, name="odd")
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert verdict.broke
    assert (verdict.reason or "").startswith("Hook 'odd' returned a int; allowed are None, True, False, text")


async def test_a_hook_without_a_callable_refuses(kernel: Any, sequential: bool) -> None:
    kernel.registry.register_function(E.BEFORE_TOOL, None, name="broken", sequential=sequential)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert (verdict.decision, verdict.reason, verdict.broke) == ("deny", "Hook 'broken' has no callable", True)


@pytest.mark.parametrize("policy", ["deny", "warn", "fail"])
async def test_where_nothing_can_be_refused_a_failure_is_logged_or_raises(kernel: Any, kind: str, policy: str) -> None:
    ran: list[str] = []

    def hook(payload: NotificationInput) -> None:
        payload.message = "half done"
        raise KeyError

    kernel.add(E.NOTIFICATION, hook, kind, failure_policy=policy)
    kernel.add(E.NOTIFICATION, lambda payload: ran.append(payload.message), kind)
    if policy == "fail":
        with pytest.raises(HookExecutionError):
            await kernel.dispatch(E.NOTIFICATION, NotificationInput(message="raw"))
        assert ran == []
    else:
        verdict = await kernel.dispatch(E.NOTIFICATION, NotificationInput(message="raw"))
        assert (verdict.decision, verdict.payload.message) == ("allow", "raw")
        assert ran == ["raw"]


async def test_where_nothing_can_be_refused_a_no_is_logged_and_the_next_hook_runs(
    kernel: Any, kind: str, sequential: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    kernel.add(E.ON_ERROR, lambda payload: "no", kind, sequential=sequential, name="late")
    kernel.add(E.ON_ERROR, lambda payload: ran.append("second"), kind, sequential=sequential)
    assert (await kernel.dispatch(E.ON_ERROR, OnErrorInput())).decision == "allow"
    assert ran == ["second"]
    assert "Hook 'late' said no at on_error, where nothing can be refused" in caplog.text


@pytest.mark.parametrize("point", [E.ON_ENGINE_STOP, E.ON_RUN_ERROR])
async def test_what_has_happened_is_never_masked(kernel: Any, kind: str, point: HookEvent) -> None:
    ran: list[str] = []

    def hook(payload: Any) -> None:
        raise OwnError

    for policy in ("fail", "deny", "warn"):
        kernel.add(point, hook, kind, failure_policy=policy)
    kernel.add(point, lambda payload: ran.append("last"), kind)
    payload = ValueError("the run failed") if point is E.ON_RUN_ERROR else _payload(point)
    verdict = await kernel.dispatch(point, payload)
    assert (verdict.decision, verdict.payload, ran) == ("allow", payload, ["last"])


# Conditions, observers, shadows


async def test_a_predicate_decides_on_the_run_whether_a_hook_runs(kernel: Any, kind: str, sequential: bool) -> None:
    kernel.add(E.BEFORE_TOOL, lambda payload: "no", kind, sequential=sequential, when=lambda run: run.user_id == "eve")
    kernel.add(E.BEFORE_TOOL, nothing, kind, sequential=sequential)
    for user, denied in [("eve", True), ("ann", False)]:
        verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), Site(run_context=RunContext(user_id=user)))
        assert verdict.denied is denied
    assert not (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).denied


async def test_a_predicate_that_breaks_is_a_hook_that_broke(kernel: Any, kind: str, sequential: bool) -> None:
    def predicate(run: RunContext) -> bool:
        raise KeyError("x")

    kernel.add(E.BEFORE_TOOL, nothing, kind, sequential=sequential, when=predicate, name="conditional")
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert (verdict.decision, verdict.reason, verdict.broke) == ("deny", "Hook 'conditional' raised: KeyError", True)


async def test_an_async_predicate_is_refused_and_no_yes(kernel: Any, kind: str) -> None:
    async def predicate(run: RunContext) -> bool:
        return False

    with pytest.raises(HookRegistrationError, match="when is a plain function of the RunContext"):
        kernel.add(E.BEFORE_TOOL, nothing, kind, when=predicate)
    kernel.add(E.BEFORE_TOOL, nothing, kind, when=lambda run: predicate(run))
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).broke


TENANT: ContextVar[str] = ContextVar("TENANT", default="")


async def test_a_predicate_sees_the_context_variables_that_its_hook_sees(
    kernel: Any, kind: str, sequential: bool
) -> None:
    TENANT.set("a")
    kernel.add(E.BEFORE_TOOL, lambda payload: "no", kind, sequential=sequential, when=lambda run: TENANT.get() == "a")
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).reason == "no"


@pytest.mark.parametrize("flag", ["observe", "shadow"])
@pytest.mark.parametrize("guarded_by", ["worker", "async"])
async def test_what_an_observer_edits_is_not_what_a_guard_beside_it_decides_on(
    kernel: Any, kind: str, flag: str, guarded_by: str
) -> None:
    def hides(payload: BeforeToolInput) -> None:
        payload.tool_input["path"] = "harmless"

    kernel.add(E.BEFORE_TOOL, hides, kind, **{flag: True})
    kernel.add(E.BEFORE_TOOL, lambda payload: payload.tool_input["path"] != "/etc", guarded_by)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(tool_input={"path": "/etc"}))
    assert verdict.denied


@pytest.mark.parametrize("flag", ["observe", "shadow"])
async def test_an_observer_or_a_shadow_changes_nothing(kernel: Any, kind: str, sequential: bool, flag: str) -> None:
    def refuses(payload: AfterLLMInput) -> str:
        payload.response = "edited"
        payload.tool_calls.append({})
        return "no"

    def fails(payload: AfterLLMInput) -> None:
        payload.response = "edited"
        raise KeyError

    def rewrites(payload: AfterLLMInput) -> HookResult:
        return HookResult("modify", None, {"response": "edited"}, "context", True, "message")

    for hook in (refuses, fails, rewrites, lambda payload: 42):
        kernel.add(E.AFTER_LLM, hook, kind, sequential=sequential, failure_policy="fail", **{flag: True})
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(response="raw"))
    assert (verdict.decision, verdict.payload.response, verdict.payload.tool_calls) == ("allow", "raw", [])
    assert (verdict.additional_context, verdict.system_message, verdict.suppress_output) == ((), None, False)


async def test_an_observer_sees_what_the_hooks_before_it_left(kernel: Any, kind: str) -> None:
    seen: list[str] = []
    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response="rewritten"), kind)
    kernel.add(E.AFTER_LLM, lambda payload: seen.append(payload.response), kind, observe=True)
    await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(response="raw"))
    assert seen == ["rewritten"]


# Managed points


async def test_a_changed_context_takes_the_place_of_the_old_one(kernel: Any, kind: str) -> None:
    kernel.add(E.BEFORE_MCP_REQUEST, lambda request: request.with_headers({"A": "1"}), kind)
    kernel.add(E.BEFORE_MCP_REQUEST, lambda request: HookResult.modify(headers={**request.headers, "B": "2"}), kind)
    kernel.add(E.BEFORE_MCP_REQUEST, lambda request: request.headers.update(C="3"), kind)
    verdict = await kernel.dispatch(E.BEFORE_MCP_REQUEST, McpRequestContext(server_id="s", url="https://x/"))
    assert verdict.changed
    assert dict(verdict.payload.headers) == {"A": "1", "B": "2", "C": "3"}
    assert verdict.payload.url == "https://x/"


async def test_a_change_of_anything_else_in_a_context_is_a_failure(kernel: Any, kind: str) -> None:
    kernel.add(E.BEFORE_MCP_REQUEST, lambda request: request._with(url="https://evil/"), kind, name="redirects")
    verdict = await kernel.dispatch(E.BEFORE_MCP_REQUEST, McpRequestContext(url="https://x/"))
    assert verdict.reason == "Hook 'redirects' changes 'url'; what can be changed at before_mcp_request: headers"
    assert verdict.broke


async def test_a_run_keeps_its_id(kernel: Any, kind: str) -> None:
    kernel.add(E.ON_RUN_START, lambda run: run.replace(user_id="ann", metadata={"k": 1}), kind)
    verdict = await kernel.dispatch(E.ON_RUN_START, RunContext(run_id="r1"))
    assert (verdict.payload.run_id, verdict.payload.user_id, verdict.payload.metadata) == ("r1", "ann", {"k": 1})
    kernel.add(E.ON_RUN_START, lambda run: run.replace(run_id="r2"), kind)
    assert (await kernel.dispatch(E.ON_RUN_START, RunContext(run_id="r1"))).broke


async def test_an_edit_inside_a_context_where_none_is_allowed_reaches_nobody(kernel: Any, kind: str) -> None:
    seen: list[dict[str, Any]] = []

    def hook(context: ToolRequestContext) -> ToolRequestContext:
        seen.append(dict(context.metadata))
        context.metadata["mine"] = 1
        return context

    for _ in range(2):
        kernel.add(E.BEFORE_TOOL_CALL, hook, kind)
    verdict = await kernel.dispatch(E.BEFORE_TOOL_CALL, ToolRequestContext(tool_name="t"))
    assert seen == [{}, {}]
    assert verdict.payload.metadata == {}


async def test_the_result_of_a_tool_is_text_and_must_be_given_back(kernel: Any, kind: str) -> None:
    kernel.add(E.TRANSFORM_TOOL_RESULT, lambda result: result.with_result(result.result[:3]), kind)
    given = ToolResultContext(result="abcdef")
    assert (await kernel.dispatch(E.TRANSFORM_TOOL_RESULT, given)).payload.result == "abc"
    assert given.result == "abcdef"
    hook_id = kernel.add(E.TRANSFORM_TOOL_RESULT, lambda result: result.with_result(None), kind)
    assert (await kernel.dispatch(E.TRANSFORM_TOOL_RESULT, given)).broke
    kernel.registry.unregister(hook_id)
    kernel.add(E.TRANSFORM_TOOL_RESULT, nothing, kind)
    assert (await kernel.dispatch(E.TRANSFORM_TOOL_RESULT, given)).broke


async def test_a_managed_hook_is_called_with_an_invocation(kernel: Any, kind: str) -> None:
    seen: list[Any] = []

    def method(event: Any) -> Any:
        seen.append((event.hook_point, event.payload_as(ToolCallContext).tool_name, event.run_context, event.plugin))
        assert (event.method, event.ref, event.metadata) == ("audit", None, {"k": 1})
        with pytest.raises(TypeError, match="is a ToolCallContext, not a RunEndContext"):
            event.payload_as(RunEndContext)
        return event.payload

    kernel.add(E.AFTER_TOOL_CALL, method, kind, managed_call=True, plugin="p", method="audit")
    run = RunContext(run_id="r")
    site = Site(run_context=run, metadata={"k": 1})
    verdict = await kernel.dispatch(E.AFTER_TOOL_CALL, ToolCallContext(tool_name="t"), site)
    assert verdict.decision == "allow"
    assert seen == [("after_tool_call", "t", run, "p")]


async def test_a_failure_under_fail_names_the_declared_hook(kernel: Any, kind: str) -> None:
    def method(event: Any) -> None:
        raise KeyError

    kernel.add(E.ON_RUN_END, method, kind, managed_call=True, plugin="p", method="m", failure_policy="fail")
    with pytest.raises(HookExecutionError) as caught:
        await kernel.dispatch(E.ON_RUN_END, RunEndContext())
    assert (caught.value.point, caught.value.ref) == ("on_run_end", "p.m")


# on_permission_ask


@pytest.mark.parametrize(
    ("said", "decision"),
    [
        ([None], "ask"),
        ([HookResult.modify(tool_input={})], "ask"),
        ([True], "allow"),
        ([None, True], "allow"),
        ([True, None], "allow"),
        ([HookResult.allow(), False], "deny"),
        ([False, HookResult.allow()], "deny"),
        ([HookResult.ask("?"), True], "deny"),
        ([42, True], "deny"),
        ([True, "no"], "deny"),
    ],
)
async def test_leave_is_given_by_a_clear_yes_and_no_no(
    kernel: Any, kind: str, sequential: bool, said: list[Any], decision: str
) -> None:
    for value in said:
        kernel.add(E.ON_PERMISSION_ASK, lambda payload, value=value: value, kind, sequential=sequential)
    verdict = await kernel.dispatch(E.ON_PERMISSION_ASK, OnPermissionAskInput(tool_name="t"))
    assert verdict.decision == decision


@pytest.mark.parametrize("policy", ["deny", "warn"])
async def test_a_hook_that_breaks_while_it_is_asked_has_not_said_yes(kernel: Any, kind: str, policy: str) -> None:
    def hook(payload: Any) -> None:
        raise KeyError

    kernel.add(E.ON_PERMISSION_ASK, lambda payload: True, kind)
    kernel.add(E.ON_PERMISSION_ASK, hook, kind, failure_policy=policy)
    verdict = await kernel.dispatch(E.ON_PERMISSION_ASK, OnPermissionAskInput())
    assert (verdict.decision, verdict.broke) == ("deny", True)


async def test_the_arguments_can_be_changed_while_leave_is_given(kernel: Any, kind: str) -> None:
    kernel.add(E.ON_PERMISSION_ASK, lambda payload: HookResult("allow", None, {"tool_input": {"safe": True}}), kind)
    verdict = await kernel.dispatch(E.ON_PERMISSION_ASK, OnPermissionAskInput(tool_input={"safe": False}))
    assert (verdict.decision, verdict.payload.tool_input) == ("allow", {"safe": True})


# Every event


def _payload(event: HookEvent) -> Any:
    from agent_engine.hooks.payloads import payload_type

    kind = payload_type(event)
    return ValueError("the run failed") if kind is BaseException else kind()


async def test_a_hook_that_does_nothing_changes_nothing_anywhere(kernel: Any, kind: str) -> None:
    for event in HookEvent:
        kernel.add(event, lambda payload: payload, kind)
        payload, twin = _payload(event), _payload(event)
        verdict = await kernel.dispatch(event, payload)
        assert verdict.decision == ("ask" if event is E.ON_PERMISSION_ASK else "allow"), event
        assert verdict.payload is payload
        for name in getattr(type(payload), "__dataclass_fields__", {}):
            if name != "timestamp":
                assert getattr(payload, name) == getattr(twin, name), event


async def test_a_refusal_counts_exactly_where_the_catalogue_says_so(kernel: Any) -> None:
    for event in HookEvent:
        kernel.add(event, lambda payload: HookResult.deny("no"))
        assert (await kernel.dispatch(event, _payload(event))).denied is CATALOGUE[event].refuses, event


# Records


async def test_every_hook_that_ran_is_told_to_the_sink(kernel: Any, kind: str) -> None:
    told: list[HookRun] = []

    def fails(payload: Any) -> None:
        raise KeyError("text")

    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response="x"), kind, name="rewrites")
    kernel.add(E.AFTER_LLM, nothing, kind, name="observes", observe=True)
    kernel.add(E.AFTER_LLM, lambda payload: "shadow says no", kind, name="shadow", shadow=True)
    kernel.add(E.AFTER_LLM, fails, kind, name="breaks", failure_policy="warn")
    kernel.add(E.AFTER_LLM, lambda payload: HookResult.deny("why"), kind, name="refuses", sequential=False)
    kernel.add(E.AFTER_LLM, nothing, kind, name="allows", sequential=False)
    kernel.add(E.AFTER_LLM, nothing, kind, name="never", sequential=True)
    site = Site(sink=lambda site, run: told.append(run))
    assert (await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(), site)).denied
    assert [(run.hook.name, run.decision, run.mode, run.group) for run in told] == [
        ("rewrites", "modify", "sequential", 0),
        ("observes", "none", "sequential", 0),
        ("shadow", "deny", "sequential", 0),
        ("breaks", "failed", "sequential", 0),
        ("refuses", "deny", "parallel", 1),
        ("allows", "allow", "parallel", 1),
    ]
    rewrites, observes, shadow, breaks, refuses, _ = told
    assert rewrites.changed == ("response",)
    assert (observes.observe, shadow.shadow, shadow.reason) == (True, True, "shadow says no")
    assert (breaks.broke, breaks.failure_type, breaks.reason) == (True, "KeyError", "Hook 'breaks' raised: KeyError")
    assert (breaks.policy, refuses.policy, refuses.reason, refuses.broke) == ("warn", "deny", "why", False)
    assert all(run.event is E.AFTER_LLM and run.started_at > 0 and 0 <= run.duration_ms < 60_000 for run in told)
    assert all(run.before is None and run.after is None for run in told)


async def test_payloads_are_kept_only_for_a_sink_that_wants_them(kernel: Any, kind: str) -> None:
    told: list[HookRun] = []

    def edit(payload: BeforeToolInput) -> None:
        payload.tool_input["n"] = payload.tool_input.get("n", 0) + 1

    for _ in range(2):
        kernel.add(E.BEFORE_TOOL, edit, kind, sequential=True)
    site = Site(sink=lambda site, run: told.append(run), wants_payloads=True)
    await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)
    assert [(run.before.tool_input, run.after.tool_input) for run in told] == [({}, {"n": 1}), ({"n": 1}, {"n": 2})]


async def test_a_hook_under_fail_is_told_before_it_raises(kernel: Any, kind: str, sequential: bool) -> None:
    told: list[HookRun] = []

    def hook(payload: Any) -> None:
        raise KeyError

    kernel.add(E.BEFORE_TOOL, hook, kind, sequential=sequential, failure_policy="fail")
    with pytest.raises(HookExecutionError):
        await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), Site(sink=lambda site, run: told.append(run)))
    assert [(run.decision, run.policy) for run in told] == [("failed", "fail")]


async def test_the_text_of_an_exception_is_logged_where_it_refuses(
    kernel: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(payload: Any) -> None:
        raise KeyError("what went wrong")

    kernel.add(E.BEFORE_TOOL, hook, kind, name="gate")
    with caplog.at_level(logging.WARNING, "agent_engine.hooks"):
        await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert "Hook 'gate' failed at before_tool: KeyError: 'what went wrong'" in caplog.text


@pytest.mark.parametrize("refuses", ["raises", "returns"])
async def test_where_nothing_can_be_refused_a_no_leaves_earlier_edits(refuses: str) -> None:
    def rewrite(payload: Any) -> None:
        payload.message = "edited"

    def no(payload: Any) -> str:
        if refuses == "raises":
            raise GuardrailBlocked("no")
        return "no"

    registry = HookRegistry()
    for func in (rewrite, no):
        registry.register_function(E.NOTIFICATION, func, failure_policy="fail")
    plan = HookScope(registry, with_default=False).plan(E.NOTIFICATION)
    assert plan is not None

    verdict = await plan.dispatch(NotificationInput(message="original"), Site())

    assert (verdict.decision, verdict.payload.message) == ("modify", "edited")


# Odd callables and odd payloads


async def test_any_kind_of_callable_is_called_and_awaited(kernel: Any, sequential: bool) -> None:
    class AsyncObject:
        async def __call__(self, payload: Any) -> str:
            return "no"

        async def method(self, payload: Any) -> str:
            return "no"

    class PlainObject:
        def __call__(self, payload: Any) -> str:
            return "no"

    async def two(first: int, payload: Any) -> str:
        return "no"

    async def one(payload: Any) -> str:
        return "no"

    callables: list[Any] = [
        one,
        AsyncObject(),
        AsyncObject().method,
        functools.partial(two, 1),
        functools.partial(functools.partial(two), 1),
        lambda payload: one(payload),
        PlainObject(),
        functools.partial(PlainObject()),
        PlainObject().__call__,
    ]
    for callback in callables:
        kernel.registry.clear()
        kernel.registry.register_function(E.BEFORE_TOOL, callback, sequential=sequential)
        verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
        assert (verdict.decision, verdict.reason) == ("deny", "no"), callback


async def test_an_inline_hook_that_gives_back_something_to_await_is_awaited(kernel: Any, sequential: bool) -> None:
    async def later(payload: AfterLLMInput) -> HookResult:
        await asyncio.sleep(0)
        return HookResult("allow", None, {"response": "later"} if sequential else None, "awaited")

    for _ in range(2):
        kernel.registry.register_function(
            E.AFTER_LLM, lambda payload: later(payload), inline=True, sequential=sequential
        )
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())
    assert verdict.additional_context == ("awaited", "awaited")
    assert (verdict.decision, verdict.payload.response) == (("modify", "later") if sequential else ("allow", ""))


async def test_a_hook_said_to_be_async_that_is_not_has_an_answer_all_the_same(kernel: Any, sequential: bool) -> None:
    kernel.registry.register_function(E.BEFORE_TOOL, lambda payload: "no", is_async=True, sequential=sequential)
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).denied


async def test_odd_payloads_reach_python_hooks_as_they_are(kernel: Any, kind: str, sequential: bool) -> None:
    cycle: dict[str, Any] = {
        "nan": math.nan,
        "big": 2**70,
        "bytes": b"\xff",
        "lone": "\ud800",
        "now": datetime.now(UTC),
    }
    cycle["me"] = cycle
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    odd = {"cycle": cycle, "deep": deep, "decimal": Decimal("1.5"), "object": object(), "long": "x" * 20_000_000}
    seen: list[Any] = []

    def hook(payload: AfterToolInput) -> None:
        seen.append(payload.tool_output)

    kernel.add(E.AFTER_TOOL, hook, kind, sequential=sequential)
    kernel.add(E.AFTER_TOOL, hook, kind, sequential=sequential)
    verdict = await kernel.dispatch(E.AFTER_TOOL, AfterToolInput(tool_output=odd))
    assert verdict.decision == "allow"
    for output in (*seen, verdict.payload.tool_output):
        assert (output["object"], output["long"]) == (odd["object"], odd["long"])
        assert output["cycle"]["me"]["me"]["big"] == 2**70
        assert output["cycle"]["nan"] is math.nan


async def test_an_edit_of_something_very_deep_is_a_change(kernel: Any, kind: str) -> None:
    def build() -> list[Any]:
        made: list[Any] = []
        for _ in range(5000):
            made = [made]
        return made

    kernel.add(E.AFTER_TOOL, lambda payload: build(), kind)
    verdict = await kernel.dispatch(E.AFTER_TOOL, AfterToolInput(tool_output=build()))
    assert verdict.changed


# The identity of a run


def _caller() -> RunContext:
    auth = AuthContext(user_id="ann", metadata={"roles": ["user"]}, inbound_access_token="t0ken")
    return RunContext(user_id="ann", metadata={"tags": ["a"]}, auth_context=auth)


def _makes_itself_admin(context: RunContext) -> None:
    context.metadata["tags"].append("b")
    context.auth_context.metadata["roles"].append("admin")


@pytest.mark.parametrize("keywords", [{"observe": True}, {"shadow": True}, {"sequential": False}, {"broken": True}])
async def test_who_calls_is_not_changed_by_a_hook_that_does_not_count(
    kernel: Any, kind: str, keywords: dict[str, bool]
) -> None:
    broken = "broken" in keywords

    def hook(context: RunContext) -> None:
        _makes_itself_admin(context)
        if broken:
            raise KeyError

    kernel.add(E.ON_RUN_START, hook, kind, **({"failure_policy": "warn"} if broken else keywords))
    verdict = await kernel.dispatch(E.ON_RUN_START, _caller())
    assert (verdict.decision, verdict.payload) == ("allow", _caller())
    assert verdict.payload.auth_context.inbound_access_token == "t0ken"


async def test_who_calls_is_changed_in_place_by_a_hook_that_counts(kernel: Any, kind: str) -> None:
    kernel.add(E.ON_RUN_START, _makes_itself_admin, kind)
    verdict = await kernel.dispatch(E.ON_RUN_START, _caller())
    assert (verdict.decision, verdict.payload.auth_context.metadata) == ("modify", {"roles": ["user", "admin"]})


async def test_the_run_context_of_an_invocation_and_of_a_predicate_is_a_copy(kernel: Any) -> None:
    def declared(event: HookInvocation) -> None:
        assert event.run_context is not None
        _makes_itself_admin(event.run_context)

    def predicate(context: RunContext) -> bool:
        _makes_itself_admin(context)
        return True

    kernel.registry.register(FunctionHook(event=E.BEFORE_TOOL, func=declared, managed_call=True, when=predicate))
    caller = _caller()
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), Site(run_context=caller))
    assert verdict.decision == "allow"
    assert caller == _caller()
