"""A real MCP server, on the SDK, for tests: it keeps a log of every HTTP request and misbehaves on demand.

It runs in a thread of its own on a free port of 127.0.0.1 and speaks both generations of the protocol. Run as a
program, it serves the same tools over stdio.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import CallToolResult, EmbeddedResource, ImageContent, TextContent, TextResourceContents

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8ffff3f0005fe02fe"
    "dccc59e70000000049454e44ae426082"
)


@dataclass
class Seen:
    """One HTTP request as the server got it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    message: dict[str, Any] = field(default_factory=dict)
    status: int | None = None

    @property
    def operation(self) -> str:
        """The JSON-RPC method, ``response`` for an answer of the client, else the HTTP method."""
        if self.method != "POST":
            return self.method
        return str(self.message.get("method", "response"))

    @property
    def tool(self) -> str | None:
        params = self.message.get("params") or {}
        return params.get("name") if self.operation == "tools/call" else None

    @property
    def arguments(self) -> dict[str, Any]:
        return (self.message.get("params") or {}).get("arguments") or {}


class _Events(EventStore):
    """Keeps every event, so that a stream that broke can be taken up again."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.kept.append((stream_id, message))
        return f"e{len(self.kept)}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        at = int(last_event_id[1:])
        stream_id = self.kept[at - 1][0]
        for number, (stream, message) in enumerate(self.kept[at:], start=at + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, f"e{number}"))
        return stream_id


def make_tools(name: str = "fake") -> MCPServer[Any]:
    """The tools of the test server, for HTTP and stdio alike."""
    server: MCPServer[Any] = MCPServer(name, log_level="CRITICAL")

    @server.tool()
    def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool()
    def whoami(ctx: Context[Any, Any], note: str = "") -> str:
        """The identity on this very request, as the server sees it."""
        headers = ctx.headers or {}
        return f"{headers.get('x-user', 'nobody')}|{headers.get('authorization', 'none')}|{note}"

    @server.tool()
    def add(a: int, b: int) -> dict[str, int]:
        """The sum, as structured content."""
        return {"sum": a + b}

    @server.tool()
    def numbers(count: int) -> list[int]:
        """A list, which the SDK wraps into an object."""
        return list(range(count))

    @server.tool()
    def fail(text: str = "no such customer") -> CallToolResult:
        """A result that is marked as an error."""
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)

    @server.tool()
    def crash() -> str:
        """A tool that raises."""
        raise RuntimeError("the tool broke")

    @server.tool()
    async def sleep(seconds: float) -> str:
        """Takes its time."""
        await asyncio.sleep(seconds)
        return "slept"

    @server.tool(structured_output=False)
    def huge(size: int) -> str:
        """A text of that many characters."""
        return "x" * size

    @server.tool()
    def picture() -> CallToolResult:
        """Text, an image and an embedded resource."""
        memo = TextResourceContents(uri="memo://1", text="a memo", mime_type="text/plain")
        return CallToolResult(
            content=[
                TextContent(type="text", text="a pixel"),
                ImageContent(type="image", data=base64.b64encode(PIXEL).decode(), mime_type="image/png"),
                EmbeddedResource(type="resource", resource=memo),
            ]
        )

    @server.tool()
    async def progress(steps: int, ctx: Context[Any, Any], note: str = "") -> str:
        """Reports progress on its way."""
        for step in range(1, steps + 1):
            await ctx.report_progress(step, steps, f"step {step}")
            await asyncio.sleep(0.005)
        return "done"

    @server.tool()
    async def broken_stream(ctx: Context[Any, Any], note: str = "") -> str:
        """Closes its own stream in the middle, so that the client has to come back for the answer.

        The answer is there long before it comes: between reading back and following on, the server of the SDK can miss
        what is sent at that very moment.
        """
        key = _key((ctx.headers or {}).get("mcp-session-id"), ctx.request_id)
        until = time.monotonic() + 30
        while key not in _begun and time.monotonic() < until:  # what nobody has seen begin, nobody comes back to
            await asyncio.sleep(0.002)
        await ctx.close_sse_stream()
        return f"resumed {note}"

    @server.tool()
    async def grow(tool: str, ctx: Context[Any, Any]) -> str:
        """Adds a tool and tells the clients."""

        def added() -> str:
            """Added later."""
            return tool

        server.add_tool(added, name=tool)
        await ctx.notify_tools_changed()
        if (ctx.protocol_version or "") < "2026":
            await ctx.session.send_tool_list_changed()
        return "added"

    @server.resource("memo://today")
    def memo() -> str:
        """Today's memo."""
        return "buy milk"

    @server.resource("memo://{day}")
    def memo_of(day: str) -> str:
        """The memo of a day."""
        return f"memo of {day}"

    @server.prompt()
    def greeting(name: str) -> str:
        """A greeting."""
        return f"Say hello to {name}."

    return server


