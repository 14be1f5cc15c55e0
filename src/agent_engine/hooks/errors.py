"""What can go wrong around a hook, and how a run says that it was refused, limited or cancelled.

No text here ever carries the text of a cause: a cause may quote user input or a credential. Its type is named instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar


class HookError(Exception):
    """Base of every error that comes from hooks themselves."""


class HookLoadError(HookError):
    """A declared hook could not be loaded: the plugin, method or function is not there or cannot be called."""

    def __init__(self, point: str, ref: str, reason: str) -> None:
        super().__init__(f"Hook '{ref}' at {point} could not be loaded: {reason}")
        self.point = point
        self.ref = ref
        self.reason = reason


class HookExecutionError(HookError):
    """A hook under the policy ``fail`` broke; the operation it stood at was aborted.

    ``cause`` is the hook's own exception. The message names its type only.
    """

    def __init__(self, point: str, ref: str, cause: BaseException | None = None) -> None:
        kind = (
            getattr(cause, "failure_type", None) or type(cause).__name__ if cause is not None else "an unknown failure"
        )
        super().__init__(f"Hook '{ref}' failed at {point}: {kind}")
        self.point = point
        self.ref = ref
        self.cause = cause


class HookFailure(HookError):
    """A hook broke, told apart from a hook that said no. The kernel turns it into what the failure policy says.

    ``reason`` goes into the record and the log; ``failure_type`` is a short stable word (``timeout``, ``exit_code``,
    an exception's type …).
    """

    def __init__(self, reason: str, failure_type: str = "error", *, cause: BaseException | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.failure_type = failure_type
        self.cause = cause


class HookRegistrationError(HookError, ValueError):
    """A hook was refused when it was registered; the message names the hook and what to change."""


_Raised = TypeVar("_Raised", bound=BaseException)


def as_hooks_own(error: _Raised) -> _Raised:
    """Mark an exception that a strict site raises in the place of a refusal, so that nobody on its way out takes it
    for the failure of a tool or a delegate."""
    error.__dict__["_raised_by_hook"] = True
    return error


def ends_the_run(error: BaseException | None) -> bool:
    """Whether an exception comes from a hook and is to leave the run: one under ``fail``, or any of a strict site."""
    return isinstance(error, HookExecutionError) or (error is not None and "_raised_by_hook" in error.__dict__)


class GuardrailBlocked(Exception):
    """Raised inside a hook to refuse the step: a decision with a reason, not a failure."""

    reason: str = "Blocked by guardrail"
    """Also of a subclass whose constructor does not call this one."""

    def __init__(self, reason: str = reason) -> None:
        super().__init__(reason)
        self.reason = reason


def guardrail_in(error: BaseException) -> GuardrailBlocked | None:
    """The refusal that an exception is, or that a group of them holds; None for failures."""
    found = first_in(error, lambda one: isinstance(one, GuardrailBlocked))
    return found if isinstance(found, GuardrailBlocked) else None


def first_in(error: BaseException, wanted: Callable[[BaseException], bool]) -> BaseException | None:
    """The first one that is wanted: ``error``, or one of the group that it is, as a TaskGroup raises it."""
    if wanted(error):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := first_in(one, wanted)) is not None), None)
    return None


class RunBlocked(Exception):
    """A hook refused the whole run.

    ``reason`` is what a hook said on purpose, or None where the hook broke; details stay in record and log. ``run_id``,
    ``usage`` and ``visited`` are those of the run, as in a RunResult; without a run they are empty.
    """

    run_id: str = ""
    usage: Any = None
    visited: tuple[str, ...] = ()

    def __init__(self, event: str, hook: str | None = None, reason: str | None = None) -> None:
        super().__init__(f"Blocked by policy: {reason}" if reason else "Blocked by policy.")
        self.event = str(event)
        self.hook = hook
        self.reason = reason


class LimitReached(Exception):
    """A run met one of its limits. ``limit`` names it as in ``Limits``; ``value`` is what was allowed."""

    def __init__(self, limit: str, value: float | int | None = None) -> None:
        super().__init__(f"The run reached its limit {limit}" + (f" = {value:g}" if value is not None else ""))
        self.limit = limit
        self.value = value


class RunCancelled(Exception):
    """What ``on_run_error`` sees when a run was cancelled; its caller gets asyncio's CancelledError."""

    def __init__(self, message: str = "The run was cancelled") -> None:
        super().__init__(message)
