"""Hooks that run at once: async ones in tasks, sync ones in worker threads, each with its own limit and context."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from agent_engine.hooks.alarm import alarms
from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.folding import Folding
from agent_engine.hooks.limits import GRACE, Outcome, TimedOut, close, pressed, within
from agent_engine.hooks.payloads import private_copy
from agent_engine.hooks.workers import Errand, forget

__all__ = ["DISCARDED", "Edits", "Job", "is_awaitable", "run_together"]


DISCARDED: Final = "Parallel hook '%s' %s which is discarded; register it with sequential=True to apply it."

logger = logging.getLogger("agent_engine.hooks")


class Job:
    """One hook of a group. ``call`` does the work; ``threaded`` says that it is a plain function for a worker thread.

    ``ended`` is called as soon as it has returned, where it ran. Then ``value`` or ``error`` holds what came of it.
    """

    __slots__ = (
        "_begun",
        "_context",
        "_errand",
        "_timer",
        "call",
        "ended",
        "error",
        "limit",
        "settled",
        "threaded",
        "value",
    )

    def __init__(self, call: Callable[[], Any], limit: float, threaded: bool, ended: Callable[[], None]) -> None:
        self.call = call
        self.limit = limit
        self.threaded = threaded
        self.ended = ended
        self.value: Any = None
        self.error: BaseException | None = None
        self.settled = False
        self._begun: float | None = None
        self._errand: Errand[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._context: contextvars.Context | None = None


class Edits:
    """Who edited the copy that parallel hooks share: whoever ends and leaves it otherwise than it was known."""

    __slots__ = ("_known", "_names", "_read", "_shared")

    def __init__(self, folding: Folding, shared: Any) -> None:
        self._shared = shared
        self._names = folding.changes
        self._read = folding.read
        self._known = private_copy(folding.read(shared))

    def blame(self, hook: str) -> None:
        """Warn that the edits of ``hook`` are discarded, if it made any."""
        now, known = self._read(self._shared), self._known
        if now is known or _equal(now, known):
            return
        many = len(self._names) > 1
        for name, value, was in zip(self._names, now if many else (now,), known if many else (known,), strict=True):
            if not _equal(value, was):
                logger.warning(DISCARDED, hook, f"edited {name} in place")
        self._known = private_copy(now)


async def run_together(jobs: Sequence[Job]) -> None:
    """Run every job at once, until each has ended or is past its limit.

    Raises:
        asyncio.CancelledError: the caller was cancelled; then the tasks have been, too, and no further job begins.
    """
    tasks = _Tasks([job for job in jobs if not job.threaded])
    threads = _Threads([job for job in jobs if job.threaded])
    try:
        await threads.run()
        await tasks.wait()
    except GeneratorExit:  # nobody drives this any more, so nothing can be waited for
        threads.close()
        tasks.leave()
        raise
    except BaseException:
        threads.close()
        await tasks.cancel()
        raise


class _Tasks:
    """Async jobs, a task each. One timer serves all their limits."""

    __slots__ = ("_alarms", "_count", "_gate", "_loop", "_started", "_tasks", "due")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = len(jobs)
        self._gate: asyncio.Future[None] | None = None
        self._alarms = alarms()
        self._started = time.monotonic()
        create = self._loop.create_task
        self._tasks = [(job, create(self._run(job))) for job in jobs]
        if self._count:  # a loop that begins tasks at once may have ended them by now
            self.due = self._started + min([job.limit for job in jobs])
            self._alarms.add(self)

    async def _run(self, job: Job) -> None:
        try:
            value = await job.call()
            if job.error is None:
                job.value = value
        except BaseException as error:
            if pressed(error):
                raise
            if job.error is None:
                job.error = error
        if not job.settled:
            job.ended()
            self._settle(job)

    def _settle(self, job: Job) -> None:
        job.settled = True
        if job._timer is not None:
            job._timer.cancel()
        self._count -= 1
        if self._count == 0:
            self._alarms.remove(self)
            if self._gate is not None and not self._gate.done():
                self._gate.set_result(None)

    async def wait(self) -> None:
        """Until each has ended, or was given up."""
        if self._count:
            self._gate = self._loop.create_future()
            await self._gate

    async def cancel(self) -> None:
        """End them all, and wait for that; those that do not end are given up."""
        for job, task in self._tasks:
            if not job.settled:
                self._end(job, task)
        while self._count:
            self._gate = self._loop.create_future()
            try:
                await self._gate
            except asyncio.CancelledError:
                continue  # already on its way to the caller

    def leave(self) -> None:
        """End them all, and wait for nothing."""
        self._alarms.remove(self)
        if not self._loop.is_closed():
            for _, task in self._tasks:
                task.cancel()

    def ring(self) -> None:
        """Cancel every job past its limit, and come back at the next limit."""
        passed = time.monotonic() - self._started
        later = []
        for job, task in self._tasks:
            if job.settled or isinstance(job.error, TimedOut):
                continue
            if passed >= job.limit:
                job.error = TimedOut()
                self._end(job, task)
            else:
                later.append(job.limit)
        if later:
            self.due = self._started + min(later)
            self._alarms.add(self)

    def _end(self, job: Job, task: asyncio.Task[None]) -> None:
        task.cancel()
        if job._timer is None:
            job._timer = self._loop.call_later(GRACE, self._give_up, job, task)

    def _give_up(self, job: Job, task: asyncio.Task[None]) -> None:
        """The job does not listen: it is closed where it stands, and nobody waits for its task."""
        if not job.settled:
            self._settle(job)
            coroutine = task.get_coro()
            assert isinstance(coroutine, Coroutine)
            close(coroutine)
            task.add_done_callback(_taken)
            task.cancel()


class _Threads:
    """Sync jobs: a list of work that one thread begins, and that others share as soon as it takes longer."""

    __slots__ = ("_closed", "_errands", "_jobs", "_lock", "_next")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._errands: list[Errand[None]] = []
        self._lock = threading.Lock()
        self._next = 0
        self._closed = False
        for job in jobs:
            job._context = contextvars.copy_context()

    async def run(self) -> None:
        """Until every job has returned or is past its limit."""
        if not self._jobs:
            return
        self._start(1)
        if self._errands and not self._errands[0].at_once():
            self._start(len(self._jobs) - self._next)
        for errand in self._errands:
            while not errand.left and not await errand.wait(self._nearest()):
                self._expire()
        for job in self._jobs:
            if job.error is None and is_awaitable(job.value):
                assert job._context is not None
                job.value, job.error = await in_context(job._context, _finish(job.value, job.limit))
                job.ended()

    def _start(self, threads: int) -> None:
        try:
            for _ in range(threads):
                errand: Errand[None] = Errand(_nothing)
                errand.does(partial(self._work, errand))
                errand.start()
                self._errands.append(errand)
        except RuntimeError as error:
            self._take_rest(error)

    def _work(self, errand: Errand[None]) -> None:
        """On a worker thread: whatever nobody has begun."""
        while True:
            with self._lock:
                if self._next >= len(self._jobs):
                    return
                job = self._jobs[self._next]
                self._next += 1
                job._errand, job._begun = errand, time.monotonic()
                errand.deadline = job._begun + job.limit
            assert job._context is not None
            value, error = job._context.run(_outcome, job.call)
            with self._lock:
                if job.settled or self._closed:
                    forget(value)  # it was late: this thread has been given up
                    return
                job.settled = True
                job.value, job.error = value, error
                job.ended()

    def _nearest(self) -> float:
        """For how many seconds nothing can be late; what has not been begun may be at any moment."""
        now = time.monotonic()
        with self._lock:
            left = [(job._begun or now) + job.limit - now for job in self._jobs if not job.settled]
        return max(min(left, default=math.inf), 0.0)

    def _expire(self) -> None:
        """Every job past its limit has failed, and nobody listens to its thread any more."""
        now = time.monotonic()
        late = []
        with self._lock:
            for job in self._jobs:
                if job._begun is not None and not job.settled and now >= job._begun + job.limit:
                    job.settled = True
                    job.error = TimedOut()
                    late.append(job._errand)
        for errand in late:
            assert errand is not None
            errand.leave(overran=True)
            errand.left = True

    def _take_rest(self, error: BaseException) -> None:
        """No thread could be had for what has not been begun."""
        with self._lock:
            for job in self._jobs[self._next :]:
                job.settled = True
                job.error = error
            self._next = len(self._jobs)

    def close(self) -> None:
        """Begin nothing more, and wait for nothing."""
        with self._lock:
            self._next = len(self._jobs)
            self._closed = True
            for job in self._jobs:
                forget(job.value)
        for errand in self._errands:
            errand.leave()


async def _finish(awaitable: Awaitable[Any], limit: float) -> Outcome:
    return await within(awaitable, limit)


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - an outcome
        return None, error


def _taken(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # taken, so that nobody is told of it


def _nothing() -> None:
    return None


def is_awaitable(value: Any) -> bool:
    """True for what still has to be awaited before it is an answer."""
    if value is None or value is True:
        return False
    try:
        return inspect.isawaitable(value)
    except Exception:  # noqa: BLE001 - it does not even say what it is; to read it will fail likewise
        return False


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - a value that cannot be compared has to count as another one
        return False
