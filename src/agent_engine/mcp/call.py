"""Call: one JSON-RPC request on its way, bound to its caller from the first line to the last byte of the answer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
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
MAX_FOLLOWING: Final = 64
"""Notifications about calls that may be on their way at once; what is forgotten goes out for the identity alone."""
MAX_EVENTS: Final = 10_000
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
        limit: the time limit of the call, while it is under way.
        closing: how many of its HTTP requests are telling the hooks that they have ended.
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
        "closing",
        "context",
        "failure",
        "follows",
        "headers",
        "id",
        "last_event",
        "limit",
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
        self.limit: asyncio.Timeout | None = None
        self.closing = 0
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

    async def settled(self, *, patient: bool = False) -> None:
        """Until every HTTP request of this call has ended with its closing event; what takes too long is ended.

        Args:
            patient: a hook that is told about the end may take the time that hooks have.
        """
        if self._open == 0:
            return
        self._at_rest = asyncio.Event()
        try:
            while self._open:
                try:
                    async with asyncio.timeout(SETTLE_SECONDS):
                        await self._at_rest.wait()
                except TimeoutError:
                    if not (patient and self.closing):
                        return
        finally:
            self._at_rest = None
            self.end()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While hooks are asked: their time is not the server's."""
        limit, loop = self.limit, asyncio.get_running_loop()
        when = None if limit is None else limit.when()
        if limit is None or when is None or not self._reschedule(limit, None):
            yield
            return
        left = when - loop.time()
        try:
            yield
        finally:
            self._reschedule(limit, loop.time() + left)

    @staticmethod
    def _reschedule(limit: asyncio.Timeout, when: float | None) -> bool:
        """Set another end; False where the limit is over, one way or the other."""
        try:
            limit.reschedule(when)
        except RuntimeError:
            return False
        return True

    @property
    def ending(self) -> str:
        """How a request that did not end by itself has ended, as its closing event says it."""
        return "timed_out" if self.limit is not None and self.limit.expired() else "cancelled"


class Calls:
    """The calls of one session, by the ids that appear on the wire.

    Attributes:
        background: the session's own identity, for what it sends by itself.
        opener: the call whose run opens the session, while it is being opened; None from then on.
        streaming: the session's own stream is open, over which a server of the older generation speaks first.
        context: variables of its own: none of the run that happens to open the session shows up in another's requests.
    """

    def __init__(self, background: Caller) -> None:
        self.background = background
        self.context = contextvars.Context()
        self.context.run(RUN_CONTEXT.set, background.run_context)
        self.opener: Call | None = None
        self.streaming = False
        self._by_id: dict[str, Call] = {}
        self._following: OrderedDict[str, Call] = OrderedDict()
        # None marks an id that a server gave to the streams of two calls: then it says nothing.
        self._by_event: dict[str, Call | None] = {}

    def add(self, call: Call) -> None:
        self._by_id[call.id] = call

    def discard(self, call: Call) -> None:
        self._by_id.pop(call.id, None)
        self._following.pop(call.id, None)
        self._forget_event(call)

    def _forget_event(self, call: Call) -> None:
        if call.last_event is not None and self._by_event.get(call.last_event) is call:
            del self._by_event[call.last_event]

    def find(self, call_id: str | None) -> Call | None:
        """The call with an id of the wire; None where there is none (any more)."""
        if call_id is None:
            return None
        return self._by_id.get(call_id) or self._following.get(call_id)

    def received(self, call: Call, event_id: str) -> None:
        """The last event of a call's stream: a stream that is taken up after it is that call's."""
        self._forget_event(call)
        call.last_event = event_id
        known = self._by_event.get(event_id, call)
        self._by_event[event_id] = call if known is call else None
        if len(self._by_event) > MAX_EVENTS:
            del self._by_event[next(iter(self._by_event))]

    def resuming(self, event_id: str | None) -> Call | None:
        """The call whose stream a client takes up again after that event."""
        return None if event_id is None else self._by_event.get(event_id)

    def follow_up(self, call: Call, operation: str) -> Call:
        """A notification on behalf of a call: it lives on when the call has ended, and the door forgets it."""
        following = Call(call.caller, operation, tool_name=call.tool_name, context=call.context)
        following.follows = True
        # Some of them never reach the door: at the newer generation, the SDK cancels by closing the request.
        self._following[following.id] = following
        if len(self._following) > MAX_FOLLOWING:
            self._following.popitem(last=False)
        return following

    def by_itself(self, operation: str, seconds: float | None = None) -> Call:
        """A call of nobody's run, with the session's identity alone."""
        return Call(self.background, operation, context=self.context.copy(), seconds=seconds)
