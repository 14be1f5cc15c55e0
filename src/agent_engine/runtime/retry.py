"""Trying again, with a back-off between: model calls and the tools that ask for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agent_engine.hooks.events import HookEvent

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from agent_engine.runtime.step import Step

T = TypeVar("T")
MODEL_ATTEMPTS = 3
"""How often a model is asked when it says that the same request may succeed later."""

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
LONGEST_ASKED_SECONDS = 300.0
"""An error that asks for a longer wait is final: a run is not held for it, and a fallback model may go on."""


async def retried(
    attempt: Callable[[], Awaitable[T]],
    step: Step,
    attempts: int,
    *,
    operation: Literal["model", "tool"],
    worth: Callable[[BaseException], bool],
    tool_name: str = "",
) -> T:
    """Await ``attempt()``; where it raises something that is ``worth`` it, wait and do so again.

    ``on_retry`` fires before each wait. A wait is what the error's ``retry_after`` says, else exponential with jitter;
    an error that asks for more than LONGEST_ASKED_SECONDS is not waited for.
    The last error is raised as it is. Nothing of this is built, or even imported, while the first attempt succeeds.
    """
    try:
        return await attempt()
    except Exception as error:
        if attempts < 2 or not _waited_for(error, worth):
            raise
        first = error
    return await _again(attempt, first, step, attempts, operation, worth, tool_name)


async def _again(
    attempt: Callable[[], Awaitable[T]],
    first: Exception,
    step: Step,
    attempts: int,
    operation: str,
    worth: Callable[[BaseException], bool],
    tool_name: str,
) -> T:
    from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    backoff = wait_random_exponential(multiplier=FIRST_WAIT_SECONDS, max=LONGEST_WAIT_SECONDS)
    failed: list[Exception] = [first]

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = _asked(error)
        return asked if asked is not None else backoff(state)

    async def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        delay = state.next_action.sleep if state.next_action is not None else 0.0
        await _on_retry(step, state.attempt_number, delay, error, attempts, operation, tool_name)

    def again(error: BaseException) -> bool:
        return _waited_for(error, worth)

    async def once() -> T:
        # The first attempt has been made: its error stands for it.
        if failed:
            raise failed.pop()
        return await attempt()

    retrying: Any = AsyncRetrying(
        stop=stop_after_attempt(attempts), wait=wait, retry=retry_if_exception(again), before_sleep=tell, reraise=True
    )
    result: T = await retrying(once)
    return result


def _waited_for(error: BaseException, worth: Callable[[BaseException], bool]) -> bool:
    return worth(error) and (_asked(error) or 0.0) <= LONGEST_ASKED_SECONDS


def _asked(error: BaseException | None) -> float | None:
    """The seconds that an error asks to wait; None where it names no such number."""
    asked = getattr(error, "retry_after", None)
    return float(asked) if isinstance(asked, int | float) and asked >= 0 else None


async def _on_retry(
    step: Step, attempt: int, delay: float, error: BaseException | None, attempts: int, operation: str, tool_name: str
) -> None:
    plan = step.plan(HookEvent.ON_RETRY, tool_name)
    if plan is None:
        return
    from agent_engine.hooks.payloads import OnRetryInput
    from agent_engine.hooks.rows import text_of

    payload = OnRetryInput(
        **step.base(),
        tool_name=tool_name,
        attempt=attempt,
        delay_ms=delay * 1000,
        error="" if error is None else text_of(error),
        max_attempts=attempts,
        error_type=type(error).__name__,
        operation=operation,
    )
    await plan.dispatch(payload, step)
