"""Runs inside of runs: a tool, or a hook, may call an agent, whose tools and hooks may call one again."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar

from agent_engine.hooks.nesting import Nested, around
from agent_engine.runtime.calling import calling

MOST_NESTED = 16
"""How many runs may be under way inside one another: one that leads to itself must come to an end."""

MOST_AT_ONCE = 1000
"""How many runs may be under way inside one: those that lead to several of their kind must not grow without end."""


class UnderWay(Nested):
    """One run while it lasts, and those that were begun inside of it and have not ended.

    Raises:
        RecursionError: too many are under way around it, or beside it.
        asyncio.CancelledError: the run was cancelled whose tool begins this one. Its thread cannot be ended, and may
            go on, but nothing is begun for it any more.
    """

    __slots__ = ("_all", "_cut", "_inside", "_loop", "_task")

    above: UnderWay | None

    def __init__(self, name: str) -> None:
        super().__init__(_right_around(name))
        self._cut = False
        self._inside: list[UnderWay] = []
        # Every run that is under way inside the outermost one.
        self._all: set[UnderWay] = set() if self.above is None else self.above._all
        if self.above is not None:
            if len(self._all) >= MOST_AT_ONCE:
                raise RecursionError(
                    f"'{name}' was not run: {len(self._all)} runs are under way inside one already; let some of them"
                    " come to an end before the next are begun."
                )
            self._all.add(self)
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            self.above._inside.append(self)
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
        self.over = True
        if self.above is not None:
            self.above._inside.remove(self)
            self._all.discard(self)


def _right_around(name: str) -> UnderWay | None:
    """The run right around a new one; what has ended is around nothing."""
    outer = around(_under_way.get())
    if len(outer) >= MOST_NESTED:
        raise RecursionError(
            f"'{name}' was not run: {len(outer)} runs are under way inside one another already; let a tool or a hook"
            " that calls an agent come to an end."
        )
    return outer[0] if outer else None


_under_way: ContextVar[UnderWay | None] = ContextVar("agent_engine_under_way", default=None)
