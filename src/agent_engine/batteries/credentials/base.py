"""Credential: something that sets headers on an MCP request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from agent_engine.hooks.managed import HookInvocation, McpRequestContext, RunContext, current_run_context


class CredentialError(Exception):
    """A credential could not be had. The message never carries one, nor the text of what went wrong elsewhere."""


class Credential(ABC):
    """Sets headers on the requests to some MCP servers.

    Args:
        servers: ids of the servers it is for; none means all of them.
    """

    def __init__(self, servers: Iterable[str] = ()) -> None:
        if isinstance(servers, str):
            raise TypeError(f"servers is a list of server ids, such as ({servers!r},)")
        self.servers = frozenset(servers)

    @abstractmethod
    async def headers(self, request: McpRequestContext, run_context: RunContext) -> Mapping[str, str]:
        """The headers for one request of one run.

        Raises:
            CredentialError: the credential could not be had.
        """

    async def authorize(self, request: McpRequestContext, run_context: RunContext | None = None) -> McpRequestContext:
        """The request with the credential on it; unchanged where it goes to a server that this is not for.

        Args:
            request: the payload of ``before_mcp_request``.
            run_context: whose run it is; None outside a run.
        """
        if self.servers and request.server_id not in self.servers:
            return request
        return request.with_headers(await self.headers(request, run_context or RunContext()))

    async def __call__(self, event: HookInvocation | McpRequestContext) -> McpRequestContext:
        """The credential as a hook, however it was registered."""
        if isinstance(event, HookInvocation):
            return await self.authorize(event.payload_as(McpRequestContext), event.run_context)
        return await self.authorize(event, current_run_context())


def bearer(token: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {token}"}


def without_scheme(token: str) -> str:
    """A token as applications hand it over, with or without the scheme of the header that it came in."""
    scheme, _, rest = token.strip().partition(" ")
    return rest.strip() if scheme.lower() == "bearer" and rest else token.strip()
