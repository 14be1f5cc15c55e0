"""A token that is there already: in a variable or a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from agent_engine.batteries.credentials.base import Credential, bearer, without_scheme

if TYPE_CHECKING:
    from agent_engine.batteries.credentials.sources import Source
    from agent_engine.hooks.managed import McpRequestContext, RunContext


class BearerToken(Credential):
    """``BearerToken(from_env("INTERNAL_MCP_TOKEN"), servers=("internal_api",))``.

    Args:
        source: ``from_env(NAME)`` or ``from_file(PATH)``; read for each request, so a renewed token is used at once.
        header: the header it goes into; another one than Authorization carries the token alone.
        servers: the servers it is for; none means all.
    """

    def __init__(self, source: Source, *, header: str = "Authorization", servers: Iterable[str] = ()) -> None:
        super().__init__(servers)
        self.source = source
        self.header = header

    def __repr__(self) -> str:
        return f"BearerToken({self.source!r})"

    async def headers(self, request: McpRequestContext, run_context: RunContext) -> Mapping[str, str]:
        token = without_scheme(self.source.read().reveal())
        return bearer(token) if self.header.lower() == "authorization" else {self.header: token}
