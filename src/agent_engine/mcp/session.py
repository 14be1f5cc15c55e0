"""One session with one server, for one identity: opened and closed in a task of its own, used by many calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ToolsListChanged, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
    ToolListChangedNotification,
    UnsupportedProtocolVersionErrorData,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

import agent_engine
from agent_engine.mcp.call import Call, Calls
from agent_engine.mcp.dispatch import CallDispatcher, Outbound, SessionGone
from agent_engine.mcp.errors import McpToolError
from agent_engine.mcp.http_client import DoorClient
from agent_engine.mcp.stdio import stdio_transport
from agent_engine.mcp.transport import UNANSWERED, HttpDoor

if TYPE_CHECKING:
    from agent_engine.mcp.caller import Caller, Identity
    from agent_engine.mcp.server import McpServer

logger = logging.getLogger("agent_engine.mcp")

OPENING_SECONDS = 30.0
"""How long each request of the opening may take, where the server's own limit is not shorter."""
CLOSING_SECONDS = 5.0
"""How long a session may take to say goodbye."""
CONNECT_SECONDS = 10.0
WATCH_SECONDS = 5.0
"""How long a server may take to say that it will tell of changes; without, lists are looked at again after a while."""

_MADE_UP_CODES = frozenset((CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, UNANSWERED))
"""Codes that the SDK makes up for an answer that was none; what the door noted about it says more."""
_UNREADABLE = ("Failed to parse JSON response", "Failed to parse SSE message")
"""How the SDK begins what it says of an answer that it could not read; the rest quotes the answer."""


