"""wrap_*: calls inside calls. A wrapper's failure is told from what comes through it; what is refused inside stands."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.calls import ModelRequest, ModelResponse, Refused, ToolRequest, ToolResponse
from agent_engine.hooks.errors import (
    GuardrailBlocked,
    HookError,
    HookExecutionError,
    RunBlocked,
    ends_the_run,
    guardrail_in,
)
from agent_engine.hooks.layer import Layer, copy_of, log_failure
from agent_engine.hooks.limits import Escaped, ended
from agent_engine.hooks.result import STRICTNESS, HookResult
from agent_engine.hooks.workers import run_in_worker

OBSERVER_LIMIT: Final = 60.0
"""Seconds for a wrap_* that only watches to call on, and again to end once the call is made."""

Request = TypeVar("Request", ModelRequest, ToolRequest)
Response = TypeVar("Response", ModelResponse, ToolResponse)


async def around(
    layers: Sequence[Layer],
    request: Request,
    call_next: Callable[[Request], Awaitable[Response]],
    answers: type[Response],
) -> Response | Refused:
    """One wrap_* chain. A refusal, a broken hook or an end of the run inside stands, whatever a wrapper further out
    makes of it; and nothing is run for it any more. What a wrapper cancels itself, as a time limit of its own does, is
    its own business."""
    home = asyncio.current_task()
    noted: list[tuple[BaseException, Layer | None]] = []

    def stands() -> tuple[BaseException, Layer | None] | None:
        """What was noted first, of what stands. Whose a cancellation was shows only once its wrapper has ended."""
        cancelled = home is not None and home.cancelling() > 0
        return next((one for one in noted if cancelled or not isinstance(one[0], asyncio.CancelledError)), None)

    async def enter(depth: int, sent: Request) -> Response:
        first = stands()
        if first is not None:
            raise first[0]
        layer = layers[depth] if depth < len(layers) else None
        try:
            if layer is None:
                return await call_next(sent)
            wrapped = _observer if layer.observe else _wrapper
            return await wrapped(layer, sent, lambda passed: enter(depth + 1, passed), answers)
        except BaseException as problem:
            if _stands(problem):
                noted.append((problem, layer))
            raise

    try:
        response = await enter(0, request)
        first = stands()
        if first is None:
            return response
    except Exception:
        first = stands()
        if first is None:
            raise
    problem, layer = first
    if isinstance(problem, GuardrailBlocked) and layer is not None:
        return Refused(problem.reason, layer.name)
    raise problem


def _stands(problem: BaseException) -> bool:
    """Whether what was raised inside is no mere failure, which a wrapper may answer in its place."""
    refused = isinstance(problem, (GuardrailBlocked, HookError, RunBlocked))
    return refused or not isinstance(problem, Exception) or ends_the_run(problem)


async def _wrapper(
    layer: Layer, request: Request, inner: Callable[[Request], Awaitable[Response]], answers: type[Response]
) -> Response:
    """One wrap_*: its own failure is told apart from what comes through it from inside."""
    from_inside: list[BaseException] = []

    async def passed_on(sent: Request) -> Response:
        if not isinstance(sent, type(request)):
            raise TypeError(f"call_next takes the {type(request).__name__}, not a {type(sent).__name__}")
        try:
            return await inner(sent)
        except BaseException as problem:
            from_inside.append(problem)
            raise

    try:
        said = await (_on_loop(layer, request, passed_on) if layer.is_async else _in_worker(layer, request, passed_on))
        if isinstance(said, answers):
            return said
        if isinstance(said, HookResult) and said.decision in STRICTNESS and said.is_denied():
            raise GuardrailBlocked(said.reason or "Denied by hook")
        raise TypeError(f"{layer.name} returned a {type(said).__name__}; it must return a {answers.__name__}")
    except Exception as error:  # noqa: BLE001 - raised below, as what it is
        problem = error.by if isinstance(error, Escaped) else error
    if any(problem is one for one in from_inside):
        raise problem
    refusal = guardrail_in(problem)
    if refusal is not None:
        raise refusal from None
    raise HookExecutionError(layer.kind, layer.name, problem) from problem


async def _observer(
    layer: Layer, request: Request, inner: Callable[[Request], Awaitable[Response]], answers: type[Response]
) -> Response:
    """A wrap_* that only watches. The call inside is made once, right here and with the request as it came; the
    observer waits for it in a task of its own, which it may leave or end as it likes."""
    loop = asyncio.get_running_loop()
    called: asyncio.Future[None] = loop.create_future()
    outcome: asyncio.Future[Response] = loop.create_future()

    async def passed_on(sent: Request) -> Response:
        if not called.done():
            called.set_result(None)
        return copy_of(await asyncio.shield(outcome))

    async def watch(sent: Request) -> None:
        try:
            await (_on_loop(layer, sent, passed_on) if layer.is_async else _in_worker(layer, sent, passed_on))
        except Exception as error:  # noqa: BLE001 - an observer's failure is nobody else's
            problem = error.by if isinstance(error, Escaped) else error
            if not (outcome.done() and problem is _failure_of(outcome)):
                log_failure(layer, problem)

    watcher = loop.create_task(watch(copy_of(request)))
    try:
        await asyncio.wait({watcher, called}, timeout=OBSERVER_LIMIT, return_when=asyncio.FIRST_COMPLETED)
        try:
            outcome.set_result(await inner(request))
        except Exception as problem:  # noqa: BLE001 - raised below, once the observer has seen it
            outcome.set_exception(problem)
        await asyncio.wait({watcher}, timeout=OBSERVER_LIMIT)
        if not watcher.done():
            log_failure(layer, TimeoutError())
        return outcome.result()
    finally:
        outcome.cancel()
        if not watcher.done():
            watcher.cancel()
            await asyncio.wait({watcher})


def _failure_of(outcome: asyncio.Future[Any]) -> BaseException | None:
    return None if outcome.cancelled() else outcome.exception()


async def _on_loop(layer: Layer, request: Any, passed_on: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    return await _settled(layer.function(request, passed_on))


async def _settled(said: Any) -> Any:
    while inspect.isawaitable(said):
        said = await ended(said, around=True)
    return said


async def _in_worker(layer: Layer, request: Any, passed_on: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """A sync wrapper runs in a worker thread; its ``call_next`` waits there while the inner call runs here, in this
    very task.
    """
    bridge = _Bridge(passed_on)

    def work() -> Any:
        try:
            return layer.function(request, bridge.call_next)
        except Exception:
            raise
        except BaseException as problem:
            raise Escaped(problem) from problem  # as it is, it would end the loop and not this call

    worker = asyncio.ensure_future(run_in_worker(work, limit=None))
    worker.add_done_callback(bridge.wake)
    try:
        while not worker.done():
            await bridge.serve_one()
        said = worker.result()
    finally:
        bridge.close()
        if not worker.done():
            worker.cancel()
            await asyncio.wait({worker})
    return await _settled(said)


@dataclass(slots=True)
class _Ask:
    """One ``call_next`` of a thread that waits for its answer."""

    sent: Any
    context: contextvars.Context
    answer: concurrent.futures.Future[Any]


class _Bridge:
    """Between a wrapper in a worker thread and the loop on which the call inside it is made."""

    def __init__(self, passed_on: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        self._passed_on = passed_on
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._asks: deque[_Ask] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def call_next(self, sent: Any) -> Any:
        """What the wrapper is given: it waits in a thread; on the loop itself it is a coroutine."""
        if threading.get_ident() == self._home:
            return self._passed_on(sent)
        ask = _Ask(sent, contextvars.copy_context(), concurrent.futures.Future())
        self._loop.call_soon_threadsafe(self._take, ask)
        return ask.answer.result()

    async def serve_one(self) -> None:
        """Make one call that was asked for, or wait until there is one or the wrapper has ended."""
        if self._asks:
            await _answer(self._asks.popleft(), self._passed_on)
        else:
            self._waiter = self._loop.create_future()
            await self._waiter

    def wake(self, worker: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Whoever still asks is told that nobody answers any more."""
        self._closed = True
        while self._asks:
            self._asks.popleft().answer.set_exception(asyncio.CancelledError())

    def _take(self, ask: _Ask) -> None:
        if self._closed:
            ask.answer.set_exception(asyncio.CancelledError())
        else:
            self._asks.append(ask)
            self.wake()


async def _answer(ask: _Ask, passed_on: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
    try:
        response = await in_context(ask.context, passed_on(ask.sent))
    except BaseException as problem:
        ask.answer.set_exception(problem)
        if not isinstance(problem, Exception):
            raise
    else:
        ask.answer.set_result(response)
