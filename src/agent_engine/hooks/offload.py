"""Sync hooks in worker threads: a stage for neighbours that follow each other, a batch for those that run at once."""

from __future__ import annotations

import contextvars
import inspect
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.limits import Outcome, TimedOut, within
from agent_engine.hooks.workers import Errand, carry_back

if TYPE_CHECKING:
    from agent_engine.hooks.dispatch import Dispatch, Ran
    from agent_engine.hooks.plan import Entry
    from agent_engine.hooks.site import Site

_TOGETHER_S: Final = 0.001
"""Parallel hooks share one thread for so long; what has not been started by then gets threads of its own."""


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
            errand.deadline = self._deadline()
            while not await errand.wait(max(errand.deadline - time.monotonic(), 0.0)):
                if self._late():
                    errand.leave(overran=True)
                    break
                errand.deadline = self._deadline()
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
            ran = self._ran = self._dispatch.begin(entry)
            value, error = (None, None) if ran is None else self._context.run(call, ran, self._dispatch.site)
            with self._lock:
                if self._closed:
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
        return not self._dispatch.stopped

    def _deadline(self) -> float:
        return self._started + self._entries[max(self._next - 1, 0)].limit

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
        self._dispatch.settle(self._ran or self._dispatch.unheard(entry), None, error)


class _Item:
    """One hook of a batch. ``started`` is None until a thread takes it; ``settled`` once its outcome is decided."""

    __slots__ = ("context", "errand", "outcome", "ran", "settled", "started")

    def __init__(self, ran: Ran, outcome: list[Any]) -> None:
        self.ran = ran
        self.outcome = outcome
        self.context = contextvars.copy_context()
        self.errand: Errand[None] | None = None
        self.started: float | None = None
        self.settled = False


class Batch:
    """Parallel sync hooks: a list of work that one thread begins, and that others share as soon as it takes longer."""

    def __init__(self, site: Site, ended: Callable[[Ran], None]) -> None:
        self._site = site
        self._ended = ended
        self._items: list[_Item] = []
        self._errands: list[Errand[None]] = []
        self._lock = threading.Lock()
        self._next = 0

    def add(self, ran: Ran, outcome: list[Any]) -> None:
        """One hook more; ``outcome`` is filled with what it returned and what it raised."""
        self._items.append(_Item(ran, outcome))

    async def run(self) -> None:
        """Until every hook has returned or is past its limit."""
        if not self._items:
            return
        try:
            self._start(1)
            if not await self._errands[0].wait(_TOGETHER_S):
                self._start(len(self._items) - self._next)
            for errand in self._errands:
                while not errand.left and not await errand.wait(self._nearest()):
                    self._expire()
        except BaseException:
            self._close()
            raise
        await self._follow_up()

    def _start(self, threads: int) -> None:
        try:
            for _ in range(threads):
                errand: Errand[None] = Errand(lambda: None)
                errand.does(partial(self._work, errand))
                errand.start()
                self._errands.append(errand)
        except RuntimeError as error:
            self._take_rest(error)

    def _work(self, errand: Errand[None]) -> None:
        """On a worker thread: whatever nobody has begun."""
        while True:
            with self._lock:
                if self._next >= len(self._items):
                    return
                item = self._items[self._next]
                self._next += 1
                item.errand, item.started = errand, time.monotonic()
                errand.deadline = item.started + item.ran.entry.limit
            value, error = item.context.run(call, item.ran, self._site)
            with self._lock:
                if item.settled:
                    return
                item.settled = True
                item.outcome.extend((value, error))
                self._ended(item.ran)

    def _nearest(self) -> float:
        """Seconds until the first limit."""
        with self._lock:
            limits = [item.started + item.ran.entry.limit for item in self._items if item.started and not item.settled]
        return max(min(limits, default=math.inf) - time.monotonic(), 0.0)

    def _expire(self) -> None:
        """Every hook past its limit has failed; its thread is not listened to any more."""
        now = time.monotonic()
        with self._lock:
            for item in self._items:
                if item.started is not None and not item.settled and now >= item.started + item.ran.entry.limit:
                    item.settled = True
                    item.outcome.extend((None, TimedOut()))
                    late = item.errand
                    assert late is not None
                    late.left = True
        for errand in self._errands:
            if errand.left:
                errand.leave(overran=True)

    def _take_rest(self, error: BaseException) -> None:
        """No thread could be had for what has not been begun."""
        with self._lock:
            for item in self._items[self._next :]:
                item.settled = True
                item.outcome.extend((None, error))
            self._next = len(self._items)

    def _close(self) -> None:
        """The caller was cancelled: begin nothing more, and wait for nothing."""
        with self._lock:
            self._next = len(self._items)
        for errand in self._errands:
            errand.leave()

    async def _follow_up(self) -> None:
        """Await what a sync function gave back to be awaited."""
        for item in self._items:
            value, error = item.outcome
            if error is None and is_awaitable(value):
                item.outcome[:] = await in_context(item.context, within(value, item.ran.entry.limit))


def call(ran: Ran, site: Site) -> Outcome:
    """Call a hook's function right here, in the current context."""
    if ran.failure is not None:
        return None, ran.failure
    try:
        return ran.entry.call(ran.entry.argument(ran.given, site)), None
    except KeyboardInterrupt as interrupt:
        if threading.current_thread() is threading.main_thread():
            raise  # a person pressed the key
        return None, interrupt
    except BaseException as error:  # noqa: BLE001 - an outcome
        return None, error


def is_awaitable(value: Any) -> bool:
    """True for what still has to be awaited before it is an answer."""
    return value is not None and value is not True and inspect.isawaitable(value)
