"""The synchronous faces: a thread with an event loop, on which coroutines run for callers that cannot await."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from agent_engine.hooks.workers import carry_back

__all__ = ["run_sync"]

T = TypeVar("T")

_lock = threading.RLock()
"""Taken again by the same thread where the handler of a signal wants the portal while it is being made."""
_portal: _Portal | None = None
_here = threading.local()
"""``_here.serves`` is set on every thread of a portal."""


def run_sync(make: Callable[[], Awaitable[T]]) -> T:
    """Run ``await make()`` to its end on the kernel's own loop, and return what it returns.

    Works from any thread, also where a loop is running; that loop stands still meanwhile. Context variables of the
    caller are seen by the coroutine, and those it sets are set for the caller afterwards. KeyboardInterrupt cancels the
    coroutine and waits for its end; a second one does not wait.

    Args:
        make: makes the awaitable; called on the other thread.

    Raises:
        BaseException: whatever the coroutine raised.
    """
    if getattr(_here, "serves", False):
        fresh = _Portal()
        try:
            return fresh.run(make)
        finally:
            fresh.stop()
    shared: _Portal | None = None
    if not sys.is_finalizing():  # from then on no thread but this one runs, and nobody would answer
        with contextlib.suppress(RuntimeError):
            shared = _shared()
    return _run_here(make) if shared is None else shared.run(make)


def _run_here(make: Callable[[], Awaitable[T]]) -> T:
    """Where no thread can be had, as at the interpreter's exit: on this one, which must not run a loop already."""

    async def run() -> T:
        return await make()

    before = contextvars.copy_context()
    context = before.copy()
    with asyncio.Runner() as runner:
        value = runner.run(run(), context=context)
    carry_back(context, before)
    return value


def _shared() -> _Portal:
    global _portal
    with _lock:
        if _portal is None or not _portal.alive:
            made = _Portal()
            if _portal is not None and _portal.alive:  # a handler of signals was quicker
                made.stop()
            else:
                _portal = made
        return _portal


class _Portal:
    """A daemon thread that runs an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="agent-engine-portal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._loop.is_closed()

    def _serve(self) -> None:
        _here.serves = True
        asyncio.set_event_loop(self._loop)
        while not self._stopped:
            # A task that raises SystemExit or KeyboardInterrupt ends run_forever; it must not end everybody's loop.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        self._loop.close()

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        before = contextvars.copy_context()
        call: _Call[T] = _Call(make, before.copy())
        try:
            self._loop.call_soon_threadsafe(call.start, self._loop)
            call.ended.acquire()
        except BaseException:
            self._loop.call_soon_threadsafe(call.cancel)
            call.ended.acquire()
            raise
        carry_back(call.context, before)
        return call.result()

    def stop(self) -> None:
        """End the loop and its thread, once what still runs on it has been cancelled and has ended."""
        self._loop.call_soon_threadsafe(self._wind_up)
        self._thread.join()

    def _wind_up(self) -> None:
        async def end() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            if rest:
                await asyncio.wait(rest, timeout=1.0)
            await self._loop.shutdown_asyncgens()
            self._stopped = True
            self._loop.stop()

        self._last = self._loop.create_task(end())


class _Call(Generic[T]):
    """One coroutine on a portal's loop, and the lock that its caller waits on."""

    def __init__(self, make: Callable[[], Awaitable[T]], context: contextvars.Context) -> None:
        self.context = context
        self.ended = threading.Lock()
        self.ended.acquire()
        self._make: Callable[[], Awaitable[T]] | None = make
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._value: Any = None
        self._error: BaseException | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._drive(), context=self.context)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._over:
            self._leave()  # its caller was interrupted before it could hand it over

    async def _drive(self) -> None:
        make, self._make = self._make, None
        try:
            assert make is not None
            self._value = await make()
        except BaseException as error:  # noqa: BLE001 - raised again where the caller waits
            self._error = error

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and self._error is None:
            self._error = asyncio.CancelledError()  # cancelled before its first step
        self._leave()

    def _leave(self) -> None:
        self._task = None
        self._over = True
        self.ended.release()

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._value  # type: ignore[no-any-return]  # it is the awaitable's own
        try:
            raise error
        finally:
            del error


def _after_fork() -> None:
    """A child process has none of its parent's threads."""
    global _lock, _portal
    _lock = threading.RLock()
    _portal = None
    _here.serves = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
