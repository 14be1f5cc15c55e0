"""Middleware: functions around one model call or one tool call, in the order they were given.

``before_*`` sees the request and may change or refuse it, ``wrap_*`` stands around the call and may answer by itself,
``after_*`` sees the response, in reverse order. A middleware that breaks ends the request with HookExecutionError; it
is never taken for a yes.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar, overload

from agent_engine.hooks.calls import InvocationContext, ModelRequest, ModelResponse, Refused, ToolRequest, ToolResponse
from agent_engine.hooks.chain import MiddlewareChain
from agent_engine.hooks.definition import callable_name, is_async_callable
from agent_engine.hooks.errors import GuardrailBlocked
from agent_engine.hooks.layer import MARK
from agent_engine.hooks.portal import run_sync
from agent_engine.hooks.workers import run_in_worker

__all__ = [
    "AsyncMiddlewareChain",
    "InvocationContext",
    "MiddlewareChain",
    "MiddlewareManager",
    "ModelRequest",
    "ModelResponse",
    "Refused",
    "ToolRequest",
    "ToolResponse",
    "after_model",
    "after_tool",
    "before_model",
    "before_tool",
    "wrap_model_call",
    "wrap_tool_call",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_Item = TypeVar("_Item", ModelRequest, ToolRequest, ModelResponse, ToolResponse)

AsyncMiddlewareChain = MiddlewareChain
"""Another name of it: one chain serves sync and async middleware."""


class MiddlewareDecorator(Protocol):
    """Marks a function as one kind of middleware and returns it unchanged: ``@after_tool`` or
    ``@after_tool(observe=True)``.

    With ``observe=True`` it gets a copy, what it returns is ignored, and its failure is logged: it only watches, and
    holds no streamed text back.
    """

    @overload
    def __call__(self, function: _F) -> _F: ...
    @overload
    def __call__(self, *, observe: bool) -> Callable[[_F], _F]: ...


def _decorator(kind: str) -> MiddlewareDecorator:
    def decorate(function: Any = None, *, observe: bool = False) -> Any:
        if function is None:
            return lambda decorated: _mark(decorated, kind, observe)
        return _mark(function, kind, observe)

    decorate.__name__ = decorate.__qualname__ = kind
    return decorate


before_model = _decorator("before_model")
"""Called with the ModelRequest; returns it, None (unchanged) or a HookResult."""

after_model = _decorator("after_model")
"""Called with the ModelResponse; returns it, None (unchanged) or a HookResult."""

wrap_model_call = _decorator("wrap_model_call")
"""Called with the ModelRequest and ``call_next``; returns its own ModelResponse or that of ``call_next(request)``."""

before_tool = _decorator("before_tool")
"""Called with the ToolRequest; returns it, None (unchanged) or a HookResult, whose changes are arguments."""

after_tool = _decorator("after_tool")
"""Called with the ToolResponse; returns it, None (unchanged) or a HookResult."""

wrap_tool_call = _decorator("wrap_tool_call")
"""Called with the ToolRequest and ``call_next``; returns its own ToolResponse or that of ``call_next(request)``."""


class MiddlewareManager:
    """Middleware for a program of its own: whole calls, with or without an event loop, and middleware that comes and
    goes.

    >>> manager = MiddlewareManager([log_tools])
    >>> response = manager.run_tool_sync(ToolRequest("search", {"q": "x"}), search)
    """

    def __init__(self, middleware: Iterable[Callable[..., Any]] = ()) -> None:
        self._chain = MiddlewareChain(middleware)

    @property
    def chain(self) -> MiddlewareChain:
        """What is registered now, as a chain that later changes do not touch."""
        return self._chain

    def add(self, *middleware: Callable[..., Any]) -> None:
        """Add middleware inside what is there. Raises TypeError as MiddlewareChain does."""
        self._chain = MiddlewareChain([*self._chain, *middleware])

    def remove(self, function: Callable[..., Any]) -> bool:
        """Take one out; False where it was not there."""
        left = [one for one in self._chain if one is not function and one != function]
        found = len(left) < len(self._chain)
        self._chain = MiddlewareChain(left)
        return found

    async def run_model(self, request: ModelRequest, call: Callable[[ModelRequest], Any]) -> ModelResponse:
        """One model call with everything around it; ``call`` is sync or async.

        Raises:
            GuardrailBlocked: a middleware refused the request or the response.
            HookExecutionError: a middleware broke.
        """
        chain = self._chain
        sent = _allowed(await chain.before_model(request))
        return _allowed(await chain.after_model(_allowed(await chain.wrap_model(sent, _awaited(call)))))

    async def run_tool(self, request: ToolRequest, call: Callable[[ToolRequest], Any]) -> ToolResponse:
        """One tool call with everything around it; ``call`` is sync or async.

        Raises:
            GuardrailBlocked: a middleware refused the request or the response.
            HookExecutionError: a middleware broke.
        """
        chain = self._chain
        sent = _allowed(await chain.before_tool(request))
        return _allowed(await chain.after_tool(_allowed(await chain.wrap_tool(sent, _awaited(call)))))

    def run_model_sync(self, request: ModelRequest, call: Callable[[ModelRequest], Any]) -> ModelResponse:
        """run_model for code without an event loop; it works inside a running loop too."""
        return run_sync(lambda: self.run_model(request, call))

    def run_tool_sync(self, request: ToolRequest, call: Callable[[ToolRequest], Any]) -> ToolResponse:
        """run_tool for code without an event loop; it works inside a running loop too."""
        return run_sync(lambda: self.run_tool(request, call))


def _mark(function: Any, kind: str, observe: bool) -> Any:
    if not callable(function):
        raise TypeError(f"{kind} decorates a function, not {function!r}")
    if not isinstance(observe, bool):
        raise TypeError(f"observe is True or False, not {observe!r}")
    already = getattr(function, MARK, None)
    if already is not None and already[0] != kind:
        raise TypeError(f"{callable_name(function)} is a {already[0]} already; it cannot be a {kind} too")
    try:
        setattr(function, MARK, (kind, observe))
    except AttributeError:
        raise TypeError(
            f"{callable_name(function)} cannot be marked as {kind}: decorate a function, or the method in its class"
        ) from None
    return function


def _awaited(call: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    if is_async_callable(call):
        return call

    async def called(request: Any) -> Any:
        said = await run_in_worker(call, request, limit=None)
        return await said if inspect.isawaitable(said) else said

    return called


def _allowed(item: _Item | Refused) -> _Item:
    if isinstance(item, Refused):
        raise GuardrailBlocked(item.reason or "Denied by hook")
    return item
