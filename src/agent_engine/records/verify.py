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

    def _record(self, seq: int, row: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        changed = [name for name, now, was in zip(FIELDS["hook"], row, values, strict=True) if now != was]
        if changed:
            self._check.problem(f"record {seq} was changed in the tables ({', '.join(changed)})")

    def _count(self, values: tuple[Any, ...]) -> None:
        """What the running totals of the hooks must come to."""
        fields = dict(zip(FIELDS["hook"], values, strict=True))
        label = f"shadow {fields['decision']}" if fields["shadow"] else fields["decision"]
        self._totals[(int(fields["at"] // 86400), fields["event"], fields["hook_name"], label)] += 1

    def _gather(self, seq: int, kind: str, values: tuple[Any, ...], digests: Mapping[str, str]) -> None:
        fields = dict(zip(FIELDS[kind], values, strict=True))
        if kind == "run_opened":
            run = self._runs.setdefault(fields["run_id"], {"started_at": fields["at"]})
            run.update({name: fields[name] for name in _RUN_FIELDS if name in fields})
            run.update(status="open", error_type=None)
        elif kind == "run_closed":
            run = self._runs.setdefault(fields["run_id"], {})
            run.update(status=fields["status"], error_type=fields["error_type"])
        elif kind in ("lost", "stopped", "recovered"):
            self._marks[seq] = kind
        if kind == "recovered":
            for run_id in json.loads(fields["open_runs"]):
                self._runs.setdefault(run_id, {})["status"] = "interrupted"
        elif kind in ("step_opened", "step_closed") and fields["run_id"]:
            key = (fields["run_id"], fields["step_id"])
            step = self._steps.setdefault(key, {})
            step.update({name: fields[name] for name in _STEP_FIELDS if name in fields})
            if kind == "step_opened":
                step["outcome"] = "open"
            if digests:
                self._step_payloads.setdefault(key, {}).update(digests)

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
