"""The only door to an MCP server over HTTP: every request the SDK makes passes it, with the caller it belongs to.

The SDK sends a call's requests from tasks of its own. Which call a request serves is written on the request itself: a
header that the session's way out sets from the JSON-RPC id and that the door takes off again. Nothing is looked up in
ambient state, and a request that belongs to nobody is not sent.

The door never lets an exception into the SDK: there it would end the session and every call on it. It answers with a
JSON-RPC error instead, and the caller of that one call gets the real failure.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

import httpx2
from pydantic_core import from_json

from agent_engine.hooks.errors import HookError
from agent_engine.mcp import errors
from agent_engine.mcp.call import CALL_HEADER, Aborted, Call, Calls
from agent_engine.mcp.errors import McpToolError, answered
from agent_engine.mcp.gate import CLOSE, STREAM, Gate
from agent_engine.mcp.stream import AnswerStream, is_end, read_whole, release

if TYPE_CHECKING:
    from agent_engine.mcp.server import McpServer

logger = logging.getLogger("agent_engine.mcp")

UNANSWERED: Final = -32000
"""The JSON-RPC code of an answer that the door makes up; the caller gets the failure itself."""
SHORT_SECONDS: Final = 5.0
"""How long a notification and a goodbye may wait for their answer: the session sends nothing else meanwhile."""
_STREAMS: Final = frozenset((STREAM, "subscriptions/listen"))
"""Operations whose answer stays open; their closing event fires when it begins."""
_DROPPED: Final = frozenset((b"content-encoding", b"location", b"set-cookie"))
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


class HttpDoor(httpx2.AsyncBaseTransport):
    """The HTTP transport of one session.

    Args:
        server: where requests may go.
        inner: the transport that sends them, shared by the sessions of a server.
        calls: the calls of this session.
    """

    def __init__(self, server: McpServer, inner: httpx2.AsyncBaseTransport, calls: Calls) -> None:
        self._server = server
        self._inner = inner
        self._calls = calls
        self._endpoint = str(httpx2.URL(server.endpoint))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request of the SDK, with the hooks around it; see the module."""
        call = self._call_of(request)
        if call is None or str(request.url) != self._endpoint:
            return _made_up(request, None)
        call.began()
        passing = _Passing(self._server, self._endpoint, self._inner, self._calls, call, request)
        try:
            if call.operation == "notifications/cancelled":
                return await _briefly(call.wait(passing.send()))
            return await call.wait(passing.send())
        except Aborted:
            return _made_up(request, call)
        except Exception as failure:  # noqa: BLE001 - it belongs to the caller; in the SDK it would end the session
            if isinstance(failure, McpToolError | HookError):
                # The frames of its traceback hold what the hooks set; a hook's own exception is in its cause.
                failure = failure.with_traceback(None)
            self._failed(call, failure)
            return _made_up(request, call)
        finally:
            if not passing.streaming:
                call.finished()
            if call.follows:
                self._calls.discard(call)

    def _failed(self, call: Call, failure: Exception) -> None:
        """Note the failure for the caller; of what a session sends by itself nobody would know otherwise."""
        call.fail(failure)
        if not call.awaited:
            own = isinstance(failure, McpToolError | HookError)
            text = str(failure) if own else type(failure).__name__
            logger.warning("A request of a session with '%s' (%s) failed: %s", self._server.id, call.operation, text)

    async def aclose(self) -> None:
        """Nothing: the inner transport belongs to the server's sessions together."""

    def _call_of(self, request: httpx2.Request) -> Call | None:
        call = self._calls.find(request.headers.pop(CALL_HEADER, None))
        if call is not None:
            return call
        if request.method == "GET":
            return self._calls.resuming(request.headers.get("last-event-id")) or self._calls.by_itself(STREAM)
        if request.method == "DELETE":
            return self._calls.by_itself(CLOSE)
        message = _message(request)
        if "method" not in message:
            return self._calls.by_itself("response")
        # A request that nobody claims is not sent for anybody; the SDK's notifications are the session's own.
        return None if "id" in message else self._calls.by_itself(str(message["method"]))


