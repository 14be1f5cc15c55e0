"""The sessions of one server, one for each identity."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

from agent_engine.mcp.caller import Caller, Identity
from agent_engine.mcp.errors import McpToolError
from agent_engine.mcp.session import McpSession

if TYPE_CHECKING:
    from agent_engine.hooks.scope import HookScope
    from agent_engine.mcp.server import McpServer
    from agent_engine.records.journal import Journal

logger = logging.getLogger("agent_engine.mcp")

IDLE_SECONDS = 300.0
"""A session on which nothing happens for so long is closed."""
MAX_SESSIONS = 100
"""Sessions that one server may have at once."""
CONNECTION_IDLE_SECONDS = 3.0
"""An idle connection is not used again after so long. Servers commonly close one after five (uvicorn and Node do), and
a request on its way at that moment would fail."""


class KeyLocks:
    """A lock for each key, there for as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def of(self, key: Hashable) -> AsyncGenerator[None]:
        """Hold the lock of a key."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]


class SessionPool:
    """Opens a session when an identity first needs one, keeps it, and replaces it when it broke.

    Args:
        server: whose sessions.
        scope: the hooks that hear what sessions send by themselves.
        journal: where the steps of that go.
        tools_changed: called with the identity that was told.
        idle_seconds: a session that is not used for so long is closed.
        max_sessions: the one unused for longest makes room for another; where all are used, the next waits.
    """

    def __init__(
        self,
        server: McpServer,
        scope: HookScope,
        journal: Journal | None,
        tools_changed: Callable[[Identity], None],
        *,
        idle_seconds: float = IDLE_SECONDS,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self._server = server
        self._scope = scope
        self._journal = journal
        self._tools_changed = tools_changed
        self._idle_seconds = idle_seconds
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[Identity, McpSession] = OrderedDict()
        self._opening = KeyLocks()
        self._waiting: list[asyncio.Future[None]] = []
        self._taken = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._inner: httpx2.AsyncBaseTransport | None = None
        self._legacy = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, identity: Identity) -> McpSession | None:
        """The open session of an identity."""
        session = self._sessions.get(identity)
        return session if session is not None and session.usable else None

    @asynccontextmanager
    async def session(self, caller: Caller) -> AsyncGenerator[McpSession]:
        """A session of the caller's identity for a while; see :meth:`take`."""
        session = await self.take(caller)
        try:
            yield session
        finally:
            self.give_back(session)

    async def take(self, caller: Caller) -> McpSession:
        """A session of the caller's identity, opened where there is none; it is not closed before it is given back.

        Raises:
            McpError: it could not be opened.
            Exception: a hook's own failure during the opening.
        """
        identity = caller.identity
        session = self.get(identity) or await self._opened(identity, caller)
        session.users += 1
        self._sessions.move_to_end(identity)
        return session

    def give_back(self, session: McpSession) -> None:
        """Say that a session is not used any more by one of those who took it."""
        session.users -= 1
        if session.users == 0:
            if session.usable and self._sessions.get(session.identity) is session:
                session.idle_since(self._idle_seconds, self._drop)
            else:
                self._drop(session)
            self._notify()

    def _notify(self) -> None:
        """Wake those who wait for room: one that was given back can be closed for them."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def _opened(self, identity: Identity, caller: Caller) -> McpSession:
        async with self._opening.of(identity):
            session = self.get(identity)
            if session is not None:
                return session
            broken = self._sessions.get(identity)
            if broken is not None:
                self._drop(broken)
            return await self._open(identity, caller)

    async def _open(self, identity: Identity, caller: Caller) -> McpSession:
        if self._closed:
            raise self._closed_error()
        await self._make_room()
        try:
            session = McpSession(
                self._server,
                identity,
                caller.identity_alone(self._scope, self._journal),
                self._transport(),
                lambda: self._tools_changed(identity),
            )
            await session.open(caller, legacy=self._legacy)
        except BaseException:
            self._legacy = False
            self._taken -= 1
            self._notify()
            raise
        if self._closed:
            await session.close()
            raise self._closed_error()
        self._legacy = not session.modern
        self._sessions[identity] = session
        return session

    def _closed_error(self) -> McpToolError:
        return McpToolError(self._server.id, f"The client of MCP server '{self._server.id}' is closed.", "lost")

    async def _make_room(self) -> None:
        """Take one of the places, closing the session that was not used for longest if there is no other."""
        try:
            async with asyncio.timeout(self._server.seconds):
                while self._taken >= self._max_sessions:
                    idle = next((one for one in self._sessions.values() if one.users == 0), None)
                    if idle is not None:
                        self._drop(idle)
                    else:
                        waiter = asyncio.get_running_loop().create_future()
                        self._waiting.append(waiter)
                        await waiter
                self._taken += 1
        except TimeoutError:
            text = f"All {self._max_sessions} sessions with MCP server '{self._server.id}' are in use."
            raise McpToolError(self._server.id, text, "timed_out") from None

    def _drop(self, session: McpSession) -> None:
        """Take a session out of the pool; it is closed as soon as nobody uses it."""
        if self._sessions.get(session.identity) is session:
            del self._sessions[session.identity]
            self._taken -= 1
            self._notify()
        session.suspect = True
        if session.users == 0:
            ending = asyncio.get_running_loop().create_task(session.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _transport(self) -> httpx2.AsyncBaseTransport | None:
        """The connections of all sessions of the server; none for stdio."""
        if self._server.url is None:
            return None
        if self._inner is None:
            limits = httpx2.Limits(
                max_connections=None,
                max_keepalive_connections=2 * self._max_sessions,
                keepalive_expiry=CONNECTION_IDLE_SECONDS,
            )
            self._inner = httpx2.AsyncHTTPTransport(limits=limits, proxy=_proxy(self._server.url))
        return self._inner

    async def close(self) -> None:
        """Close every session and connection."""
        self._closed = True
        for session in list(self._sessions.values()):
            session.users = 0
            self._drop(session)
        while self._ending:
            await asyncio.wait(list(self._ending))
        if self._inner is not None:
            await self._inner.aclose()
            self._inner = None


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for a server reached over TLS; a tunnel, so it sees no header."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    if parts.scheme != "https" or proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get("https") or proxies.get("all")
