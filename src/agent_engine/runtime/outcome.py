"""ToolOutcome: what came of one tool call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agent_engine.tools.base import ToolError

if TYPE_CHECKING:
    from agent_engine.hooks.errors import RunBlocked
    from agent_engine.records.journal import Outcome
    from agent_engine.runtime.waiting import Waiting

Status = Literal["ok", "error", "denied", "cancelled", "timed_out", "waiting"]


@dataclass(slots=True)
class ToolOutcome:
    """What came of one tool call.

    Args:
        status: how it ended.
        text: what the model reads.
        value: the result after every hook, the tool's own object where nobody changed it; None where there is none.
        error_type: the exception's type name where it failed.
        refused_by: the hook that refused it, where one did.
        reason: the reason that hook gave on purpose.
        error: the exception that the body raised.
        waiting: where it stopped for a person.
        over_limit: it was refused because a limit on calls was reached.
        handed_over: it handed the conversation over, and ``text`` is the answer.
        blocked: it was refused once too often: what ends the turn.
        kind: "declined" where a person said no, "withheld" where the result was refused; for the journal.
        detail: what the journal keeps of it.
    """

    status: Status
    text: str
    value: Any = None
    error_type: str | None = None
    refused_by: str | None = None
    reason: str | None = None
    error: BaseException | None = None
    waiting: Waiting | None = None
    over_limit: bool = False
    handed_over: bool = False
    blocked: RunBlocked | None = None
    kind: Outcome | None = None
    detail: dict[str, Any] | None = None


class ToolCancelled(ToolError):
    """A body that was cancelled from inside, not by its run."""


class ToolExited(ToolError):
    """A body that raised what would end more than itself, as sys.exit does: its own failure, and not the run's end."""
