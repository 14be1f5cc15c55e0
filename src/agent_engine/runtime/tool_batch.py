"""The tool calls of one model message: concurrent, each in a context of its own, results in the model's order."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.callbacks import in_context
from agent_engine.runtime.outcome import ToolOutcome
from agent_engine.runtime.tool_call import call_tool
from agent_engine.runtime.waiting import abandon

if TYPE_CHECKING:
    from agent_engine.models.base import ToolCall
    from agent_engine.runtime.turn import Turn

Resumed = Mapping[str, Mapping[str, Any]]
"""What is known about calls that ran before a wait: call id -> its outcome (``done``) or where it stopped."""


async def run_calls(
    turn: Turn, calls: Sequence[ToolCall], offered: frozenset[str], resumed: Resumed | None = None
) -> list[ToolOutcome]:
    """Run every call and return the outcomes in the model's order.

    A call that fails is an outcome like any other. What ends the run (a hook under ``fail``, a limit of the request, a
    cancellation) cancels the calls beside it, each with its closing events, and is raised.
    """
    if len(calls) == 1:
        coroutine = _one(turn, calls[0], offered, resumed)
        return [await in_context(contextvars.copy_context(), coroutine)]
    width = turn.state.limits.max_parallel_tools or turn.node.limits.max_parallel_tools
    gate = asyncio.Semaphore(width) if width else None
    return await _together(turn, calls, offered, resumed, gate)


async def _together(
    turn: Turn,
    calls: Sequence[ToolCall],
    offered: frozenset[str],
    resumed: Resumed | None,
    gate: asyncio.Semaphore | None,
) -> list[ToolOutcome]:
    # Not a TaskGroup: until Python 3.13 one that fails while it is being left keeps its caller's count of cancellations
    # raised, and a time limit further out then takes its own end for somebody else's.
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(_gated(gate, turn, call, offered, resumed), context=contextvars.copy_context())
        for call in calls
    ]
    try:
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await _stop(tasks)
        failed = (error for task in tasks if not task.cancelled() and (error := task.exception()) is not None)
        if (failure := next(failed, None)) is not None:
            raise failure
        return [task.result() for task in tasks]
    except BaseException as error:
        ended = [task.result() for task in tasks if not task.cancelled() and task.exception() is None]
        await abandon(turn.state, [one.waiting for one in ended if one.waiting is not None], error)
        raise


async def _stop(tasks: Sequence[asyncio.Task[ToolOutcome]]) -> None:
    """Cancel what still runs and wait for its closing events, which have a time limit of their own."""
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    again: asyncio.CancelledError | None = None
    while running:
        try:
            _, running = await asyncio.wait(running)
        except asyncio.CancelledError as error:
            again = error
            running = {task for task in running if not task.done()}
    if again is not None:
        raise again


async def _gated(
    gate: asyncio.Semaphore | None, turn: Turn, call: ToolCall, offered: frozenset[str], resumed: Resumed | None
) -> ToolOutcome:
    if gate is None:
        return await _one(turn, call, offered, resumed)
    async with gate:
        return await _one(turn, call, offered, resumed)


async def _one(turn: Turn, call: ToolCall, offered: frozenset[str], resumed: Resumed | None) -> ToolOutcome:
    known = resumed.get(call.id) if resumed else None
    if known is not None and "done" in known:
        return ToolOutcome(**known["done"])
    return await call_tool(turn, call, offered, known)
