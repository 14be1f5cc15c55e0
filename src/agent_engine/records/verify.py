"""Checking an audit log: the chain itself, and that the tables that people read say what the chain says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from agent_engine.records import audit, schema
from agent_engine.records.audit import ChainCheck, Head, Verification
from agent_engine.records.connect import shown
from agent_engine.records.facts import FIELDS, HEAD, HOOK_IDENTITY
from agent_engine.records.query import RecordReader
from agent_engine.records.rows import QUIET
from agent_engine.records.runstate import is_ungated
from agent_engine.records.settings import RecordsError, file_of, split_address

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

_CHUNK = 5000
_RUN_FIELDS = ("system", "session_id", "user_id", "organization_id", "generation", "started_at", "status", "error_type")
_STEP_FIELDS = (
    "parent_id",
    "kind",
    "name",
    "agent",
    "status",
    "error_type",
    "outcome",
    "refused_by",
    "reason",
    "duration_ms",
    "unheard",
)


def verify(address: str, key: bytes, against: Head | None = None) -> Verification:
    """Check the audit log at an address with its key, and against a head printed earlier.

    Raises:
        RecordsError: there is no log, or it is no audit log.
    """
    base, _ = split_address(address)
    if base.startswith("jsonl:"):
        return _verify_lines(file_of(base), key, against)
    with RecordReader.open(base) as reader, reader.connection() as connection:
        if reader.engine.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        stored = _stored_head(connection, base)
        check = ChainCheck(key, against)
        _TableCheck(connection, check).run()
        return check.end(stored)


def head(address: str) -> Head:
    """Where the log at an address ends.

    Raises:
        RecordsError: there is no log.
    """
    base, _ = split_address(address)
    if base.startswith("jsonl:"):
        last = Head(0, audit.START)
        for line in _lines(file_of(base)):
            last = Head(line["seq"], line.get("mac", audit.START))
        return last
    with RecordReader.open(base) as reader, reader.connection() as connection:
        seq, mac = connection.execute(select(schema.heads.c.seq, schema.heads.c.mac)).one()
    return Head(seq, mac)


class _TableCheck:
    """Walks the chain once with the decision records beside it; runs and steps are gathered and compared last."""

    def __init__(self, connection: Connection, check: ChainCheck) -> None:
        self._connection = connection
        self._check = check
        self._runs: dict[str, dict[str, Any]] = {}
        self._steps: dict[tuple[str, str], dict[str, Any]] = {}
        self._outside: dict[str, dict[str, Any]] = {}
        self._covered: Counter[tuple[str, str, str, str]] = Counter()
        self._facets: set[tuple[str, str, str]] = set()
        self._marks: dict[int, str] = {}
        self._totals: Counter[tuple[int, str, str, str]] = Counter()
        self._record_payloads: dict[int, dict[str, str]] = {}
        self._step_payloads: dict[tuple[str, str], dict[str, str]] = {}

    def run(self) -> None:
        records = _paged(self._connection, _records_query())
        row = next(records, None)
        for seq, kind, body, mac in _paged(self._connection, select(schema.chain)):
            if not self._check.entry(seq, body, mac):
                continue
            found = json.loads(body)
            if found[0] != kind or kind not in FIELDS:
                self._check.problem(f"entry {seq} was changed (its kind)")
                continue
            values = tuple(found[1 : 1 + len(FIELDS[kind])])
            digests = found[1 + len(FIELDS[kind])] if len(found) > 1 + len(FIELDS[kind]) else {}
            if kind != "hook":
                self._gather(seq, kind, values, digests)
                continue
            self._count(values)
            while row is not None and row[0] < seq:
                self._check.problem(f"record {row[0]} stands in the tables but not in the chain")
                row = next(records, None)
            if row is None or row[0] > seq:
                self._check.problem(f"record {seq} was removed from the tables")
                continue
            self._record(seq, row[1:], values)
            self._record_payloads |= {seq: digests} if digests else {}
            row = next(records, None)
        if row is not None:
            self._check.problem(f"record {row[0]} stands in the tables but not in the chain")
        keys = self._compare_rest()
        self._compare_payloads(keys)
        self._compare_marks()
        self._compare_totals()
        self._compare_coverage()
        self._compare_facets()

    def _record(self, seq: int, row: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        changed = [name for name, now, was in zip(FIELDS["hook"], row, values, strict=True) if now != was]
        if changed:
            self._check.problem(f"record {seq} was changed in the tables ({', '.join(changed)})")

    def _count(self, values: tuple[Any, ...]) -> None:
        """What the running totals of the hooks must come to."""
        fields = dict(zip(FIELDS["hook"], values, strict=True))
        decision, counts = fields["decision"], not fields["shadow"]
        label = decision if counts else f"shadow {decision}"
        if fields["run_id"]:
            run = self._run(fields["run_id"])
            run["hook_runs"] += 1
            run["broke"] += bool(fields["broke"])
            run["denied"] += decision == "deny" and counts and not fields["observe"]
            if fields["step_id"] is not None:
                self._step(fields["run_id"], fields["step_id"])
            if decision not in QUIET:
                self._facets.add((fields["run_id"], "decision", decision if counts else "shadow"))
        self._totals[(int(fields["at"] // 86400), fields["event"], fields["hook_name"], label)] += 1

    def _gather(self, seq: int, kind: str, values: tuple[Any, ...], digests: Mapping[str, str]) -> None:
        fields = dict(zip(FIELDS[kind], values, strict=True))
        if kind == "run_opened":
            run = self._run(fields["run_id"], started_at=fields["at"])
            run.update({name: fields[name] for name in _RUN_FIELDS if name in fields})
            run.update(status="open", error_type=None, ended_at=None)
            run["message_digest"] = fields["message_digest"] or run.get("message_digest")
        elif kind == "run_closed":
            run = self._run(fields["run_id"])
            run.update(status=fields["status"], error_type=fields["error_type"], ended_at=fields["at"])
            run.update(duration_ms=fields["duration_ms"], usage=fields["usage"] or run.get("usage"))
        elif kind in ("lost", "stopped", "recovered"):
            self._marks[seq] = kind
        if kind == "recovered":
            for run_id in json.loads(fields["open_runs"]):
                run = self._run(run_id)
                run["status"] = "interrupted"
                run.pop("ended_at", None)  # when its writer was last heard of, which the chain does not tell
        elif kind in ("step_opened", "step_closed"):
            self._gather_step(kind, fields, digests)

    def _gather_step(self, kind: str, fields: Mapping[str, Any], digests: Mapping[str, str]) -> None:
        run_id, step_id = fields["run_id"], fields["step_id"]
        step = self._step(run_id, step_id) if run_id else self._outside.setdefault(step_id, {})
        step.update({name: fields[name] for name in _STEP_FIELDS if name in fields})
        if kind == "step_opened":
            step["outcome"] = "open"
            step["started_at"] = step.get("started_at") or fields["at"]
            step["opened"] = fields["detail"] or step.get("opened")
        else:
            step["closed"] = fields["detail"] or step.get("closed")
            step["ungated"] = is_ungated(step.get("kind") or "engine", fields["unheard"])
        if run_id and kind == "step_opened":
            named = {"agent": fields["agent"], "tool": fields["name"] if fields["kind"] == "tool" else None}
            self._facets |= {(run_id, facet, value) for facet, value in named.items() if value}
        if digests:
            self._step_payloads.setdefault((run_id, step_id), {}).update(digests)
        if kind == "step_closed" and fields["outcome"] != "waiting":
            what = (step.get("kind") or "engine", step.get("name") or "", step.get("agent") or "")
            self._covered[(*what, fields["unheard"] or "")] += 1
            self._outside.pop(step_id, None)

    def _run(self, run_id: str, **at_first: Any) -> dict[str, Any]:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = {"steps": 0, "hook_runs": 0, "denied": 0, "broke": 0, **at_first}
        return run

    def _step(self, run_id: str, step_id: str) -> dict[str, Any]:
        run, step = self._run(run_id), self._steps.get((run_id, step_id))
        if step is None:
            step = self._steps[(run_id, step_id)] = {}
            run["steps"] += 1
        return step

    def _compare_rest(self) -> dict[int, tuple[str, str]]:
        for row in _paged(self._connection, select(schema.runs)):
            fields = dict(zip(schema.runs.c.keys(), row, strict=True))
            self._compare(f"run {fields['run_id']}", fields, self._runs.pop(fields["run_id"], None))
        keys: dict[int, tuple[str, str]] = {}
        owners = schema.runs.c.run == schema.steps.c.run
        query = select(*schema.steps.c, schema.runs.c.run_id).outerjoin(schema.runs, owners)
        for row in _paged(self._connection, query):
            fields = dict(zip((*schema.steps.c.keys(), "run_id"), row, strict=True))
            key = (fields["run_id"], fields["step_id"])
            keys[fields["step"]] = key
            self._compare(f"step {key[1]} of run {key[0]}", fields, self._steps.pop(key, None))
        for run_id in self._runs:
            self._check.problem(f"run {run_id} was removed from the tables")
        for run_id, step_id in self._steps:
            self._check.problem(f"step {step_id} of run {run_id} was removed from the tables")
        return keys

    def _compare(self, what: str, row: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> None:
        if wanted is None:
            self._check.problem(f"{what} stands in the tables but not in the chain")
            return
        changed = [field for field, value in wanted.items() if row.get(field) != value]
        if changed:
            self._check.problem(f"{what} was changed in the tables ({', '.join(changed)})")

    def _compare_marks(self) -> None:
        for seq, kind, *_ in _paged(self._connection, select(schema.marks)):
            if self._marks.pop(seq, None) != kind:
                self._check.problem(f"the mark '{kind}' of entry {seq} stands in the tables but not in the chain")
        for seq, kind in self._marks.items():
            self._check.problem(f"the mark '{kind}' of entry {seq} was removed from the tables")

    def _compare_totals(self) -> None:
        stats, hooks = schema.hook_stats, schema.hooks
        query = select(stats.c.day, hooks.c.event, hooks.c.hook_name, stats.c.decision, func.sum(stats.c.n))
        query = query.join(hooks, hooks.c.hook == stats.c.hook)
        query = query.group_by(stats.c.day, hooks.c.event, hooks.c.hook_name, stats.c.decision)
        found = Counter({tuple(row[:4]): int(row[4]) for row in self._connection.execute(query)})
        for day, event, name, decision in (found - self._totals) | (self._totals - found):
            self._check.problem(f"the count of '{decision}' of hook {name} at {event} on day {day} was changed")

    def _compare_coverage(self) -> None:
        table = schema.coverage
        columns = (table.c.kind, table.c.name, table.c.agent, table.c.unheard)
        query = select(*columns, func.sum(table.c.n)).group_by(*columns)
        found = Counter({tuple(row[:4]): int(row[4]) for row in self._connection.execute(query)})
        for kind, name, *_ in sorted((found - self._covered) | (self._covered - found)):
            self._check.problem(f"the count of steps {kind} {name} and who saw them was changed")

    def _compare_facets(self) -> None:
        facets, runs = schema.facets, schema.runs
        query = select(runs.c.run, runs.c.run_id, facets.c.facet, facets.c.value)
        for _, *row in _paged(self._connection, query.join(facets, facets.c.run == runs.c.run)):
            found = (row[0], row[1], row[2])
            if found not in self._facets:
                self._check.problem(f"what run {found[0]} is found by was changed ({found[1]} {found[2]} was put in)")
            self._facets.discard(found)
        for run_id, facet, value in sorted(self._facets):
            self._check.problem(f"what run {run_id} is found by was changed ({facet} {value} was removed)")

    def _compare_payloads(self, steps: Mapping[int, tuple[str, str]]) -> None:
        """Payloads may be gone (their time to live); those that are there must be the ones that were written."""
        for seq, which, body, *_ in _paged(self._connection, select(schema.payloads)):
            wanted = self._record_payloads.get(seq) or self._step_payloads.get(steps.get(seq, ("", "")), {})
            if wanted.get(which) != audit.payload_digest(body):
                self._check.problem(f"the payload '{which}' of entry {seq} was changed or put in later")


def _paged(connection: Connection, query: Select[Any]) -> Iterator[tuple[Any, ...]]:
    """All rows of a query, in the order of its first column, some thousands at a time."""
    key = query.selected_columns[0]
    after, repeated = None, set[tuple[Any, ...]]()
    while True:
        page = query if after is None else query.where(key >= after)
        rows = [tuple(row) for row in connection.execute(page.order_by(key).limit(_CHUNK + len(repeated)))]
        fresh = [row for row in rows if row[:2] not in repeated]
        yield from fresh
        if not fresh:
            return
        after = fresh[-1][0]
        repeated = {row[:2] for row in rows if row[0] == after}


def _records_query() -> Select[Any]:
    """Each record's number and the values of its fact."""
    run, hook = schema.hook_runs, schema.hooks
    did = [run.c[name] for name in FIELDS["hook"][4 : HOOK_IDENTITY - HEAD]]
    was = [hook.c[name] for name in FIELDS["hook"][HOOK_IDENTITY - HEAD :]]
    return (
        select(run.c.seq, run.c.record_id, schema.runs.c.run_id, schema.steps.c.step_id, run.c.agent, *did, *was)
        .select_from(run)
        .join(hook, hook.c.hook == run.c.hook)
        .outerjoin(schema.runs, schema.runs.c.run == run.c.run)
        .outerjoin(schema.steps, schema.steps.c.step == run.c.step)
    )


def _stored_head(connection: Connection, address: str) -> Head:
    seq, mac, audited = connection.execute(select(schema.heads.c.seq, schema.heads.c.mac, schema.heads.c.audited)).one()
    if not audited:
        raise RecordsError(f"The store {shown(address)} is no audit log; it was not opened with audit=on.")
    return Head(seq, mac)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    from agent_engine.records.jsonlsink import read_lines

    if not path.is_file():
        raise RecordsError(f"There are no records at {path}; name a store with --store.")
    return read_lines(path)


def _verify_lines(path: Path, key: bytes, against: Head | None) -> Verification:
    from agent_engine.records.jsonlsink import fact_of

    check = ChainCheck(key, against)
    for line in _lines(path):
        if "mac" not in line and line["seq"] == 1:
            raise RecordsError(f"The store {path} is no audit log; it was not opened with audit=on.")
        check.entry(line["seq"], audit.body_of(fact_of(line)), line.get("mac", ""))
    return check.end()
