"""One hook on the loop, with a limit that is armed when it first suspends, in the task that called it.

The hook stays in its caller's task and context, so that what it sets stays visible there. It is waited for through a
future of our own: so its limit ends the wait even where the hook, or something it waits for, does not listen to
cancellation.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from agent_engine.hooks.alarm import alarms

__all__ = ["GRACE", "Escaped", "Outcome", "TimedOut", "being_cancelled", "close", "drive", "ended", "pressed", "within"]

GRACE: Final = 0.5
"""Seconds that a hook has to end once it has been cancelled; then it is closed where it stands."""

BODY_GRACE: Final = 3.0
"""The same for the body of a tool and for a model: they may have something of their own to close."""

AROUND_GRACE: Final = 9.0
"""The same for a wrapper: what is inside it ends first, with its closing events."""

_CLOSES: Final = 10

_GROUPS_COUNT_RIGHT: Final = sys.version_info >= (3, 13)

T = TypeVar("T")

Outcome = tuple[Any, BaseException | None]
"""What a hook returned, or what it raised."""

_undying: list[Coroutine[Any, Any, Any]] = []
"""Hooks that cannot even be closed: kept as they are, for nobody can end them."""


class TimedOut(TimeoutError):
    """The hook was not done within its limit, or was given up."""


class Escaped(Exception):
    """A tool, a model or a wrapper raised what would end more than itself: its task, a generator, the interpreter. That
    is a failure of its own. ``by`` is what it raised."""

    def __init__(self, by: BaseException) -> None:
        cancelled = isinstance(by, asyncio.CancelledError)
        super().__init__("was cancelled from inside" if cancelled else f"ended with {type(by).__name__}")
        self.by = by


def being_cancelled() -> bool:
    """Whether somebody cancels the current task. A CancelledError without that came from inside of what was awaited:
    it is that code's own failure, and not the end of the run."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def pressed(error: BaseException) -> bool:
    """True for a KeyboardInterrupt that may come from a person: those reach the main thread only. Elsewhere it is the
    hook's own, and an outcome like any other."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


@types.coroutine
def within(awaitable: Awaitable[Any], limit: float | None, grace: float | None = None) -> Generator[Any, Any, Outcome]:
    """Await ``awaitable`` for at most ``limit`` seconds and give what came of it, errors included. Once cancelled, it
    has ``grace`` seconds to end (GRACE by default).

    Raises:
        asyncio.CancelledError: the caller was cancelled. A hook that cancels itself is an outcome like any other.
    """
    steps = _steps(awaitable)
    try:
        awaited = steps.send(None)
    except StopIteration as done:
        return done.value, None
    except BaseException as error:
        if pressed(error):
            raise
        return None, error
    return (yield from drive(steps, awaited, lambda: (0, limit), grace=grace))


@types.coroutine
def ended(awaitable: Awaitable[T], *, around: bool = False) -> Generator[Any, Any, T]:
    """Await what cannot hold its caller: once the caller is cancelled, a tool, a model or a wrapper (``around``) has
    its grace to end; then it is closed where it stands, and whatever it made of the cancellation, the caller has it.

    Raises:
        Escaped: it raised what is no Exception, and nobody outside asked for that.
    """
    steps = _steps(awaitable)
    try:
        awaited = steps.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # it is the awaitable's own
    except BaseException as raised:
        if not _escapes(raised):
            raise
        raise Escaped(raised) from raised
    grace = AROUND_GRACE if around else BODY_GRACE
    value, error = yield from drive(steps, awaited, lambda: (0, None), grace=grace)
    if error is None:
        result: T = value
        return result
    try:
        if not _escapes(error):
            raise error
        raise Escaped(error) from error
    finally:
        del error  # else the error and its own traceback keep each other alive


def _escapes(error: BaseException) -> bool:
    if isinstance(error, Exception) or pressed(error):
        return False
    return not (isinstance(error, asyncio.CancelledError) and being_cancelled())


def drive(
    steps: Coroutine[Any, Any, Any],
    awaited: Any,
    watch: Callable[[], tuple[int, float | None]],
    stop: Callable[[], None] | None = None,
    grace: float | None = None,
) -> Generator[Any, Any, Outcome]:
    """Go on with a coroutine that has just suspended on ``awaited``.

    ``watch`` says, at each suspension, which piece of work is on (a number) and what its limit is; the limit starts
    anew with each piece. ``stop`` is called at a limit, before the piece is cancelled. ``grace``: see within.
    """
    driven = _Driven(steps, awaited, watch, stop, GRACE if grace is None else grace)
    try:
        return (yield from driven.run())
    finally:
        driven.disarm()


def close(steps: Coroutine[Any, Any, Any]) -> None:
    """End a suspended coroutine without its consent. One that waits for something even then stays as it is."""
    for _ in range(_CLOSES):
        try:
            steps.close()
        except RuntimeError:
            continue  # it has suspended once more
        except BaseException:  # noqa: BLE001 - what it raises while it is closed changes nothing any more
            return
        return
    _undying.append(steps)
    # One reference that is never given back: Python would close it once more at exit, without a loop to wait on, and
    # such a hook may then run for ever.
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(steps))


class _Gate(asyncio.Future[None]):
    """What a driven task waits for. It notes who cancelled the task.

    A TaskGroup inside the hook whose child fails while it is being left cancels its task and, before Python 3.13,
    never takes that back. Seen from outside the hook that would look like a cancellation of the caller. (A group that
    the caller itself is a child of does mean the caller.)
    """

    by_group = False
    task: asyncio.Task[Any] | None = None

    def cancel(self, msg: Any = None) -> bool:
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__") == "asyncio.taskgroups":
            group = caller.f_locals.get("self")
            parent = getattr(group, "_parent_task", None)
            self.by_group = parent is self.task and bool(getattr(group, "_exiting", False))
        return super().cancel(msg=msg)


class _Driven:
    """The state of one drive: what is awaited, which timer runs, and who has asked for an end."""

    __slots__ = (
        "_abandon",
        "_alarms",
        "_awaited",
        "_cancels",
        "_certain",
        "_expired",
        "_gate",
        "_grace",
        "_groups",
        "_loop",
        "_outer",
        "_piece",
        "_signal",
        "_steps",
        "_stop",
        "_task",
        "_watch",
        "due",
    )

    def __init__(
        self,
        steps: Coroutine[Any, Any, Any],
        awaited: Any,
        watch: Callable[[], tuple[int, float | None]],
        stop: Callable[[], None] | None,
        grace: float,
    ) -> None:
        self._steps = steps
        self._awaited = awaited
        self._watch = watch
        self._stop = stop
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._cancels = 0 if self._task is None else self._task.cancelling()
        self._outer: asyncio.CancelledError | None = None
        self._certain = False
        self._expired = False
        self._abandon = False
        self._signal: asyncio.CancelledError | None = None
        self._gate: _Gate | None = None
        self._groups = 0
        self._piece = -1
        self._alarms = alarms()
        self.due = math.inf

    def run(self) -> Generator[Any, Any, Outcome]:
        while True:
            self._arm()
            thrown = yield from self._wait()
            if self._abandon:
                self._drop()
                return self._ended(None, None)
            try:
                self._awaited = self._steps.send(None) if thrown is None else self._steps.throw(thrown)
            except StopIteration as done:
                return self._ended(done.value, None)
            except BaseException as error:
                if pressed(error):
                    raise
                return self._ended(None, error)
            finally:
                del thrown

    def _arm(self) -> None:
        """Start the clock of the piece of work that is on, unless its end has been asked for."""
        if self._outer is not None and not self._certain and self._uncancelled():
            self._outer = None  # the hook had cancelled itself, as a time limit of its own does, and went on
            self._piece = -1
        if self._expired or self._outer is not None:
            return
        piece, limit = self._watch()
        if piece != self._piece:
            self._piece = piece
            self._set(limit)

    def _wait(self) -> Generator[Any, Any, BaseException | None]:
        """Until the hook can go on or is given up; what is to be thrown into it, if anything."""
        awaited = self._awaited
        if not getattr(awaited, "_asyncio_future_blocking", False):
            try:
                yield awaited  # a bare yield, or something that the task itself will complain about
            except GeneratorExit:
                self._steps.close()
                raise
            except asyncio.CancelledError as cancelled:
                self._cancelled(cancelled)
            except BaseException as error:  # noqa: BLE001 - thrown into the hook
                return error
            return self._take_signal()
        if awaited.get_loop() is not self._loop or awaited is self._task:
            awaited._asyncio_future_blocking = False
            return RuntimeError(f"a hook cannot wait for {type(awaited).__name__} of another loop, or for its own task")
        awaited._asyncio_future_blocking = False
        awaited.add_done_callback(self._wake)
        while not (awaited.done() or self._abandon):
            gate = self._gate = _Gate(loop=self._loop)
            gate.task = self._task
            try:
                yield from gate
            except GeneratorExit:
                awaited.remove_done_callback(self._wake)
                self._steps.close()
                raise
            except asyncio.CancelledError as cancelled:
                if gate.by_group:
                    self._groups += 1
                    self._signal = cancelled
                else:
                    self._cancelled(cancelled)
            # The message goes along: by it anyio's scopes know their own cancellation.
            if self._signal is not None and awaited.cancel(*self._signal.args[:1]):
                self._signal = None  # it will be thrown by what is awaited
        self._gate = None
        signal = self._take_signal()
        if signal is not None and awaited.done() and not awaited.cancelled():
            awaited.exception()  # seen, as a task that is cancelled sees it: the loop has nothing to complain about
        return signal

    def _take_signal(self) -> BaseException | None:
        signal, self._signal = self._signal, None
        return signal

    def _cancelled(self, cancelled: asyncio.CancelledError) -> None:
        """The task was cancelled: by somebody outside, or by a time limit inside the hook."""
        task = self._task
        self._certain = self._certain or task is None or task.cancelling() <= self._cancels
        if self._outer is None and not self._expired:  # whoever cancels again and again gives it no more time
            self._set(self._grace)
        self._outer = cancelled
        self._signal = cancelled

    def _uncancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() <= self._cancels + self._groups

    def ring(self) -> None:
        """A limit has been reached: the hook's own, or the time it had to end."""
        if self._expired or self._outer is not None:
            self._abandon = True
            self._wake()
            return
        self._expired = True
        if self._stop is not None:
            self._stop()
        self._signal = asyncio.CancelledError()
        self._set(self._grace)
        self._wake()

    def _set(self, seconds: float | None) -> None:
        self.disarm()
        if seconds is not None:
            self.due = time.monotonic() + seconds
            self._alarms.add(self)

    def _wake(self, _: object = None) -> None:
        gate = self._gate
        if gate is not None and not gate.done():
            gate.set_result(None)

    def _ended(self, value: Any, error: BaseException | None) -> Outcome:
        """The hook has ended or was given up. Who asked for its end decides what came of it."""
        if self._groups and not _GROUPS_COUNT_RIGHT:
            self._give_back()
        if self._outer is not None and (self._certain or not self._uncancelled()):
            raise self._outer
        if self._expired or self._abandon:
            return None, TimedOut()
        return value, error

    def _give_back(self) -> None:
        """Take back the cancellations that task groups of the hook asked for and left standing: whoever comes after it
        in this task, a time limit further out too, would take them for somebody else's."""
        while self._groups and self._task is not None and self._task.cancelling() > self._cancels:
            self._task.uncancel()
            self._groups -= 1
        self._groups = 0

    def _drop(self) -> None:
        """End the hook without its consent: it is closed where it stands."""
        if isinstance(self._awaited, asyncio.Future):
            self._awaited.remove_done_callback(self._wake)
        close(self._steps)

    def disarm(self) -> None:
        self._alarms.remove(self)


def _steps(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    return awaitable if isinstance(awaitable, types.CoroutineType) else _awaiting(awaitable)


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
