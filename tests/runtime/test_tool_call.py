"""The tool door: what the body sees, what the model reads, and which closing events a call gets."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from agent_engine.hooks import GuardrailBlocked, HookResult, after_tool, before_tool, wrap_tool_call
from agent_engine.hooks.errors import HookExecutionError, RunBlocked
from agent_engine.hooks.middleware import MiddlewareChain, ToolResponse
from agent_engine.records.journal import MemoryJournal, RunClosed
from agent_engine.runtime.limits import Limits
from agent_engine.tools.base import CallableTool, ToolError

from .run_kit import Made, Trace, call, calls, listen, made, unbalanced

BLOCKED = "Execution of work was blocked by security policy."
WITHHELD = "Result of work was blocked by security policy."


class Work:
    """A tool that counts, and does what it is told."""

    def __init__(self, result: Any = "done") -> None:
        self.seen: list[Any] = []
        self.result = result

    def tool(self) -> Callable[..., Any]:
        async def work(target: str = "x", options: dict[str, Any] | None = None) -> Any:
            """Work."""
            self.seen.append(target if options is None else (target, options))
            if isinstance(self.result, BaseException):
                raise self.result
            return self.result(self) if callable(self.result) else self.result

        return work


def one_call(work: Work, arguments: Any = None, **options: Any) -> Made:
    return made([call("work", arguments or {"target": "x"}), "answer"], [work.tool()], **options)


# What the model reads


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("text", "text"),
        ({"a": 1}, '{"a": 1}'),
        ([1, 2], "[1, 2]"),
        (3, '{"result": 3}'),
        (None, '{"result": null}'),
        (datetime.date(2024, 5, 1), '{"result": "2024-05-01"}'),
        (ValueError("bad"), '{"error": "ValueError: bad"}'),
        (ToolError("meant for you"), '{"error": "meant for you"}'),
    ],
)
async def test_the_model_reads_a_result_in_its_form(value: Any, read: str) -> None:
    one = one_call(Work(value))
    await one.run()
    assert one.tool_text() == read


async def test_without_a_transform_the_after_hook_gets_the_tools_own_object() -> None:
    one = one_call(Work({"a": [1]}))
    trace = listen(one.registry, ["transform_tool_result", "after_tool"])
    await one.run()
    assert trace.one("transform_tool_result").result == '{"a": [1]}'
    assert trace.one("after_tool").tool_output == {"a": [1]}


async def test_a_transformed_text_is_the_result_from_there_on() -> None:
    one = one_call(Work({"a": 1}))
    one.registry.register_function("transform_tool_result", lambda seen: seen.with_result(seen.result + "!"))
    trace = listen(one.registry, ["after_tool"])
    await one.run()
    assert trace.one("after_tool").tool_output == '{"a": 1}!'
    assert one.tool_text() == '{"a": 1}!'


async def test_what_after_tool_returns_or_edits_is_the_result() -> None:
    for hook in (lambda seen: "other", lambda seen: setattr(seen, "tool_output", "other")):
        one = one_call(Work("secret"))
        one.registry.register_function("after_tool", hook)
        result = await one.run()
        assert one.tool_text() == "other"
        assert "secret" not in str(result.messages)


async def test_an_edit_of_the_output_reaches_nobody_but_the_model() -> None:
    kept = {"rows": [1]}
    one = one_call(Work(kept))
    one.registry.register_function("after_tool", lambda seen: seen.tool_output["rows"].append(2))
    await one.run()
    assert one.tool_text() == '{"rows": [1, 2]}'
    assert kept == {"rows": [1]}


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("done", "done\nbefore\nafter"),
        ({"a": 1}, '{"a": 1, "_additional_context": "before\\nafter"}'),
        ([1], '{"result": [1], "_additional_context": "before\\nafter"}'),
    ],
)
async def test_additional_context_of_both_hooks_follows_the_result(value: Any, read: str) -> None:
    one = one_call(Work(value))
    for event, text in (("before_tool", "before"), ("after_tool", "after")):
        one.registry.register_function(event, lambda seen, text=text: HookResult(additional_context=text))
    await one.run()
    assert one.tool_text() == read


# Refusals


@pytest.mark.parametrize("event", ["before_tool", "before_tool_call"])
@pytest.mark.parametrize(
    ("hook", "text"),
    [
        (lambda seen: HookResult.deny("no deletes"), f"{BLOCKED} Reason: no deletes"),
        (lambda seen: 1 / 0, BLOCKED),
    ],
    ids=["said no", "broke"],
)
async def test_a_refused_call_does_not_run_and_says_so(event: str, hook: Any, text: str) -> None:
    work = Work()
    one = one_call(work)
    one.registry.register_function(event, hook)
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert work.seen == []
    assert one.tool_text() == text
    assert "after_tool_call" not in trace.names
    assert "on_tool_error" not in trace.names
    # A step that its first gate let through has its closing event; one refused there has none.
    assert trace.statuses("after_tool") == ([] if event == "before_tool" else ["denied"])


@pytest.mark.parametrize("event", ["transform_tool_result", "after_tool", "after_tool_call"])
async def test_a_refused_result_is_withheld(event: str) -> None:
    work = Work("secret")
    one = one_call(work)

    def refuse(seen: Any) -> None:
        raise GuardrailBlocked("holds a secret")

    one.registry.register_function(event, refuse)
    trace = listen(one.registry)
    result = await one.run()
    assert work.seen == ["x"]
    assert one.tool_text() == f"{WITHHELD} Reason: holds a secret"
    assert "secret" not in str(result.messages).replace("holds a secret", "")
    assert len(trace.of("after_tool")) == (0 if event == "after_tool" else 1)
    if event == "transform_tool_result":
        assert (trace.one("after_tool").status, trace.one("after_tool_call").status) == ("denied", "denied")
    if event == "after_tool":
        assert trace.one("after_tool_call").status == "denied"


@pytest.mark.parametrize(
    ("result", "status", "last"),
    [
        ("done", "ok", "after_tool_call"),
        (ValueError("x"), "error", "on_tool_error"),
        (TimeoutError(), "timed_out", "on_tool_error"),
        (lambda work: _cancelled(), "cancelled", "on_tool_error"),
    ],
    ids=["returns", "raises", "times out", "cancelled inside"],
)
async def test_each_way_out_of_a_body_has_one_closing_event(result: Any, status: str, last: str) -> None:
    async def work() -> Any:
        """Work."""
        if isinstance(result, BaseException):
            raise result
        return await result(None) if callable(result) else result

    one = made([call("work"), "answer"], [work])
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert trace.statuses("after_tool") == [status]
    assert [name for name in trace.names if name in ("after_tool_call", "on_tool_error")] == [last]
    assert unbalanced(trace.names) == []


async def _cancelled() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def test_three_refusals_of_the_same_call_end_the_run() -> None:
    work = Work()
    one = made([call("work", {"target": "x"}, f"c{n}") for n in range(5)], [work.tool()])
    one.registry.register_function("before_tool", lambda seen: "never", name="gate")
    trace = listen(one.registry)
    with pytest.raises(RunBlocked) as caught:
        await one.run()
    assert (caught.value.hook, caught.value.reason) == ("gate", "never")
    assert len(one.model.requests) == 3
    assert trace.one("after_agent").status == "denied"
    assert trace.one("on_run_error") is caught.value


async def test_refusals_of_different_calls_do_not_add_up() -> None:
    turns = [call("work", {"target": f"x{n}"}) for n in range(5)]
    one = made([*turns, "answer"], [Work().tool()])
    one.registry.register_function("before_tool", lambda seen: False)
    assert (await one.run()).output == "answer"


async def test_a_tool_taken_out_of_the_list_is_refused_all_the_same() -> None:
    work = Work()
    one = one_call(work)

    def hide(seen: Any) -> None:
        seen.tool_definitions.clear()

    one.registry.register_function("before_tool_definitions", hide)
    assert (await one.run()).output == "answer"
    assert one.model.requests[0].tools == []
    assert work.seen == []
    assert one.tool_text() == BLOCKED


async def test_an_unknown_tool_is_an_error_that_lists_the_known_ones() -> None:
    one = made([call("wrok"), "answer"], [Work().tool()])
    await one.run()
    assert one.tool_text() == """{"error": "There is no tool 'wrok'. Tools: work."}"""


# Arguments


async def test_a_rewrite_reaches_the_body_and_not_the_transcript() -> None:
    work = Work()
    one = one_call(work, {"target": "x", "options": {"deep": [1]}})

    def edit(seen: Any) -> None:
        seen.tool_input["target"] = "y"
        seen.tool_input["options"]["deep"].append(2)

    one.registry.register_function("before_tool", edit, sequential=True)
    trace = listen(one.registry, ["after_tool"])
    result = await one.run()
    assert work.seen == [("y", {"deep": [1, 2]})]
    assert trace.one("after_tool").tool_input == {"target": "y", "options": {"deep": [1, 2]}}
    for messages in (result.messages, one.seen()):
        made_call = next(entry for message in messages for entry in message.get("tool_calls", ()))
        assert made_call["function"]["arguments"] == '{"target": "x", "options": {"deep": [1]}}'


@pytest.mark.parametrize("arguments", [{"target": 5, "nonsense": 1}, {"target": ["a"]}], ids=["unknown", "wrong type"])
async def test_rewritten_arguments_are_validated(arguments: dict[str, Any]) -> None:
    work = Work()
    one = one_call(work)
    one.registry.register_function("before_tool", lambda seen: HookResult.modify(**arguments), sequential=True)
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert work.seen == []
    assert "Invalid arguments for tool 'work'" in one.tool_text()
    assert trace.one("after_tool").error_type == "ArgumentsInvalid"
    assert unbalanced(trace.names) == []


async def test_arguments_that_are_no_json_are_the_models_to_repair() -> None:
    from agent_engine.models.base import ToolCall

    work = Work()
    broken = ToolCall("c1", "work", {}, raw="{oops", error="The arguments are not valid JSON.")
    one = made([{"tool_calls": [broken]}, "answer"], [work.tool()])
    await one.run()
    assert work.seen == []
    assert "not valid JSON" in one.tool_text()
    assert one.seen()[-2]["tool_calls"][0]["function"]["arguments"] == "{oops"


# Several calls at once


async def test_calls_of_one_message_run_together_and_keep_the_models_order() -> None:
    both = asyncio.Barrier(2)

    async def work(n: int) -> int:
        """Work."""
        await both.wait()
        await asyncio.sleep(0 if n else 0.01)
        return n

    one = made([calls(("work", {"n": 0}), ("work", {"n": 1})), "answer"], [work])
    await one.run()
    assert [message["content"] for message in one.seen()[-2:]] == ['{"result": 0}', '{"result": 1}']


async def test_one_failure_does_not_lose_its_siblings_results() -> None:
    async def work(n: int) -> int:
        """Work."""
        if n == 1:
            raise ValueError("one")
        return n

    one = made([calls(*[("work", {"n": n}) for n in range(3)]), "answer"], [work])
    await one.run()
    read = [message["content"] for message in one.seen() if message["role"] == "tool"]
    assert read == ['{"result": 0}', '{"error": "ValueError: one"}', '{"result": 2}']


class Unheard(BaseException):
    """No Exception, and nothing that anybody knows."""


@pytest.mark.parametrize("kind", ["sync", "on_the_loop", "after_a_wait", "generator", "async_generator"])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, Unheard])
async def test_a_tool_that_raises_what_ends_more_than_itself_has_failed_and_nothing_else_ends(
    kind: str, error: type[BaseException]
) -> None:
    def sync() -> str:
        """Exit."""
        raise error

    async def on_the_loop() -> str:
        """Exit."""
        raise error

    async def after_a_wait() -> str:
        """Exit."""
        await asyncio.sleep(0)
        raise error

    def generator() -> Any:
        """Exit."""
        yield 1
        raise error

    async def async_generator() -> Any:
        """Exit."""
        yield 1
        raise error

    tool = locals()[kind]
    one = made([calls((kind, {}), (kind, {}), ("fine", {})), "answer"], [tool, fine])
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    read = [message["content"] for message in one.seen() if message["role"] == "tool"]
    assert read == [f'{{"error": "the tool ended with {error.__name__}"}}'] * 2 + ["done"]
    assert sorted(trace.statuses("after_tool")) == ["error", "error", "ok"]
    assert unbalanced(trace.names) == []


async def fine() -> str:
    """Fine."""
    return "done"


async def test_a_key_that_nobody_pressed_ends_nothing() -> None:
    """Keys reach the main thread only: a KeyboardInterrupt in a worker thread is the tool's own."""

    def aborts() -> str:
        """Aborts."""
        raise KeyboardInterrupt

    one = made([call("aborts"), "answer"], [aborts])
    assert (await one.run()).output == "answer"
    assert "ended with KeyboardInterrupt" in one.tool_text()


