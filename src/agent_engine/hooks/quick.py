"""The quick ways through a plan: hooks of one kind and one mode that have, as nearly always, nothing to say.

A quick way runs the hooks and looks at nothing but whether each of them said "go on" in the plainest way. As soon as
one says anything else, raises or is late, it ends there, and the dispatcher proper goes on at that hook. It knows no
decision.
"""

from __future__ import annotations

import contextvars
import math
import time
from collections.abc import Sequence
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, Final

from agent_engine.hooks.folding import Folding, copy_of
from agent_engine.hooks.limits import TimedOut, drive, pressed, within
from agent_engine.hooks.together import Edits, Job, is_awaitable, run_together
from agent_engine.hooks.workers import Errand, carry_back

if TYPE_CHECKING:
    from agent_engine.hooks.plan import Entry

__all__ = ["Outcome", "Position", "Underway", "call_all", "relay", "set_off", "together", "walk"]

_DONE: Final = object()
_driving: Final = coroutine(drive)
_PAUSE: Final = 20
"""After hooks that were not quick, so many dispatches do not stand still for theirs."""


Outcome = tuple[int, Any, BaseException | None]
"""The number of the hook that did not simply say "go on", what it returned and what it raised."""


def call_all(pending: Any, payload: Any) -> Outcome | None:
    """Call one function after the other, right here; None where all said "go on"."""
    try:
        for call in pending:
            value = call(payload)
            if value is not None and value is not True and value is not payload:
                return pending.__length_hint__(), value, None
    except BaseException as error:
        if pressed(error):
            raise
        return pending.__length_hint__(), None, error
    return None


def call_all_timed(pending: Any, payload: Any, times: list[float]) -> Outcome | None:
    """The same; ``times`` is given when each ended (``time.perf_counter``)."""
    clock = time.perf_counter
    try:
        for call in pending:
            value = call(payload)
            if value is not None and value is not True and value is not payload:
                return pending.__length_hint__(), value, None
            times.append(clock())
    except BaseException as error:
        if pressed(error):
            raise
        return pending.__length_hint__(), None, error
    return None


async def walk(pending: Any, payload: Any, limits: Sequence[float], times: list[float] | None = None) -> Outcome | None:
    """Await one hook after the other, in this task; None where all said "go on".

    ``times`` is given when each ended (``time.perf_counter``).
    """
    outcome = set_off(pending, payload, times)
    return await outcome.arrive(limits) if isinstance(outcome, Underway) else outcome


def set_off(pending: Any, payload: Any, times: list[float] | None = None) -> Outcome | Underway | None:
    """The way of ``walk`` up to the first hook that suspends: most never do, and then nothing has to be awaited."""
    said: list[Any] = []
    walking = _walk(pending, payload, said) if times is None else _walk_timed(pending, payload, said, times)
    steps: Any = walking.__await__()
    try:
        awaited = next(steps, _DONE)
    except BaseException as error:
        if pressed(error):
            raise
        return pending.__length_hint__(), None, error
    if awaited is _DONE:
        return (pending.__length_hint__(), said[0], None) if said else None
    return Underway(pending, steps, awaited, said)


class Underway:
    """A walk that has suspended."""

    __slots__ = ("_awaited", "_pending", "_said", "_steps")

    def __init__(self, pending: Any, steps: Any, awaited: Any, said: list[Any]) -> None:
        self._pending = pending
        self._steps = steps
        self._awaited = awaited
        self._said = said

    async def arrive(self, limits: Sequence[float]) -> Outcome | None:
        """The rest of the way, each hook within its limit; to be awaited at once."""
        on = Position(self._pending, limits)
        _, failed = await _driving(self._steps, self._awaited, on.watch, on.stop)
        if failed is not None:
            return on.left(), None, failed
        return (on.left(), self._said[0], None) if self._said else None


async def _walk(pending: Any, payload: Any, said: list[Any]) -> None:
    for call in pending:
        value = await call(payload)
        if value is not None and value is not True and value is not payload:
            said.append(value)
            return


async def _walk_timed(pending: Any, payload: Any, said: list[Any], times: list[float]) -> None:
    clock = time.perf_counter
    for call in pending:
        value = await call(payload)
        if value is not None and value is not True and value is not payload:
            said.append(value)
            return
        times.append(clock())


