"""MiddlewareChain: the middleware of one agent in its order, and how each kind is driven."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeVar

from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.calls import ModelRequest, ModelResponse, Refused, ToolRequest, ToolResponse
from agent_engine.hooks.definition import callable_name, cannot_be_called, is_async_callable
from agent_engine.hooks.errors import GuardrailBlocked, HookError, HookExecutionError, RunBlocked
from agent_engine.hooks.payloads import private_copy
from agent_engine.hooks.result import STRICTNESS, HookResult
from agent_engine.hooks.workers import run_in_worker

KINDS: Final = ("before_model", "after_model", "wrap_model_call", "before_tool", "after_tool", "wrap_tool_call")
LIMIT: Final = 60.0
"""Seconds for one before_* or after_*. A wrap_* has no limit of its own: it lasts as long as the call it is around."""

MARK: Final = "__agent_engine_middleware__"
"""The attribute by which a decorator says what a function is: its kind, and whether it only observes."""

logger = logging.getLogger("agent_engine.hooks")

_Request = TypeVar("_Request", ModelRequest, ToolRequest)
_Response = TypeVar("_Response", ModelResponse, ToolResponse)
_Item = TypeVar("_Item", ModelRequest, ToolRequest, ModelResponse, ToolResponse)
_Any = TypeVar("_Any", ModelRequest, ToolRequest, ModelResponse, ToolResponse)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One middleware of a chain."""

    function: Callable[..., Any]
    kind: str
    name: str
    is_async: bool
    observe: bool


