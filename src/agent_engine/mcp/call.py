"""Call: one JSON-RPC request on its way, bound to its caller from the first line to the last byte of the answer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from agent_engine.hooks.managed import RUN_CONTEXT
from agent_engine.mcp.errors import McpToolError

if TYPE_CHECKING:
    from agent_engine.mcp.caller import Caller

T = TypeVar("T")

CALL_HEADER: Final = "x-agent-engine-call"
"""Names the call on a request's way from the session to the door; it is never sent."""
SETTLE_SECONDS = 5.0
"""How long the end of a call may wait for its closing events once its answer is there or it was cancelled."""
_IDS = count(1)


class Aborted(Exception):
    """An exchange was ended because its call has ended."""


class Call:
    """One request. It travels through the SDK as its progress callback, and its id is the JSON-RPC id on the wire.

    The SDK sends a call's HTTP requests from tasks of its own; what the door needs to know about them is here.

    Attributes:
        id: unique in the process, so that no id can ever mean two calls.
        caller: whose call it is.
        operation: the JSON-RPC method.
        context: the caller's context variables; the hooks of this call's requests run in it.
        failure: what the caller is to be told instead of what the SDK makes of the answer.
        note: what the door knows about an answer that is no success (a status, a lost connection).
        session_gone: the server has said that it does not know the session any more.
        follows: it is a notification about another call, and nobody waits for it.
        awaited: it is a request, whose answer has its id.
    """

    __slots__ = (
        "_at_rest",
        "_ended",
        "_open",
        "_scopes",
        "awaited",
        "caller",
        "context",
        "failure",
        "follows",
        "headers",
        "id",
        "last_event",
        "note",
        "operation",
        "progress",
        "seconds",
        "session_gone",
        "tool_name",
    )

    def __init__(
        self,
        caller: Caller,
        operation: str,
        *,
        tool_name: str | None = None,
        progress: Callable[[object], object] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self.id = f"c-{next(_IDS)}"
        self.caller = caller
        self.operation = operation
        self.tool_name = tool_name
        self.progress = progress
        self.headers = headers
        self.seconds = seconds
        if context is None:
            context = contextvars.copy_context()
            context.run(RUN_CONTEXT.set, caller.run_context)
        self.context = context
        self.failure: BaseException | None = None
        self.note: McpToolError | None = None
        self.session_gone = False
        self.follows = False
        self.awaited = False
        self.last_event: str | None = None
        self._open = 0
        self._at_rest: asyncio.Event | None = None
        self._ended = False
        self._scopes: set[anyio.CancelScope] = set()

    def __repr__(self) -> str:
        return f"<Call {self.id} {self.operation}>"

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """The SDK's progress callback."""
        if self.progress is None or self._ended:
            return
        told = self.progress({"progress": progress, "total": total, "message": message})
        if inspect.isawaitable(told):
            await told

    def again(self) -> Call:
        """The same request, to be sent a second time."""
        return Call(
            self.caller,
            self.operation,
            tool_name=self.tool_name,
            progress=self.progress,
            headers=self.headers,
            seconds=self.seconds,
            context=self.context,
        )

    def fail(self, failure: BaseException) -> None:
        """Note what the caller is to be told; the first failure counts."""
        if self.failure is None:
            self.failure = failure

    def began(self) -> None:
        """An HTTP request of this call has begun."""
        self._open += 1

    def finished(self) -> None:
        """It has ended, and so has its closing event."""
        self._open -= 1
        if self._open == 0 and self._at_rest is not None:
            self._at_rest.set()

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await one step of an HTTP request of this call, unless the call ends first.

        Raises:
            Aborted: the call has ended.
        """
        if self._ended:
            close = getattr(awaitable, "close", None)
            if close is not None:
                close()
            raise Aborted
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await awaitable
            finally:
                self._scopes.discard(scope)
        raise Aborted

    def end(self) -> None:
        """The caller has its answer or has given up: what is still under way for it ends now."""
        self._ended = True
        for scope in list(self._scopes):
            scope.cancel()

    async def settled(self) -> None:
        """Until every HTTP request of this call has ended with its closing event; bounded, and then it is ended."""
        if self._open == 0:
            return
        self._at_rest = asyncio.Event()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._at_rest.wait()
        finally:
            self._at_rest = None
            self.end()


class Calls:
    """The calls of one session, by the ids that appear on the wire.

    Attributes:
        background: the session's own identity, for what it sends by itself.
        opener: the call whose run opens the session, while it is being opened; None from then on.
        streaming: the session's own stream is open, over which a server of the older generation speaks first.
    """

    def __init__(self, background: Caller, context: contextvars.Context) -> None:
        self.background = background
        self.opener: Call | None = None
        self.streaming = False
        self._context = context
        self._by_id: dict[str, Call] = {}
        self._by_event: dict[str, Call] = {}

    def add(self, call: Call) -> None:
        self._by_id[call.id] = call

    def discard(self, call: Call) -> None:
        self._by_id.pop(call.id, None)
        if call.last_event is not None:
            self._by_event.pop(call.last_event, None)

    def find(self, call_id: str | None) -> Call | None:
        """The call with an id of the wire; None where there is none (any more)."""
        return None if call_id is None else self._by_id.get(call_id)

    def received(self, call: Call, event_id: str) -> None:
        """The last event of a call's stream: a stream that is taken up after it is that call's."""
        if call.last_event is not None:
            self._by_event.pop(call.last_event, None)
        call.last_event = event_id
        self._by_event[event_id] = call

    def resuming(self, event_id: str | None) -> Call | None:
        """The call whose stream a client takes up again after that event."""
        return None if event_id is None else self._by_event.get(event_id)

    def follow_up(self, call: Call, operation: str) -> Call:
        """A notification on behalf of a call: it lives on when the call has ended, and the door forgets it."""
        following = Call(call.caller, operation, tool_name=call.tool_name, context=call.context)
        following.follows = True
        self.add(following)
        return following

    def by_itself(self, operation: str, seconds: float | None = None) -> Call:
        """A call of nobody's run, with the session's identity alone."""
        return Call(self.background, operation, context=self._context.copy(), seconds=seconds)
