"""What a run gives back: RunResult at its end, RunEvent while it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agent_engine.models.base import Message, Usage
    from agent_engine.runtime.approvals import ToolApproval

EventType = Literal["text", "tool_started", "tool_finished", "hook", "approval", "final"]
RunStatus = Literal["completed", "waiting", "blocked"]


@dataclass(slots=True, kw_only=True)
class RunResult:
    """The outcome of a request that did not fail.

    Args:
        output: the answer's text, or an object of the agent's output_type; "" while the run waits.
        status: "completed"; "waiting" when it stopped for approvals; "blocked" where an Agent's turn was refused.
        run_id: the run's id.
        session_id: the conversation's id; "" for a run that is a session of its own.
        usage: tokens of every model call of the run, delegates included.
        messages: what this run added to the conversation, in the chat shape, the person's message first.
        visited: names of the agents that took a turn, in order of their first turn.
        pending: the asks that a waiting run waits for.
    """

    output: Any = ""
    status: RunStatus = "completed"
    run_id: str = ""
    session_id: str = ""
    usage: Usage
    messages: list[Message] = field(default_factory=list)
    visited: tuple[str, ...] = ()
    pending: tuple[ToolApproval, ...] = ()

    @property
    def answer(self) -> Any:
        """The same as ``output``."""
        return self.output


@dataclass(slots=True)
class RunEvent:
    """One thing that happened in a run, as a stream tells it.

    ``data`` is JSON-ready, by type:

    * text: ``text``
    * tool_started: ``call_id``, ``tool_name``, ``agent``
    * tool_finished: ``call_id``, ``tool_name``, ``agent``, ``status`` (ok, error, denied, cancelled, timed_out,
      waiting), ``duration_ms``
    * hook: ``event``, ``hook``, ``decision``, ``reason`` (None where the hook broke), ``agent``, ``duration_ms``
    * approval: the fields of ToolApproval
    * final: ``output``, ``status``, ``session_id``, ``usage``, ``visited``, ``pending``; ``result`` holds the RunResult
    """

    type: EventType
    run_id: str
    data: dict[str, Any]
    result: RunResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-ready data: type, run_id, data."""
        return {"type": self.type, "run_id": self.run_id, "data": self.data}
