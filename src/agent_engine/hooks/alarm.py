"""Limits of hooks on a loop: one timer for all of them, which is left armed when a hook was quicker."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from typing import Protocol

__all__ = ["Alarms", "Sleeper", "alarms"]

_EARLY: float = 1e-6
"""A loop may call a timer this much before its time."""


class Sleeper(Protocol):
    """Whoever wants to be told: ``ring`` is called on the loop at ``due`` (``time.monotonic``)."""

    due: float

    def ring(self) -> None: ...


class Alarms:
    """The sleepers of one loop. Their one timer is set anew only for an earlier time; a place in a set costs little."""

    __slots__ = ("_loop", "_sleepers", "_timer", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._sleepers: set[Sleeper] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._when = math.inf

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """True for the loop these are of."""
        return self._loop() is loop

    def add(self, sleeper: Sleeper) -> None:
        """Ring it at its time."""
        self._sleepers.add(sleeper)
        if sleeper.due < self._when:
            self._set(sleeper.due)

    def remove(self, sleeper: Sleeper) -> None:
        """Do not ring it."""
        self._sleepers.discard(sleeper)

    def _set(self, when: float) -> None:
        loop = self._loop()
        if loop is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._when = when
            self._timer = loop.call_later(max(when - time.monotonic(), 0.0), self._ring)

    def _ring(self) -> None:
        self._timer, self._when = None, math.inf
        now = time.monotonic() + _EARLY
        due = [sleeper for sleeper in self._sleepers if sleeper.due <= now]
        self._sleepers.difference_update(due)
        if self._sleepers:
            self._set(min(sleeper.due for sleeper in self._sleepers))
        for sleeper in due:
            sleeper.ring()


_here = threading.local()


def alarms() -> Alarms:
    """Those of the loop that runs in this thread."""
    loop = asyncio.get_running_loop()
    found: Alarms | None = getattr(_here, "alarms", None)
    if found is None or not found.serves(loop):
        found = _here.alarms = Alarms(loop)
    return found
