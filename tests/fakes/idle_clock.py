"""The time that limits go by, in the hands of a test: a machine that stands still for a while makes nothing late."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agent_engine.hooks.workers import Errand


class Clock:
    """The clock of every loop and limit (``time.monotonic``). It goes as ever, and a test can put it forward: a limit
    is generous, and over when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        real = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + self._ahead)

    def put_forward(self, seconds: float) -> None:
        """On the loop: what would be due within so many seconds is due now."""
        self._ahead += seconds


class IdleClock:
    """A clock that goes only while the running loop has nothing to do, nor a worker thread of the kernel: then it is at
    once the time of whatever is due next. A turn of the loop takes ten microseconds.

    For code that waits neither for other threads nor for processes: of those the clock knows nothing.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = time.monotonic()
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]  # of every loop of asyncio
        select, start, report = selector.select, Errand.start, Errand.report
        out: set[Errand[Any]] = set()

        def started(errand: Errand[Any]) -> None:
            out.add(errand)
            start(errand)

        def reported(errand: Errand[Any]) -> None:
            report(errand)
            out.discard(errand)

        def at_once(timeout: float | None = None) -> Any:
            waits = bool(out)  # asked first: what is reported from now on wakes the selector
            events = select(None if timeout is None else 0)
            if events or timeout is None:
                return events
            if waits and timeout > 0:
                return select(min(timeout, 0.01))
            self._now += max(timeout, 1e-5)
            return events

        monkeypatch.setattr(time, "monotonic", lambda: self._now)
        monkeypatch.setattr(time, "perf_counter", lambda: self._now)
        monkeypatch.setattr(selector, "select", at_once)
        monkeypatch.setattr(Errand, "start", started)
        monkeypatch.setattr(Errand, "report", reported)
