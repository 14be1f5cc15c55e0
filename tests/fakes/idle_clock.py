"""The time that limits go by, in the hands of a test: a machine that stands still for a while makes nothing late."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest


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
    """A clock that goes only while the running loop has nothing to do: then it is at once the time of whatever is due
    next. For code on the loop alone: the loop does not see that a thread or a process is at work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = time.monotonic()
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]  # of every loop of asyncio
        select = selector.select

        def at_once(timeout: float | None = None) -> Any:
            events = select(None if timeout is None else 0)
            if timeout is not None and not events:
                self._now += max(timeout, 0)
            return events

        monkeypatch.setattr(time, "monotonic", lambda: self._now)
        monkeypatch.setattr(time, "perf_counter", lambda: self._now)
        monkeypatch.setattr(selector, "select", at_once)
