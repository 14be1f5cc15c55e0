"""Middleware: order, what each kind may return, who is refused or broken, and sync and async side by side."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import pytest

from agent_engine.hooks import (
    AsyncMiddlewareChain,
    GuardrailBlocked,
    HookExecutionError,
    HookResult,
    InvocationContext,
    MiddlewareChain,
    MiddlewareManager,
    ModelRequest,
    ModelResponse,
    RunBlocked,
    ToolRequest,
    ToolResponse,
    after_model,
    after_tool,
    before_model,
    before_tool,
    chain,
    wrap_model_call,
    wrap_tool_call,
    wrapping,
)
from agent_engine.hooks.calls import Refused

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("middleware_test", default="unset")


def tool_request(**arguments: Any) -> ToolRequest:
    return ToolRequest("search", arguments)


async def body(request: ToolRequest) -> ToolResponse:
    return ToolResponse(request.tool_name, f"found {request.arguments}")


def refused(made: Any) -> Refused:
    assert isinstance(made, Refused), made
    return made


# --- the data ---------------------------------------------------------------------------------------------------------


def test_requests_and_responses_have_the_names_and_defaults_that_users_know() -> None:
    request = ModelRequest([{"role": "user"}], "m")
    assert (request.temperature, request.context, request.tools, request.extra) == (1.0, None, None, {})
    response = ModelResponse("text", "m")
    assert (response.usage, response.context, response.tool_calls, response.extra) == (None, None, None, {})
    assert (tool_request().context, tool_request().extra) == (None, {})
    result = ToolResponse("t", 1)
    assert (result.error, result.context, result.extra) == (None, None, {})
    where = InvocationContext("a", "r", "s")
    assert (where.tool_name, where.model_name, where.metadata) == (None, None, {})
    assert AsyncMiddlewareChain is MiddlewareChain


# --- what counts as middleware ----------------------------------------------------------------------------------------


def test_a_decorator_returns_the_function_unchanged() -> None:
    def gate(request: Any) -> None: ...

    assert before_tool(gate) is gate


@pytest.mark.parametrize(
    "thing", [lambda request: request, print, "before_tool", None, object(), functools.partial(print)]
)
def test_anything_without_a_decorator_is_a_type_error_that_names_the_six(thing: Any) -> None:
    with pytest.raises(TypeError) as caught:
        MiddlewareChain([thing])

    for name in ("before_model", "after_model", "wrap_model_call", "before_tool", "after_tool", "wrap_tool_call"):
        assert name in str(caught.value)


def test_what_cannot_be_called_as_it_will_be_is_refused() -> None:
    @before_tool
    def two(request: Any, other: Any) -> None: ...

    @wrap_tool_call
    def one(request: Any) -> None: ...

    @before_tool
    async def generator(request: Any) -> Any:
        yield request

    @wrap_model_call
    def plain_generator(request: Any, call_next: Any) -> Any:
        yield request

    for function in (two, one, generator, plain_generator):
        with pytest.raises(TypeError, match=function.__name__):
            MiddlewareChain([function])
    with pytest.raises(TypeError, match="is a before_tool already"):
        after_tool(two)
    with pytest.raises(TypeError, match="decorates a function"):
        before_tool("gate")  # type: ignore[type-var]  # on purpose


async def test_methods_callable_objects_and_partials_are_middleware_too() -> None:
    seen: list[str] = []

    class Gate:
        @before_tool
        def method(self, request: ToolRequest) -> None:
            seen.append("method")

        async def __call__(self, request: ToolRequest) -> None:
            seen.append("object")

    def with_two(label: str, request: ToolRequest) -> None:
        seen.append(label)

    gate = Gate()
    made = [gate.method, before_tool(gate), before_tool(functools.partial(with_two, "partial"))]

    await MiddlewareChain(made).before_tool(tool_request())

    assert seen == ["method", "object", "partial"]


# --- order ------------------------------------------------------------------------------------------------------------


def labelled(seen: list[str], label: str, is_async: bool) -> list[Callable[..., Any]]:
    """A before, a wrap and an after that note their label."""

    def before(request: Any) -> None:
        seen.append(f"before {label}")

    def wrap(request: Any, call_next: Callable[[Any], Any]) -> Any:
        seen.append(f"in {label}")
        response = call_next(request)
        seen.append(f"out {label}")
        return response

    def after(response: Any) -> None:
        seen.append(f"after {label}")

    async def async_before(request: Any) -> None:
        before(request)

    async def async_wrap(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        seen.append(f"in {label}")
        response = await call_next(request)
        seen.append(f"out {label}")
        return response

    async def async_after(response: Any) -> None:
        after(response)

    three = (async_before, async_wrap, async_after) if is_async else (before, wrap, after)
    return [before_tool(three[0]), wrap_tool_call(three[1]), after_tool(three[2])]


@pytest.mark.parametrize("kinds", list(itertools.product([True, False], repeat=3)))
async def test_first_registered_is_outermost_and_after_runs_in_reverse(kinds: tuple[bool, ...]) -> None:
    seen: list[str] = []
    manager = MiddlewareManager(
        [one for label, kind in zip("abc", kinds, strict=True) for one in labelled(seen, label, kind)]
    )

    async def call(request: ToolRequest) -> ToolResponse:
        seen.append("body")
        return await body(request)

    response = await manager.run_tool(tool_request(q=1), call)

    assert response.result == "found {'q': 1}"
    assert seen == [
        *("before a", "before b", "before c"),
        *("in a", "in b", "in c", "body", "out c", "out b", "out a"),
        *("after c", "after b", "after a"),
    ]


def test_sync_code_gets_the_same_also_inside_a_running_loop() -> None:
    seen: list[str] = []
    manager = MiddlewareManager([*labelled(seen, "a", True), *labelled(seen, "b", False)])

    def call(request: ToolRequest) -> ToolResponse:
        return ToolResponse(request.tool_name, "sync body")

    async def inside() -> ToolResponse:
        return manager.run_tool_sync(tool_request(), call)

    assert manager.run_tool_sync(tool_request(), call).result == "sync body"
    assert asyncio.run(inside()).result == "sync body"
    assert len(seen) == 16


async def test_model_middleware_works_alike() -> None:
    @before_model
    def cooler(request: ModelRequest) -> ModelRequest:
        request.temperature = 0.0
        return request

    @wrap_model_call
    def twice(request: ModelRequest, call_next: Callable[[ModelRequest], ModelResponse]) -> ModelResponse:
        call_next(request)
        return call_next(request)

    @after_model
    async def mask(response: ModelResponse) -> HookResult:
        return HookResult.modify(content=response.content.replace("secret", "[masked]"))

    calls: list[float | None] = []

    async def model(request: ModelRequest) -> ModelResponse:
        calls.append(request.temperature)
        return ModelResponse("a secret", request.model)

    manager = MiddlewareManager([cooler, twice, mask])

    assert (await manager.run_model(ModelRequest([], "m"), model)).content == "a [masked]"
    assert manager.run_model_sync(ModelRequest([], "m"), model).content == "a [masked]"
    assert calls == [0.0] * 4


def test_middleware_comes_and_goes() -> None:
    seen: list[str] = []
    one, two = labelled(seen, "a", False)[:1], labelled(seen, "b", False)[:1]
    manager = MiddlewareManager(one)
    manager.add(*two)
    before = manager.chain
    assert manager.remove(one[0])
    assert not manager.remove(one[0])

    manager.run_tool_sync(tool_request(), lambda request: ToolResponse("t", 1))

    assert seen == ["before b"]
    assert (len(before), len(manager.chain), list(manager.chain)) == (2, 1, two)


# --- what a before and an after may return ----------------------------------------------------------------------------


def saying(said: Any, kind: Callable[[Any], Any] = before_tool) -> MiddlewareChain:
    def function(item: Any) -> Any:
        if isinstance(said, BaseException):
            raise said
        return said(item) if callable(said) else said

    return MiddlewareChain([kind(function)])


async def test_none_the_same_and_another_request_are_taken() -> None:
    request = tool_request(q=1)
    other = tool_request(q=2)

    assert await saying(None).before_tool(request) is request
    assert await saying(request).before_tool(request) is request
    assert await saying(other).before_tool(request) is other


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (HookResult.block("policy"), "policy"),
        (HookResult.deny("policy"), "policy"),
        (HookResult.ask("policy"), "policy"),
        (HookResult.deny(), None),
        (GuardrailBlocked("policy"), "policy"),
        (ExceptionGroup("tasks", [KeyError(1), GuardrailBlocked("policy")]), "policy"),
    ],
)
@pytest.mark.parametrize("kind", ["before_model", "after_model", "before_tool", "after_tool"])
async def test_a_refusal_is_a_decision_with_its_reason(said: Any, reason: str | None, kind: str) -> None:
    decorator = {
        "before_model": before_model,
        "after_model": after_model,
        "before_tool": before_tool,
        "after_tool": after_tool,
    }
    item = {
        "before_model": ModelRequest([], "m"),
        "after_model": ModelResponse("", "m"),
        "before_tool": tool_request(),
        "after_tool": ToolResponse("t", 1),
    }[kind]

    made = refused(await getattr(saying(said, decorator[kind]), kind)(item))

    assert (made.reason, made.hook) == (reason, "function")


@pytest.mark.parametrize(
    "said",
    [
        True,
        False,
        "no",
        {"decision": "deny"},
        5,
        ToolResponse("t", 1),
        object(),
        HookResult("DENY"),
        HookResult("allowed"),
    ],
)
async def test_anything_else_is_a_failure_of_the_middleware(said: Any) -> None:
    with pytest.raises(HookExecutionError) as caught:
        await saying(said).before_tool(tool_request())

    assert (caught.value.point, caught.value.ref) == ("before_tool", "function")
    assert isinstance(caught.value.cause, TypeError | ValueError)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError("user text"),
        KeyError("user text"),
        AssertionError("user text"),
        StopIteration(),
        SystemExit(0),
        ExceptionGroup("user text", [ValueError()]),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_any_exception_is_a_failure_and_never_an_allow(error: BaseException, is_async: bool) -> None:
    @before_tool
    def sync_gate(request: Any) -> None:
        raise error

    @before_tool
    async def async_gate(request: Any) -> None:
        raise error

    with pytest.raises(HookExecutionError) as caught:
        await MiddlewareChain([async_gate if is_async else sync_gate]).before_tool(tool_request())

    assert caught.value.cause is error or isinstance(caught.value.cause, RuntimeError)
    assert "user text" not in str(caught.value)


async def test_changes_of_a_hook_result_are_arguments_at_a_tool_and_fields_elsewhere() -> None:
    request = tool_request(q=1, n=2)

    changed = await saying(HookResult.modify(q=5)).before_tool(request)

    assert isinstance(changed, ToolRequest)
    assert changed.arguments == {"q": 5, "n": 2}
    assert request.arguments == {"q": 1, "n": 2}
    response = await saying(HookResult("allow", modified_input={"result": 9}), after_tool).after_tool(
        ToolResponse("t", 1)
    )
    assert isinstance(response, ToolResponse)
    assert response.result == 9
    with pytest.raises(HookExecutionError) as caught:
        await saying(HookResult.modify(nonsense=1), after_tool).after_tool(ToolResponse("t", 1))
    assert "no field 'nonsense' to change; it has error, extra, result, tool_name" in str(caught.value.cause)


async def test_additional_context_is_kept_for_the_step() -> None:
    made = await saying(HookResult("allow", additional_context="mind the gap"), after_tool).after_tool(
        ToolResponse("t", 1)
    )

    assert isinstance(made, ToolResponse)
    assert made.extra == {"additional_context": ["mind the gap"]}


async def test_a_refusal_ends_the_chain() -> None:
    seen: list[str] = []
    made = MiddlewareChain([before_tool(lambda request: HookResult.deny("policy")), *labelled(seen, "b", False)])

    assert refused(await made.before_tool(tool_request())).reason == "policy"
    assert seen == []


# --- wrap -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_answer_of_its_own_still_passes_the_after_middleware(is_async: bool) -> None:
    @wrap_tool_call
    def cached(request: ToolRequest, call_next: Any) -> ToolResponse:
        return ToolResponse(request.tool_name, "cached")

    @wrap_tool_call
    async def async_cached(request: ToolRequest, call_next: Any) -> ToolResponse:
        return ToolResponse(request.tool_name, "cached")

    @after_tool
    def mark(response: ToolResponse) -> ToolResponse:
        return ToolResponse(response.tool_name, f"{response.result}, after")

    async def never(request: ToolRequest) -> ToolResponse:
        raise AssertionError("the body ran")

    manager = MiddlewareManager([async_cached if is_async else cached, mark])

    assert (await manager.run_tool(tool_request(), never)).result == "cached, after"


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "said", [None, True, "text", {"result": 1}, tool_request(), HookResult.allow(), HookResult("NO")]
)
async def test_a_wrap_that_returns_no_response_has_failed(said: Any, is_async: bool) -> None:
    @wrap_tool_call
    def sync_wrap(request: Any, call_next: Any) -> Any:
        return said

    @wrap_tool_call
    async def async_wrap(request: Any, call_next: Any) -> Any:
        return said

    with pytest.raises(HookExecutionError, match=r"wrap' failed at wrap_tool_call: TypeError"):
        await MiddlewareChain([async_wrap if is_async else sync_wrap]).wrap_tool(tool_request(), body)


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_the_call_inside_raises_comes_through_as_it_is(is_async: bool) -> None:
    error = KeyError("from the body")

    async def fails(request: ToolRequest) -> ToolResponse:
        raise error

    seen: list[str] = []
    with pytest.raises(KeyError) as caught:
        await MiddlewareChain(labelled(seen, "a", is_async) + labelled(seen, "b", not is_async)).wrap_tool(
            tool_request(), fails
        )

    assert caught.value is error
    assert seen == ["in a", "in b"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_wrap_may_try_again_and_may_fail_by_itself(is_async: bool) -> None:
    calls: list[int] = []

    async def fails_once(request: ToolRequest) -> ToolResponse:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("once")
        return await body(request)

    @wrap_tool_call
    def retry(request: ToolRequest, call_next: Any) -> Any:
        try:
            return call_next(request)
        except ConnectionError:
            return call_next(request)

    @wrap_tool_call
    async def async_retry(request: ToolRequest, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ConnectionError:
            return await call_next(request)

    @wrap_tool_call
    async def turns_it_into_another(request: ToolRequest, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ConnectionError:
            raise ValueError("its own") from None

    made = await MiddlewareChain([async_retry if is_async else retry]).wrap_tool(tool_request(), fails_once)
    assert isinstance(made, ToolResponse)
    calls.clear()
    with pytest.raises(HookExecutionError, match="ValueError"):
        await MiddlewareChain([turns_it_into_another]).wrap_tool(tool_request(), fails_once)


@pytest.mark.parametrize("is_async", [True, False])
async def test_call_next_takes_a_request_and_nothing_else(is_async: bool) -> None:
    @wrap_tool_call
    def wrong(request: ToolRequest, call_next: Any) -> Any:
        return call_next({"q": 1})

    @wrap_tool_call
    async def async_wrong(request: ToolRequest, call_next: Any) -> Any:
        return await call_next({"q": 1})

    with pytest.raises(HookExecutionError) as caught:
        await MiddlewareChain([async_wrong if is_async else wrong]).wrap_tool(tool_request(), body)

    assert str(caught.value.cause) == "call_next takes the ToolRequest, not a dict"


@pytest.mark.parametrize("outer_is_async", [True, False])
@pytest.mark.parametrize("refuses", ["result", "raise", "fail", "gate"])
async def test_a_refusal_or_a_broken_hook_inside_stands_whatever_a_wrap_further_out_does(
    outer_is_async: bool, refuses: str
) -> None:
    @wrap_tool_call
    def swallow(request: ToolRequest, call_next: Any) -> Any:
        try:
            return call_next(request)
        except Exception:  # noqa: BLE001 - as careless as people are
            return ToolResponse("t", "let through")

    @wrap_tool_call
    async def async_swallow(request: ToolRequest, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except Exception:  # noqa: BLE001 - as careless as people are
            return ToolResponse("t", "let through")

    @wrap_tool_call
    async def inner(request: ToolRequest, call_next: Any) -> Any:
        if refuses == "result":
            return HookResult.deny("policy")
        if refuses == "raise":
            raise GuardrailBlocked("policy")
        if refuses == "fail":
            raise KeyError("x")
        return await call_next(request)

    async def gated(request: ToolRequest) -> ToolResponse:
        raise RunBlocked("before_llm", "gate", "policy")

    made = MiddlewareChain([async_swallow if outer_is_async else swallow, inner])
    if refuses in ("result", "raise"):
        answer = refused(await made.wrap_tool(tool_request(), body))
        assert (answer.reason, answer.hook) == ("policy", "inner")
    else:
        with pytest.raises(HookExecutionError if refuses == "fail" else RunBlocked):
            await made.wrap_tool(tool_request(), gated)


async def test_each_call_next_may_have_another_request() -> None:
    @wrap_tool_call
    def both(request: ToolRequest, call_next: Any) -> ToolResponse:
        return ToolResponse("t", [call_next(tool_request(q=number)).result for number in (1, 2)])

    made = await MiddlewareChain([both]).wrap_tool(tool_request(), body)

    assert isinstance(made, ToolResponse)
    assert made.result == ["found {'q': 1}", "found {'q': 2}"]


async def test_concurrent_call_next_of_one_async_wrap_are_independent() -> None:
    @wrap_tool_call
    async def both(request: ToolRequest, call_next: Any) -> ToolResponse:
        made = await asyncio.gather(*(call_next(tool_request(q=number)) for number in range(5)))
        return ToolResponse("t", [one.result for one in made])

    made = await MiddlewareChain([both, *labelled([], "x", False)]).wrap_tool(tool_request(), body)

    assert isinstance(made, ToolResponse)
    assert made.result == [f"found {{'q': {number}}}" for number in range(5)]


# --- async in every guise is awaited ----------------------------------------------------------------------------------


async def test_whatever_is_async_is_awaited() -> None:
    async def refuse(request: ToolRequest) -> HookResult:
        await asyncio.sleep(0)
        return HookResult.deny("policy")

    class Gate:
        async def __call__(self, request: ToolRequest) -> HookResult:
            return await refuse(request)

    async def two(label: str, request: ToolRequest) -> HookResult:
        return await refuse(request)

    for function in (
        refuse,
        Gate(),
        functools.partial(two, "x"),
        lambda request: refuse(request),
        functools.partial(lambda label, request: refuse(request), "x"),
    ):
        made = MiddlewareChain([before_tool(function)])
        assert refused(await made.before_tool(tool_request())).reason == "policy"
    gc.collect()


async def test_a_sync_wrap_that_returns_a_coroutine_or_a_coroutine_of_call_next() -> None:
    async def really(request: ToolRequest, call_next: Any) -> ToolResponse:
        response = await call_next(request)
        return ToolResponse("t", f"wrapped {response.result}")

    @wrap_tool_call
    async def forgets_to_await(request: ToolRequest, call_next: Any) -> Any:
        return call_next(request)

    made = await MiddlewareChain([wrap_tool_call(lambda request, call_next: really(request, call_next))]).wrap_tool(
        tool_request(), body
    )
    assert isinstance(made, ToolResponse)
    assert made.result == "wrapped found {}"
    made = await MiddlewareChain([forgets_to_await]).wrap_tool(tool_request(), body)
    assert isinstance(made, ToolResponse)
    assert made.result == "found {}"


# --- threads, variables, limits, cancellation -------------------------------------------------------------------------


async def test_sync_middleware_never_blocks_the_loop_and_the_call_inside_stays_on_it() -> None:
    home = threading.get_ident()
    where: dict[str, int] = {}
    entered, release = threading.Event(), threading.Event()

    @wrap_tool_call
    def wrap(request: ToolRequest, call_next: Any) -> Any:
        where["wrap"] = threading.get_ident()
        entered.set()
        release.wait(20)
        return call_next(request)

    async def call(request: ToolRequest) -> ToolResponse:
        where["body"] = threading.get_ident()
        return await body(request)

    task = asyncio.create_task(MiddlewareChain([wrap]).wrap_tool(tool_request(), call))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    release.set()
    await task

    assert where["body"] == home
    assert where["wrap"] != home


async def test_the_call_inside_sees_the_variables_of_the_wrap_around_it() -> None:
    @wrap_tool_call
    def sync_wrap(request: ToolRequest, call_next: Any) -> Any:
        VARIABLE.set(VARIABLE.get() + " sync")
        return call_next(request)

    @wrap_tool_call
    async def async_wrap(request: ToolRequest, call_next: Any) -> Any:
        VARIABLE.set(VARIABLE.get() + " async")
        return await call_next(request)

    async def call(request: ToolRequest) -> ToolResponse:
        return ToolResponse("t", VARIABLE.get())

    VARIABLE.set("caller")
    made = await MiddlewareChain([async_wrap, sync_wrap, async_wrap]).wrap_tool(tool_request(), call)

    assert isinstance(made, ToolResponse)
    assert made.result == "caller async sync async"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_before_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    monkeypatch.setattr(chain, "LIMIT", 0.05)
    release = threading.Event()

    @before_tool
    def slow(request: Any) -> None:
        release.wait(60)

    @before_tool
    async def async_slow(request: Any) -> None:
        await asyncio.sleep(60)

    started = time.monotonic()
    with pytest.raises(HookExecutionError) as caught:
        await MiddlewareChain([async_slow if is_async else slow]).before_tool(tool_request())
    release.set()

    assert isinstance(caught.value.cause, TimeoutError)
    assert time.monotonic() - started < 50


async def test_cancellation_in_the_call_inside_passes_through_and_frees_the_thread() -> None:
    began = asyncio.Event()
    ended = threading.Event()

    @wrap_tool_call
    def wrap(request: ToolRequest, call_next: Any) -> Any:
        try:
            return call_next(request)
        finally:
            ended.set()

    async def hangs(request: ToolRequest) -> ToolResponse:
        began.set()
        await asyncio.sleep(60)
        raise AssertionError

    before = asyncio.all_tasks()
    task = asyncio.create_task(MiddlewareChain([wrap, *labelled([], "x", False)]).wrap_tool(tool_request(), hangs))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    while not ended.is_set():
        await asyncio.sleep(0.001)
    assert asyncio.all_tasks() == before


async def test_cancellation_while_a_sync_wrap_is_busy_does_not_wait_for_it_and_answers_it_no_more() -> None:
    entered, release, told = threading.Event(), threading.Event(), threading.Event()

    @wrap_tool_call
    def busy(request: ToolRequest, call_next: Any) -> Any:
        entered.set()
        release.wait(20)
        try:
            call_next(request)
        except BaseException:
            told.set()
            raise

    ran: list[int] = []

    async def call(request: ToolRequest) -> ToolResponse:
        ran.append(1)
        return await body(request)

    task = asyncio.create_task(MiddlewareChain([busy]).wrap_tool(tool_request(), call))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    while not told.is_set():
        await asyncio.sleep(0.001)

    assert ran == []


async def test_a_wrap_that_hands_call_next_to_threads_of_its_own() -> None:
    @wrap_tool_call
    def parallel(request: ToolRequest, call_next: Any) -> ToolResponse:
        found: list[Any] = [None] * 4

        def work(number: int) -> None:
            found[number] = call_next(tool_request(q=number)).result

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ToolResponse("t", found)

    made = await MiddlewareChain([parallel]).wrap_tool(tool_request(), body)

    assert isinstance(made, ToolResponse)
    assert made.result == [f"found {{'q': {number}}}" for number in range(4)]


# --- observers --------------------------------------------------------------------------------------------------------


def watching(seen: list[Any], breaks: bool = False) -> list[Callable[..., Any]]:
    """One observer of each kind, sync and async, that edits what it gets and says no."""

    @before_tool(observe=True)
    def before(request: Any) -> HookResult:
        seen.append(dict(request.arguments))
        request.arguments["q"] = "edited"
        if breaks:
            raise KeyError("user text")
        return HookResult.deny("ignored")

    @wrap_tool_call(observe=True)
    async def wrap(request: Any, call_next: Any) -> Any:
        request.arguments["q"] = "edited"
        if breaks:
            raise KeyError("user text")
        response = await call_next(request)
        seen.append(response.result)
        response.result = "edited"
        return None

    @wrap_tool_call(observe=True)
    def sync_wrap(request: Any, call_next: Any) -> Any:
        seen.append(call_next(ToolRequest("another", {})).result)
        seen.append(call_next(request).result)
        return ToolResponse("t", "edited")

    @wrap_tool_call(observe=True)
    def never_calls(request: Any, call_next: Any) -> Any:
        return ToolResponse("t", "edited")

    @after_tool(observe=True)
    async def after(response: Any) -> Any:
        seen.append(response.result)
        if breaks:
            raise GuardrailBlocked("ignored")
        return ToolResponse("t", "edited")

    return [before, wrap, sync_wrap, never_calls, after]


@pytest.mark.parametrize("breaks", [False, True])
async def test_an_observer_sees_everything_and_changes_nothing(breaks: bool, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    bodies: list[str] = []

    async def call(request: ToolRequest) -> ToolResponse:
        bodies.append(request.arguments["q"])
        return await body(request)

    response = await MiddlewareManager(watching(seen, breaks)).run_tool(tool_request(q="x"), call)

    found = "found {'q': 'x'}"
    assert response.result == found
    assert bodies == ["x"]
    assert seen == [{"q": "x"}, *([found] * (3 if breaks else 4))]
    assert ("Observing before_tool middleware before failed: KeyError" in caplog.text) == breaks
    assert "user text" not in caplog.text


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_observer_around_a_call_that_fails_sees_it_fail_once(is_async: bool) -> None:
    calls: list[int] = []

    async def fails(request: ToolRequest) -> ToolResponse:
        calls.append(1)
        raise ConnectionError("x")

    @wrap_tool_call(observe=True)
    def swallows(request: Any, call_next: Any) -> Any:
        for _ in range(3):
            with contextlib.suppress(ConnectionError):
                call_next(request)

    @wrap_tool_call(observe=True)
    async def async_swallows(request: Any, call_next: Any) -> Any:
        await asyncio.gather(*(call_next(request) for _ in range(3)), return_exceptions=True)

    with pytest.raises(ConnectionError):
        await MiddlewareChain([async_swallows if is_async else swallows]).wrap_tool(tool_request(), fails)
    assert calls == [1]


def test_only_middleware_that_counts_holds_streamed_text_back() -> None:
    def after(response: Any) -> None: ...

    def wrap(request: Any, call_next: Any) -> Any: ...

    assert not MiddlewareChain([after_model(observe=True)(after), wrap_model_call(observe=True)(wrap)]).holds_text
    assert MiddlewareChain([after_model(observe=False)(after)]).holds_text
    assert MiddlewareChain([wrap_model_call(wrap)]).holds_text
    assert not MiddlewareChain([before_model(lambda request: None)]).holds_text
    with pytest.raises(TypeError, match="observe is True or False"):
        after_model(observe="yes")(after)  # type: ignore[call-overload]  # on purpose


def test_an_empty_chain_has_nothing_to_do() -> None:
    empty = MiddlewareChain()

    assert len(empty) == 0
    assert not any(getattr(empty, name) for name in dir(empty) if name.startswith("has_"))
    full = MiddlewareChain(
        [
            *labelled([], "a", True),
            before_model(lambda r: r),
            after_model(lambda r: r),
            wrap_model_call(lambda r, n: n(r)),
        ]
    )
    assert all(getattr(full, name) for name in dir(full) if name.startswith("has_"))


async def test_a_manager_raises_a_refusal() -> None:
    manager = MiddlewareManager([before_tool(lambda request: HookResult.deny("policy"))])

    with pytest.raises(GuardrailBlocked, match="policy"):
        await manager.run_tool(tool_request(), body)


async def test_a_before_that_does_not_listen_to_cancellation_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "LIMIT", 0.05)
    ended = False

    @before_tool
    async def stubborn(request: Any) -> None:
        while not ended:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    try:
        with pytest.raises(HookExecutionError) as caught:
            await asyncio.wait_for(MiddlewareChain([stubborn]).before_tool(tool_request()), 30)
    finally:
        ended = True

    assert isinstance(caught.value.cause, TimeoutError)


@pytest.mark.parametrize("error", [GeneratorExit(), SystemExit(0), asyncio.CancelledError(), BaseException()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_before_raises_it_has_failed(error: BaseException, is_async: bool) -> None:
    @before_tool
    def in_thread(request: Any) -> None:
        raise error

    @before_tool
    async def on_loop(request: Any) -> None:
        raise error

    with pytest.raises(HookExecutionError) as caught:
        await MiddlewareChain([on_loop if is_async else in_thread]).before_tool(tool_request())

    assert caught.value.cause is error


# --- what a wrap_* cancels itself ------------------------------------------------------------------------------------


async def _asyncio_timeout(call: Coroutine[Any, Any, ToolResponse]) -> ToolResponse:
    try:
        async with asyncio.timeout(0.01):
            return await call
    except TimeoutError:
        return ToolResponse("t", "too late")


async def _wait_for(call: Coroutine[Any, Any, ToolResponse]) -> ToolResponse:
    try:
        return await asyncio.wait_for(call, 0.01)
    except TimeoutError:
        return ToolResponse("t", "too late")


async def _anyio_scope(call: Coroutine[Any, Any, ToolResponse]) -> ToolResponse:
    with anyio.move_on_after(0.01):
        return await call
    return ToolResponse("t", "too late")


async def _a_task_of_its_own(call: Coroutine[Any, Any, ToolResponse]) -> ToolResponse:
    task = asyncio.create_task(call)
    await asyncio.wait({task}, timeout=0.01)
    task.cancel()
    await asyncio.wait({task})
    return ToolResponse("t", "too late")


LIMITED = pytest.mark.parametrize("limited", [_asyncio_timeout, _wait_for, _anyio_scope, _a_task_of_its_own])


@LIMITED
async def test_a_wrap_may_limit_the_call_inside_and_answer_by_itself(limited: Any) -> None:
    ended: list[str] = []

    @wrap_tool_call
    async def within_limits(request: ToolRequest, call_next: Any) -> Any:
        return await limited(call_next(request))

    @wrap_tool_call
    async def inside(request: ToolRequest, call_next: Any) -> Any:
        try:
            return await call_next(request)
        finally:
            ended.append("inside")

    async def hangs(request: ToolRequest) -> ToolResponse:
        await asyncio.sleep(60)
        raise AssertionError

    made = await MiddlewareChain([within_limits, inside]).wrap_tool(tool_request(), hangs)
    assert made == ToolResponse("t", "too late")
    assert ended == ["inside"]
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


@LIMITED
async def test_a_wrap_may_try_again_after_its_limit(limited: Any) -> None:
    tries: list[int] = []

    @wrap_tool_call
    async def once_more(request: ToolRequest, call_next: Any) -> Any:
        response = await limited(call_next(request))
        return await call_next(request) if response.result == "too late" else response

    async def quick_the_second_time(request: ToolRequest) -> ToolResponse:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.sleep(60)
        return ToolResponse("t", "done")

    made = await MiddlewareChain([once_more]).wrap_tool(tool_request(), quick_the_second_time)
    assert (made, len(tries)) == (ToolResponse("t", "done"), 2)


async def test_a_wrap_that_swallows_the_end_of_the_run_has_not_answered_and_nothing_is_run_for_it() -> None:
    began, tries = asyncio.Event(), list[int]()

    @wrap_tool_call
    async def swallows(request: ToolRequest, call_next: Any) -> Any:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                return await call_next(request)
        return ToolResponse("t", "all is well")

    async def hangs(request: ToolRequest) -> ToolResponse:
        tries.append(1)
        began.set()
        await asyncio.sleep(60)
        raise AssertionError

    task = asyncio.create_task(MiddlewareChain([swallows]).wrap_tool(tool_request(), hangs))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tries == [1]


async def test_a_wrap_that_refuses_in_a_task_group_has_refused() -> None:
    @wrap_tool_call
    async def careful(request: ToolRequest, call_next: Any) -> Any:
        async def look() -> None:
            raise GuardrailBlocked("not today")

        async with asyncio.TaskGroup() as group:
            group.create_task(look())
        return await call_next(request)

    refused = await MiddlewareChain([careful]).wrap_tool(tool_request(), body)
    assert refused == Refused("not today", "careful")


async def _a_group_that_fails(call: Coroutine[Any, Any, ToolResponse]) -> ToolResponse:
    async with asyncio.TaskGroup() as group:
        group.create_task(call)
        await asyncio.sleep(0.01)
        raise KeyError


async def _the_background(call: Coroutine[Any, Any, ToolResponse]) -> ToolResponse:
    _the_background.task = asyncio.create_task(call)  # type: ignore[attr-defined]  # kept, so that it may run
    return ToolResponse("t", "not awaited")


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "way", [_asyncio_timeout, _wait_for, _anyio_scope, _a_task_of_its_own, _a_group_that_fails, _the_background]
)
async def test_an_observer_neither_ends_nor_repeats_the_call_it_watches(way: Any, is_async: bool) -> None:
    made: list[str] = []

    @wrap_tool_call(observe=True)
    async def watches(request: ToolRequest, call_next: Any) -> Any:
        await way(call_next(request))

    @wrap_tool_call(observe=True)
    def sync_watches(request: ToolRequest, call_next: Any) -> Any:
        call_next(request)
        raise KeyError

    async def call(request: ToolRequest) -> ToolResponse:
        made.append("begun")
        await asyncio.sleep(0.05)
        made.append("done")
        return ToolResponse("t", "found")

    chained = MiddlewareChain([watches if is_async else sync_watches])
    assert await chained.wrap_tool(tool_request(), call) == ToolResponse("t", "found")
    assert made == ["begun", "done"]


@pytest.mark.parametrize("hangs_before", [True, False])
async def test_an_observer_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch, hangs_before: bool) -> None:
    monkeypatch.setattr(wrapping, "OBSERVER_LIMIT", 0.02)
    ended: list[str] = []

    @wrap_tool_call(observe=True)
    async def hangs(request: ToolRequest, call_next: Any) -> None:
        try:
            if not hangs_before:
                await call_next(request)
            await asyncio.sleep(60)
        finally:
            ended.append("observer")

    assert await MiddlewareChain([hangs]).wrap_tool(tool_request(q=1), body) == await body(tool_request(q=1))
    assert ended == ["observer"]


@pytest.mark.parametrize("in_the_background", [True, False])
async def test_a_cancelled_run_takes_its_observers_along(in_the_background: bool) -> None:
    began, ended = asyncio.Event(), list[str]()
    tasks: list[asyncio.Task[Any]] = []

    async def call_on(call: Coroutine[Any, Any, ToolResponse]) -> None:
        try:
            await call
        finally:
            ended.append("observer")

    @wrap_tool_call(observe=True)
    async def watches(request: ToolRequest, call_next: Any) -> None:
        if in_the_background:
            tasks.append(asyncio.create_task(call_on(call_next(request))))
        else:
            await call_on(call_next(request))

    async def hangs(request: ToolRequest) -> ToolResponse:
        began.set()
        await asyncio.sleep(60)
        raise AssertionError

    before = asyncio.all_tasks()
    task = asyncio.create_task(MiddlewareChain([watches]).wrap_tool(tool_request(), hangs))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if tasks:
        await asyncio.wait(tasks, timeout=20)
    assert (ended, asyncio.all_tasks()) == (["observer"], before)
