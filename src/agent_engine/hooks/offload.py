"""Sync hooks that follow each other: one hand-off to a worker thread for all of them."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.limits import Outcome, TimedOut, pressed
from agent_engine.hooks.together import is_awaitable
from agent_engine.hooks.workers import Errand, carry_back, forget

if TYPE_CHECKING:
    from agent_engine.hooks.dispatch import Dispatch
    from agent_engine.hooks.plan import Entry
    from agent_engine.hooks.rows import Ran
    from agent_engine.hooks.site import Where


class Stage:
    """Sequential sync hooks in one thread, one after the other, while the loop minds the limit of the one that is on.

    Whoever takes the lock first decides about a hook: the thread that it has returned, or the loop that it was late.
    """

    def __init__(self, dispatch: Dispatch, entries: Sequence[Entry]) -> None:
        self.awaitable: tuple[Ran, Any] | None = None
        self._dispatch = dispatch
        self._entries = entries
        self._lock = threading.Lock()
        self._closed = False
        self._ran: Ran | None = None
        self._next = 0
        self._on: Entry | None = entries[0]
        self._started = time.monotonic()
        self._before = contextvars.copy_context()
        self._context = self._before.copy()
        self._committed = self._before

    async def run(self) -> list[Entry]:
        """Run them; gives those that are still to be run, after one that was late or has to be awaited."""
        errand: Errand[None] = Errand(self._work)
        try:
            errand.start()
        except RuntimeError as error:
            self._next = 1
            self._give_up(error)
            return list(self._entries[1:])
        try:
            while True:
                errand.deadline, seconds = self._deadline()
                if await errand.wait(seconds):
                    break
                if self._late():
                    errand.leave(overran=True)
                    break
        except BaseException:
            with self._lock:
                self._closed = True
            if self.awaitable is not None:
                forget(self.awaitable[1])
            raise
        finally:
            with self._lock:
                self._closed = True
        if errand.error is not None:
            raise errand.error
        carry_back(self._committed, self._before)
        return list(self._entries[self._next :])

    def _work(self) -> None:
        """On the worker thread."""
        for entry in self._entries:
            with self._lock:
                if self._closed:
                    return
                self._on, self._started = entry, time.monotonic()
                self._next += 1
            ran = self._ran = self._context.run(self._dispatch.begin, entry)  # for its predicate
            if self._closed:
                return  # its predicate took all of its time
            value, error = (None, None) if ran is None else self._context.run(call, ran, self._dispatch.site)
            with self._lock:
                if self._closed:
                    forget(value)
                    return
                self._on = self._ran = None
                if ran is not None and not self._settle(ran, value, error):
                    return

    def _settle(self, ran: Ran, value: Any, error: BaseException | None) -> bool:
        """Take what a hook has returned; False where the thread has to stop here."""
        self._committed = self._context.copy()
        if error is None and is_awaitable(value):
            self.awaitable = (ran, value)
            return False
        self._dispatch.settle(ran, value, error)
        return not self._dispatch.tally.stopped

    def _deadline(self) -> tuple[float, float]:
        """When the hook that is on is late, and for how long nothing can be late: one behind it may be on by then."""
        on = max(self._next - 1, 0)
        deadline = self._started + self._entries[on].limit
        soonest = min([entry.limit for entry in self._entries[on + 1 :]], default=math.inf)
        return deadline, max(min(deadline - time.monotonic(), soonest), 0.0)

    def _late(self) -> bool:
        """Whether the hook that is on is past its limit; then it has failed, and nobody listens to its thread."""
        with self._lock:
            if self._on is None or time.monotonic() < self._started + self._on.limit:
                return False
            self._closed = True
            self._next = max(self._next, 1)
            self._give_up(TimedOut())
            return True

    def _give_up(self, error: BaseException) -> None:
        entry = self._entries[self._next - 1]
        self._dispatch.settle(self._ran or self._dispatch.heard(entry), None, error)


def call(ran: Ran, site: Where) -> Outcome:
    """Call a hook's function right here, in the current context."""
    if ran.failure is not None:
        return None, ran.failure
    try:
        return ran.entry.call(ran.entry.argument(ran.given, site)), None
    except BaseException as error:
        if pressed(error):
            raise
        return None, error
