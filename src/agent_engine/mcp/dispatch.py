"""The SDK's dispatcher with each request bound to the call it serves, and that call's own outcome.

What the SDK makes of an answer is not always what the caller is to be told: a hook's failure, a refused credential or a
lost connection is noted on the call by the door, and raised here, in the task of the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio.abc import TaskStatus
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import ClientMessageMetadata
from mcp_types import REQUEST_TIMEOUT

from agent_engine.mcp import errors
from agent_engine.mcp.call import CALL_HEADER, Call, Calls
from agent_engine.mcp.gate import STDIO, Gate

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import WriteStream
    from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
    from mcp.shared.message import SessionMessage
    from mcp.shared.transport_context import TransportContext

    from agent_engine.mcp.server import McpServer


class SessionGone(Exception):
    """The server does not know the session any more; the request was not looked at."""


class Outbound:
    """The way out of a session: writes on each message which call it serves, for the door to read."""

    def __init__(self, inner: WriteStream[SessionMessage], calls: Calls) -> None:
        self._inner = inner
        self._calls = calls

    async def send(self, item: SessionMessage, /) -> None:
        call = self._call_of(item.message)
        if call is not None:
            if not isinstance(item.metadata, ClientMessageMetadata):
                item.metadata = ClientMessageMetadata()
            item.metadata.headers = {**(item.metadata.headers or {}), CALL_HEADER: call.id}
        await self._inner.send(item)

    def _call_of(self, message: Any) -> Call | None:
        method = getattr(message, "method", None)
        if method == "notifications/cancelled":
            about = self._calls.find((message.params or {}).get("requestId"))
        elif method == "notifications/initialized":
            about = self._calls.opener
        else:
            return self._calls.find(getattr(message, "id", None)) if method is not None else None
        return None if about is None else self._calls.follow_up(about, method)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Outbound:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


class CallDispatcher:
    """What a session talks to.

    Args:
        inner: the SDK's own dispatcher, over the session's streams.
        calls: the calls of the session.
        server: whose session it is.
        gated: the requests pass the gate here (stdio), as there is no HTTP request that could.

    Attributes:
        closed: the connection has ended; nothing can be sent any more.
        failure: the failure of a call that was raised last, so that it can be told from the SDK's own errors.
    """

    def __init__(
        self, inner: JSONRPCDispatcher[TransportContext], calls: Calls, server: McpServer, *, gated: bool
    ) -> None:
        self._inner = inner
        self._calls = calls
        self._server = server
        self._gated = gated
        self.closed = False
        self.failure: BaseException | None = None
        self.note: errors.McpToolError | None = None

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        options = cast("CallOptions", dict(opts or {}))
        call = self._claim(method, options)
        self._calls.add(call)
        try:
            return await (self._through_gate if self._gated else self._send)(call, method, params, options)
        finally:
            self._calls.discard(call)

    def _claim(self, method: str, options: CallOptions) -> Call:
        """The call that a request serves: the one that came along with it, or the one that opens the session."""
        progress: object = options.get("on_progress")
        if isinstance(progress, Call):
            call = progress
            if call.progress is None:
                del options["on_progress"]
        elif self._calls.opener is not None:
            opener = self._calls.opener
            call = Call(opener.caller, method, context=opener.context, seconds=opener.seconds)
        else:
            call = self._calls.by_itself(method)
        given = options.get("request_id")
        if given is not None:
            call.id = str(given)
        options["request_id"] = call.id
        call.awaited = True
        if call.headers:
            options["headers"] = {**options.get("headers", {}), **call.headers}
        return call

    async def _through_gate(
        self, call: Call, method: str, params: Mapping[str, Any] | None, options: CallOptions
    ) -> dict[str, Any]:
        gate = Gate(self._server.id, self._server.where, call, method=STDIO)
        await self._noted(gate.before())
        try:
            result = await self._send(call, method, params, options)
        except BaseException as problem:
            ended = not isinstance(problem, Exception) or getattr(problem, "kind", "") == "timed_out"
            status = call.ending if ended else "error"
            await self._noted(gate.after(None, status=status, error_type=type(problem).__name__))
            raise
        await self._noted(gate.after(None))
        return result

    async def _noted(self, asking: Awaitable[object]) -> None:
        """Ask hooks; what they raise is told from the SDK's own errors afterwards."""
        try:
            await asking
        except Exception as failure:
            self.failure = failure
            raise

    async def _send(
        self, call: Call, method: str, params: Mapping[str, Any] | None, options: CallOptions
    ) -> dict[str, Any]:
        result: dict[str, Any] | None = None
        error: MCPError | None = None
        limit = call.limit = asyncio.timeout(call.seconds)
        try:
            async with limit:
                result = await self._inner.send_raw_request(method, params, options)
        except MCPError as answered:
            error = answered
        except TimeoutError:
            if not limit.expired():
                raise
            call.fail(errors.timed_out(self._server.id, method, call.seconds or 0.0))
            call.end()
        except BaseException:
            call.end()
            with anyio.CancelScope(shield=True):
                await call.settled()
            raise
        if error is not None and error.code == REQUEST_TIMEOUT:
            call.end()
        await call.settled(patient=not limit.expired())
        call.end()
        return self._outcome(call, result, error)

    def _outcome(self, call: Call, result: dict[str, Any] | None, error: MCPError | None) -> dict[str, Any]:
        if call.failure is not None:
            self.failure = call.failure
            raise call.failure
        if call.session_gone:
            raise SessionGone
        if error is not None:
            self.note = call.note
            raise error
        assert result is not None
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        await self._inner.notify(method, params, opts)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            await self._inner.run(on_request, on_notify, on_notify_intercept, task_status=task_status)
        finally:
            self.closed = True
