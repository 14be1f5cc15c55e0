"""The quick ways through a plan: hooks of one kind and one mode that have, as nearly always, nothing to say.

A quick way runs the hooks and looks at nothing but whether each of them said "go on" in the plainest way. As soon as
one says anything else, raises or is late, it ends there, and the dispatcher proper goes on at that hook. It knows no
decision.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, Final

from agent_engine.hooks.dispatch import Edits
from agent_engine.hooks.folding import Folding, copy_of
from agent_engine.hooks.limits import Outcome, TimedOut, drive
from agent_engine.hooks.together import Job, run_together
from agent_engine.hooks.workers import Errand, carry_back

if TYPE_CHECKING:
    from agent_engine.hooks.plan import Entry

__all__ = ["Position", "call_all", "relay", "together", "walk"]

_DONE: Final = object()
_ONE_TURN: Final = iter(())
_driving: Final = coroutine(drive)


class Position:
    """Which hook of a plan is on, told by what the iterator over them has left."""

    __slots__ = ("_at", "_entries", "_pending")

    def __init__(self, entries: Sequence[Entry], pending: Any) -> None:
        self._entries = entries
        self._pending = pending
        self._at = -1

    def find(self) -> int:
        """The number of the hook that is on, or was the last one."""
        return self._at if self._at >= 0 else max(len(self._entries) - 1 - int(self._pending.__length_hint__()), 0)

    def watch(self) -> tuple[int, float]:
        """The hook that is on, and its limit."""
        at = self.find()
        return at, self._entries[at].limit

    def stop(self) -> None:
        """No hook after this one."""
        self._at = self.find()
        for _ in self._pending:
            pass


def call_all(pending: Iterator[Callable[[Any], Any]], payload: Any) -> Outcome | None:
    """Call one function after the other, right here; what the first one said or raised that did, else None."""
    try:
        for call in pending:
            value = call(payload)
            if value is not None and value is not True and value is not payload:
                return value, None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - an outcome
        return None, error
    return None


async def walk(
    pending: Iterator[Callable[[Any], Awaitable[Any]]], payload: Any, folding: Folding, position: Position
) -> Outcome | None:
    """Await one hook after the other, in this task; what the first one said or raised that did, else None."""
    said: list[Outcome] = []
    steps: Any = _walk(pending, payload, said).__await__()
    try:
        awaited = next(steps, _DONE)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - an outcome
        return None, error
    if awaited is not _DONE:
        _, late = await _driving(steps, awaited, position.watch, position.stop)
        if late is not None:
            return None, late
    return said[0] if said else None


async def _walk(pending: Iterator[Callable[[Any], Awaitable[Any]]], payload: Any, said: list[Outcome]) -> None:
    for call in pending:
        value = await call(payload)
        if value is not None and value is not True and value is not payload:
            said.append((value, None))
            return


async def relay(
    pending: Iterator[Callable[[Any], Any]], payload: Any, folding: Folding, position: Position
) -> Outcome | None:
    """Call one function after the other in a worker thread, in one hand-off and on a copy that is then taken over."""
    worked_on = copy_of(payload)
    one = _Relay(pending, worked_on)
    try:
        outcome = await one.run(position)
    except RuntimeError as error:
        return None, error
    if outcome is None or outcome[1] is None:
        folding.take_over(payload, worked_on)
    return outcome


class _Relay:
    """The hand-off of a relay. Whoever takes the lock first decides about a hook: its thread, or the loop."""

    __slots__ = ("_closed", "_lock", "_payload", "_pending", "_said", "_started")

    def __init__(self, pending: Iterator[Callable[[Any], Any]], payload: Any) -> None:
        self._pending = pending
        self._payload = payload
        self._said: Outcome | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._started = time.monotonic()

    async def run(self, position: Position) -> Outcome | None:
        before = contextvars.copy_context()
        context = before.copy()
        errand: Errand[None] = Errand(partial(context.run, self._work))
        errand.start()
        left = position.watch()[1]
        try:
            while True:
                errand.deadline = self._started + left
                if await errand.wait(left):
                    break
                left = self._left(position)
                if left <= 0:
                    errand.leave(overran=True)
                    return None, TimedOut()
        finally:
            self._closed = True
        carry_back(context, before)
        return self._said if errand.error is None else (None, errand.error)

    def _left(self, position: Position) -> float:
        """Seconds that the hook that is on has left. With none it is late, and nobody listens to its thread."""
        with self._lock:
            left = self._started + position.watch()[1] - time.monotonic()
            if left <= 0:
                self._closed = True
                position.stop()
            return left

    def _work(self) -> None:
        """On the worker thread."""
        payload, lock, clock = self._payload, self._lock, time.monotonic
        for call in self._pending:
            with lock:
                if self._closed:
                    return
                self._started = clock()
            value = call(payload)
            if value is not None and value is not True and value is not payload:
                self._said = (value, None)
                return


async def together(entries: Sequence[Entry], payload: Any, folding: Folding) -> tuple[Any, list[Job]] | None:
    """Run all at once on one copy. None where all said "go on"; else the copy, and what came of each."""
    folding.lend(payload, _ONE_TURN)
    shared = copy_of(payload)
    folding.lend(payload, None)
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