class _Passing:
    """One request of the SDK passing the door: up to two attempts, each with its pair of events."""

    def __init__(
        self,
        server: McpServer,
        url: str,
        inner: httpx2.AsyncBaseTransport,
        calls: Calls,
        call: Call,
        request: httpx2.Request,
    ) -> None:
        self.server = server
        self.url = url
        self.inner = inner
        self.calls = calls
        self.call = call
        self.request = request
        self.streaming = False
        self.opens_stream = request.method == "GET" or call.operation in _STREAMS

    async def send(self) -> httpx2.Response:
        for attempt in (1, 2):
            gate = Gate(
                self.server.id,
                self.url,
                self.call,
                method=self.request.method,
                body=self.request.content if self.request.method == "POST" else None,
                attempt=attempt,
            )
            response = await self._exchange(gate, await gate.before())
            if response is not None:
                return response
            if not gate.listens():
                break
        raise errors.unauthorized(self.server.id, self.server.where, gate.listens())

    async def _exchange(self, gate: Gate, headers: dict[str, str]) -> httpx2.Response | None:
        """Send once; None is a 401."""
        error_type = ""
        try:
            response = await self._sent(headers)
        except BaseException as problem:
            if is_end(problem):
                await gate.after(None, status=self.call.ending, error_type="CancelledError")
                raise
            error_type = type(problem).__name__
        if error_type:
            # Outside of the except: what the request carried is not to hang on an exception's context.
            await gate.after(None, status="error", error_type=error_type)
            make = errors.unreachable if error_type.startswith(("Connect", "Pool", "Proxy")) else errors.lost
            raise make(self.server.id, self.server.where, error_type)
        try:
            return await self._received(gate, response)
        except BaseException as problem:
            # Whatever came up in between (most of all the end of the call): the pair is closed all the same.
            status = self.call.ending if is_end(problem) else "error"
            await release(response)
            await gate.after(response.status_code, status=status, error_type=type(problem).__name__)
            raise

    async def _sent(self, headers: dict[str, str]) -> httpx2.Response:
        """Send the request with what hooks set on it for so long as it is being sent: the SDK never sees it there."""
        request, own = self.request, self.request.headers
        if self.opens_stream or self.call.follows or request.method == "DELETE":
            read = None if self.opens_stream else SHORT_SECONDS
            request.extensions = {
                **request.extensions,
                "timeout": {**request.extensions.get("timeout", {}), "read": read},
            }
        request.headers = self._with(own, headers)
        try:
            return await self.inner.handle_async_request(request)
        finally:
            request.headers = own

    def _with(self, own: httpx2.Headers, headers: dict[str, str]) -> httpx2.Headers:
        """The headers of the SDK, those of the declaration over them, and those of the hooks over both; no cookies."""
        added = {**self.server.tag_headers, **headers}
        replaced = {b"cookie", *(name.lower().encode() for name in added)}
        kept = [(name, value) for name, value in own.raw if name.lower() not in replaced]
        return httpx2.Headers([*kept, *((name.encode(), value.encode()) for name, value in added.items())])

    async def _received(self, gate: Gate, response: httpx2.Response) -> httpx2.Response | None:
        status = response.status_code
        if status in _REDIRECTS:
            await release(response)
            await gate.after(status, status="error", error_type="Redirect")
            target = _target(self.request.url, response.headers.get("location", ""))
            raise errors.redirected(self.server.id, self.server.where, status, target)
        if status == 401:
            await release(response)
            await gate.after(status, status="error", error_type="Unauthorized")
            return None
        kind = response.headers.get("content-type", "").lower()
        if status == 200 and kind.startswith("text/event-stream"):
            return await self._stream(gate, response)
        return await self._whole(gate, response, kind)

    async def _whole(self, gate: Gate, response: httpx2.Response, kind: str) -> httpx2.Response:
        """An answer that ends: read here, so that what breaks while it is read breaks this call alone."""
        status, error_type = response.status_code, ""
        body = b""
        try:
            body = await read_whole(response, self.server.max_result_bytes)
        except BaseException as problem:
            if is_end(problem):
                raise
            error_type = type(problem).__name__
        if error_type:
            await release(response)
            await gate.after(status, status="error", error_type=error_type)
            if error_type == "TooLarge":
                raise errors.too_large(self.server.id, self.server.max_result_bytes)
            raise errors.lost(self.server.id, self.server.where, error_type)
        if status >= 400:
            await gate.after(status, status="error", error_type=f"HTTP {status}", size=len(body))
            self._note(status)
        else:
            await gate.after(status, size=len(body))
            # Whatever the success: the SDK looks for an answer in the body of each but 202.
            if status != 202 and self.call.awaited and gate.method == "POST" and kind.startswith("application/json"):
                body = self._answer(body)
        return _answered(response, httpx2.ByteStream(body))

    def _answer(self, body: bytes) -> bytes:
        """The body, once it is the answer to this very request: the SDK would hand another id to another call."""
        try:
            message = from_json(body)
        except ValueError:
            message = None
        if isinstance(message, dict) and "method" not in message:
            if message.get("id") == self.call.id:
                return body
            if message.get("id") is None and "error" in message:
                return json.dumps({**message, "id": self.call.id}).encode()
        text = f"MCP server '{self.server.id}' answered {self.call.operation} with something that is not its answer."
        raise McpToolError(self.server.id, text, "protocol")

    async def _stream(self, gate: Gate, response: httpx2.Response) -> httpx2.Response:
        if self.opens_stream:
            await gate.after(response.status_code)
            self.calls.streaming |= self.call.operation == STREAM
        self.streaming = True
        return _answered(response, AnswerStream(self.server, self.calls, self.call, gate, response))

    def _note(self, status: int) -> None:
        had_session = "mcp-session-id" in self.request.headers
        if status == 404 and had_session and self.request.method == "POST":
            self.call.session_gone = True
        self.call.note = answered(self.server.id, self.server.where, status)


