"""An async stream for callers that cannot await."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def iterate(make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """The items of ``make()`` as they come; leaving early closes the stream, and waits until that is done.

    Works where a loop is running: the stream lives on the kernel's own loop.
    """
    from agent_engine.hooks.portal import run_sync

    items: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    pumping: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[object]]] = []
    left = threading.Event()

    async def pump() -> None:
        task = asyncio.current_task()
        assert task is not None
        pumping.append((asyncio.get_running_loop(), task))
        if left.is_set():
            return
        stream = make()
        try:
            async for item in stream:
                items.put((item,))
        finally:
            closing = getattr(stream, "aclose", None)
            if closing is not None:
                await closing()

    def work() -> None:
        try:
            run_sync(pump)
        except BaseException as error:  # noqa: BLE001 - raised where the items are read
            items.put(error)
        else:
            items.put(None)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(work,), name="agent-engine-stream", daemon=True
    )
    thread.start()
    try:
        while (item := items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        left.set()
        for loop, task in pumping:
            if thread.is_alive():
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