async def test_a_run_whose_coroutine_is_closed_takes_that_for_no_failure_of_its_tool() -> None:
    started = asyncio.Event()

    async def slow() -> None:
        """Slow."""
        started.set()
        await asyncio.Event().wait()

    one = made([call("slow"), "answer"], [slow])
    running = one.run()
    running.send(None)
    assert started.is_set()
    running.close()  # raises RuntimeError where the run goes on all the same
    assert len(one.model.requests) == 1


@pytest.mark.parametrize("failure_policy", ["fail", "deny"])
async def test_what_ends_a_run_inside_a_task_group_of_a_body_is_not_a_failure_of_the_tool(failure_policy: str) -> None:
    ran: list[int] = []

    async def work() -> None:
        """Work."""
        ran.append(1)

    inner = made([call("work"), "never"], [work])

    async def delegate() -> str:
        """Runs another agent in a task group."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(inner.run())
        return str(task.result().output)

    def breaks(seen: Any) -> None:
        raise ZeroDivisionError

    inner.registry.register_function("before_llm", breaks, failure_policy=failure_policy, name="breaks")
    one = made([call("delegate"), "answer"], [delegate])
    if failure_policy == "fail":
        with pytest.raises(HookExecutionError):
            await one.run()
    else:
        assert (await one.run()).output == "answer"
        assert one.tool_text() == "Execution of delegate was blocked by security policy."
    assert ran == []


@pytest.mark.parametrize("observes", [False, True])
@pytest.mark.parametrize("in_a_thread", [False, True])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, Unheard])
async def test_a_wrapper_that_raises_what_ends_more_than_itself_has_failed_and_the_loop_goes_on(
    error: type[BaseException], in_a_thread: bool, observes: bool
) -> None:
    def sync(request: Any, call_next: Any) -> Any:
        raise error

    async def on_the_loop(request: Any, call_next: Any) -> Any:
        raise error

    work = Work()
    wrapper = sync if in_a_thread else on_the_loop
    chain = MiddlewareChain([wrap_tool_call(observe=True)(wrapper) if observes else wrap_tool_call(wrapper)])
    one = made([call("work"), "answer"], [work.tool()], middleware=chain)
    trace = listen(one.registry)
    if observes:
        assert (await one.run()).output == "answer"
    else:
        with pytest.raises(HookExecutionError, match=error.__name__):
            await one.run()
    assert len(work.seen) == observes
    assert unbalanced(trace.names) == []


class Broken(dict[str, Any]):
    """A dict that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("not for you")


