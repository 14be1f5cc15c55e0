"""What the writer of a database remembers of runs that are open, and which steps count as passing no gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

GATES = {
    "tool": ("before_tool", "before_tool_call"),
    "model": ("before_llm",),
    "mcp": ("before_mcp_request",),
    "agent": ("before_agent",),
}
"""kind of step → the events at which a hook could have refused it before it began."""

BUCKET_RATIO = 1.25
"""Each bucket of the latency histogram ends this many times later than the one before; the first ends at 1 µs."""


@lru_cache(4096)
def is_ungated(kind: str, unheard: str | None) -> bool:
    """Whether nothing listened at any gate of such a step. ``unheard`` holds events, parted by blanks."""
    gates = GATES.get(kind)
    if gates is None or not unheard:
        return False
    events = unheard.split(" ")
    return all(gate in events for gate in gates)


@dataclass(slots=True)
class StepState:
    """One step; ``row`` order is that of the columns written at its opening and its closing."""

    key: int
    run: int
    step_id: str
    parent_id: str | None = None
    kind: str = "engine"
    name: str = ""
    agent: str | None = None
    started_at: float | None = None
    opened: str | None = None
    status: str | None = None
    error_type: str | None = None
    outcome: str = "open"
    refused_by: str | None = None
    reason: str | None = None
    duration_ms: float | None = None
    closed: str | None = None
    unheard: str | None = None


@dataclass(slots=True)
class RunState:
    """One run. The counts are what the batch in hand adds to its row."""

    key: int
    run_id: str
    system: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    organization_id: str | None = None
    generation: str | None = None
    message_digest: str | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    status: str = "open"
    error_type: str | None = None
    duration_ms: float | None = None
    usage: str | None = None
    steps: int = 0
    hook_runs: int = 0
    denied: int = 0
    broke: int = 0
    facets: set[tuple[str, str]] = field(default_factory=set)
    by_step: dict[str, StepState] = field(default_factory=dict)

    def trim(self, kept: int) -> bool:
        """Forget what has ended, but for the last ``kept`` steps of it: a run may go on for ever. True where there
        were more."""
        ended = [step_id for step_id, step in self.by_step.items() if step.outcome not in ("open", "waiting")]
        forgotten = ended[: max(0, len(ended) - kept)]
        for step_id in forgotten:
            del self.by_step[step_id]
        self.facets.clear()  # each is written once more, and is there already
        return bool(forgotten)
