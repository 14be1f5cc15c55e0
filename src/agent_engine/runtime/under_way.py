"""Runs inside of runs: a tool, or a hook, may call an agent, whose tools and hooks may call one again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from agent_engine.runtime.calling import calling

MOST_NESTED = 16
"""How many runs may be under way inside one another: one that leads to itself must come to an end."""

MOST_AT_ONCE = 1000
"""How many runs may be under way inside one: those that lead to several of their kind must not grow without end."""


class UnderWay:
    """One run while it lasts, and those that were begun inside of it and have not ended.

    Raises:
        RecursionError: too many are under way around it, or beside it.
        asyncio.CancelledError: the run was cancelled whose tool begins this one. Its thread cannot be ended, and may
            go on, but nothing is begun for it any more.
    """

    __slots__ = ("_above", "_all", "_cut", "_inside", "_loop", "_over", "_task")

    _above: UnderWay | None
    _over: bool

    def __init__(self, name: str) -> None:
        above = _under_way.get()
        self._above = None if above is None else _around(above, name)
        self._cut = self._over = False
        self._inside: list[UnderWay] = []
        # Every run that is under way inside the outermost one.
        self._all: set[UnderWay] = set() if self._above is None else self._above._all
        if self._above is not None:
            if len(self._all) >= MOST_AT_ONCE:
                raise RecursionError(
                    f"'{name}' was not run: {len(self._all)} runs are under way inside one already; let some of them"
                    " come to an end before the next are begun."
                )
            self._all.add(self)
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            self._above._inside.append(self)
        _under_way.set(self)
        turn = calling()
        if turn is not None and turn.state.under_way is not None and turn.state.under_way._cut:
            self.end()
            raise asyncio.CancelledError

    def cut(self) -> None:
        """The run is being cancelled: so are those inside of it, wherever they run. A sync tool that waits for one in
        its thread would go on with it otherwise."""
        self._cut = True
        task = asyncio.current_task()
        for one in list(self._inside):
            if one._task is not None and one._task is not task:
                with contextlib.suppress(RuntimeError):  # its loop is closed, and it has ended
                    one._loop.call_soon_threadsafe(one._task.cancel)

    def end(self) -> None:
        """The run has ended."""
        self._over = True
        if self._above is not None:
            self._above._inside.remove(self)
            self._all.discard(self)


def _around(above: UnderWay, name: str) -> UnderWay | None:
    """The run right around a new one; what has ended is around nothing."""
    around = [one for one in _outwards(above) if not one._over]
    if len(around) >= MOST_NESTED:
        raise RecursionError(
            f"'{name}' was not run: {len(around)} runs are under way inside one another already; let a tool or a hook"
            " that calls an agent come to an end."
        )
    return around[0] if around else None


def _outwards(one: UnderWay | None) -> Iterator[UnderWay]:
    while one is not None:
        yield one
        one = one._above


_under_way: ContextVar[UnderWay | None] = ContextVar("agent_engine_under_way", default=None)
