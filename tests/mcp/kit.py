"""What the tests of the MCP client share: callers, hooks that carry an identity, and a client over a test server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agent_engine.hooks.definition import FunctionHook
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import (
    AuthContext,
    HookInvocation,
    McpRequestContext,
    McpResponseContext,
    RunContext,
    current_run_context,
)
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.scope import HookScope
from agent_engine.mcp.client import McpClients, McpServer, McpTool
from agent_engine.tools.base import ToolInvocation


def run_of(user: str, run_id: str | None = None, **metadata: Any) -> RunContext:
    """The context of a run of a user, who has a token of their own."""
    return RunContext(
        run_id=run_id or f"run-{user}",
        user_id=user,
        organization_id="acme",
        metadata=metadata,
        auth_context=AuthContext(user_id=user, organization_id="acme", inbound_access_token=f"token-of-{user}"),
    )


class Kit:
    """A client over one or more servers, its hooks, and calls of its tools."""

    def __init__(self, registry: HookRegistry, journal: Any = None) -> None:
        self.registry = registry
        self.scope = HookScope(registry)
        self.journal = journal
        self.clients: McpClients
        self.tools: dict[str, McpTool] = {}

    def invocation(self, context: RunContext, **options: Any) -> ToolInvocation:
        return ToolInvocation(context, scope=self.scope, journal=self.journal, call_id="call-1", **options)

    async def call(self, name: str, context: RunContext | None = None, /, **arguments: Any) -> Any:
        """Call a tool of the first server for a run."""
        return await self.tools[name].invoke(arguments, self.invocation(context or run_of("joe")))


@asynccontextmanager
async def connected(
    *servers: McpServer,
    registry: HookRegistry | None = None,
    discover: bool = True,
    journal: Any = None,
    **options: Any,
) -> AsyncIterator[Kit]:
    """An open client over servers, with their tools listed."""
    kit = Kit(registry if registry is not None else HookRegistry(), journal)
    async with McpClients(list(servers), kit.scope, journal=journal, **options) as clients:
        kit.clients = clients
        if discover:
            kit.tools = {tool.name: tool for tool in await clients.discover()}
        yield kit


def on_request(registry: HookRegistry, hook: Callable[[HookInvocation], Any], **options: Any) -> None:
    """Register a managed hook, as agents.yaml does, on before_mcp_request."""
    options.setdefault("failure_policy", "fail")
    registry.register(FunctionHook(event=HookEvent.BEFORE_MCP_REQUEST, func=hook, managed_call=True, **options))


def identify(registry: HookRegistry, before: Callable[[], Any] | None = None) -> None:
    """A hook that puts the caller's user, run and token on each request, and nothing where there is none."""

    async def identity(event: HookInvocation) -> McpRequestContext:
        request = event.payload_as(McpRequestContext)
        context = event.run_context
        assert context is not None
        assert current_run_context() == context
        if before is not None:
            await before()
        token = context.auth_context.inbound_access_token
        headers = {"X-User": context.user_id or "nobody", "X-Run": context.run_id or "none"}
        return request.with_headers(headers | ({"Authorization": f"Bearer {token}"} if token else {}))

    on_request(registry, identity)


class Pairs:
    """Keeps what the two MCP events were called with, and whether they balance."""

    def __init__(self, registry: HookRegistry) -> None:
        self.before: list[McpRequestContext] = []
        self.after: list[McpResponseContext] = []

        @registry.on("before_mcp_request", observe=True, name="pairs-before")
        async def before(request: McpRequestContext) -> None:
            self.before.append(request)

        @registry.on("after_mcp_response", observe=True, name="pairs-after")
        async def after(response: McpResponseContext) -> None:
            self.after.append(response)

    def of(self, operation: str) -> list[tuple[int | None, str, str | None]]:
        """How the requests of an operation ended: status code, status, error type."""
        return [(one.status_code, one.status, one.error_type) for one in self.after if one.operation == operation]

    def balance(self) -> bool:
        """Each request that went out has one closing event, and nothing else has."""
        return sorted(one.operation for one in self.before) == sorted(one.operation for one in self.after)


@contextlib.contextmanager
def raises_text(kind: type[BaseException], *parts: str) -> Any:
    """Expect an exception whose text has each of the parts."""
    import pytest

    with pytest.raises(kind) as caught:
        yield caught
    for part in parts:
        assert part in str(caught.value), str(caught.value)