class MiddlewareChain:
    """The middleware of one agent, ready to run; the first one given is the outermost.

    The ``has_*`` flags say whether a step has any, so that a chain without one costs nothing. Each driving method
    returns the changed request or response, or Refused.

    Raises:
        TypeError: something given has none of the six decorators.
    """

    def __init__(self, middleware: Iterable[Callable[..., Any]] = ()) -> None:
        self._given: list[Callable[..., Any]] = []
        self._layers: dict[str, tuple[_Layer, ...]] = dict.fromkeys(KINDS, ())
        for function in middleware:
            self.add(function)

    def add(self, function: Callable[..., Any]) -> None:
        """Put one more inside all that are there."""
        layer = _layer(function)
        self._given.append(function)
        self._layers[layer.kind] = (*self._layers[layer.kind], layer)

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self._given)

    @property
    def holds_text(self) -> bool:
        """Whether a model's text may leave only after this chain has seen it: not where it only observes."""
        layers = (*self._layers["after_model"], *self._layers["wrap_model_call"])
        return any(not layer.observe for layer in layers)

    @property
    def has_before_model(self) -> bool:
        return bool(self._layers["before_model"])

    @property
    def has_wrap_model(self) -> bool:
        return bool(self._layers["wrap_model_call"])

    @property
    def has_after_model(self) -> bool:
        return bool(self._layers["after_model"])

    @property
    def has_before_tool(self) -> bool:
        return bool(self._layers["before_tool"])

    @property
    def has_wrap_tool(self) -> bool:
        return bool(self._layers["wrap_tool_call"])

    @property
    def has_after_tool(self) -> bool:
        return bool(self._layers["after_tool"])

    async def before_model(self, request: ModelRequest) -> ModelRequest | Refused:
        """The request after every before_model.

        Raises:
            HookExecutionError: one of them raised, took too long, or returned something else than is allowed.
        """
        return await _through(self._layers["before_model"], request)

    async def wrap_model(
        self, request: ModelRequest, call_next: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse | Refused:
        """The response of ``call_next`` inside every wrap_model_call. What ``call_next`` raises comes through as it is.

        Raises:
            HookExecutionError: one of them broke by itself.
        """
        return await _around(self._layers["wrap_model_call"], request, call_next, ModelResponse)

    async def after_model(self, response: ModelResponse) -> ModelResponse | Refused:
        """The response after every after_model, last one first.

        Raises:
            HookExecutionError: see before_model.
        """
        return await _through(self._layers["after_model"][::-1], response)

    async def before_tool(self, request: ToolRequest) -> ToolRequest | Refused:
        """The request after every before_tool.

        Raises:
            HookExecutionError: see before_model.
        """
        return await _through(self._layers["before_tool"], request)

    async def wrap_tool(
        self, request: ToolRequest, call_next: Callable[[ToolRequest], Awaitable[ToolResponse]]
    ) -> ToolResponse | Refused:
        """The response of ``call_next`` inside every wrap_tool_call. What ``call_next`` raises comes through as it is.

        Raises:
            HookExecutionError: one of them broke by itself.
        """
        return await _around(self._layers["wrap_tool_call"], request, call_next, ToolResponse)

    async def after_tool(self, response: ToolResponse) -> ToolResponse | Refused:
        """The response after every after_tool, last one first.

        Raises:
            HookExecutionError: see before_model.
        """
        return await _through(self._layers["after_tool"][::-1], response)


def _layer(function: Callable[..., Any]) -> _Layer:
    kind, observe = getattr(function, MARK, (None, False))
    name = callable_name(function) if callable(function) else repr(function)[:80]
    if kind not in KINDS:
        raise TypeError(f"{name} is no middleware: decorate it with one of {', '.join(KINDS)}")
    problem = cannot_be_called(partial(function, None) if kind.startswith("wrap_") else function)
    if problem:
        arguments = "(request, call_next)" if kind.startswith("wrap_") else "one argument"
        raise TypeError(f"{kind} middleware {name} is called with {arguments}: {problem}")
    return _Layer(function, kind, name, is_async_callable(function), observe)


async def _through(layers: Sequence[_Layer], item: _Item) -> _Item | Refused:
    """One before_* or after_* chain."""
    for layer in layers:
        try:
            if layer.observe:
                await _said(layer, _copy_of(item))
                continue
            taken = _read(layer, item, await _said(layer, item))
        except GuardrailBlocked as refusal:
            if not layer.observe:
                return Refused(refusal.reason, layer.name)
        except (Exception, SystemExit) as problem:
            if not layer.observe:
                raise HookExecutionError(layer.kind, layer.name, problem) from problem
            _log(layer, problem)
        else:
            if isinstance(taken, Refused):
                return taken
            item = taken
    return item


async def _said(layer: _Layer, item: _Item) -> object:
    async with asyncio.timeout(LIMIT):
        if layer.is_async:
            said = layer.function(item)
        else:
            said = await run_in_worker(layer.function, item, limit=LIMIT)
        return await said if inspect.isawaitable(said) else said


def _copy_of(item: _Any) -> _Any:
    """A private copy: what an observer does to it reaches nobody."""
    return replace(item, **{one.name: private_copy(getattr(item, one.name)) for one in fields(item)})


def _log(layer: _Layer, problem: BaseException) -> None:
    logger.warning("Observing %s middleware %s failed: %s", layer.kind, layer.name, type(problem).__name__)


def _read(layer: _Layer, item: _Item, said: object) -> _Item | Refused:
    """What a before_* or after_* returned, read as the next request or response."""
    if said is None:
        return item
    if isinstance(said, type(item)):
        return said
    if not isinstance(said, HookResult):
        raise TypeError(
            f"{layer.kind} middleware {layer.name} returned a {type(said).__name__}; "
            f"it may return the {type(item).__name__}, None or a HookResult"
        )
    if said.decision not in STRICTNESS:
        raise ValueError(f"{layer.kind} middleware {layer.name} returned the unknown decision {said.decision!r}")
    if said.is_denied():
        return Refused(said.reason, layer.name)
    if said.modified_input:
        item = _changed(item, said.modified_input)
    if said.additional_context:
        item.extra.setdefault("additional_context", []).append(said.additional_context)
    return item


def _changed(item: _Item, changes: dict[str, Any]) -> _Item:
    if isinstance(item, ToolRequest):
        return replace(item, arguments={**item.arguments, **changes})
    known = {one.name for one in fields(item)} - {"context"}
    strange = sorted(set(changes) - known)
    if strange:
        raise ValueError(
            f"a {type(item).__name__} has no field {strange[0]!r} to change; it has {', '.join(sorted(known))}"
        )
    return replace(item, **changes)


async def _around(
    layers: Sequence[_Layer],
    request: _Request,
    call_next: Callable[[_Request], Awaitable[_Response]],
    answers: type[_Response],
) -> _Response | Refused:
    """One wrap_* chain. A refusal or a broken hook inside stands, whatever a wrapper further out makes of it."""
    stands: list[tuple[Exception, _Layer | None]] = []

    async def enter(depth: int, sent: _Request) -> _Response:
        layer = layers[depth] if depth < len(layers) else None
        try:
            if layer is None:
                return await call_next(sent)
            around = _observer if layer.observe else _wrapper
            return await around(layer, sent, lambda passed: enter(depth + 1, passed), answers)
        except (GuardrailBlocked, HookError, RunBlocked) as problem:
            if not any(problem is one for one, _ in stands):
                stands.append((problem, layer))
            raise

    try:
        response = await enter(0, request)
        if not stands:
            return response
    except Exception:
        if not stands:
            raise
    first, layer = stands[0]
    if isinstance(first, GuardrailBlocked) and layer is not None:
        return Refused(first.reason, layer.name)
    raise first


async def _wrapper(
    layer: _Layer, request: _Request, inner: Callable[[_Request], Awaitable[_Response]], answers: type[_Response]
) -> _Response:
    """One wrap_*: its own failure is told apart from what comes through it from inside."""
    from_inside: list[BaseException] = []

    async def passed_on(sent: _Request) -> _Response:
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
    except (Exception, SystemExit) as problem:
        if isinstance(problem, GuardrailBlocked) or any(problem is one for one in from_inside):
            raise
        raise HookExecutionError(layer.kind, layer.name, problem) from problem


async def _observer(
    layer: _Layer, request: _Request, inner: Callable[[_Request], Awaitable[_Response]], answers: type[_Response]
) -> _Response:
    """A wrap_* that only watches: the call inside is made once, with the request as it came, whatever it does."""
    made: list[_Response] = []
    failed: list[BaseException] = []
    once = asyncio.Lock()

    async def passed_on(sent: _Request) -> _Response:
        async with once:
            if not made and not failed:
                try:
                    made.append(await inner(request))
                except BaseException as problem:  # noqa: BLE001 - raised right below
                    failed.append(problem)
        if failed:
            raise failed[0]
        return _copy_of(made[0])

    try:
        sent = _copy_of(request)
        await (_on_loop(layer, sent, passed_on) if layer.is_async else _in_worker(layer, sent, passed_on))
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - an observer's failure is nobody else's
        if not any(problem is one for one in failed):
            _log(layer, problem)
    if failed:
        raise failed[0]
    return made[0] if made else await inner(request)


async def _on_loop(layer: _Layer, request: Any, passed_on: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    said = layer.function(request, passed_on)
    while inspect.isawaitable(said):
        said = await said
    return said


async def _in_worker(layer: _Layer, request: Any, passed_on: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """A sync wrapper runs in a worker thread; its ``call_next`` waits there while the inner call runs here, in this
    very task.
    """
    bridge = _Bridge(passed_on)
    worker = asyncio.ensure_future(run_in_worker(layer.function, request, bridge.call_next, limit=None))
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
    while inspect.isawaitable(said):
        said = await said
    return said


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
