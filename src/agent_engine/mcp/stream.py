"""Reading what a server answers: bounded, decoded, and with its closing event however the reading ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import anyio
import httpx2

from agent_engine.mcp import errors
from agent_engine.mcp.call import Aborted, Call, Calls
from agent_engine.mcp.gate import STREAM, Gate

if TYPE_CHECKING:
    from agent_engine.mcp.server import McpServer

DRAIN_SECONDS = 0.05
"""How long the end of a stream that has given its answer is waited for, so that its connection can be used again."""


def is_end(problem: BaseException) -> bool:
    """Whether something ended because the call did, rather than failed."""
    return isinstance(problem, Aborted) or not isinstance(problem, Exception)


async def release(response: httpx2.Response) -> None:
    """Give the connection of an answer back, or close it, also where the task is being cancelled."""
    with anyio.CancelScope(shield=True), contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, OSError):
        await response.aclose()


class TooLarge(Exception):
    """An answer has more bytes than are allowed."""


async def read_whole(response: httpx2.Response, limit: int) -> bytes:
    """The decoded body of an answer, whose connection is given back.

    Raises:
        TooLarge: it has more than ``limit`` bytes once decoded.
        httpx2.HTTPError: it broke off.
    """
    parts: list[bytes] = []
    size = 0
    # Without an encoding the bytes are read as they come, past the client's decoder.
    source = response.stream
    assert isinstance(source, httpx2.AsyncByteStream)
    async for part in source if "content-encoding" not in response.headers else response.aiter_bytes():
        size += len(part)
        if size > limit:
            raise TooLarge
        parts.append(part)
    await source.aclose()
    return parts[0] if len(parts) == 1 else b"".join(parts)


class EventScanner:
    """Follows a stream of server-sent events: the size of the event under way, of the largest, and the ids."""

    def __init__(self) -> None:
        self._line = b""
        self._cut = False
        self.size = 0
        self.largest = 0
        self.last_id: str | None = None

    def feed(self, part: bytes) -> None:
        """Take the next bytes. Lines longer than an id may be are followed, not kept."""
        start = 0
        while (end := part.find(b"\n", start)) >= 0:
            self._ended(part[start : end + 1])
            start = end + 1
        rest = part[start:]
        self._grow(len(rest))
        if len(self._line) + len(rest) > 1024:
            self._cut = True
            rest = rest[: max(0, 1024 - len(self._line))]
        self._line += rest

    def _ended(self, rest: bytes) -> None:
        if not self._cut and len(rest) <= 1024:
            line = (self._line + rest).rstrip(b"\r\n")
            if not line:
                self.size = 0
                self._line = b""
                return
            if line.startswith(b"id:"):
                self.last_id = line[3:].removeprefix(b" ").decode("utf-8", "replace")
        self._grow(len(rest))
        self._line, self._cut = b"", False

    def _grow(self, size: int) -> None:
        self.size += size
        self.largest = max(self.largest, self.size)


class AnswerStream(httpx2.AsyncByteStream):
    """The open answer of one request, handed to the SDK in place of the connection.

    A lost connection ends it with an error of a plain kind, so that the SDK can take the stream up again; an event that
    is too large ends it with the call's failure; the end of the call ends it quietly.
    """

    def __init__(self, server: McpServer, calls: Calls, call: Call, gate: Gate, response: httpx2.Response) -> None:
        self._server = server
        self._calls = calls
        self._call = call
        self._gate = gate
        self._response = response
        self._parts: AsyncIterator[bytes] = response.aiter_bytes()
        self._scanner = EventScanner()
        self._total = 0
        self._status = "ok"
        self._error_type: str | None = None
        self._exhausted = False
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        lost = ""
        try:
            part = await self._call.wait(anext(self._parts))
        except StopAsyncIteration:
            self._exhausted = True
            raise
        except BaseException as problem:
            if is_end(problem):
                self._ends(self._call.ending, "CancelledError")
                if not isinstance(problem, Aborted):
                    raise
            else:
                lost = type(problem).__name__
        else:
            return self._scanned(part)
        if lost:
            self._ends("error", lost)
            self._call.note = errors.lost(self._server.id, self._server.where, lost)
            raise httpx2.ReadError("the stream was lost")
        raise StopAsyncIteration

    def _scanned(self, part: bytes) -> bytes:
        self._total += len(part)
        scanner = self._scanner
        known = scanner.last_id
        scanner.feed(part)
        if scanner.largest > self._server.max_result_bytes:
            self._ends("error", "TooLarge")
            self._call.fail(errors.too_large(self._server.id, self._server.max_result_bytes))
            raise httpx2.SSEError("an event is too large")
        if scanner.last_id is not None and scanner.last_id != known:
            self._calls.received(self._call, scanner.last_id)
        return part

    def _ends(self, status: str, error_type: str) -> None:
        self._status, self._error_type = status, error_type

    async def aclose(self) -> None:
        """Close the pair of events first, so that the caller can go on; the connection after it."""
        if self._closed:
            return
        self._closed = True
        self._call.closing += 1
        try:
            await self._gate.after(
                self._response.status_code, status=self._status, error_type=self._error_type, size=self._total
            )
        except Exception as failure:  # noqa: BLE001 - a hook's failure belongs to the caller, not to the SDK
            self._call.fail(failure)
        finally:
            if self._call.operation == STREAM:
                self._calls.streaming = False
            self._call.closing -= 1
            self._call.finished()
            await self._release()

    async def _release(self) -> None:
        try:
            if self._status == "ok" and not self._exhausted and self._call.operation != STREAM:
                with contextlib.suppress(
                    TimeoutError, StopAsyncIteration, httpx2.HTTPError, httpx2.StreamError, OSError
                ):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        while len(await anext(self._parts)) < 1024:
                            pass
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(httpx2.HTTPError, OSError):
                await self._response.aclose()
