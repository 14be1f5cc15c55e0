"""Daemon threads for synchronous hooks and tools: these can neither block a loop nor keep the interpreter alive.

A thread cannot be stopped. Work that is not done in time is left behind: its thread goes on until it returns, and is
counted meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from agent_engine.hooks.alarm import alarms

__all__ = ["MOST_OVERRUN", "Errand", "Overran", "carry_back", "forget", "overrun", "run_in_worker"]

MOST_OVERRUN = 64
"""With this many threads in the process past their limit, further synchronous hooks fail at once."""

MOMENT_S = 0.0002
"""Seconds for which it is cheaper to wait for a thread than to be told by it."""

_IDLE_S = 5.0
"""Seconds that a thread waits for more work before it ends."""

T = TypeVar("T")


class Overran(TimeoutError):
    """Work in a worker thread was not done in time; its thread goes on until it returns."""


class _Worker:
    """One thread and its inbox. The thread takes one errand at a time, and ends when it has been idle for long."""

    __slots__ = ("inbox",)

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Errand[Any]] = SimpleQueue()
        threading.Thread(target=self._serve, name="agent-engine-worker", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                errand = self.inbox.get(timeout=_IDLE_S)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    continue  # picked a moment ago: an errand is on its way
                return
            errand.run()
            _idle.append(self)  # before the answer is known, so that whoever waits for it finds this thread free
            errand.report()
            del errand


_idle: list[_Worker] = []
"""Threads with nothing to do, the last one used at the end. Its methods are atomic, so it needs no lock."""

_left: set[Errand[Any]] = set()
"""Errands that nobody waits for any more and whose threads have not returned."""

_lock = threading.Lock()
_new_lock = threading.Lock


class Errand(Generic[T]):
    """One piece of work for a worker thread, and the loop that waits for it.

    Made and awaited on one loop. ``deadline`` (``time.monotonic``) says from when on it counts as overrun once it has
    been left behind. Once it is done, ``value`` or ``error`` holds what came of it.
    """

    __slots__ = (
        "__weakref__",
        "_done",
        "_ended",
        "_loop",
        "_waiter",
        "_work",
        "deadline",
        "due",
        "error",
        "left",
        "value",
    )

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._waiter: asyncio.Future[None] | None = None
        self._done = self.left = False
        self._ended = _new_lock()
        self._ended.acquire()
        self.deadline = self.due = math.inf
        self.value: T | None = None
        self.error: BaseException | None = None

    def does(self, work: Callable[[], T]) -> None:
        """Other work than it was made with; before ``start``."""
        self._work = work

    def start(self) -> None:
        """Hand the work to a thread: a waiting one, else a new one.

        Raises:
            RuntimeError: the system gives no more threads, or the interpreter is at its end and none runs any more.
        """
        if sys.is_finalizing():
            raise RuntimeError("no thread runs any more: the interpreter is at its end")
        try:
            worker = _idle.pop()
        except IndexError:
            worker = _Worker()
        worker.inbox.put(self)

    def run(self) -> None:
        """Do the work; on the worker thread."""
        work, self._work = self._work, None
        try:
            self.value = work()  # type: ignore[misc]  # it is there until it is run
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self.error = error

    def report(self) -> None:
        """Say that it is done; on the worker thread."""
        with _lock:
            self._done = True
            waiter = self._waiter
            _left.discard(self)
        if self.left:
            forget(self.value)
        self._ended.release()
        if waiter is not None:
            try:
                waiter.get_loop().call_soon_threadsafe(self.ring)
            except RuntimeError:
                return  # the loop is closed, and nobody waits

    def ring(self) -> None:
        """What ``wait`` waits for, or the end of its time."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def at_once(self) -> bool:
        """Whether it is done within a moment. The loop stands still meanwhile, shorter than it takes to be woken up."""
        return self._ended.acquire(timeout=MOMENT_S)

    async def wait(self, seconds: float = math.inf) -> bool:
        """Whether the work is done within ``seconds``; may be asked again. A cancelled wait leaves it behind."""
        waiter = asyncio.get_running_loop().create_future()
        with _lock:
            if self._done:
                return True
            self._waiter = waiter
        timers = None
        if seconds != math.inf:
            self.due = time.monotonic() + seconds
            timers = alarms()
            timers.add(self)
        try:
            await waiter
        except BaseException:
            if not self.leave():
                forget(self.value)
            raise
        finally:
            self._waiter = None
            if timers is not None:
                timers.remove(self)
        return self._done

    def leave(self, *, overran: bool = False) -> bool:
        """Wait no longer; False where the work is done by now. With ``overran`` it is past its limit from now on."""
        if overran:
            self.deadline = min(self.deadline, time.monotonic())
        with _lock:
            if self._done:
                return False
            self.left = True
            _left.add(self)
            return True


def forget(value: object) -> None:
    """Drop what came too late: of a coroutine that nobody awaits Python would complain, some time or other."""
    if isinstance(value, types.CoroutineType) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()


def overrun() -> int:
    """How many threads of this process run work that is past its limit and that nobody waits for."""
    if not _left:
        return 0
    now = time.monotonic()
    with _lock:
        return sum(errand.deadline <= now for errand in _left)


async def run_in_worker(
    func: Callable[..., T], *args: Any, limit: float | None = None, context: contextvars.Context | None = None
) -> T:
    """Call ``func`` in a worker thread and wait for what it returns.

    Args:
        func: what to call.
        args: its arguments.
        limit: seconds; None means no limit.
        context: the context to call it in; None is a copy of the caller's, whose changes nobody sees.

    Raises:
        Overran: it did not return in time. Its thread goes on until it does.
        BaseException: whatever ``func`` raised.
    """
    where = contextvars.copy_context() if context is None else context
    errand: Errand[T] = Errand(lambda: where.run(func, *args))
    if limit is not None:
        errand.deadline = time.monotonic() + limit
    errand.start()
    if not await errand.wait(math.inf if limit is None else limit) and errand.leave(overran=True):
        raise Overran(f"still running after {limit}s")
    if errand.error is not None:
        try:
            raise errand.error
        finally:
            errand.error = None  # else the error and its own traceback keep each other alive
    return errand.value  # type: ignore[return-value]  # set where there is no error


def carry_back(changed: contextvars.Context, before: contextvars.Context) -> None:
    """Set, in the current context, every variable that ``changed`` holds otherwise than ``before``."""
    for variable, value in changed.items():
        if before.get(variable, _MISSING) is not value:
            variable.set(value)


_MISSING: Any = object()


def _after_fork() -> None:
    """A child process has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()
    _left.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
