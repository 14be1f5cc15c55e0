"""TurnQueue: the calls on one Agent take turns, from any thread and any event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque

Place = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]

_lock = threading.Lock()
"""One for all queues: who waits for whom is read across them. It is held for a moment, and never while waiting."""

_forks = 0
"""How many forks this process is away from the first one."""


class TurnQueue:
    """Lets one caller in at a time, in the order of arrival.

    Nothing in it is bound to a loop: callers may wait on different loops in different threads.
    """

    __slots__ = ("_busy", "_forks", "_given", "_waiting", "_wanted")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._forks = _forks
        self._busy = False
        self._waiting: deque[Place] = deque()
        # Who has been given the turn and does not know it yet.
        self._given: set[Place] = set()
        # The queues that the caller whose turn it is waits for, somewhere inside.
        self._wanted: list[TurnQueue] = []

    async def enter(self, held: tuple[TurnQueue, ...] = ()) -> bool:
        """Wait for the turn; ``leave`` gives it back.

        Args:
            held: the queues whose turn the caller has already. False, at once, where this one's turn is one of them,
                or is held by somebody who waits for one of them: the wait would never end.
        """
        with _lock:
            if self in held:
                return False
            if self._forks != _forks:
                self._begin()  # whoever had the turn, or waited for it, has it in the parent process
            if not self._busy:
                self._busy = True
                return True
            if held and self._waits_for(held):
                return False
            loop = asyncio.get_running_loop()
            place = (loop, loop.create_future())
            self._waiting.append(place)
            for queue in held:
                queue._wanted.append(self)
        try:
            await place[1]
        except BaseException:
            if self._take_back(place):
                self.leave()  # the turn had been given to a caller that does not want it any more
            raise
        finally:
            with _lock:
                for queue in held:
                    queue._wanted.remove(self)
        self._take_back(place)
        return True

    def leave(self) -> None:
        """Give the turn to whoever has waited longest."""
        while True:
            with _lock:
                if not self._waiting:
                    self._busy = False
                    return
                place = self._waiting.popleft()
                self._given.add(place)
            try:
                place[0].call_soon_threadsafe(_give, place[1])
            except RuntimeError:
                if self._take_back(place):
                    continue  # its loop is closed: nobody waits there
            return

    def _take_back(self, place: Place) -> bool:
        """Nobody waits at this place any more. True for one that took the turn which it had been given, and whoever
        hears so has the turn."""
        with _lock:
            if place in self._waiting:
                self._waiting.remove(place)
            given = place in self._given
            self._given.discard(place)
            return given

    def _waits_for(self, held: tuple[TurnQueue, ...]) -> bool:
        """Whether the caller whose turn it is here waits for one of these, be it through others."""
        seen: list[TurnQueue] = []
        ahead = [self]
        while ahead:
            queue = ahead.pop()
            if queue in held:
                return True
            if queue not in seen:
                seen.append(queue)
                ahead.extend(queue._wanted)
        return False


def _give(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_result(None)


def _after_fork() -> None:
    """A child process has none of its parent's threads and runs."""
    global _forks, _lock
    _lock = threading.Lock()
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
