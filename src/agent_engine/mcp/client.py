"""McpClients: the MCP servers of an engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import mcp_types as wire

from agent_engine.hooks.managed import RunContext
from agent_engine.mcp.caller import Caller
from agent_engine.mcp.errors import McpError, McpServerError, McpToolError
from agent_engine.mcp.pool import IDLE_SECONDS, MAX_SESSIONS
from agent_engine.mcp.quiet import quieten
from agent_engine.mcp.remote import Listing, Remote, build_problem
from agent_engine.mcp.results import contents_of, plain, value_of
from agent_engine.mcp.server import McpServer
from agent_engine.mcp.tools import McpTool, Names

if TYPE_CHECKING:
    from agent_engine.hooks.scope import HookScope
    from agent_engine.records.journal import Journal

__all__ = ["Caller", "McpClients", "McpError", "McpServer", "McpServerError", "McpTool", "McpToolError"]

logger = logging.getLogger("agent_engine.mcp")

RETRY_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)
"""How long an optional server that could not be listed is left alone, the last one from then on."""
MAX_WARNINGS = 1000
"""Sentences that are kept; what comes after them is only logged."""


class McpClients:
    """Every MCP server of one engine; an async context manager, used in the event loop that entered it.

    Args:
        servers: what is declared.
        scope: the hooks that hold outside of any run: at build, and for what sessions send by themselves.
        journal: where ``mcp`` steps outside of any run go.
        taken_names: names that MCP tools may not have (the engine's own tools).
        on_change: called with a server's id when an optional server has come back, or its tools were listed anew.
        idle_seconds: a session that is not used for so long is closed.
        max_sessions: sessions that one server may have at once.

    Attributes:
        warnings: sentences about servers that are absent and tools that were renamed.
    """

    def __init__(
        self,
        servers: Sequence[McpServer],
        scope: HookScope,
        *,
        journal: Journal | None = None,
        taken_names: Sequence[str] = (),
        on_change: Callable[[str], None] | None = None,
        idle_seconds: float = IDLE_SECONDS,
        max_sessions: int = MAX_SESSIONS,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        quieten()
        self.scope = scope
        self.journal = journal
        self.warnings: list[str] = []
        self._on_change = on_change
        self._retry_seconds = tuple(retry_seconds)
        self._remotes: dict[str, Remote] = {}
        for server in servers:
            if server.id in self._remotes:
                raise ValueError(f"MCP server '{server.id}' is declared twice")
            self._remotes[server.id] = Remote(
                server, scope, journal, idle_seconds=idle_seconds, max_sessions=max_sessions
            )
        self._names = Names(taken_names)
        self._absent: dict[str, asyncio.Task[None]] = {}
        self._unlisted: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every session. Closing twice is harmless."""
        tasks = list(self._absent.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(remote.close() for remote in self._remotes.values()))

    @property
    def servers(self) -> tuple[McpServer, ...]:
        return tuple(remote.server for remote in self._remotes.values())

    def absent(self, server_id: str) -> bool:
        """Whether an optional server could not be listed, when it was last asked."""
        return server_id in self._absent or server_id in self._unlisted

    def caller(self, context: RunContext | None = None) -> Caller:
        """A caller outside of any run: with an identity, or with none."""
        return Caller(context if context is not None else RunContext(), self.scope, journal=self.journal)

    async def discover(self) -> list[McpTool]:
        """List the servers that are listed at build, all at once, outside of any run.

        An optional server that does not answer is absent, with a warning, and is tried again in the background.

        Raises:
            McpServerError: a required server could not be listed, or a hook refused the request.
            Exception: a hook's own failure, where its policy is to fail.
        """
        remotes = [remote for remote in self._remotes.values() if remote.server.discover == "build"]
        caller = self.caller()
        outcomes = await asyncio.gather(*(remote.tools(caller) for remote in remotes), return_exceptions=True)
        problems: list[McpServerError] = []
        listed: list[tuple[Remote, Listing]] = []
        for remote, outcome in zip(remotes, outcomes, strict=True):
            if isinstance(outcome, McpError):
                problem = build_problem(remote.server, outcome)
                if remote.server.required or getattr(outcome, "kind", "") == "refused":
                    problems.append(problem)
                else:
                    self._leave_out(remote, problem)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                listed.append((remote, outcome))
        if problems:
            raise (
                problems[0]
                if len(problems) == 1
                else McpServerError(problems[0].server_id, " ".join(str(problem) for problem in problems))
            )
        self._name(listed)
        return [tool for remote, listing in listed for tool in self._made(remote, listing)]

    async def tools_for(self, caller: Caller, server_id: str) -> list[McpTool]:
        """The tools of a server for a run: as they were listed at build, or as this caller is shown them.

        A list that has changed is asked for again. A server of ``first_use`` is asked with the caller's own identity,
        and the list is kept for that identity alone.

        Raises:
            McpServerError: a required server could not be listed.
            Exception: a hook's own failure, where its policy is to fail.
        """
        remote = self._remote(server_id)
        if remote.server.discover == "build":
            if server_id in self._absent:
                return []
            asker = self.caller()
        else:
            asker = caller
        known = remote.listed(asker.identity)
        try:
            listing = await remote.tools(asker)
        except McpError as failure:
            problem = build_problem(remote.server, failure)
        else:
            self._unlisted.discard(server_id)
            self._name([(remote, listing)])
            return self._made(remote, listing)
        if known is not None and known.tools:
            logger.warning(
                "MCP server '%s' could not be listed again; its tools are used as they were: %s", server_id, problem
            )
            return self._made(remote, known)
        if remote.server.required:
            raise problem
        self._unlisted.add(server_id)
        self._warn(str(problem))
        return []

    def _name(self, listed: Sequence[tuple[Remote, Listing]]) -> None:
        """Give new tools their names, those of several servers in one go."""
        new = [(remote.server.id, listing.tools) for remote, listing in listed if listing.made is None]
        for report in self._names.give((server_id, tool.name) for server_id, tools in new for tool in tools):
            self._warn(report)

    def _made(self, remote: Remote, listing: Listing) -> list[McpTool]:
        if listing.made is None:
            server_id = remote.server.id
            listing.made = [
                McpTool(self, server_id, tool, self._names.of(server_id, tool.name)) for tool in listing.tools
            ]
        return list(listing.made)

    def _warn(self, text: str) -> None:
        if text in self.warnings:
            return
        logger.warning("%s", text)
        # Some of them carry a server's own words, which may be others each time.
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)

    def _leave_out(self, remote: Remote, problem: McpServerError) -> None:
        self._warn(f"{problem} Its tools are absent until it answers.")
        self._absent[remote.server.id] = asyncio.get_running_loop().create_task(
            self._come_back(remote), name=f"mcp-retry-{remote.server.id}"
        )

    async def _come_back(self, remote: Remote) -> None:
        """Try an optional server again until it can be listed."""
        server_id = remote.server.id
        tries = 0
        while True:
            await asyncio.sleep(self._retry_seconds[min(tries, len(self._retry_seconds) - 1)])
            tries += 1
            try:
                await remote.tools(self.caller())
            except Exception as problem:  # noqa: BLE001 - whatever it is, the server stays absent, and is tried again
                logger.info("MCP server '%s' is still absent: %s", server_id, type(problem).__name__)
                continue
            logger.info("MCP server '%s' is back", server_id)
            del self._absent[server_id]
            if self._on_change is not None:
                self._on_change(server_id)
            return

    async def call(
        self,
        caller: Caller,
        tool: McpTool,
        arguments: Mapping[str, Any],
        *,
        progress: Callable[[object], object] | None = None,
    ) -> Any:
        """Call a tool for a run; the value of its result, see :func:`agent_engine.mcp.results.value_of`.

        Raises:
            McpToolError: the call failed, or its result is marked as an error.
            Exception: a hook's own failure, where its policy is to fail.
        """
        assert tool.server_id is not None
        remote = self._remote(tool.server_id)
        result = await remote.call_tool(
            caller, tool.remote_name, arguments, headers=tool.param_headers(arguments), progress=progress
        )
        value = value_of(remote.server.id, result)
        problems = tool.output_problems(result.structured_content)
        if problems:
            text = f"Tool '{tool.remote_name}' gave a result that does not fit its own schema: {problems[0]}"
            raise McpToolError(remote.server.id, text, "protocol")
        return value

    async def resources(self, server_id: str, caller: Caller | None = None) -> list[dict[str, Any]]:
        """The resources that a server offers: uri, name, mime_type and what else it says."""
        found = await self._pages(
            caller, server_id, "resources/list", wire.ListResourcesRequest, wire.ListResourcesResult
        )
        return [plain(one) for one in found]

    async def resource_templates(self, server_id: str, caller: Caller | None = None) -> list[dict[str, Any]]:
        """The templates of resources that a server offers."""
        found = await self._pages(
            caller,
            server_id,
            "resources/templates/list",
            wire.ListResourceTemplatesRequest,
            wire.ListResourceTemplatesResult,
        )
        return [plain(one) for one in found]

    async def read_resource(self, server_id: str, uri: str, caller: Caller | None = None) -> list[dict[str, Any]]:
        """The contents of a resource: uri, mime_type, and text or (base64) data."""
        request = wire.ReadResourceRequest(params=wire.ReadResourceRequestParams(uri=uri))
        result = await self._ask(caller, server_id, "resources/read", request, wire.ReadResourceResult)
        return [contents_of(one) for one in result.contents]

    async def prompts(self, server_id: str, caller: Caller | None = None) -> list[dict[str, Any]]:
        """The prompts that a server offers, with their arguments."""
        found = await self._pages(caller, server_id, "prompts/list", wire.ListPromptsRequest, wire.ListPromptsResult)
        return [plain(one) for one in found]

    async def get_prompt(
        self, server_id: str, name: str, arguments: Mapping[str, str] | None = None, caller: Caller | None = None
    ) -> list[dict[str, Any]]:
        """The messages of a prompt: role and content."""
        params = wire.GetPromptRequestParams(name=name, arguments=dict(arguments or {}))
        request = wire.GetPromptRequest(params=params)
        result = await self._ask(caller, server_id, "prompts/get", request, wire.GetPromptResult)
        return [plain(message) for message in result.messages]

    async def _ask(self, caller: Caller | None, server_id: str, operation: str, request: Any, result_type: Any) -> Any:
        return await self._remote(server_id).ask(caller or self.caller(), operation, request, result_type)

    async def _pages(
        self, caller: Caller | None, server_id: str, operation: str, request: Any, result_type: Any
    ) -> list[Any]:
        field_name = {"resources/templates/list": "resource_templates"}.get(operation, operation.partition("/")[0])
        return await self._remote(server_id).pages(caller or self.caller(), operation, request, result_type, field_name)

    def _remote(self, server_id: str) -> Remote:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise RuntimeError("The MCP servers of an engine are used in the event loop that built the engine")
        remote = self._remotes.get(server_id)
        if remote is None:
            known = ", ".join(self._remotes) or "none"
            raise KeyError(f"There is no MCP server '{server_id}'; declared are: {known}")
        return remote
