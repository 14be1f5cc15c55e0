"""McpTool: a tool of an MCP server, as the model sees it and as hooks match it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent_engine.mcp.caller import Caller
from agent_engine.mcp.schema import SchemaCheck
from agent_engine.tools.base import ArgumentsInvalid, Tool, ToolInvocation, invalid_text

if TYPE_CHECKING:
    from mcp_types import Tool as Listed

    from agent_engine.mcp.client import McpClients

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
LONGEST_NAME = 64
"""Characters that providers accept in the name of a tool."""
_OPEN = frozenset(("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "unevaluatedProperties", "if"))


class McpTool(Tool):
    """A tool of an MCP server. ``remote_name`` is the server's own name for it."""

    ends = True

    __slots__ = ("_arguments", "_clients", "_param_headers", "_results", "output_schema", "remote_name")

    def __init__(self, clients: McpClients, server_id: str, listed: Listed, name: str) -> None:
        plain = listed.name
        known_as = (plain, f"{server_id}__{plain}", f"mcp__{server_id}__{plain}")
        super().__init__(
            name,
            listed.description or listed.title or "",
            listed.input_schema,
            provider="mcp",
            server_id=server_id,
            aliases=tuple(alias for alias in known_as if alias != name),
        )
        self.remote_name = plain
        self.output_schema = listed.output_schema
        self._clients = clients
        self._arguments: SchemaCheck | None = None
        self._results: SchemaCheck | None = None
        self._param_headers: Mapping[tuple[str, ...], str] | None = None

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments against the schema that the server gave, as a whole; unknown ones are refused.

        Raises:
            ArgumentsInvalid: with every problem, written for the model.
        """
        schema = self.parameters
        properties: Mapping[str, Any] = schema.get("properties") or {}
        problems: list[str] = []
        if "additionalProperties" not in schema and not _OPEN & schema.keys():
            problems = [f"{name}: unknown argument" for name in arguments if name not in properties]
        if self._arguments is None:
            self._arguments = SchemaCheck(schema)
        problems += self._arguments.problems(dict(arguments))
        if problems:
            raise ArgumentsInvalid(invalid_text(self.name, problems, list(properties)))
        return dict(arguments)

    def output_problems(self, structured: object) -> list[str]:
        """What does not fit the schema that the server gave for its structured results."""
        if self.output_schema is None or structured is None:
            return []
        if self._results is None:
            self._results = SchemaCheck(self.output_schema)
        return self._results.problems(structured)

    def param_headers(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The headers in which a server of the newer generation wants some arguments repeated."""
        if self._param_headers is None:
            from mcp.shared.inbound import x_mcp_header_map

            self._param_headers = x_mcp_header_map(self.parameters)
        if not self._param_headers:
            return {}
        from mcp.shared.inbound import mcp_param_headers

        return mcp_param_headers(self._param_headers, arguments)

    async def invoke(self, arguments: dict[str, Any], call: ToolInvocation) -> Any:
        """Call the tool for the run in ``call``; see :meth:`McpClients.call_tool`."""
        run = call.run
        caller = Caller(
            call.run_context,
            call.scope if call.scope is not None else self._clients.scope,
            agent=call.agent,
            journal=call.journal,
            step_id=call.step_id,
            sink=getattr(run, "sink", None),
            strict=bool(getattr(run, "strict", False)),
        )
        return await self._clients.call(caller, self, arguments, progress=call.progress)


def model_name(name: str) -> str:
    """A name that providers accept: what they would refuse becomes ``_``, and what is too long is cut with a digest."""
    accepted = _NOT_IN_NAMES.sub("_", name) or "tool"
    if len(accepted) > LONGEST_NAME:
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
        accepted = f"{accepted[: LONGEST_NAME - 9]}_{digest}"
    return accepted


class Names:
    """Which name means which tool, for all servers of an engine. A name once given stays."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._owner: dict[str, tuple[str, str]] = {name: ("", name) for name in taken}
        self._given: dict[tuple[str, str], str] = {}

    def give(self, wanted: Iterable[tuple[str, str]]) -> list[str]:
        """Name tools, as pairs of server and plain name; a sentence for each that could not keep its own.

        Of tools that are named in one go and share a plain name, each gets ``server__tool``.
        """
        new = [pair for pair in dict.fromkeys(wanted) if pair not in self._given]
        count: dict[str, int] = {}
        for _, plain in new:
            count[model_name(plain)] = count.get(model_name(plain), 0) + 1
        reports: list[str] = []
        for server, plain in new:
            name = model_name(plain)
            if count[name] > 1 or name in self._owner:
                name = self._free(model_name(f"{server}__{plain}"))
                reports.append(
                    f"Tool '{plain}' of MCP server '{server}' is named '{name}': there is another tool of its own name."
                )
            elif name != plain:
                reports.append(
                    f"Tool '{plain}' of MCP server '{server}' is named '{name}': models do not accept its own name."
                )
            self._owner[name] = (server, plain)
            self._given[server, plain] = name
        return reports

    def _free(self, name: str) -> str:
        number, free = 2, name
        while free in self._owner:
            free = f"{name[: LONGEST_NAME - 4]}_{number}"
            number += 1
        return free

    def of(self, server: str, plain: str) -> str:
        """The name of a tool that was given one."""
        return self._given[server, plain]