async def _briefly(sending: Awaitable[httpx2.Response]) -> httpx2.Response:
    """Say that a call was cancelled, but not at any price: the session sends nothing else meanwhile."""
    try:
        async with asyncio.timeout(SHORT_SECONDS):
            return await sending
    except TimeoutError:
        raise Aborted from None


def _answered(response: httpx2.Response, stream: httpx2.AsyncByteStream) -> httpx2.Response:
    """An answer as the SDK gets it: read by the door, decoded by now, with no cookie and no place to go to."""
    headers = response.headers.raw
    if any(name.lower() in _DROPPED for name, _ in headers):
        headers = [pair for pair in headers if pair[0].lower() not in _DROPPED]
    return httpx2.Response(response.status_code, headers=headers, stream=stream)


def _made_up(request: httpx2.Request, call: Call | None) -> httpx2.Response:
    """The answer that the SDK gets for a request that has failed: nothing it has to act on, and never an exception."""
    if request.method != "POST":
        return httpx2.Response(405)
    message = _message(request)
    if "id" not in message or "method" not in message:
        return httpx2.Response(202)
    text = "The request belongs to no call" if call is None else "The request was not answered"
    error = {"code": UNANSWERED, "message": text}
    return httpx2.Response(200, json={"jsonrpc": "2.0", "id": message["id"], "error": error})


def _message(request: httpx2.Request) -> dict[str, Any]:
    try:
        message = json.loads(request.content)
    except (ValueError, httpx2.StreamError):
        return {}
    return message if isinstance(message, dict) else {}


def _target(url: httpx2.URL, location: str) -> str:
    """Where a redirect points to, without anything that may be a secret: a server may repeat there what it was sent."""
    try:
        target = url.join(location)
    except (httpx2.InvalidURL, ValueError):
        return "an address that is none"
    origin = target.copy_with(userinfo=b"", path="/", query=None, fragment=None)
    # Most redirects are about a slash at the end, and that can be told with the path that was declared.
    if target.path.rstrip("/") == url.path.rstrip("/"):
        return str(origin.copy_with(path=target.path))
    return f"another path of {origin}" if url.join("/").copy_with(query=None) == origin else str(origin)
