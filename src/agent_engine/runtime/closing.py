"""Closing events on every way out: also while the run is being cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from agent_engine.hooks.errors import LimitReached, RunBlocked
from agent_engine.runtime.heard import dispatch_heard

if TYPE_CHECKING:
    from agent_engine.hooks.plan import Plan
    from agent_engine.hooks.result import Verdict
    from agent_engine.runtime.state import RunState
    from agent_engine.runtime.step import Step

logger = logging.getLogger("agent_engine.runtime")

ClosingStatus = Literal["ok", "error", "denied", "cancelled", "timed_out"]
_GRACE_SECONDS = 0.2


def status_of(step: Step, error: BaseException) -> ClosingStatus:
    """The status that a closing event has when ``error`` ended its step."""
    if isinstance(error, asyncio.CancelledError):
        return "timed_out" if any(timer.expired() for timer in step.timers) else "cancelled"
    if isinstance(error, RunBlocked):
        return "denied"
    if isinstance(error, TimeoutError) or (isinstance(error, LimitReached) and error.limit == "timeout_s"):
        return "timed_out"
    return "error"


async def checkpoint(task: asyncio.Task[Any] | None) -> None:
    """Let a cancellation in that was asked for and has met no await yet: a run must not end well behind its back."""
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


async def dispatch_closing(step: Step, plan: Plan, payload: Any) -> Verdict:
    """Dispatch a closing event. A cancellation in the middle of it ends the hook that it meets; the hooks behind that
    one still hear the event, so that whoever saw a step begin sees it end."""
    if len(plan.entries) == 1:
        return await plan.dispatch(payload, step)
    state = step.state

    async def rest(others: Plan) -> None:
        await despite_cancellation(state, lambda: _tell(step, others, payload))

    verdict: Verdict = await dispatch_heard(plan, state.host.heard_plans.of(plan), payload, step, rest)
    return verdict


async def _tell(step: Step, plan: Plan, payload: Any) -> None:
    await plan.dispatch(payload, step)


async def in_turn(state: RunState, *closings: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Fire closing events one after the other. Each gets its turn even where one before it fails, or is cut short by a
    cancellation; the last failure is raised, with the earlier one as its context."""
    error: Exception | None = None
    for number, closing in enumerate(closings, 1):
        try:
            await closing()
        except Exception as failure:  # noqa: BLE001 - raised below, when every closing event has fired
            if error is not None and failure.__context__ is None:
                failure.__context__ = error
            error = failure
        except BaseException:
            if left := closings[number:]:
                await despite_cancellation(state, lambda: in_turn(state, *left))
            raise
    if error is not None:
        raise error


async def despite_cancellation(state: RunState, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``closing`` to its end although the task that waits for it is being cancelled, within the run's time for
    closing events. Its failure is logged: it must not take the place of the cancellation."""
    # Where the time is over, each of those that are left still has a moment: it is due, and mostly quick.
    left = max(state.closing_seconds(), _GRACE_SECONDS)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + left
    begun = False

    async def run() -> None:
        nonlocal begun
        begun = True
        await closing()

    task = loop.create_task(run(), context=contextvars.copy_context())
    await _wait(task, deadline)
    while task.cancelled() and not begun:
        # Somebody has cancelled every task that there is, as the end of a loop does, before this one could begin.
        task = loop.create_task(run(), context=contextvars.copy_context())
        await _wait(task, deadline)
    if not task.done():
        task.cancel()
        await _wait(task, asyncio.get_running_loop().time() + _GRACE_SECONDS)
        logger.warning("Closing events of run %s did not end within their time and were cut off.", state.run_id)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("A closing event of the cancelled run %s failed: %s", state.run_id, type(error).__name__)


async def _wait(task: asyncio.Task[None], deadline: float) -> None:
    loop = asyncio.get_running_loop()
    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            # One more cancellation of a task that is already ending: the caller raises the first one afterwards.
            continue


async def close_step(
    state: RunState, error: BaseException, *closings: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    """Fire the closing events of a step that ``error`` ends. The caller raises ``error`` afterwards."""
    if not closings:
        return
    if isinstance(error, asyncio.CancelledError):
        await despite_cancellation(state, lambda: in_turn(state, *closings))
    else:
        await in_turn(state, *closings)
