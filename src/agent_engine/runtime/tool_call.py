"""The only door to a tool body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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
    """

    status: Status
    text: str
    value: Any = None
    error_type: str | None = None
    refused_by: str | None = None
    reason: str | None = None
    error: BaseException | None = None
