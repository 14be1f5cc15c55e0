"""The journal in front of a store: entries are taken at once and written by a thread of its own, in order, in batches.

Memory is bounded. Where the store does not keep up, :attr:`StoreJournal.full` asks runs to wait at their next step.
Entries that come all the same are taken up to ten times that; what comes then is counted, and the log says where it is
missing.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agent_engine.records import facts as fact_forms
from agent_engine.records.facts import Fact, clean
from agent_engine.records.journal import Entry
from agent_engine.records.maker import FactMaker, Taken
from agent_engine.records.pace import Pace
from agent_engine.records.settings import RecordsError, RecordSettings
from agent_engine.records.sink import Recovery, Sink, StoreGone

logger = logging.getLogger("agent_engine.records")

_BATCH = 4_000
_ENOUGH = 4_000
"""Entries that are not kept waiting for more. Fewer would wake the writer often, and each time the loop's thread pays:
what it has just written is then in the other processor's cache."""
_GROUP = 48
"""So many entries become facts at a time: one by one, between all else, they cost nearly twice as much."""
_HARD = 10
_MEMORY = 64 << 20
_TIDY_S = 60.0
_STOP_S = 15.0
"""So long a stop goes on trying where the store refuses,"""
_STUCK_S = 60.0
"""and so long it waits for one that does not answer at all."""


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """How a writer stands: entries written, waiting and lost, and what keeps it from writing, if anything does."""

    written: int
    waiting: int
    lost: int
    problem: str | None


