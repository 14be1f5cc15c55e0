"""TurnQueue: the calls on one Agent take turns, from any thread and any event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class TurnQueue:
    """Lets one caller in at a time, in the order of arrival: ``async with queue:``.

    Nothing in it is bound to a loop: callers may wait on different loops in different threads.
    """

    __slots__ = ("_busy", "_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def __aenter__(self) -> None:
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            loop = asyncio.get_running_loop()
            place = (loop, loop.create_future())
            self._waiting.append(place)
        try:
            await place[1]
        except BaseException:
            with self._lock:
                if place in self._waiting:
                    self._waiting.remove(place)
                    raise
            if not place[1].cancelled():
                # The turn had been given to a caller that does not want it any more.
                self._next()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._next()

    def _next(self) -> None:
        """Give the turn to whoever has waited longest."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy = False
                    return
                loop, place = self._waiting.popleft()
            try:
                loop.call_soon_threadsafe(self._give, place)
            except RuntimeError:
                continue  # its loop is closed: nobody waits there
            return

    def _give(self, place: asyncio.Future[None]) -> None:
        if place.done():
            self._next()
        else:
            place.set_result(None)