@pytest.mark.parametrize("value", [Broken(a=1), {"deep": [Broken(a=1)]}], ids=["whole", "part"])
async def test_a_result_that_cannot_be_read_is_no_failure_of_its_hooks(value: Any) -> None:
    async def odd() -> Any:
        """Odd."""
        return value

    one = made([call("odd"), "answer"], [odd])
    bare = made([call("odd"), "answer"], [odd])
    trace = listen(one.registry)
    assert (await one.run()).output == (await bare.run()).output == "answer"
    assert one.tool_text() == bare.tool_text()
    assert "RuntimeError while reading it" in one.tool_text()
    assert trace.statuses("after_tool") == ["ok"]
    one = made([call("odd"), "answer"], [odd])
    one.registry.register_function("after_tool", lambda seen: "no" if "Broken" in str(seen.tool_output) else None)
    await one.run()
    assert one.tool_text() == "no"
    one = made([call("odd"), "answer"], [odd])
    one.registry.register_function("after_tool", lambda seen: HookResult.deny("no"), sequential=True)
    await one.run()
    assert one.tool_text() == "Result of odd was blocked by security policy. Reason: no"


async def test_a_text_with_a_mind_of_its_own_is_its_text() -> None:
    class Own(str):
        def encode(self, *given: Any) -> bytes:
            raise RuntimeError

        def __str__(self) -> str:
            raise RuntimeError

    async def odd() -> str:
        """Odd."""
        return Own("text")

    one = made([call("odd"), "answer"], [odd])
    one.registry.register_function("after_tool", lambda seen: HookResult(additional_context="more"), sequential=True)
    await one.run()
    assert one.tool_text() == "text\nmore"