class McpSession:
    """A session.

    Args:
        server: whose.
        identity: the key it has in the pool.
        background: the identity it belongs to, with nothing of a run; what the session sends by itself goes out for it.
        inner: the HTTP transport of the server's sessions; None for stdio.
        tools_changed: called when the server says that its tools have changed.

    Attributes:
        users: how many requests are under way.
        suspect: a connection was lost; the next request is to open another session.
    """

    def __init__(
        self,
        server: McpServer,
        identity: Identity,
        background: Caller,
        inner: httpx2.AsyncBaseTransport | None,
        tools_changed: Callable[[], None],
    ) -> None:
        self.server = server
        self.identity = identity
        self.users = 0
        self.suspect = False
        self.protocol_version = ""
        self._calls = Calls(background)
        self._inner = inner
        self._tools_changed = tools_changed
        self._closing = asyncio.Event()
        self._session: ClientSession | None = None
        self._dispatcher: CallDispatcher | None = None
        self._task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._listening = False
        self._idle: asyncio.TimerHandle | None = None
        self._idle_at = 0.0

    @property
    def usable(self) -> bool:
        """Whether a new request may go out on it."""
        return (
            self._session is not None
            and not self.suspect
            and not self._closing.is_set()
            and self._task is not None
            and not self._task.done()
            and self._dispatcher is not None
            and not self._dispatcher.closed
        )

    async def open(self, opener: Caller, *, legacy: bool = False) -> None:
        """Open the session on behalf of a call; the requests of the opening are that call's run's.

        Args:
            opener: who needs it.
            legacy: the server is known to speak the older generation; do not ask.

        Raises:
            McpError: the server cannot be reached, or refuses.
            Exception: a hook's own failure.
        """
        seconds = min(self.server.seconds, OPENING_SECONDS)
        self._calls.opener = Call(opener, "initialize", seconds=seconds)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(
            self._own(opened, legacy), name=f"mcp-session-{self.server.id}", context=self._calls.context.copy()
        )
        try:
            await opened
        except asyncio.CancelledError:
            await self._end(self._task)
            raise

    async def _own(self, opened: asyncio.Future[None], legacy: bool) -> None:
        """The owner: every context of the session is entered and left here."""
        failure: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                read, write = await stack.enter_async_context(self._connect())
                inner: JSONRPCDispatcher[Any] = JSONRPCDispatcher(read, Outbound(write, self._calls))
                dispatcher = CallDispatcher(inner, self._calls, self.server, gated=self._inner is None)
                session = await stack.enter_async_context(
                    ClientSession(dispatcher=dispatcher, client_info=_client_info(), message_handler=self._notified)
                )
                try:
                    await self._negotiate(session, dispatcher, legacy)
                except Exception as problem:  # noqa: BLE001 - raised to whoever opens the session
                    failure = self._told(problem, dispatcher, "the opening of the session")
                else:
                    self._calls.opener = None
                    self._dispatcher, self._session = dispatcher, session
                    self.protocol_version = session.protocol_version or ""
                    opened.set_result(None)
                    await self._closing.wait()
                    await self._stop_watching()
        except Exception as problem:  # noqa: BLE001 - a session that broke is opened anew; nobody waits for this task
            if opened.done():
                logger.warning("A session with MCP server '%s' broke: %s", self.server.id, type(problem).__name__)
            elif failure is None:
                failure = _first(problem)
        finally:
            self._session = None
            if self._watcher is not None:
                self._watcher.cancel()
            if not opened.done():
                text = f"A session with MCP server '{self.server.id}' was closed while it was being opened."
                opened.set_exception(failure or McpToolError(self.server.id, text, "lost"))

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Any]:
        if self._inner is None:
            async with stdio_transport(self.server, self._calls) as streams:
                yield streams
            return
        # The limit of a call is kept where the call is; the connection's is there for what belongs to no call.
        seconds = self.server.seconds + CLOSING_SECONDS
        timeout = httpx2.Timeout(min(seconds, CONNECT_SECONDS), read=seconds, write=seconds)
        door = HttpDoor(self.server, self._inner, self._calls)
        async with (
            DoorClient(door, self.server.endpoint, timeout) as client,
            streamable_http_client(
                self.server.endpoint, http_client=client, **_event_size(self.server.max_result_bytes)
            ) as streams,
        ):
            yield streams

    async def _negotiate(self, session: ClientSession, dispatcher: CallDispatcher, legacy: bool) -> None:
        """Settle the generation of the protocol: asked for, and the older one where there is no newer one."""
        if self.server.protocol == "legacy" or (legacy and self.server.protocol == "auto"):
            await session.initialize()
            return
        try:
            await session.discover()
        except MCPError as answered:
            if self.server.protocol == "modern" or not _may_be_legacy(answered):
                raise
        except (ValidationError, RuntimeError) as odd:
            if odd is dispatcher.failure or self.server.protocol == "modern":
                raise
        else:
            return
        dispatcher.note = None
        await session.initialize()

    async def request(self, call: Call, request: Any, result_type: Any) -> Any:
        """Send one request for a call and return its typed result.

        Raises:
            SessionGone: the server does not know the session; the request was not looked at.
            McpToolError: the call failed, in a sentence.
            Exception: a hook's own failure.
        """
        session, dispatcher = self._session, self._dispatcher
        if session is None or dispatcher is None:
            raise SessionGone
        problem: BaseException
        try:
            return await session.send_request(request, result_type, progress_callback=call)
        except SessionGone:
            self.suspect = True
            raise
        except (MCPError, ValidationError) as answered:
            if answered is dispatcher.failure:
                raise
            problem = answered
        except McpToolError as failure:
            # A process that does not answer in time may hang for good; a server over HTTP may just be slow.
            self.suspect |= failure.kind in ("unreachable", "lost") or (
                failure.kind == "timed_out" and self._inner is None
            )
            raise
        if isinstance(problem, MCPError) and problem.code == CONNECTION_CLOSED:
            self.suspect = True
        raise self._told(problem, None, call.operation, call.note)

    def _told(
        self, problem: BaseException, dispatcher: CallDispatcher | None, what: str, note: McpToolError | None = None
    ) -> BaseException:
        """A failure as the caller is told it."""
        if dispatcher is not None:
            if problem is dispatcher.failure:
                return problem
            note = note or dispatcher.note
        server = self.server
        if isinstance(problem, MCPError):
            if note is not None and problem.code in _MADE_UP_CODES:
                return note
            if problem.code == CONNECTION_CLOSED:
                return McpToolError(
                    server.id,
                    f"The connection to MCP server '{server.id}' at {server.where} ended before it answered.",
                    "lost",
                )
            if problem.code != PARSE_ERROR or not problem.message.startswith(_UNREADABLE):
                text = f"MCP server '{server.id}' answered {what} with an error: {problem.message[:2000]}"
                return McpToolError(server.id, text, "protocol", code=problem.code)
        if isinstance(problem, MCPError | ValidationError | RuntimeError | SessionGone):
            text = f"MCP server '{server.id}' answered {what} with something that is not MCP."
            return McpToolError(server.id, text, "protocol")
        return problem

    @property
    def modern(self) -> bool:
        """Whether the server speaks the newer generation, without sessions of its own."""
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def tells_changes(self) -> bool:
        """Whether the server says that it will tell when its tools change."""
        capabilities = self._session.server_capabilities if self._session is not None else None
        tools = capabilities.tools if capabilities is not None else None
        return bool(tools is not None and tools.list_changed)

    @property
    def watched(self) -> bool:
        """Whether the server can tell this session now that its tools have changed."""
        return self.usable and (self._listening if self.modern else self._calls.streaming or self._inner is None)

    async def watch(self) -> None:
        """Ask to be told when the server's tools change; the older generation is told over a session's own stream."""
        if not self.modern or not self.tells_changes or self._watcher is not None or self._session is None:
            return
        listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watcher = asyncio.get_running_loop().create_task(
            self._listen(self._session, listening), context=self._calls.context.copy()
        )
        done, _ = await asyncio.wait([listening], timeout=min(self.server.seconds, WATCH_SECONDS))
        if not done:
            self._watcher.cancel()

    async def _listen(self, session: ClientSession, listening: asyncio.Future[None]) -> None:
        try:
            async with listen(session, tools_list_changed=True) as changes:
                self._listening = True
                listening.set_result(None)
                async for change in changes:
                    if isinstance(change, ToolsListChanged):
                        self._tools_changed()
        except Exception as problem:  # noqa: BLE001 - without it, lists are only looked at again after a while
            logger.info("MCP server '%s' does not tell of changes: %s", self.server.id, type(problem).__name__)
        finally:
            self._listening = False
            if not listening.done():
                listening.set_result(None)

    async def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])

    async def _notified(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._tools_changed()

    def idle_since(self, seconds: float, then: Callable[[McpSession], object]) -> None:
        """Nothing is under way from now on: ``then`` is called once that has been so for so many seconds."""
        loop = asyncio.get_running_loop()
        self._idle_at = loop.time() + seconds

        def look() -> None:
            if loop.time() < self._idle_at or self.users:
                self._idle = loop.call_at(max(self._idle_at, loop.time() + seconds / 10), look)
            else:
                then(self)

        if self._idle is None:
            self._idle = loop.call_at(self._idle_at, look)

    async def close(self) -> None:
        """Close the session in its own task; bounded, also where the server does not answer."""
        if self._idle is not None:
            self._idle.cancel()
        self._closing.set()
        task = self._task
        if task is None or task.done():
            return
        done, _ = await asyncio.wait([task], timeout=CLOSING_SECONDS)
        if not done:
            await self._end(task)

    async def _end(self, task: asyncio.Task[None]) -> None:
        """Cancel the owner; a second time where it is held up on its way out."""
        for _ in range(2):
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=CLOSING_SECONDS)
            if done:
                return


def _may_be_legacy(answered: MCPError) -> bool:
    """Whether an error to the question for the newer generation may come from a server of the older one."""
    if answered.code != UNSUPPORTED_PROTOCOL_VERSION:
        return True
    with contextlib.suppress(ValidationError):
        supported = UnsupportedProtocolVersionErrorData.model_validate(answered.data).supported
        return any(version in HANDSHAKE_PROTOCOL_VERSIONS for version in supported)
    return True


@functools.cache
def _client_info() -> Implementation:
    return Implementation(name="agent-engine", version=agent_engine.__version__)


@functools.cache
def _takes_event_size() -> bool:
    return "max_sse_event_size" in inspect.signature(streamable_http_client).parameters


def _event_size(limit: int) -> dict[str, Any]:
    """The SDK's own bound on one event, where it has one: out of the way of ours, which names the server."""
    return {"max_sse_event_size": 2 * limit + 4096} if _takes_event_size() else {}


def _first(problem: BaseException) -> BaseException:
    """The first failure inside a group."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem
