"""How the writer's thread lets others in: by itself it would keep the interpreter's lock for 5 ms at a time."""

from __future__ import annotations

import time

HELD_S = 0.0003
"""Seconds of computing after which others are let in."""

_BREATH_S = 20e-6


class Pace:
    """Minds how long the thread has computed. Call :meth:`step` every few dozen microseconds of work."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = time.perf_counter() + HELD_S

    def step(self) -> None:
        """Sleep for a moment where it is time to."""
        if time.perf_counter() > self._due:
            time.sleep(_BREATH_S)
            self._due = time.perf_counter() + HELD_S
