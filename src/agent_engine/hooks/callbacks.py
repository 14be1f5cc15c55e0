"""Calling what people register: in which context a coroutine is driven, and what a callback's return value means."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

__all__ = ["in_context"]

T = TypeVar("T")


@types.coroutine
def in_context(context: contextvars.Context, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await ``coroutine`` inside ``context``, in the current task: ``await in_context(copy_context(), work())``.

    What it sets stays in ``context``. The task stays the same one, so time limits, task groups and cancellation work
    as ever. ``context`` must not be entered elsewhere meanwhile.
    """
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        try:
            awaited = context.run(step, given)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a StopIteration's value has no type
        try:
            given = yield awaited
            step = coroutine.send
        except GeneratorExit:
            context.run(coroutine.close)
            raise
        except BaseException as thrown:  # noqa: BLE001 - thrown on into the coroutine
            step, given = coroutine.throw, thrown
