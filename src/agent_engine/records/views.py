"""What a reader of records gets: runs, steps and decision records as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agent_engine.records.rows import bucket_ms


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs; None leaves a matter open. Times are seconds since the epoch; ``decision`` is one of its hooks'.

    ``owner`` is a user and an organisation, both exactly: None as the organisation means that a run has none, and
    without a user nothing matches.
    """

    status: str | None = None
    agent: str | None = None
    tool: str | None = None
    decision: str | None = None
    since: float | None = None
    until: float | None = None
    session_id: str | None = None
    user_id: str | None = None
    organization_id: str | None = None
    owner: tuple[str | None, str | None] | None = None


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which decision records; None leaves a matter open."""

    run_id: str | None = None
    event: str | None = None
    hook: str | None = None
    decision: str | None = None
    tool: str | None = None
    agent: str | None = None
    since: float | None = None
    until: float | None = None
    user_id: str | None = None
    organization_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. ``key`` orders runs by their start and pages through them; ``status`` is ``open`` while it goes on."""

    key: int
    run_id: str
    system: str | None
    session_id: str | None
    user_id: str | None
    organization_id: str | None
    generation: str | None
    message_digest: str | None
    started_at: float
    ended_at: float | None
    status: str
    error_type: str | None
    duration_ms: float | None
    usage: Mapping[str, Any]
    steps: int
    hook_runs: int
    denied: int
    broke: int


@dataclass(frozen=True, slots=True)
class Record:
    """One decision record, with what became of the step it stood at."""

    seq: int
    record_id: str
    run_id: str | None
    step_id: str | None
    parent_id: str | None
    agent: str | None
    at: float
    event: str
    hook_id: str
    hook_name: str
    hook_kind: str
    source: str | None
    mode: str
    group: int
    priority: int
    policy: str | None
    observe: bool
    shadow: bool
    decision: str
    reason: str | None
    broke: bool
    failure_type: str | None
    changed: tuple[str, ...]
    before_digest: str | None
    after_digest: str | None
    duration_ms: float
    context: bool
    generation: str | None
    step_kind: str | None
    step_name: str | None
    outcome: str | None
    refused_by: str | None
    error_type: str | None

    @property
    def refused(self) -> bool:
        """Whether it is a refusal that counted; those of observers and shadows change nothing."""
        return self.decision == "deny" and not self.shadow and not self.observe

    @property
    def became(self) -> str:
        """What became of the step, in a few words: tells 'allowed, never ran' from 'broke, ran all the same'."""
        if self.outcome is None:
            return "no step"
        words = {
            "open": "not ended",
            "refused": f"refused by {self.refused_by}" if self.refused_by else "refused",
            "declined": "declined by a person",
            "failed": f"failed by {self.refused_by}" if self.refused_by else f"failed: {self.error_type or 'error'}",
            "withheld": f"ran, result withheld by {self.refused_by}" if self.refused_by else "ran, result withheld",
        }
        became = words.get(self.outcome, self.outcome)
        if self.broke and self.policy == "warn" and self.outcome == "ran":
            return "ran although the hook broke (warn)"
        if self.decision == "allow" and self.outcome in ("refused", "declined") and self.refused_by != self.hook_name:
            return f"never ran: {became}"
        return became

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; ``at`` in ISO 8601, UTC."""
        plain = {name: getattr(self, name) for name in Record.__slots__}
        return {**plain, "at": iso(self.at), "changed": list(self.changed), "became": self.became}


@dataclass(slots=True)
class Fold:
    """Records that one hook left at one event of one step with the same decision: the ``first`` that was read,
    ``count`` in all, and their ``duration_ms`` together, within ``since`` and ``until`` (epoch seconds)."""

    first: Record
    count: int
    duration_ms: float
    since: float
    until: float

    def take(self, record: Record) -> None:
        self.count += 1
        self.duration_ms += record.duration_ms
        self.since = min(self.since, record.at)
        self.until = max(self.until, record.at + record.duration_ms / 1000)


class Folds:
    """Records as lines to look at: a hook that runs at every piece of a stream takes one for each of its decisions.

    A record outside any step stands alone.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.lines: list[Fold] = []
        self._known: dict[tuple[Any, ...], Fold] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        alike = (
            record.run_id, record.step_id, record.event, record.hook_id, record.decision, record.reason, record.broke,
            record.failure_type, record.changed, record.shadow, record.observe, record.policy, record.context,
        )  # fmt: skip
        known = self._known.get(alike) if record.step_id is not None else None
        if known is not None:
            known.take(record)
            return
        line = Fold(record, 1, record.duration_ms, record.at, record.at + record.duration_ms / 1000)
        self._known[alike] = line
        self.lines.append(line)