class FakeMcpServer:
    """The server and its log. Use it as a context manager; what it should do wrong is set on it at any time.

    Args:
        json_response: answer POSTs with JSON where the protocol lets it, instead of a stream of events.
        resumable: keep events, so that broken streams can be resumed.
        port: 0 takes a free one; it stays this server's, also while nobody listens at it.
    """

    def __init__(
        self, *, json_response: bool = False, resumable: bool = False, port: int = 0, name: str = "fake"
    ) -> None:
        self.json_response = json_response
        self.resumable = resumable
        self.port = port
        self.name = name
        self.log: list[Seen] = []
        self.tools = make_tools(name)
        self.unauthorized = 0
        """How many of the next POSTs of a tool call are answered with 401; -1 means every request."""
        self.statuses: dict[str, list[int]] = {}
        """operation -> statuses that the next requests of it are answered with."""
        self.redirect: str | None = None
        """Where every request is sent to with 307."""
        self.redirect_status = 307
        self.set_cookie: str | None = None
        self.require: Callable[[Seen], bool] | None = None
        """A check of each request; False answers 401."""
        self.arrived = threading.Event()
        """Set when a tool call has arrived, and it is settled how it is answered."""
        self.cut: set[str] = set()
        """Tools whose calls are cut off in the middle of the answer."""
        self.bare: dict[str, tuple[int, bytes, bytes]] = {}
        """operation -> (status, content type, body): answered like that, whatever was asked."""
        self.delay = 0.0
        self.events = _Events()
        self._claim: socket.socket | None = None
        """Never listens. It keeps the port from everybody else while the server is down, and after it."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def __enter__(self) -> FakeMcpServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start serving; returns when the port answers."""
        if self._claim is None:
            self._claim = _bound(self.port)
            self.port = self._claim.getsockname()[1]
            weakref.finalize(self, self._claim.close)
        listener = _bound(self.port)
        options: dict[str, Any] = {"json_response": self.json_response}
        if self.resumable:
            self.events = _Events()
            options |= {"event_store": self.events, "retry_interval": 200}
        app = self.tools.streamable_http_app(**options)
        config = uvicorn.Config(
            _Front(self, app),
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=0,
            timeout_keep_alive=600,  # on a busy machine five seconds pass between two calls of a test
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name=self.name, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 60
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the test server did not start")
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop at once: connections are cut, sessions forgotten."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            loop = getattr(connection, "loop", None)
            if transport is not None and loop is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(transport.abort)
        self._thread.join(60)
        self._server = self._thread = None

    def restart(self) -> None:
        """Stop, and start anew on the same port with the same tools and no memory of any session."""
        self.stop()
        self.tools = make_tools(self.name)
        self.start()

    def forget_sessions(self) -> None:
        """Forget every session of the older generation, as a server does that was replaced."""
        self.tools.session_manager._server_instances.clear()

    def seen(self, operation: str | None = None, tool: str | None = None) -> list[Seen]:
        """The requests of the log, of one operation or tool."""
        return [
            one
            for one in list(self.log)
            if (operation is None or one.operation == operation) and (tool is None or one.tool == tool)
        ]


def _bound(port: int) -> socket.socket:
    # With the protocol named, asyncio switches Nagle's algorithm off on each connection that it accepts.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


_begun: set[str] = set()
"""Requests whose answers have begun to be sent."""


def _key(session: str | None, request: object) -> str:
    return f"{session} {request}"


class _Front:
    """In front of the SDK's application: the log, and everything that goes wrong before MCP is reached."""

    def __init__(self, server: FakeMcpServer, app: Any) -> None:
        self._server = server
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        seen = Seen(
            scope["method"],
            scope["path"],
            scope["query_string"].decode(),
            {key.decode().lower(): value.decode("latin-1") for key, value in scope["headers"]},
            body,
        )
        with contextlib.suppress(ValueError):
            seen.message = json.loads(body)
        self._server.log.append(seen)
        if self._server.delay:
            await asyncio.sleep(self._server.delay)

        async def noting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
                if self._server.set_cookie:
                    message["headers"] = [*message["headers"], (b"set-cookie", self._server.set_cookie.encode())]
            await send(message)
            if message.get("body") and isinstance(seen.message, dict):
                _begun.add(_key(seen.headers.get("mcp-session-id"), seen.message.get("id")))

        if await self._misbehave(seen, noting):
            return
        if seen.tool is not None:
            self._server.arrived.set()
        await self._app(scope, _replayed(body, receive), self._cutting(seen, noting))

    async def _misbehave(self, seen: Seen, send: Send) -> bool:
        server = self._server
        if server.redirect is not None:
            await _answer(send, server.redirect_status, headers=[(b"location", server.redirect.encode())])
        elif server.unauthorized < 0 or (server.unauthorized and seen.operation == "tools/call"):
            server.unauthorized -= server.unauthorized > 0
            await _answer(send, 401, headers=[(b"www-authenticate", b'Bearer realm="fake"')])
        elif server.require is not None and not server.require(seen):
            await _answer(send, 401)
        elif server.statuses.get(seen.operation):
            await _answer(send, server.statuses[seen.operation].pop(0))
        elif seen.operation in server.bare:
            status, kind, body = server.bare[seen.operation]
            await _answer(send, status, body, headers=[(b"content-type", kind)])
        else:
            return False
        return True

    def _cutting(self, seen: Seen, send: Send) -> Send:
        if seen.tool is None or seen.tool not in self._server.cut:
            return send

        async def cut(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                await send({"type": "http.response.body", "body": message["body"][:20], "more_body": True})
                raise ConnectionAbortedError("cut on purpose")
            await send(message)

        return cut


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The receive of an application that has not seen the body yet."""
    left: Iterator[MutableMapping[str, Any]] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> MutableMapping[str, Any]:
        for message in left:
            return message
        return await receive()

    return again


async def _answer(send: Send, status: int, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers or []})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    make_tools("stdio-fake").run("stdio")