async def test_a_failure_under_fail_cancels_the_calls_beside_it_each_with_its_closing_event() -> None:
    started = asyncio.Event()

    async def slow(n: int) -> None:
        """Slow."""
        started.set()
        await asyncio.Event().wait()

    async def quick() -> None:
        """Quick."""

    one = made([calls(("slow", {"n": 1}), ("slow", {"n": 2}), ("quick", {}))], [slow, quick])

    async def broken(seen: Any) -> None:
        await started.wait()
        raise KeyError("x")

    one.registry.register_function("before_tool", broken, matcher="quick", failure_policy="fail")
    trace = listen(one.registry)
    with pytest.raises(HookExecutionError) as caught:
        await one.run()
    assert isinstance(caught.value.cause, KeyError)
    assert trace.statuses("after_tool") == ["cancelled", "cancelled"]
    assert trace.statuses("on_tool_error") == ["cancelled", "cancelled"]
    assert trace.one("after_agent").status == "error"


async def test_a_limit_on_concurrent_calls_holds() -> None:
    running = most = 0

    async def work(n: int) -> None:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    turns = [calls(*[("work", {"n": n}) for n in range(6)]), "answer"]
    await made(turns, [work], limits=Limits(max_parallel_tools=2)).run()
    assert most == 2


# Retries


