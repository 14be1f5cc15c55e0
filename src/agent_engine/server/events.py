"""Server-sent events: a response that stops its source when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from agent_engine.server.runs import disconnected

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

KEEP_ALIVE_S = 15.0


def sse(event: str, data: Any) -> bytes:
    """One event. Text is sent line by line, anything else as JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
    lines = "".join(f"data: {line}\n" for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return f"event: {event}\n{lines}\n".encode("utf-8", "backslashreplace")  # in JSON a lone surrogate's own escape


class EventStream(Response):
    """Sends what ``source`` yields.

    ``over`` is called once when ``source`` has come to its end, or has been left: before the client can see the end,
    since it may come back at once. ``done`` is told afterwards whether everything was sent. Both in every case.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        over: Callable[[], None] | None = None,
        done: Callable[[bool], Awaitable[None]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._source = source
        self._over = over
        self._done = done
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            complete = sending.done() and not sending.cancelled() and sending.exception() is None
            for task in (sending, gone):
                task.cancel()
            await asyncio.wait({sending, gone})
            if self._done is not None:
                await self._done(complete)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send(self, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with contextlib.aclosing(_kept_alive(self._source)) as pieces:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            if self._over is not None:
                self._over()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _kept_alive(source: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The pieces of a source, and a comment now and then while it is silent, so that proxies keep the line open.

    One task drives the source from its first piece to its end: a time limit in it holds for the task it began in.
    """
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue(64)

    async def pump() -> None:
        try:
            async with contextlib.aclosing(source):
                async for piece in source:
                    await pieces.put(piece)
        finally:
            if not _is_cancelled():
                await pieces.put(None)

    pumping = asyncio.create_task(pump())
    try:
        while True:
            try:
                piece = await asyncio.wait_for(pieces.get(), KEEP_ALIVE_S)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if piece is None:
                break
            yield piece
        await pumping
    finally:
        pumping.cancel()
        await asyncio.wait({pumping})


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
