"""Facts become rows: numbers are given out, names become keys, totals are counted."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_engine.records import audit
from agent_engine.records.facts import FIELDS, HEAD, HOOK_IDENTITY, Fact, Payloads, place
from agent_engine.records.pace import Pace
from agent_engine.records.runstate import BUCKET_RATIO, RunState, StepState, is_ungated

Row = tuple[Any, ...]

_AGENT, _BROKE, _DURATION, _OBSERVE, _SHADOW = (
    place("hook", name) for name in ("agent", "broke", "duration_ms", "observe", "shadow")
)
_RUN_ID = {kind: place(kind, "run_id") for kind, names in FIELDS.items() if "run_id" in names}
_STEP_ID = {kind: place(kind, "step_id") for kind in ("step_opened", "step_closed", "hook")}
_LOG_RATIO = math.log(BUCKET_RATIO)
QUIET = ("allow", "none")
_REMEMBERED_RUNS = 50_000
_REMEMBERED_STEPS = 2_000
"""Steps of one open run, from which on those that ended long ago are forgotten."""


@dataclass(slots=True)
class Batch:
    """The rows of one transaction."""

    runs: dict[int, RunState] = field(default_factory=dict)
    steps: dict[int, StepState] = field(default_factory=dict)
    hook_runs: list[Row] = field(default_factory=list)
    payloads: list[Row] = field(default_factory=list)
    facets: list[Row] = field(default_factory=list)
    marks: list[Row] = field(default_factory=list)
    chain: list[Row] = field(default_factory=list)
    stats: dict[tuple[int, int, str, int], list[float]] = field(default_factory=dict)
    coverage: dict[tuple[int, str, str, str, str], list[Any]] = field(default_factory=dict)
    seq: int = 0
    mac: str = audit.START


class RowBuilder:
    """Builds batches. Before ``build``, the caller tells it the runs and hooks it does not know (``unknown_*``)."""

    def __init__(self, key: bytes | None = None, ttl: float | None = None) -> None:
        self._audit_key = key
        self._ttl = ttl
        self.runs: dict[str, RunState] = {}
        self.hooks: dict[Row, int] = {}
        # Runs of which steps were forgotten: one that is not remembered may be in the store.
        self.trimmed: set[str] = set()
        self._outside: dict[str, tuple[str, str, str | None, float]] = {}
        self._rules = {kind: getattr(self, "_" + kind) for kind in FIELDS}

    def forget(self) -> None:
        """Drop what is remembered, after a batch that was not written."""
        self.runs.clear()
        self.trimmed.clear()
        self.hooks.clear()

    def unknown_runs(self, facts: Sequence[Fact]) -> set[str]:
        """Ids of runs that these facts belong to and that are not remembered; some may be in the store."""
        unknown = set()
        for fact in facts:
            at = _RUN_ID.get(fact[0])
            if at is not None and (run_id := fact[at]) and run_id not in self.runs:
                unknown.add(run_id)
        return unknown

    def unknown_steps(self, facts: Sequence[Fact]) -> set[tuple[int, str]]:
        """Keys of runs and ids of steps that these facts come back to after the steps were forgotten."""
        unknown: set[tuple[int, str]] = set()
        if not self.trimmed:
            return unknown
        opened = set()
        for fact in facts:
            at = _STEP_ID.get(fact[0])
            if at is None or fact[_RUN_ID[fact[0]]] not in self.trimmed or not (step_id := fact[at]):
                continue
            run = self.runs[fact[_RUN_ID[fact[0]]]]
            if fact[0] == "step_opened":
                opened.add(step_id)
            elif step_id not in run.by_step and step_id not in opened:
                unknown.add((run.key, step_id))
        return unknown

    def unknown_hooks(self, facts: Sequence[Fact]) -> set[Row]:
        """Identities of hooks that have no key yet."""
        known = self.hooks
        return {identity for fact in facts if fact[0] == "hook" and (identity := fact[HOOK_IDENTITY:]) not in known}

    def build(self, facts: Sequence[Fact], seq: int, mac: str) -> Batch:
        """The rows for these facts, numbered from ``seq + 1`` on."""
        batch, pace = Batch(seq=seq, mac=mac), Pace()
        for fact in facts:
            pace.step()
            kind = fact[0]
            batch.seq += 1
            if self._audit_key is not None:
                body = audit.body_of(fact)
                batch.mac = audit.code(self._audit_key, batch.mac, batch.seq, body)
                batch.chain.append((batch.seq, kind, body, batch.mac))
            self._rules[kind](batch, fact)
        return batch

    def written(self, batch: Batch) -> None:
        """The batch is in the store: nothing of it is pending any more, and ended runs can be forgotten."""
        for run in batch.runs.values():
            run.steps = run.hook_runs = run.denied = run.broke = 0
            if run.status != "open":
                self._forget(run.run_id)
            elif len(run.by_step) > _REMEMBERED_STEPS and run.trim(_REMEMBERED_STEPS // 2):
                self.trimmed.add(run.run_id)
        while len(self.runs) > _REMEMBERED_RUNS:
            self._forget(next(iter(self.runs)))

    def _forget(self, run_id: str) -> None:
        self.runs.pop(run_id, None)
        self.trimmed.discard(run_id)

    def _run(self, batch: Batch, run_id: str, at: float | None = None) -> RunState:
        run = self.runs.get(run_id)
        if run is None:
            run = self.runs[run_id] = RunState(batch.seq, run_id, started_at=time.time() if at is None else at)
        batch.runs[run.key] = run
        return run

    def _step(self, batch: Batch, run: RunState, step_id: str) -> StepState:
        step = run.by_step.get(step_id)
        if step is None:
            step = run.by_step[step_id] = StepState(batch.seq, run.key, step_id)
            run.steps += 1
            batch.steps[step.key] = step
        return step

    def _facet(self, batch: Batch, run: RunState, facet: str, value: str | None) -> None:
        if value and (facet, value) not in run.facets:
            run.facets.add((facet, value))
            batch.facets.append((facet, value, run.key))

    def _run_opened(self, batch: Batch, fact: Fact) -> None:
        run_id, system, session_id, user_id, organization_id, at, message_digest, generation = fact[HEAD:]
        run = self._run(batch, run_id, at)
        run.system, run.session_id, run.user_id, run.organization_id = system, session_id, user_id, organization_id
        run.message_digest, run.generation = message_digest or run.message_digest, generation
        run.status, run.ended_at, run.error_type = "open", None, None

    def _run_closed(self, batch: Batch, fact: Fact) -> None:
        run_id, status, error_type, at, duration_ms, usage = fact[HEAD:]
        run = self._run(batch, run_id, at)
        run.status, run.error_type, run.ended_at, run.duration_ms = status, error_type, at, duration_ms
        run.usage = usage or run.usage

    def _step_opened(self, batch: Batch, fact: Fact) -> None:
        _, payloads, run_id, step_id, parent_id, kind, name, agent, at, detail = fact
        if not run_id:  # a request while an engine is built; it is in the log, but of no run
            self._outside[step_id] = (kind, name, agent, at)
            return
        run = self._run(batch, run_id, at)
        step = self._step(batch, run, step_id)
        step.parent_id, step.kind, step.name, step.agent = parent_id, kind, name, agent
        step.started_at = step.started_at or at
        step.opened, step.outcome = detail or step.opened, "open"
        batch.steps[step.key] = step
        self._facet(batch, run, "agent", agent)
        if kind == "tool":
            self._facet(batch, run, "tool", name)
        self._keep(batch, step.key, payloads, at)

    def _step_closed(self, batch: Batch, fact: Fact) -> None:
        run_id, step_id, status, error_type, outcome, refused_by, reason, duration_ms, detail, unheard = fact[HEAD:]
        if not run_id:
            kind, name, agent, at = self._outside.pop(step_id, ("engine", "", None, time.time()))
            self._cover(batch, at, kind, name, agent, unheard)
            return
        run = self._run(batch, run_id)
        step = self._step(batch, run, step_id)
        step.status, step.error_type, step.outcome = status, error_type, outcome
        step.refused_by, step.reason, step.duration_ms = refused_by, reason, duration_ms
        step.closed, step.unheard = detail or step.closed, unheard
        batch.steps[step.key] = step
        at = time.time() if step.started_at is None else step.started_at
        self._keep(batch, step.key, fact[1], at)
        if step.outcome == "waiting":
            return
        self._cover(batch, at, step.kind, step.name, step.agent, unheard)

    def _cover(self, batch: Batch, at: float, kind: str, name: str, agent: str | None, unheard: str | None) -> None:
        key = (int(at // 86400), kind, name, agent or "", unheard or "")
        total = batch.coverage.get(key)
        if total is None:
            batch.coverage[key] = [is_ungated(kind, unheard), 1]
        else:
            total[1] += 1

    def _hook(self, batch: Batch, fact: Fact) -> None:
        _, payloads, record_id, run_id, step_id, _, at, decision = fact[: _AGENT + 3]
        run_key = step_key = None
        shadow = fact[_SHADOW]
        if run_id:
            run = self._run(batch, run_id, at)
            run_key = run.key
            run.hook_runs += 1
            if step_id is not None:
                step_key = self._step(batch, run, step_id).key
            if fact[_BROKE]:
                run.broke += 1
            if decision not in QUIET:
                if decision == "deny" and not shadow and not fact[_OBSERVE]:
                    run.denied += 1
                self._facet(batch, run, "decision", "shadow" if shadow else decision)
        hook = self.hooks[fact[HOOK_IDENTITY:]]
        batch.hook_runs.append((batch.seq, record_id, run_key, step_key, hook, *fact[_AGENT:HOOK_IDENTITY]))
        duration = fact[_DURATION]
        key = (int(at // 86400), hook, f"shadow {decision}" if shadow else decision, bucket_of(duration))
        total = batch.stats.get(key)
        if total is None:
            batch.stats[key] = [1, duration]
        else:
            total[0] += 1
            total[1] += duration
        if payloads:
            self._keep(batch, batch.seq, payloads, at)

    def _lost(self, batch: Batch, fact: Fact) -> None:
        at, count = fact[HEAD:]
        batch.marks.append((batch.seq, "lost", at, count, None, None))

    def _recovered(self, batch: Batch, fact: Fact) -> None:
        at, last_seq, open_runs = fact[HEAD:]
        for run_id in json.loads(open_runs):
            run = self.runs.get(run_id)
            if run is not None and run.status == "open":
                run.status, run.ended_at = "interrupted", at
                batch.runs[run.key] = run
        batch.marks.append((batch.seq, "recovered", at, None, last_seq, open_runs))

    def _stopped(self, batch: Batch, fact: Fact) -> None:
        batch.marks.append((batch.seq, "stopped", fact[HEAD], None, None, None))

    def _keep(self, batch: Batch, seq: int, payloads: Payloads, at: float) -> None:
        expires = None if self._ttl is None else at + self._ttl
        for which, body in payloads:
            batch.payloads.append((seq, which, body, expires))


def bucket_of(duration_ms: float) -> int:
    """The bucket of the latency histogram that a duration falls in, from 0 (1 µs or less) on."""
    if not duration_ms > 0.001:
        return 0
    return min(120, math.ceil(math.log(duration_ms / 0.001) / _LOG_RATIO))


def bucket_ms(bucket: int) -> float:
    """Where a bucket ends, in milliseconds."""
    return float(0.001 * BUCKET_RATIO**bucket)