async def test_a_tool_that_asks_for_it_is_tried_again() -> None:
    tries: list[int] = []

    async def body(arguments: Any, invocation: Any) -> str:
        tries.append(1)
        if len(tries) < 3:
            error = ConnectionError("again")
            error.retry_after = 0  # type: ignore[attr-defined]
            raise error
        return "done"

    tool = CallableTool("work", "Works.", {"type": "object", "properties": {}}, body, retries=2)
    one = made([call("work"), "answer"], [tool])
    trace = listen(one.registry)
    await one.run()
    assert one.tool_text() == "done"
    told = [(one.attempt, one.max_attempts, one.error_type, one.operation) for one in trace.of("on_retry")]
    assert told == [(1, 3, "ConnectionError", "tool"), (2, 3, "ConnectionError", "tool")]
    assert trace.statuses("after_tool") == ["ok"]


# Middleware


def chained(work: Work, *middleware: Any, **options: Any) -> Made:
    return one_call(work, middleware=MiddlewareChain(middleware), **options)


async def test_middleware_before_a_tool_changes_and_refuses() -> None:
    @before_tool
    def upper(request: Any) -> Any:
        request.arguments["target"] = "X"
        return request

    @before_tool
    def refuse(request: Any) -> Any:
        return HookResult.block("no")

    work = Work()
    one = chained(work, upper)
    trace = listen(one.registry, ["before_tool"])
    await one.run()
    assert work.seen == ["X"]
    assert trace.one("before_tool").tool_input == {"target": "X"}
    one = chained(Work(), refuse)
    trace = listen(one.registry)
    await one.run()
    assert one.tool_text() == f"{BLOCKED} Reason: no"
    assert "before_tool" not in trace.names


