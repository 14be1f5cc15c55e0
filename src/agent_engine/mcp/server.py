"""McpServer: what is declared about one MCP server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

DEFAULT_TIMEOUT = 300.0
"""Seconds that one request may take where the server declares no ``timeout``."""
MAX_RESULT_BYTES = 16 << 20
"""Bytes that one answer may have where nothing else is said."""

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
Protocol = Literal["auto", "legacy", "modern"]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One MCP server, over streamable HTTP (``url``) or as a process (``command``).

    Args:
        id: the name it is known by.
        url: its endpoint; a query is sent as it stands.
        command, args: the program and its arguments, for a server over stdio.
        env: variables for that process, over the safe base.
        pass_env: names of variables that the process inherits; nothing else is.
        cwd: its folder.
        tool_tags: sent with every request, comma-joined.
        tool_tag_transport: ``{"type": "header", "header_name": …}`` (the default, with ``X-MCP-Tool-Tag``) or
            ``{"type": "query_param", "param_name": …}``.
        required: whether a build fails when the server cannot be listed.
        discover: list the tools at ``build``, or at ``first_use`` by each caller, with that caller's identity.
        timeout: seconds for one request; None is 300.
        max_result_bytes: bytes that one answer may have.
        protocol: ``auto`` asks the server which generation it speaks; the others settle it.

    Raises:
        ValueError: a declaration that cannot work; the message names the server.
    """

    id: str
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    cwd: str | None = None
    tool_tags: tuple[str, ...] = ()
    tool_tag_transport: Mapping[str, str] = field(default_factory=dict)
    required: bool = True
    discover: Literal["build", "first_use"] = "build"
    timeout: float | None = None
    max_result_bytes: int = MAX_RESULT_BYTES
    protocol: Protocol = "auto"

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"MCP server id {self.id!r} must be letters, digits, _ or -, and begin with a letter or _")
        if (self.url is None) == (self.command is None):
            raise ValueError(f"MCP server '{self.id}' needs a url or a command, and not both")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"MCP server '{self.id}' has the timeout {self.timeout!r}; it must be more than 0 seconds")
        if self.max_result_bytes < 1:
            raise ValueError(f"MCP server '{self.id}' must allow results of at least one byte")
        if self.url is not None:
            self._check_url(self.url)
        if any(not tag or "," in tag or not tag.isprintable() or not tag.isascii() for tag in self.tool_tags):
            raise ValueError(f"MCP server '{self.id}' has a tool tag that is empty, or has a comma or an odd character")
        header = self.tool_tag_transport.get("header_name")
        if header is not None and not _HEADER_NAME.fullmatch(header):
            raise ValueError(f"MCP server '{self.id}' wants its tool tags in {header!r}, which is no name of a header")

    def _check_url(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"MCP server '{self.id}' needs a url that begins with http:// or https:// and names a host"
            )
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                f"MCP server '{self.id}' has credentials in its url; set them in a before_mcp_request hook"
            )

    def __repr__(self) -> str:
        return f"<McpServer '{self.id}' {self.where}>"

    @property
    def seconds(self) -> float:
        """Seconds that one request may take."""
        return DEFAULT_TIMEOUT if self.timeout is None else self.timeout

    @property
    def where(self) -> str:
        """The server's place, without anything that may be a secret: its origin, or ``stdio:<id>``."""
        if self.url is None:
            return f"stdio:{self.id}"
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")

    @property
    def endpoint(self) -> str:
        """The address that requests go to: the url, with the tool tags where they travel in the query."""
        url = (self.url or f"stdio:{self.id}").partition("#")[0]
        name = self.tool_tag_transport.get("param_name")
        if not self.tool_tags or self.tool_tag_transport.get("type") != "query_param" or not name:
            return url
        pair = f"{quote(name, safe='')}={quote(','.join(self.tool_tags), safe='')}"
        return f"{url}{'&' if urlsplit(url).query else '?'}{pair}"

    @property
    def tag_headers(self) -> dict[str, str]:
        """The header that carries the tool tags, where they travel in one."""
        if not self.tool_tags or self.tool_tag_transport.get("type", "header") != "header":
            return {}
        return {self.tool_tag_transport.get("header_name", "X-MCP-Tool-Tag"): ",".join(self.tool_tags)}

    @classmethod
    def from_spec(cls, server_id: str, spec: Any) -> McpServer:
        """The server that an ``mcps`` entry of agents.yaml declares; ``spec`` has its keys as attributes."""
        transport = spec.tool_tag_transport
        if transport is not None and not isinstance(transport, Mapping):
            transport = transport.model_dump(exclude_none=True)
        return cls(
            id=server_id,
            url=spec.url,
            command=spec.command,
            args=tuple(spec.args),
            env=dict(spec.env),
            pass_env=tuple(spec.pass_env),
            cwd=spec.cwd,
            tool_tags=tuple(spec.tool_tags),
            tool_tag_transport=dict(transport or {}),
            required=spec.required,
            discover=spec.discover,
            timeout=spec.timeout,
        )
