"""One server as the engine uses it: its sessions, what it lists, and the requests that go to it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from pydantic import TypeAdapter

from agent_engine.mcp.call import Call
from agent_engine.mcp.dispatch import SessionGone
from agent_engine.mcp.errors import McpError, McpServerError, McpToolError
from agent_engine.mcp.pool import KeyLocks, SessionPool
from agent_engine.mcp.session import OPENING_SECONDS

if TYPE_CHECKING:
    from agent_engine.hooks.scope import HookScope
    from agent_engine.mcp.caller import Caller, Identity
    from agent_engine.mcp.server import McpServer
    from agent_engine.mcp.session import McpSession
    from agent_engine.records.journal import Journal

logger = logging.getLogger("agent_engine.mcp")

MAX_PAGES = 100
"""Pages of one list that are read; a server that never ends its list is not followed for ever."""
MAX_TOOLS = 2000
FRESH_SECONDS = 300.0
"""How long a list is taken to be right when the server cannot tell us that it changed."""
AGAIN_SECONDS = 5.0
"""How long a list is used as it is when the server could not be asked again."""
MAX_LISTS = 1000
"""Callers whose own list of tools is kept, for a server that is listed for each of them."""


@dataclass(slots=True)
class Listing:
    """The tools of a server as one identity was shown them; ``made`` is what the engine has made of them."""

    tools: list[wire.Tool] = field(default_factory=list)
    made: list[Any] | None = None
    session: McpSession | None = None
    at: float = 0.0
    again_at: float = 0.0
    changed: bool = True

    def fresh(self) -> bool:
        """Whether it can be used as it is."""
        if self.tools and time.monotonic() < self.again_at:
            return True
        if self.changed or self.session is None:
            return False
        return not self.session.tells_changes or self.session.watched or time.monotonic() - self.at < FRESH_SECONDS


class Remote:
    """One server.

    Args:
        server: what is declared about it.
        scope: the hooks that hold outside of any run.
        journal: where steps outside of any run go.
    """

    def __init__(self, server: McpServer, scope: HookScope, journal: Journal | None, **limits: Any) -> None:
        self.server = server
        self.pool = SessionPool(server, scope, journal, self._tools_changed, **limits)
        self._listings: OrderedDict[Identity, Listing] = OrderedDict()
        self._locks = KeyLocks()

    def _tools_changed(self, identity: Identity) -> None:
        listing = self._listings.get(identity)
        if listing is not None:
            listing.changed = True

    def listed(self, identity: Identity) -> Listing | None:
        """What an identity was shown last; it may be out of date."""
        return self._listings.get(identity)

    async def tools(self, caller: Caller) -> Listing:
        """The tools as the caller's identity is shown them; asked for again where they have changed.

        Raises:
            McpError: they cannot be listed.
            Exception: a hook's own failure.
        """
        identity = caller.identity
        listing = self._listings.get(identity)
        if listing is not None and listing.fresh():
            self._listings.move_to_end(identity)
            return listing
        async with self._locks.of(identity):
            listing = self._listings.setdefault(identity, Listing())
            if not listing.fresh():
                try:
                    await self._list(caller, listing)
                except BaseException:
                    listing.changed = True
                    listing.again_at = time.monotonic() + AGAIN_SECONDS
                    raise
            while len(self._listings) > MAX_LISTS:
                self._listings.popitem(last=False)
            return listing

    async def _list(self, caller: Caller, listing: Listing) -> None:
        async with self.pool.session(caller) as session:
            await session.watch()
            # A change that is told while the pages are read leaves them out of date.
            listing.changed, listing.session = False, session
            listing.tools = await self._pages(
                caller, "tools/list", wire.ListToolsRequest, wire.ListToolsResult, "tools"
            )
            listing.at, listing.made = time.monotonic(), None
            if session.modern:
                listing.tools = [one for one in listing.tools if self._has_valid_headers(one)]

    def _has_valid_headers(self, tool: wire.Tool) -> bool:
        problem = find_invalid_x_mcp_header(tool.input_schema)
        if problem is not None:
            logger.warning("Tool '%s' of MCP server '%s' is left out: %s", tool.name, self.server.id, problem)
        return problem is None

    async def _pages(self, caller: Caller, operation: str, request: Any, result: Any, field_name: str) -> list[Any]:
        """Every page of a list, in order; bounded."""
        found: list[Any] = []
        cursor: str | None = None
        seen: set[str] = set()
        seconds = min(self.server.seconds, OPENING_SECONDS)
        for _ in range(MAX_PAGES):
            params = None if cursor is None else wire.PaginatedRequestParams(cursor=cursor)
            page = await self.send(Call(caller, operation, seconds=seconds), request(params=params), result)
            found.extend(getattr(page, field_name))
            cursor = page.next_cursor
            if cursor is None or cursor in seen or len(found) > MAX_TOOLS:
                break
            seen.add(cursor)
        return found[:MAX_TOOLS]

    async def send(self, call: Call, request: Any, result_type: Any) -> Any:
        """Send one request over a session of its caller's identity; a session the server has forgotten is replaced.

        Raises:
            McpError: it failed.
            Exception: a hook's own failure.
        """
        for _ in range(2):
            session = await self.pool.take(call.caller)
            try:
                return await session.request(call, request, result_type)
            except SessionGone:
                call = call.again()
            finally:
                self.pool.give_back(session)
        text = f"MCP server '{self.server.id}' does not keep the sessions that it opens."
        raise McpToolError(self.server.id, text, "protocol")

    async def call_tool(
        self,
        caller: Caller,
        name: str,
        arguments: Mapping[str, Any],
        *,
        headers: Mapping[str, str],
        progress: Callable[[object], object] | None = None,
    ) -> wire.CallToolResult:
        """Call a tool; its result as the server gave it.

        Raises:
            McpError: the call failed.
            Exception: a hook's own failure.
        """
        request = wire.CallToolRequest(params=wire.CallToolRequestParams(name=name, arguments=dict(arguments)))

        def call(with_headers: Mapping[str, str]) -> Call:
            return Call(
                caller,
                "tools/call",
                tool_name=name,
                progress=progress,
                headers=with_headers,
                seconds=self.server.seconds,
            )

        try:
            result = await self.send(call(headers), request, _tool_results())
        except McpToolError as failure:
            if failure.code != wire.HEADER_MISMATCH:
                raise
            result = None
        if result is None:
            # The server wants other arguments repeated in headers than it told us: look again, and send once more.
            self._tools_changed(caller.identity)
            current = next((tool for tool in (await self.tools(caller)).tools if tool.name == name), None)
            schema = {} if current is None else current.input_schema
            renewed = mcp_param_headers(x_mcp_header_map(schema), arguments)
            result = await self.send(call(renewed), request, _tool_results())
        if isinstance(result, wire.InputRequiredResult):
            text = f"Tool '{name}' of MCP server '{self.server.id}' asks a person for input; nobody is asked here."
            raise McpToolError(self.server.id, text, "protocol")
        assert isinstance(result, wire.CallToolResult)
        return result

    async def ask(self, caller: Caller, operation: str, request: Any, result_type: Any) -> Any:
        """Any other request of the application."""
        return await self.send(Call(caller, operation, seconds=self.server.seconds), request, result_type)

    async def pages(self, caller: Caller, operation: str, request: Any, result: Any, field_name: str) -> list[Any]:
        """Every page of a list that the application asks for."""
        return await self._pages(caller, operation, request, result, field_name)

    async def close(self) -> None:
        await self.pool.close()


def build_problem(server: McpServer, failure: McpError) -> McpServerError:
    """The one sentence about a server that could not be listed when the engine was built, and what to do."""
    text = str(failure)
    if getattr(failure, "kind", "") in ("unreachable", "lost", "timed_out") or isinstance(failure, McpServerError):
        where = "url" if server.url is not None else "command"
        advice = f"start it, correct its {where}, or declare it with `required: false`"
        text = f"{text.rstrip('.')}: {advice if server.required else f'start it, or correct its {where}'}."
    elif getattr(failure, "kind", "") == "unauthorized" and server.discover == "build":
        text += " A server that can only be listed for a caller is declared with `discover: first_use`."
    return McpServerError(server.id, text)


@cache
def _tool_results() -> TypeAdapter[Any]:
    return TypeAdapter(wire.CallToolResult | wire.InputRequiredResult)