_EARLIEST, _LATEST = -6e10, 2.5e11
"""Seconds since the epoch that have a date: years 68 to 9892."""

RECORD_FIELDS = (*Record.__slots__, "became")
"""The names in :meth:`Record.to_dict`, in order."""


@dataclass(slots=True)
class Step:
    """One step of a run, with the hooks that ran at it, in order, and the steps inside it."""

    key: int
    step_id: str
    parent_id: str | None
    kind: str
    name: str
    agent: str | None
    started_at: float | None
    status: str | None
    error_type: str | None
    outcome: str
    refused_by: str | None
    reason: str | None
    duration_ms: float | None
    opened: Mapping[str, Any]
    closed: Mapping[str, Any]
    unheard: tuple[str, ...]
    ungated: bool
    records: list[Record] = field(default_factory=list)
    children: list[Step] = field(default_factory=list)
    payloads: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class RunDetail:
    """A run whole: its steps as a forest in order of opening, and hook runs that belong to no step.

    ``quiet``: how many hook runs of a step (by its key) were left out because they only allowed or looked. ``earlier``:
    the key before which there are steps that were not asked for.
    """

    run: RunRow
    roots: list[Step]
    steps: list[Step]
    records: list[Record]
    quiet: dict[int, int] = field(default_factory=dict)
    earlier: int | None = None

    @property
    def hook_runs(self) -> list[Record]:
        """All decision records of the run, in order."""
        found = [*self.records, *(record for step in self.steps for record in step.records)]
        return sorted(found, key=lambda record: record.seq)


@dataclass(slots=True)
class HookStats:
    """How one hook did: counts by decision (a shadow's begin with ``shadow ``) and a latency histogram."""

    event: str
    hook_name: str
    source: str | None
    hook_kind: str
    mode: str
    priority: int
    policy: str | None
    observe: bool
    shadow: bool
    decisions: dict[str, int] = field(default_factory=dict)
    buckets: dict[int, int] = field(default_factory=dict)
    total_ms: float = 0.0

    @property
    def runs(self) -> int:
        return sum(self.decisions.values())

    @property
    def refused(self) -> int:
        return self.decisions.get("deny", 0)

    @property
    def failed(self) -> int:
        return self.decisions.get("failed", 0) + self.decisions.get("shadow failed", 0)

    @property
    def refusal_rate(self) -> float:
        return self.refused / self.runs if self.runs else 0.0

    def percentile(self, share: float) -> float:
        """The latency that ``share`` (0..1) of the runs stayed within, in milliseconds, to the width of a bucket."""
        left = share * sum(self.buckets.values())
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 1e-9:
                return bucket_ms(bucket)
        return 0.0


@dataclass(frozen=True, slots=True)
class Covered:
    """How many steps of one kind, name and agent passed with these events unheard; ``ungated``: no gate saw them."""

    kind: str
    name: str
    agent: str | None
    unheard: tuple[str, ...]
    ungated: bool
    count: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something about the log itself: entries lost, a crash noticed at the next start, or a clean stop."""

    seq: int
    kind: str
    at: float
    count: int | None
    last_seq: int | None
    open_runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """The size of a store."""

    entries: int
    runs: int
    open_runs: int
    records: int
    denied: int
    failed: int
    lost: int
    first_at: float | None
    last_at: float | None


def iso(at: float) -> str:
    """ISO 8601 in UTC, to the millisecond; a number that is no time of any calendar stays one."""
    if not _EARLIEST <= at < _LATEST:
        return f"{at:g}"
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