async def test_a_wrapper_that_changes_the_request_sends_it_through_the_gates_again() -> None:
    @wrap_tool_call
    async def redirect(request: Any, call_next: Any) -> Any:
        request.arguments["target"] = "forbidden"
        return await call_next(request)

    work = Work()
    one = chained(work, redirect)
    trace = listen(one.registry)
    one.registry.register_function(
        "before_tool", lambda seen: "no" if seen.tool_input["target"] == "forbidden" else None, sequential=True
    )
    await one.run()
    assert work.seen == []
    assert one.tool_text() == f"{BLOCKED} Reason: no"
    assert len(trace.of("before_tool_call")) == 1
    assert trace.statuses("after_tool") == ["denied"]
    assert trace.statuses("on_tool_error") == ["denied"]


async def test_a_second_pass_says_so_and_has_one_closing_event() -> None:
    @wrap_tool_call
    async def redirect(request: Any, call_next: Any) -> Any:
        request.arguments["target"] = "y"
        return await call_next(request)

    work = Work()
    one = chained(work, redirect)
    trace = listen(one.registry)
    await one.run()
    assert work.seen == ["y"]
    assert [seen.extra for seen in trace.of("before_tool")] == [{}, {"pass": 2}]
    assert len(trace.of("after_tool")) == len(trace.of("after_tool_call")) == 1


async def test_what_a_wrapper_answers_itself_passes_the_after_hooks() -> None:
    @wrap_tool_call
    async def cached(request: Any, call_next: Any) -> Any:
        return ToolResponse(request.tool_name, "from the cache")

    work = Work()
    one = chained(work, cached)
    one.registry.register_function("after_tool", lambda seen: seen.tool_output.upper())
    await one.run()
    assert work.seen == []
    assert one.tool_text() == "FROM THE CACHE"


async def test_each_further_call_of_a_wrapper_is_a_step_of_its_own() -> None:
    @wrap_tool_call
    async def twice(request: Any, call_next: Any) -> Any:
        first = await call_next(request)
        assert first.error is not None
        return await call_next(request)

    work = Work(lambda self: 1 / 0 if len(self.seen) == 1 else "done")
    one = chained(work, twice)
    trace = listen(one.registry)
    await one.run()
    assert one.tool_text() == "done"
    assert len(trace.of("before_tool")) == len(trace.of("after_tool")) == 2
    assert unbalanced(trace.names) == []


async def test_a_wrapper_cannot_answer_in_the_place_of_a_refusal() -> None:
    @wrap_tool_call
    async def stubborn(request: Any, call_next: Any) -> Any:
        request.arguments["target"] = "forbidden"
        try:
            return await call_next(request)
        except Exception:  # noqa: BLE001 - as a careless wrapper would
            return ToolResponse(request.tool_name, "all the same")

    one = chained(Work(), stubborn)
    one.registry.register_function(
        "before_tool", lambda seen: "no" if seen.tool_input["target"] == "forbidden" else None, sequential=True
    )
    await one.run()
    assert one.tool_text() == f"{BLOCKED} Reason: no"


async def test_middleware_after_a_tool_changes_and_withholds() -> None:
    @after_tool
    def mask(response: Any) -> Any:
        response.result = "masked"
        return response

    @after_tool
    def refuse(response: Any) -> Any:
        return HookResult.deny("no")

    one = chained(Work("secret"), mask)
    await one.run()
    assert one.tool_text() == "masked"
    one = chained(Work("secret"), refuse)
    trace = listen(one.registry)
    await one.run()
    assert one.tool_text() == f"{WITHHELD} Reason: no"
    assert trace.statuses("after_tool") == ["denied"]
    assert trace.statuses("after_tool_call") == ["denied"]


async def test_middleware_that_breaks_ends_the_run() -> None:
    @before_tool
    def broken(request: Any) -> Any:
        raise KeyError("x")

    work = Work()
    one = chained(work, broken)
    trace = listen(one.registry)
    with pytest.raises(HookExecutionError):
        await one.run()
    assert work.seen == []
    assert trace.one("after_agent").status == "error"