class StoreJournal:
    """Writes entries to a store. ``start`` opens it and says what is wrong; without ``start`` the first entry does."""

    def __init__(self, make_sink: Callable[[], Sink], settings: RecordSettings, name: str) -> None:
        self._make_sink = make_sink
        self._settings = settings
        self.name = name
        self._soft = settings.queue
        self._hard = settings.queue * _HARD
        self.wants_payloads = settings.wants_payloads
        self._forked: str | None = None
        self._begin_anew()
        _journals.add(self)

    def _begin_anew(self) -> None:
        """Be as if nothing had ever been written."""
        self._maker = FactMaker(self._settings)
        self._fresh: deque[Entry] = deque()
        self._taking = threading.Lock()
        self._queue: deque[Taken] = deque()
        self._lost = 0
        self._lost_marked = 0
        self._gave_up = False
        self._written = 0
        self._pending = 0
        self._problem: str | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._idle = True
        self._stopping = False
        self._hurry = False
        self._stop_by = 0.0
        self._stuck_at = 0.0
        self._written_before = 0
        self._thread: threading.Thread | None = None
        self._opened = threading.Event()
        self._ended = threading.Event()
        self._open_error: Exception | None = None
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.recovery = Recovery()
        """How the store was found when it was opened."""

    @property
    def full(self) -> bool:
        return len(self._queue) >= self._soft

    @property
    def status(self) -> WriterStatus:
        waiting = len(self._fresh) + len(self._queue) + self._pending
        return WriterStatus(self._written, waiting, self._lost, self._problem)

    def write(self, entry: Entry) -> None:
        """Take one entry; never raises, never waits."""
        if len(self._queue) >= self._hard or self._stopping:
            self._lose()
            return
        self._fresh.append(entry)
        if len(self._fresh) >= _GROUP and self._taking.acquire(blocking=False):
            try:
                self._take_in(_GROUP)
            finally:
                self._taking.release()
        if self._idle:
            self._idle = False
            if self._thread is None:
                self._launch()
            self._wake.set()

    async def room(self) -> None:
        """Wait until fewer entries wait than the soft limit."""
        while self.full and self._thread is not None and not self._ended.is_set():
            self._hasten()
            await self._wait()

    async def flush(self) -> None:
        """Wait until everything taken so far is written."""
        while (self._fresh or self._queue or self._pending) and self._thread is not None and not self._ended.is_set():
            self._hasten()
            await self._wait()

    async def start(self) -> None:
        """Open the store.

        Raises:
            RecordsError: it cannot be opened.
        """
        if self._forked is not None:
            raise RecordsError(self._forked)
        if self._ended.is_set() and self._open_error is None:
            self._reset()
        if self._thread is None:
            self._launch()
        while not self._opened.is_set():
            await self._wait()
        if self._open_error is not None:
            raise self._open_error

    async def stop(self) -> None:
        """Write everything out and close.

        Raises:
            RecordsError: the store refused to the end, or the writer broke; the message says how many entries are
                missing.
        """
        self._begin_stop()
        while not self._is_over():
            await self._wait()
        self._report_end()

    def close(self) -> None:
        """The same as ``stop``, from code that is not asynchronous."""
        self._begin_stop()
        while not self._is_over():
            self._ended.wait(0.25)
        self._report_end()

    # -- the writer's thread ------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            thread = self._thread = threading.Thread(target=self._live, name=f"records {self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are to be had, or the interpreter is ending
            self._thread = None
            self._die(error)
            return
        atexit.register(self._at_exit)

    def _live(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - nobody else is there to tell those who wait
            self._die(error)

    def _die(self, error: BaseException) -> None:
        """The thread has met what it should not have: what it held is lost, and counted; nobody waits for it."""
        self._stopping = True
        self._lost += self._pending
        self._pending = 0
        self._give_up_waiting()
        self._problem = f"the writer of {self.name} broke ({type(error).__name__})"
        debug = error if logger.isEnabledFor(logging.DEBUG) else None
        logger.error(
            "Nothing more is recorded to %s: its writer broke (%s); %d entries are lost so far.",
            self.name, type(error).__name__, self._lost - self._lost_marked, exc_info=debug,
        )  # fmt: skip
        if not self._opened.is_set():
            self._open_error = RecordsError(f"The store {self.name} cannot be opened ({type(error).__name__}).")
            self._opened.set()
        self._ended.set()
        self._release()

    def _work(self) -> None:
        try:
            sink = self._make_sink()
            self.recovery = sink.open()
        except Exception as error:  # noqa: BLE001 - handed to start(), or logged where nobody called it
            self._fail_to_open(error)
            return
        if self.recovery.crashed:
            logger.warning("%s: %s", self.name, self.recovery.sentence())
        self._opened.set()
        self._release()
        tidied: float | None = None
        while True:
            if self._settings.ttl is not None and (tidied is None or time.monotonic() - tidied > _TIDY_S):
                self._tidy(sink)
                tidied = time.monotonic()
            self._gather()
            with self._taking:
                self._take_in(len(self._fresh), Pace())
            if self._queue or self._lost > self._lost_marked:
                self._write_batch(sink)
            elif self._stopping:
                break
            if self._gave_up:
                break
        self._shut(sink)

    def _lose(self) -> None:
        if self._forked is not None and self._lost == 0:
            logger.error("Nothing is recorded: %s", self._forked)
        self._lost += 1

    def in_forked_process(self) -> None:
        """Be of no use where a process that writes was forked: the thread is not here, and what waited is the parent's.

        A second connection would not do: SQLite's locks of the parent look like this process's own to it, and the two
        would write over each other.
        """
        open_then = self._thread is not None and not self._ended.is_set()
        self._begin_anew()
        if open_then or self._forked is not None:
            self._forked = (
                f"{self.name} was opened before this process was forked; open it in the process that uses it."
            )
            self._problem = self._forked
            self._stopping = True

    def _fail_to_open(self, error: Exception) -> None:
        if not isinstance(error, RecordsError):
            error = RecordsError(f"The store {self.name} cannot be opened ({type(error).__name__}).")
        self._open_error = error
        self._problem = str(error)
        logger.error("Nothing is recorded: %s", error)
        self._give_up_waiting()
        self._stopping = True
        self._opened.set()
        self._ended.set()
        self._release()

    def _take_in(self, most: int, pace: Pace | None = None) -> None:
        """Make facts of the entries that have come, under the lock, in order. No entry is out of sight meanwhile."""
        fresh, queue, before = self._fresh, self._queue, len(self._queue)
        for _ in range(min(most, len(fresh))):
            try:
                queue.append(self._maker.take(fresh[0]))
            except Exception as error:  # noqa: BLE001 - whatever an entry holds, the run goes on
                self._unreadable(fresh[0], error)
            fresh.popleft()
            if pace is not None:
                pace.step()
        if before < _ENOUGH <= len(queue):
            self._wake.set()

    def _give_up_waiting(self) -> None:
        with self._taking:
            self._lost += len(self._fresh) + len(self._queue)
            self._fresh.clear()
            self._queue.clear()

    def _gather(self) -> None:
        """Sleep until there is something to write, then give others a moment to come along."""
        if not self._queue and not self._fresh and not self._stopping:
            self._idle = True
            if not self._queue and not self._fresh:
                timeout = _TIDY_S if self._settings.ttl is not None else None
                self._wake.wait(timeout)
            self._idle = False
        self._wake.clear()
        if not self._stopping and not self._hurry and len(self._queue) <= _ENOUGH:
            self._wake.wait(self._settings.batch_s)
        self._hurry = False

    def _write_batch(self, sink: Sink) -> None:
        facts = self._facts()
        lost = self._deliver(sink, facts)
        if self._problem is not None and not lost:
            logger.warning("%s: writing again.", self.name)
            self._problem = None
        self._pending = 0
        self._lost += lost
        self._written += len(facts) - lost
        if self._lost > self._lost_marked and not self._gave_up:
            count = self._lost - self._lost_marked
            if self._deliver(sink, [fact_forms.lost(count)]) == 0 and not self._gave_up:
                self._lost_marked += count
        self._release()

    def _deliver(self, sink: Sink, facts: list[Fact]) -> int:
        """Write facts, however long the store is away; returns how many it would not take."""
        delay = 0.05
        while True:
            try:
                sink.write(facts)
                return 0
            except Exception as error:  # noqa: BLE001 - the store is down or refuses; runs must not notice
                self._note(error)
                if _is_about_data(error):
                    return self._deliver_singly(sink, facts)
            if self._stopping and time.monotonic() > self._stop_by:
                self._gave_up = True
                self._give_up_waiting()
                return len(facts)
            self._wake.wait(delay)
            self._wake.clear()
            delay = min(delay * 2, 2.0)
            self._try_again(sink)

    def _deliver_singly(self, sink: Sink, facts: list[Fact]) -> int:
        """Something in a batch is not to the store's liking: clean the texts, and if that is not it, leave it out."""
        cleaned = [clean(fact) for fact in facts]
        if cleaned != facts:
            return self._deliver(sink, cleaned)
        if len(facts) == 1:
            return 1
        return sum(self._deliver(sink, [fact]) for fact in facts)

    def _facts(self) -> list[Fact]:
        """Take a batch off the queue. It counts as pending before it leaves, so that nobody sees less than there is."""
        queue, maker = self._queue, self._maker
        facts: list[Fact] = []
        size = min(len(queue), _BATCH)
        self._pending = size
        maker.begin()
        pace = Pace()
        for _ in range(size):
            taken = queue.popleft()
            try:
                facts.append(maker.make(taken))
            except Exception as error:  # noqa: BLE001 - the others must still be written
                self._pending -= 1
                self._unreadable(taken, error)
            pace.step()
        if maker.chars:
            self._soft = max(64, min(self._settings.queue, _MEMORY * size // (4 * maker.chars)))
        return facts

    def _unreadable(self, entry: object, error: Exception) -> None:
        self._lost += 1
        logger.error("%s: a %s was not recorded: %s.", self.name, type(entry).__name__, type(error).__name__)

    def _try_again(self, sink: Sink) -> None:
        try:
            sink.reopen()
        except Exception as error:  # noqa: BLE001 - tried again after the next delay
            self._note(error)

    def _tidy(self, sink: Sink) -> None:
        try:
            sink.tidy()
        except Exception as error:  # noqa: BLE001 - tried again in a minute
            self._note(error)

    def _shut(self, sink: Sink) -> None:
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001 - everything that could be written has been
            self._note(error)
        self._ended.set()
        self._release()

    def _note(self, error: Exception) -> None:
        problem = f"{type(error).__name__} at {self.name}"
        if isinstance(error, StoreGone):
            problem = f"{self.name} was removed or replaced while it was open, and is begun anew"
        if problem != self._problem:
            self._problem = problem
            logger.warning("Records wait to be written: %s.", problem)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Wait for the writer's thread to have got on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiters.append((loop, future))
        # The writer may have finished between the caller's look and the line above; a short limit costs nothing.
        await asyncio.wait([future], timeout=0.25)

    def _release(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_wake_up, future)
            except RuntimeError:
                continue  # that loop has ended, and its waiter with it

    def _hasten(self) -> None:
        """Somebody waits: what is there is to be written without waiting for more."""
        self._hurry = True
        self._wake.set()

    def _begin_stop(self) -> None:
        self._stop_by = time.monotonic() + _STOP_S
        self._stuck_at = time.monotonic() + _STUCK_S
        self._stopping = True
        self._wake.set()

    def _is_over(self) -> bool:
        """Whether nothing more is to be waited for: the writer has ended, or has not got on for a minute."""
        if self._thread is None or self._ended.is_set():
            return True
        if self._written != self._written_before:
            self._written_before, self._stuck_at = self._written, time.monotonic() + _STUCK_S
        return time.monotonic() > self._stuck_at

    def _reset(self) -> None:
        """After a stop: be ready to start once more."""
        self._thread = None
        self._opened.clear()
        self._ended.clear()
        self._stopping = self._gave_up = False
        self._problem = None

    def _report_end(self) -> None:
        atexit.unregister(self._at_exit)
        missing = self._lost - self._lost_marked
        if self._thread is not None and not self._ended.is_set():
            missing += self.status.waiting
        if missing > 0 and self._open_error is None:
            self._lost_marked = self._lost
            raise RecordsError(f"{missing} entries could not be written to {self.name}.")

    def _at_exit(self) -> None:
        try:
            self.close()
        except RecordsError as error:
            logger.error("%s", error)


_journals: weakref.WeakSet[StoreJournal] = weakref.WeakSet()
"""All journals of this process; a fork of it has to know that they are not its own."""


def _another_process() -> None:
    for journal in _journals:
        journal.in_forked_process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_another_process)


def _wake_up(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_ABOUT_STORE = ("3D", "3F", "42")
"""PostgreSQL's classes of errors about databases, schemas, and tables and rights to them."""
_ABOUT_DATA = frozenset((
    "DataError", "IntegrityError", "ProgrammingError", "ProgramLimitExceeded", "UnicodeError", "ValueError",
    "OverflowError",
))  # fmt: skip


def _is_about_data(error: Exception) -> bool:
    """Whether a store refused what it was given, rather than being away, busy, full, closed to us or without tables."""
    if str(getattr(error, "sqlstate", None) or "")[:2] in _ABOUT_STORE:
        return False
    return not _ABOUT_DATA.isdisjoint(kind.__name__ for kind in type(error).__mro__)
