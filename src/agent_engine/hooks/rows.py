"""What is told about each hook that ran: rows for a caller, and the material of decision records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_engine.hooks.callbacks import Answer
from agent_engine.hooks.errors import HookFailure
from agent_engine.hooks.events import event_of
from agent_engine.hooks.result import HookExecutionResult, HookResult, HookRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent_engine.hooks.plan import Entry

__all__ = ["Ran", "hook_run", "result_row", "text_of"]


class Ran:
    """One hook's run: what it was given, and what came of it."""

    __slots__ = (
        "answer",
        "before",
        "begun",
        "changed",
        "duration_ms",
        "ended",
        "entry",
        "exit_code",
        "failure",
        "given",
        "group",
        "left",
        "result",
        "seen",
        "started_at",
        "stderr",
        "stdout",
    )

    def __init__(self, entry: Entry, given: Any, group: int) -> None:
        self.entry = entry
        self.given = given
        self.group = group
        self.answer: Answer | None = None
        self.failure: HookFailure | None = None
        self.result: HookResult | None = None
        self.before: Mapping[str, Any] | None = None
        # The whole payload before and after, copied only for a sink that wants it.
        self.seen: Any = None
        self.left: Any = None
        self.changed: tuple[str, ...] = ()
        self.stdout = ""
        self.stderr = ""
        self.exit_code: int | None = None
        self.started_at = 0.0
        self.duration_ms = 0.0
        # By time.perf_counter.
        self.begun = 0.0
        self.ended: float | None = None


def result_row(ran: Ran) -> HookExecutionResult:
    """The row that ``execute`` and ``fire_hook`` give."""
    hook, failure = ran.entry.hook, ran.failure
    return HookExecutionResult(
        hook.id,
        ran.entry.name,
        str(hook.event),
        failure is None,
        _output(ran),
        ran.stdout,
        ran.stderr,
        ran.exit_code,
        ran.duration_ms,
        None if failure is None else _text(failure),
    )


def _output(ran: Ran) -> HookResult | None:
    """The decision of a row: what the hook said, or the refusal its failure is; None where it does not count."""
    if ran.failure is not None:
        return None if ran.entry.on_failure == "log" else HookResult.deny(ran.failure.reason)
    answer = ran.answer
    if not ran.entry.counts or answer is None:
        return None
    if ran.result is not None:
        return ran.result
    return HookResult(
        "allow" if answer.decision == "none" else answer.decision,
        answer.reason,
        dict(answer.changes) if answer.changes else None,
        answer.additional_context,
        answer.suppress_output,
        answer.system_message,
    )


def hook_run(ran: Ran) -> HookRun:
    """What a decision record is made from."""
    entry, failure, answer = ran.entry, ran.failure, ran.answer
    decision = (
        "failed" if answer is None else "modify" if answer.decision == "allow" and ran.changed else answer.decision
    )
    return HookRun(
        entry.hook,
        event_of(entry.hook.event),
        "sequential" if entry.sequential else "parallel",
        ran.group,
        "none" if entry.hook.observe and failure is None else decision,
        failure.reason if failure is not None else answer.reason if answer is not None else None,
        failure is not None,
        failure.failure_type if failure is not None else None,
        ran.changed,
        ran.duration_ms,
        entry.hook.failure_policy,
        entry.hook.observe,
        entry.hook.shadow,
        ran.started_at,
        ran.seen,
        ran.left,
        answer.additional_context if answer is not None else None,
    )


def _text(failure: HookFailure) -> str:
    words = "" if failure.cause is None else text_of(failure.cause)
    return f"{failure.reason}: {words}" if words else failure.reason


def text_of(error: BaseException) -> str:
    """The text of an exception; "" for one that cannot even say what it is."""
    try:
        return str(error)
    except (Exception, SystemExit):  # noqa: BLE001 - it must not take the place of the failure it belongs to
        return ""