async def test_an_observer_that_breaks_changes_nothing() -> None:
    async def broken(request: Any) -> Any:
        raise KeyError("x")

    one = one_call(Work(), on_tool_call=broken, on_step=broken)
    assert (await one.run()).output == "answer"
    assert one.tool_text() == "done"


# Direct calls


async def test_a_direct_call_is_a_request_with_every_gate() -> None:
    work = Work({"a": 1})
    one = one_call(work)
    trace = listen(one.registry)
    outcome = await one.direct("work", {"target": "y"})
    assert (outcome.status, outcome.value, work.seen) == ("ok", {"a": 1}, ["y"])
    assert trace.names == [
        "session_start",
        "on_run_start",
        "before_tool",
        "before_tool_call",
        "transform_tool_result",
        "after_tool",
        "after_tool_call",
        "on_run_end",
        "session_end",
    ]
    with pytest.raises(LookupError, match="nothing"):
        await one.direct("nothing", {})


async def test_a_wrapper_cannot_keep_its_way_to_the_body() -> None:
    kept: list[Any] = []

    @wrap_tool_call
    async def keep(request: Any, call_next: Any) -> Any:
        kept.append((request, call_next))
        return ToolResponse(request.tool_name, "by myself")

    work = Work()
    await chained(work, keep).run()
    request, call_next = kept[0]
    with pytest.raises(RuntimeError, match="had ended"):
        await call_next(request)
    assert work.seen == []


async def test_further_calls_of_a_wrapper_count_as_calls() -> None:
    @wrap_tool_call
    async def often(request: Any, call_next: Any) -> Any:
        responses = [await call_next(request) for _ in range(5)]
        return responses[-1]

    work = Work()
    one = chained(work, often, limits=Limits(tool_calls=3))
    await one.run()
    assert len(work.seen) == 3
    assert "limit of 3 tool calls" in one.tool_text()


async def test_a_sync_wrapper_cannot_hide_a_refusal() -> None:
    @wrap_tool_call
    def stubborn(request: Any, call_next: Any) -> Any:
        request.arguments["target"] = "forbidden"
        try:
            return call_next(request)
        except BaseException:  # noqa: BLE001 - as an even more careless wrapper would
            return ToolResponse(request.tool_name, "all the same")

    one = chained(Work(), stubborn)
    one.registry.register_function(
        "before_tool", lambda seen: "no" if seen.tool_input["target"] == "forbidden" else None, sequential=True
    )
    await one.run()
    assert one.tool_text() == f"{BLOCKED} Reason: no"


@pytest.mark.parametrize("how", ["mask", "refuse"])
async def test_on_error_does_not_bring_back_what_a_hook_took_out_of_an_errors_text(how: str) -> None:
    one = one_call(Work(ValueError("cannot read sk-secret")))
    one.registry.register_function("after_tool", lambda seen: "masked" if how == "mask" else HookResult.deny("private"))
    trace = listen(one.registry, ["on_error", "on_tool_error"])
    await one.run()
    assert trace.one("on_error").error_message == "work failed with ValueError"
    assert "sk-secret" not in str(trace.rows) + str(one.seen())


async def test_three_refusals_in_a_child_end_the_child_alone() -> None:
    from .run_kit import node_of

    child = node_of([call("work")] * 5, [Work().tool()], name="child")
    one = made([call("child", {"message": "go"}), "answer"], children=(child,))
    one.registry.register_function("before_tool", lambda seen: "never", matcher="work")
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert one.tool_text() == "Execution of child was blocked by security policy. Reason: never"
    assert trace.statuses("after_agent") == ["denied", "ok"]
    assert trace.one("subagent_stop").success is False
    assert trace.statuses("on_tool_error") == ["denied"]
    assert unbalanced([name for name in trace.names if name != "before_tool"]) == ["before_tool: 0 opened, 1 closed"]


