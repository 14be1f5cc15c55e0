"""on_error and notification: what a run tells about itself when something went wrong or somebody is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_engine.hooks.events import HookEvent

if TYPE_CHECKING:
    from agent_engine.runtime.step import Step


async def report_error(step: Step, error: BaseException, message: str | None = None, **context: Any) -> None:
    """Fire ``on_error`` for an error inside a run; once for each error, at the step where it arose. ``message`` stands
    in the place of the error's own text."""
    plan = step.plan(HookEvent.ON_ERROR)
    if plan is None or not step.state.report_once(error):
        return
    from agent_engine.hooks.payloads import OnErrorInput
    from agent_engine.hooks.rows import text_of

    payload = OnErrorInput(
        **step.base(),
        error_type=error_type_of(error),
        error_message=text_of(error) if message is None else message,
        stack_trace=_frames(error),
        context={"step": step.kind, "name": step.name, **context},
    )
    await step.aside(plan, payload)


async def notify(step: Step, kind: str, message: str) -> str:
    """Fire ``notification`` and return the message as its hooks left it."""
    plan = step.plan(HookEvent.NOTIFICATION)
    if plan is None:
        return message
    from agent_engine.hooks.payloads import NotificationInput

    verdict = await step.aside(plan, NotificationInput(**step.base(), kind=kind, message=message))
    return str(verdict.payload.message)


def error_type_of(error: BaseException) -> str:
    """The type name that closing events and records show. A cancellation is a RunCancelled there."""
    import asyncio

    return "RunCancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__


def _frames(error: BaseException) -> str:
    """Where the error arose, without the texts of its causes: those may hold what must not leave."""
    import traceback

    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
