"""Running the body of a tool: on the loop, or in a worker thread where it is not async."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Any

from agent_engine.hooks.limits import Escaped
from agent_engine.tools.base import ToolInvocation

Progress = Callable[[object], object] | None


async def run_body(
    function: Callable[..., Any], positional: Sequence[Any], named: Mapping[str, Any], call: ToolInvocation
) -> Any:
    """Call ``function`` and return its final value.

    A coroutine function is awaited here. Anything else is called in a worker thread, which an endless body keeps; what
    it hands back (a coroutine, a generator) is then brought to its end.
    """
    bound = functools.partial(function, *positional, **named)
    if inspect.isasyncgenfunction(_entry(function)):
        return await drain_async(bound(), call.progress)
    if is_coroutine_function(function):
        value = await bound()
    else:
        value = await _in_worker(bound, call.progress)
    return await settled(value, call)


async def settled(value: Any, call: ToolInvocation) -> Any:
    """A body's result when what it handed back (a coroutine, a generator) has been brought to its end."""
    while inspect.isawaitable(value):
        value = await value
    if inspect.isasyncgen(value):
        return await drain_async(value, call.progress)
    if inspect.isgenerator(value):
        return await _in_worker(lambda: value, call.progress)
    return value


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling ``function`` gives a coroutine, to be awaited on the loop."""
    return inspect.iscoroutinefunction(_entry(function))


def _entry(function: Any) -> Any:
    """What is really called: of a callable object its ``__call__``, of a partial its function."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


async def _in_worker(bound: Callable[[], Any], progress: Progress) -> Any:
    from agent_engine.hooks.workers import run_in_worker

    loop = asyncio.get_running_loop()
    items: deque[object] = deque()
    left = False

    def report(item: object) -> None:
        if progress is not None and not left:
            items.append(item)
            loop.call_soon_threadsafe(tell)

    def tell() -> None:
        while items and progress is not None and not left:
            progress(items.popleft())

    def body() -> Any:
        try:
            value = bound()
            return _drain(value, report, lambda: left) if inspect.isgenerator(value) else value
        except KeyboardInterrupt as error:
            raise Escaped(error) from error  # nobody's key: those are for the main thread

    try:
        return await run_in_worker(body, limit=None, context=contextvars.copy_context())
    finally:
        tell()  # a thread that is done before anybody waits for it is ahead of what it asked the loop to do
        left = True


def _drain(generator: Generator[Any, Any, Any], report: Callable[[object], None], left: Callable[[], bool]) -> Any:
    """Run a generator to its end in this thread; stop at the next item once nobody waits for it."""
    last = None
    try:
        while True:
            try:
                last = next(generator)
            except StopIteration as stop:
                return last if stop.value is None else stop.value
            if left():
                return None
            report(last)
    finally:
        generator.close()


async def drain_async(generator: AsyncGenerator[Any, Any], progress: Progress) -> Any:
    """The last item of an async generator; the ones before are progress."""
    last = None
    try:
        async for item in generator:
            last = item
            if progress is not None:
                progress(item)
    finally:
        await generator.aclose()
    return last