class Position:
    """Which hook of a plan is on, told by how many the iterator over them has left."""

    __slots__ = ("_left", "_limits", "_pending")

    def __init__(self, pending: Any, limits: Sequence[float]) -> None:
        self._pending = pending
        self._limits = limits
        self._left = -1

    def left(self) -> int:
        """How many hooks are behind the one that is on; while none has begun, the first one is."""
        if self._left >= 0:
            return self._left
        return min(int(self._pending.__length_hint__()), len(self._limits) - 1)

    def watch(self) -> tuple[int, float]:
        """The hook that is on, and its limit."""
        left = self.left()
        return left, self._limits[len(self._limits) - 1 - left]

    def soonest(self, left: int) -> float:
        """The shortest limit of so many hooks behind the one that is on: one of them may be on by then."""
        return min(self._limits[len(self._limits) - left :], default=math.inf)

    def stop(self) -> None:
        """No hook after this one."""
        self._left = self.left()
        for _ in self._pending:
            pass


class Patience:
    """Whether it pays to stand still for the moment that quick sync hooks take: it does until it did not."""

    __slots__ = ("_paused",)

    def __init__(self) -> None:
        self._paused = 0

    def rewards(self, errand: Errand[Any]) -> bool:
        """True where the work is done within that moment."""
        if self._paused:
            self._paused -= 1
            return False
        done = errand.at_once()
        if not done:
            self._paused = _PAUSE
        return done


async def relay(
    pending: Any, payload: Any, limits: Sequence[float], folding: Folding, patience: Patience
) -> tuple[Outcome | None, Any]:
    """Call one function after the other in a worker thread: one hand-off, on a copy that is taken over at the end.

    Where one does not say "go on", the second value is that copy, None where it is still being worked on.
    """
    worked_on = copy_of(payload)
    one = _Relay(pending, worked_on)
    before = contextvars.copy_context()
    context = before.copy()
    errand: Errand[Any] = Errand(partial(context.run, one.work))
    try:
        errand.start()
    except RuntimeError as error:
        next(pending)
        return (len(limits) - 1, None, error), None
    on = Position(pending, limits)
    done = patience.rewards(errand)
    while not done:
        place, limit = on.watch()
        soonest, errand.deadline = on.soonest(place), one.started + limit
        if on.left() != place:
            continue  # the thread went on to the next one meanwhile, which is not late for the time of this one
        left = errand.deadline - time.monotonic()
        if left <= 0:
            on.stop()
            errand.leave(overran=True)
            carry_back(context, before)
            return (on.left(), None, TimedOut()), None
        try:
            done = await errand.wait(min(left, soonest))
        except BaseException:
            on.stop()
            raise
    carry_back(context, before)
    if errand.error is None and one.said is None:
        folding.take_over(payload, worked_on)
        return None, None
    value, problem = one.said, errand.error
    if is_awaitable(value):
        value, problem = await within(value, on.watch()[1])
    return (on.left(), value, problem), worked_on


class _Relay:
    """What the worker thread of a relay does. ``started`` is when the hook that is on began, or a moment before."""

    __slots__ = ("_payload", "_pending", "said", "started")

    def __init__(self, pending: Any, payload: Any) -> None:
        self.said: Any = None
        self.started = time.monotonic()
        self._pending = pending
        self._payload = payload

    def work(self) -> Any:
        pending, payload, clock = self._pending, self._payload, time.monotonic
        for call in pending:
            value = call(payload)
            if value is not None and value is not True and value is not payload:
                self.said = value
                return value
            self.started = clock()  # before the next one is taken: so a hook is never found older than it is


async def together(entries: Sequence[Entry], payload: Any, folding: Folding) -> tuple[Any, list[Job]] | None:
    """Run all at once on one copy. None where all said "go on"; else the copy, and what came of each."""
    shared = copy_of(payload)
    edits = Edits(folding, shared)
    jobs = [
        Job(
            partial(entry.call, shared),
            entry.limit,
            entry.kind == "worker",
            partial(edits.blame, entry.name),
        )
        for entry in entries
    ]
    await run_together(jobs)
    for job in jobs:
        value = job.value
        if job.error is not None or (value is not None and value is not True and value is not shared):
            return shared, jobs
    return None