@pytest.mark.parametrize("how", ["refuses", "fails"])
async def test_a_request_that_does_not_get_past_its_start_ends_with_on_run_error(how: str) -> None:
    one = one_call(Work())
    hook = (lambda seen: HookResult.deny("closed")) if how == "refuses" else (lambda seen: 1 / 0)
    one.registry.register_function("on_run_start", hook, failure_policy="fail")
    trace = listen(one.registry)
    with pytest.raises(RunBlocked if how == "refuses" else HookExecutionError) as caught:
        await one.run()
    assert trace.one("on_run_error") is caught.value
    assert not {"before_agent", "after_agent", "on_run_end", "before_llm"} & set(trace.names)
    with pytest.raises(RunBlocked if how == "refuses" else HookExecutionError):
        await one.direct("work", {})


async def test_a_run_is_closed_in_the_journal_whatever_fails_at_its_end() -> None:
    def broken(seen: Any) -> None:
        raise ValueError

    journal = MemoryJournal()
    one = made(["never"], journal=journal)
    one.registry.register_function("user_prompt_submit", lambda seen: False)
    one.registry.register_function("on_error", broken, failure_policy="fail")
    with pytest.raises(HookExecutionError):
        await one.run()
    assert [entry.status for entry in journal.entries if isinstance(entry, RunClosed)] == ["blocked"]


async def test_an_error_that_cannot_say_what_it_is_is_an_error_the_model_reads_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def work() -> str:
        """Work."""
        raise Mute

    one = made([call("work"), "answer"], [work])
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert one.tool_text() == '{"error": "Mute"}'
    assert trace.statuses("after_tool") == ["error"]
    assert [(seen.error_type, seen.error_message) for seen in trace.of("on_error")] == [("Mute", "")]


@pytest.mark.parametrize("edits", [False, True])
async def test_what_a_hook_keeps_and_edits_behind_the_last_gate_reaches_nobody(edits: bool) -> None:
    work = Work()
    kept: list[Any] = []

    async def keeps(payload: Any) -> None:
        kept.append(payload.tool_input)
        if edits:
            payload.tool_input["options"]["paths"].append("/b")

    async def goes_back_to_it(context: Any) -> None:
        kept[0]["options"]["paths"].append("/etc")
        kept[0]["target"] = "another"

    one = one_call(work, {"target": "x", "options": {"paths": ["/a"]}})
    one.registry.register_function("before_tool", keeps, sequential=True)
    one.registry.register_function("before_tool_call", goes_back_to_it)
    await one.run()
    assert work.seen == [("x", {"paths": ["/a", "/b"] if edits else ["/a"]})]


@pytest.mark.parametrize("hooked", [False, True])
async def test_what_a_body_edits_in_its_arguments_is_not_what_the_model_asked_for(hooked: bool) -> None:
    work = Work(lambda work: work.seen[0][1]["paths"].append("/b") or "done")
    one = one_call(work, {"options": {"paths": ["/a"]}})
    trace = Trace()
    if hooked:
        trace = listen(one.registry, ["before_tool", "after_tool"])
    result = await one.run()
    (asked,) = [part for message in result.messages for part in message.get("tool_calls") or ()]
    assert "/b" not in str(asked)
    assert all(payload.tool_input == {"options": {"paths": ["/a"]}} for payload in trace.of("after_tool"))


async def test_what_was_refused_inside_a_wrapper_is_not_run_on_a_second_try() -> None:
    ran: list[str] = []

    async def work() -> str:
        """Work."""
        ran.append("work")
        return "done"

    @wrap_tool_call
    async def insists(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except BaseException:  # noqa: BLE001 - what a user may write
            return await call_next(request)

    @wrap_tool_call
    async def refuses_once(request: Any, call_next: Any) -> Any:
        if not refused:
            refused.append(True)
            raise GuardrailBlocked("not now")
        return await call_next(request)

    refused: list[bool] = []
    one = made([call("work"), "answer"], [work], middleware=MiddlewareChain([insists, refuses_once]))
    await one.run()
    assert one.tool_text() == "Execution of work was blocked by security policy. Reason: not now"
    assert ran == []
