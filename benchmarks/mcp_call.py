"""A tool call over an open session, with two hooks, against the same call of the bare SDK client.

Both talk to one server in a process of its own, in one interleaved run, a call of each in turn; the bound is on the
ratio of the lowest deciles, which other work on the machine moves least. Exit code 1 beyond it.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

CALLS = 500
BOUND = 1.15
KINDS = (("2025-11-25, stream", "legacy", False), ("2025-11-25, JSON", "legacy", True), ("2026-07-28", "modern", True))


def serve(json_response: bool) -> None:
    """Run a server with one tool; its port is the first line on standard output."""
    import uvicorn
    from mcp.server.mcpserver import MCPServer

    server: MCPServer[Any] = MCPServer("bench", log_level="CRITICAL")

    @server.tool()
    def echo(text: str) -> str:
        """Say it again."""
        return text

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    app = server.streamable_http_app(json_response=json_response)
    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=0)
    uvicorn.Server(config).run(sockets=[listener])


async def lowest(url: str, protocol: Any) -> tuple[float, float]:
    """Milliseconds of a bare call, and of a call with hooks: the lowest decile of each."""
    from agent_engine.hooks.managed import AuthContext, McpRequestContext, McpResponseContext, RunContext
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.scope import HookScope
    from agent_engine.mcp.client import McpClients, McpServer
    from agent_engine.tools.base import ToolInvocation
    from mcp import Client

    registry = HookRegistry()
    seen = 0

    @registry.on("before_mcp_request")
    async def auth(request: McpRequestContext) -> McpRequestContext:
        return request.with_headers({"Authorization": "Bearer token", "X-User": "ann"})

    @registry.on("after_mcp_response")
    async def audit(response: McpResponseContext) -> None:
        nonlocal seen
        seen += 1

    scope = HookScope(registry)
    server = McpServer(id="bench", url=url, protocol=protocol)
    mode = "legacy" if protocol == "legacy" else "auto"
    async with Client(url, mode=mode) as bare, McpClients([server], scope) as clients:
        [tool] = await clients.discover()
        context = RunContext(run_id="r", user_id="ann", auth_context=AuthContext(inbound_access_token="t"))
        invocation = ToolInvocation(context, scope=scope)

        async def plain() -> None:
            result = await bare.call_tool("echo", {"text": "hello"})
            assert result.content[0].text == "hello"  # type: ignore[union-attr]

        async def hooked() -> None:
            assert await tool.invoke({"text": "hello"}, invocation) == "hello"

        for _ in range(20):
            await plain()
            await hooked()
        times: dict[Any, list[float]] = {plain: [], hooked: []}
        for number in range(CALLS):
            for work in (plain, hooked) if number % 2 else (hooked, plain):
                times[work].append(await timed(work))
        assert seen >= CALLS
    return statistics.quantiles(times[plain], n=10)[0], statistics.quantiles(times[hooked], n=10)[0]


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1000


def main() -> int:
    import importlib.metadata

    print(f"mcp {importlib.metadata.version('mcp')}; {CALLS} calls of each, interleaved; bound {BOUND:.2f}")
    print(f"{'protocol':<22}{'bare SDK ms':>12}{'two hooks ms':>14}{'ratio':>8}")
    worst = 0.0
    for title, protocol, json_response in KINDS:
        command = [sys.executable, str(Path(__file__)), "--serve", *(["--json"] if json_response else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            bare, hooked = asyncio.run(lowest(f"http://127.0.0.1:{port}/mcp", protocol))
        finally:
            process.kill()
            process.wait()
        print(f"{title:<22}{bare:>12.2f}{hooked:>14.2f}{hooked / bare:>8.2f}", flush=True)
        worst = max(worst, hooked / bare)
    print(f"{'within' if worst <= BOUND else 'BEYOND'} the bound of {BOUND:.2f}: {worst:.2f}")
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve("--json" in sys.argv)
    else:
        raise SystemExit(main())
