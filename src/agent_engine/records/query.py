"""Reading records back. Every query has an index to walk; tests look at the plans."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import ColumnElement, and_, case, false, func, literal_column, or_, select, text
from sqlalchemy.exc import SQLAlchemyError

from agent_engine.records import schema
from agent_engine.records.connect import cannot_open, cannot_read, engine_for, shown
from agent_engine.records.facts import clean_text
from agent_engine.records.migrate import HEAD, revision
from agent_engine.records.settings import RecordsError, RecordSettings, file_of, shown_start, split_address
from agent_engine.records.sink import same_file
from agent_engine.records.views import (
    Covered,
    Fold,
    Folds,
    HookStats,
    Mark,
    Record,
    RecordFilter,
    RunDetail,
    RunFilter,
    RunRow,
    Step,
    Totals,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from sqlalchemy import Connection, Engine, Select

_runs, _steps, _hooks, _hook_runs = schema.runs, schema.steps, schema.hooks, schema.hook_runs
_facets, _payloads = schema.facets, schema.payloads
_NOTABLE = text("record_hook_runs.decision NOT IN ('allow', 'none')")
_UNUSUAL = text("record_runs.status <> 'completed'")
_RARE = 20_000
_DIGITS = 18
"""Of the longest number that a database can hold."""

_Filter = TypeVar("_Filter", bound="DataclassInstance")


class RecordReader:
    """Reads a store, while others write to it or not. Each method is one transaction; threads may share a reader."""

    def __init__(self, engine: Engine, *, owns_engine: bool = True) -> None:
        self._engine = engine
        self._owns_engine = owns_engine
        self._postgres = engine.dialect.name == "postgresql"
        self._file: Path | None = None
        self._opened: os.stat_result | None = None

    @classmethod
    def open(cls, address: str) -> Self:
        """Open the store at an address; a JSON lines file is read into memory.

        Raises:
            RecordsError: there is nothing to read there, or it is of another version.
            ValueError: an unknown address.
        """
        base, _ = split_address(address)
        if base.startswith("jsonl:"):
            return cls(_load_lines(file_of(base)))
        if not base.startswith(("sqlite:", "postgres")) or base == "sqlite:":
            raise ValueError(
                f"{shown_start(base)!r} is no store that can be read; name sqlite:, postgresql: or jsonl:."
            )
        reader = cls(engine_for(base, create=False))
        if not reader._postgres:
            reader._file = file_of(base)
            reader._opened = reader._file.stat()
        try:
            with reader._engine.connect() as connection:
                found = revision(connection)
        except Exception as error:
            raise cannot_open(base, error) from error
        if found != HEAD:
            where = (
                "nothing has been recorded there yet"
                if found is None
                else f"its tables are of revision {found}, and this version reads {HEAD}"
            )
            raise RecordsError(f"The store {shown(base)} cannot be read: {where}.")
        return reader

    def close(self) -> None:
        if self._owns_engine:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """One transaction on the store, for what this class does not offer.

        Raises:
            RecordsError: the store is away, busy, damaged or not what it was when it was opened.
        """
        self._follow()
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise cannot_read(self._engine, error) from error

    def _follow(self) -> None:
        """Where the file was replaced, read the one there is now; where it is gone, do not make an empty one."""
        if self._file is None or self._opened is None or same_file(self._file, self._opened):
            return
        if not self._file.is_file():
            raise RecordsError(f"The store {self._file} is not there any more.")
        self._opened = self._file.stat()
        self._engine.dispose()

    def as_stored(self, value: str) -> str:
        """A text as the writer keeps it: what a database does not take (NUL, lone surrogates) is escaped there."""
        try:
            value.encode()
        except UnicodeEncodeError:
            return clean_text(value)
        return clean_text(value) if self._postgres else value

    def asked(self, wanted: _Filter) -> _Filter:
        """A filter with its texts as the writer keeps them."""
        texts = {one.name: getattr(wanted, one.name) for one in fields(wanted)}
        stored: dict[str, Any] = {name: self.as_stored(text) for name, text in texts.items() if isinstance(text, str)}
        return replace(wanted, **stored)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def runs(self, wanted: RunFilter | None = None, *, before: int | None = None, limit: int = 50) -> list[RunRow]:
        """The newest runs that match; ``before`` (a run's key) begins the next page."""
        wanted = self.asked(wanted or RunFilter())
        with self.connection() as connection:
            query, key = self._runs_query(connection, wanted)
            if before is not None:
                query = query.where(key < before)
            rows = connection.execute(query.order_by(key.desc()).limit(limit)).fetchall()
        return [_run_row(row) for row in rows]

    def run_row(self, run_id: str) -> RunRow | None:
        """One run without its steps."""
        by_id = select(*_RUN_COLUMNS).where(_runs.c.run_id == self.as_stored(run_id))
        with self.connection() as connection:
            found = connection.execute(by_id).fetchone()
        return None if found is None else _run_row(found)

    def run_id_of(self, text: str) -> str:
        """The id of the run that is meant: the text itself, or the one id that begins with it."""
        asked = self.as_stored(text)
        query = select(_runs.c.run_id).where(_runs.c.run_id >= asked).order_by(_runs.c.run_id).limit(2)
        with self.connection() as connection:
            found = [row[0] for row in connection.execute(query)]
        alike = [run_id for run_id in found if run_id.startswith(asked)]
        return alike[0] if len(alike) == 1 else text

    def counts(self) -> tuple[int, int]:
        """How many runs there are, and how many of them are open."""
        still_open = select(func.count()).select_from(_runs).where(_runs.c.status == "open", _UNUSUAL)
        with self.connection() as connection:
            runs = connection.execute(select(func.count()).select_from(_runs)).scalar_one()
            return int(runs), int(connection.execute(still_open).scalar_one())

    def run(
        self,
        run_id: str,
        *,
        payloads: bool = True,
        fold_from: int | None = None,
        most_steps: int | None = None,
        before: int | None = None,
    ) -> RunDetail | None:
        """One run whole, with the payloads that were captured; None where there is no such run.

        In a run of more hook runs than ``fold_from`` those that only allowed or looked are counted and left out. Of a
        run of more than ``most_steps`` the last so many are read, those before the step ``before`` (a key) where that
        is given, and the steps that they stand in.
        """
        by_id = select(*_RUN_COLUMNS).where(_runs.c.run_id == self.as_stored(run_id))
        with self.connection() as connection:
            found = connection.execute(by_id).fetchone()
            if found is None:
                return None
            row = _run_row(found)
            steps, earlier = self._steps_of(connection, row.key, most_steps, before)
            folds = fold_from is not None and row.hook_runs > fold_from
            records_query = _records_query().where(_hook_runs.c.run == row.key).order_by(_hook_runs.c.seq)
            if folds:
                records_query = records_query.where(~_QUIET)
            if earlier is not None or before is not None:
                shown = _hook_runs.c.step.in_([step.key for step in steps])
                records_query = records_query.where(or_(_hook_runs.c.step.is_(None), shown))
            records = [_record(record) for record in connection.execute(records_query)]
            if payloads:
                self._add_payloads(connection, steps)
            quiet = {step: int(count) for step, count in connection.execute(_quiet_query(row.key))} if folds else {}
        return _tree(row, steps, records, quiet, earlier)

    def _steps_of(
        self, connection: Connection, run: int, most: int | None, before: int | None
    ) -> tuple[list[Step], int | None]:
        """The last steps of a run, in order, with those around them; and where earlier ones end, if there are any."""
        of_run = select(*_STEP_COLUMNS).where(_steps.c.run == run)
        if before is not None:
            of_run = of_run.where(_steps.c.step < before)
        newest = of_run.order_by(_steps.c.step.desc())
        rows = connection.execute(newest if most is None else newest.limit(most + 1)).fetchall()
        steps = {step.step_id: step for step in map(_step, rows if most is None else rows[:most])}
        earlier = min(step.key for step in steps.values()) if most is not None and len(rows) > most else None
        around = _parents_missing(steps)
        while earlier is not None and around:
            asked = select(*_STEP_COLUMNS).where(_steps.c.run == run, _steps.c.step_id.in_(around))
            found = {step.step_id: step for step in map(_step, connection.execute(asked))}
            steps |= found
            around = _parents_missing(found) - steps.keys()
        return sorted(steps.values(), key=lambda step: step.key), earlier

    def records_of_step(self, run_id: str, step: int, *, limit: int | None = None) -> list[Record]:
        """The decision records of one step, by its key, in order; ``limit`` is how many at most."""
        of_run = select(_runs.c.run).where(_runs.c.run_id == self.as_stored(run_id)).scalar_subquery()
        query = _records_query().where(_hook_runs.c.run == of_run, _hook_runs.c.step == step)
        with self.connection() as connection:
            return [_record(record) for record in connection.execute(query.order_by(_hook_runs.c.seq).limit(limit))]

    def values_of(self, facet: str, limit: int = 200) -> list[str]:
        """The agents, tools or decisions (``facet``: agent, tool, decision) that occur, in order."""
        # A walk from value to value over the index; DISTINCT would read every run.
        walk = text(
            "WITH RECURSIVE walk(value) AS ("
            " SELECT min(value) FROM record_facets WHERE facet = :facet"
            " UNION ALL"
            " SELECT (SELECT min(value) FROM record_facets WHERE facet = :facet AND value > walk.value)"
            " FROM walk WHERE walk.value IS NOT NULL)"
            " SELECT value FROM walk WHERE value IS NOT NULL LIMIT :limit"
        )
        with self.connection() as connection:
            return [row[0] for row in connection.execute(walk, {"facet": facet, "limit": limit})]

    def _runs_query(self, connection: Connection, wanted: RunFilter) -> tuple[Select[Any], ColumnElement[int]]:
        """The query without its order, and the column to order by: that of the rarest facet, so that its index is
        walked; without one, that of the runs."""
        named = [(name, value) for name in ("agent", "tool", "decision") if (value := getattr(wanted, name))]
        named.sort(key=lambda pair: self._frequency(connection, *pair))
        query, key = select(*_RUN_COLUMNS), _runs.c.run
        for index, (facet, value) in enumerate(named):
            alias = _facets.alias(f"facet_{facet}")
            one = and_(alias.c.facet == facet, alias.c.value == value)
            if index == 0:
                query, key = query.select_from(alias.join(_runs, _runs.c.run == alias.c.run)).where(one), alias.c.run
            else:
                # Looked up run by run; PostgreSQL would make a join of an EXISTS, and without statistics a bad one.
                same = alias.c.run == key
                found = select(literal_column("1")).select_from(alias).where(one, same).limit(1).scalar_subquery()
                query = query.where(found.is_not(None))
        for name in ("status", "session_id", "user_id", "organization_id"):
            value = getattr(wanted, name)
            if value:
                # Beside a facet a column's own index would only lead the planner astray, and so would a guess that few
                # runs have this value: where it knows nothing, PostgreSQL takes a comparison like this to pass a third.
                has = _runs.c[name] == value
                query = query.where(case((has, 1), else_=0) > 0 if named else has)
        if wanted.owner is not None:
            owned = self._owned(*wanted.owner)
            query = query.where(case((owned, 1), else_=0) > 0 if named else owned)
        if wanted.status and wanted.status != "completed" and not named:
            query = query.where(_UNUSUAL)
        if wanted.since is not None:
            query = query.where(_runs.c.started_at >= wanted.since, key >= self._first_since(connection, wanted.since))
        if wanted.until is not None:
            query = query.where(_runs.c.started_at < wanted.until)
        return query, key

    def _owned(self, user_id: str | None, organization_id: str | None) -> ColumnElement[bool]:
        """Exactly this user's runs in exactly this organisation; the same name elsewhere is somebody else."""
        if user_id is None:
            return false()
        organization = None if organization_id is None else self.as_stored(organization_id)
        return and_(_runs.c.user_id == self.as_stored(user_id), _runs.c.organization_id == organization)

    def _first_since(self, connection: Connection, since: float) -> int:
        """A key below which no run began after ``since``: keys follow the times, but for what several writers mix."""
        earliest = select(_runs.c.run).where(_runs.c.started_at >= since).order_by(_runs.c.started_at).limit(500)
        return int(connection.execute(select(func.min(earliest.subquery().c.run))).scalar() or 0)

    def _frequency(self, connection: Connection, facet: str, value: str) -> int:
        """How many runs have this, counted no further than needed to tell rare from frequent."""
        inner: Select[Any] = (
            select(literal_column("1")).where(_facets.c.facet == facet, _facets.c.value == value).limit(_RARE)
        )
        return int(connection.execute(select(func.count()).select_from(inner.subquery())).scalar_one())

    # -- decision records ---------------------------------------------------------------------------------------------

    def records(
        self,
        wanted: RecordFilter | None = None,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> list[Record]:
        """Decision records that match: the newest first; with ``after`` (a record's number) the next ones, in order."""
        query = self._filtered(self.asked(wanted or RecordFilter()))
        if before is not None:
            query = query.where(_hook_runs.c.seq < before)
        if after is not None:
            query = query.where(_hook_runs.c.seq > after).order_by(_hook_runs.c.seq)
        else:
            query = query.order_by(_hook_runs.c.seq.desc())
        with self.connection() as connection:
            return [_record(row) for row in connection.execute(query.limit(limit))]

    def folded(
        self,
        wanted: RecordFilter | None = None,
        *,
        before: int | None = None,
        lines: int = 50,
        chunk: int = 1000,
        most: int = 20_000,
    ) -> tuple[list[Fold], bool]:
        """The newest records that match as so many lines, and whether older ones were left unread: a line may stand
        for many records, and no more than ``most`` are read."""
        found, read = Folds(), 0
        while len(found.lines) <= lines and read < most:
            part = self.records(wanted, before=before, limit=chunk)
            for record in part:
                found.add(record)
            if len(part) < chunk:
                return found.lines[:lines], False
            before, read = part[-1].seq, read + chunk
        return found.lines[:lines], len(found.lines) < lines

    def all_records(self, wanted: RecordFilter | None = None, *, chunk: int = 5000) -> Iterator[Record]:
        """Every matching record in order, read piece by piece."""
        after = 0
        while found := self.records(wanted, after=after, limit=chunk):
            yield from found
            after = found[-1].seq

    def record(self, record_id: str) -> Record | None:
        """One decision record by its id, or by its number in this store."""
        query = _records_query().where(_hook_runs.c.record_id == self.as_stored(record_id))
        with self.connection() as connection:
            row = connection.execute(query).fetchone()
            if row is None and record_id.isdecimal() and len(record_id) <= _DIGITS:
                row = connection.execute(_records_query().where(_hook_runs.c.seq == int(record_id))).fetchone()
        return None if row is None else _record(row)

    def payloads_of(self, seq: int) -> dict[str, Any]:
        """The captured payloads of a record or a step: which → plain data."""
        query = select(_payloads.c.which, _payloads.c.body).where(_payloads.c.seq == seq, _alive())
        with self.connection() as connection:
            return {which: json.loads(body) for which, body in connection.execute(query)}

    def payloads_of_all(self, seqs: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The captured payloads of many records or steps: number → which → plain data."""
        found: dict[int, dict[str, Any]] = {}
        with self.connection() as connection:
            for seq, which, body in _payload_rows(connection, seqs):
                found.setdefault(seq, {})[which] = json.loads(body)
        return found

    def _filtered(self, wanted: RecordFilter) -> Select[Any]:
        query = _records_query()
        conditions: list[ColumnElement[bool]] = []
        if wanted.run_id:
            conditions.append(
                _hook_runs.c.run == select(_runs.c.run).where(_runs.c.run_id == wanted.run_id).scalar_subquery()
            )
        if wanted.event or wanted.hook:
            keys = select(_hooks.c.hook)
            keys = keys.where(_hooks.c.event == wanted.event) if wanted.event else keys
            keys = keys.where(_hooks.c.hook_name == wanted.hook) if wanted.hook else keys
            conditions.append(_hook_runs.c.hook.in_(keys))
        if wanted.decision:
            conditions.append(_hook_runs.c.decision == wanted.decision)
            if wanted.decision not in ("allow", "none"):
                query = query.where(_NOTABLE)
        if wanted.tool:
            conditions += [_steps.c.kind == "tool", _steps.c.name == wanted.tool]
        if wanted.agent:
            conditions.append(func.coalesce(_hook_runs.c.agent, _steps.c.agent) == wanted.agent)
        if wanted.since is not None:
            conditions.append(_hook_runs.c.at >= wanted.since)
        if wanted.until is not None:
            conditions.append(_hook_runs.c.at < wanted.until)
        for name in ("user_id", "organization_id"):
            if value := getattr(wanted, name):
                conditions.append(_runs.c[name] == value)
        return query.where(*conditions)

    # -- totals -------------------------------------------------------------------------------------------------------

    def hook_stats(self, since: float | None = None) -> list[HookStats]:
        """Counts and latencies by hook, in effective order; ``since`` is taken to the start of its day (UTC)."""
        totals = schema.hook_stats
        query = select(_hooks, totals.c.decision, totals.c.bucket, func.sum(totals.c.n), func.sum(totals.c.total_ms))
        query = query.join(totals, totals.c.hook == _hooks.c.hook)
        if since is not None:
            query = query.where(totals.c.day >= int(since // 86400))
        query = query.group_by(*_hooks.c, totals.c.decision, totals.c.bucket)
        found: dict[int, HookStats] = {}
        with self.connection() as connection:
            for row in connection.execute(query.order_by(_hooks.c.event, _hooks.c.priority, _hooks.c.hook)):
                hook, _ident, event, _hook_id, name, kind, source, mode, priority, policy, observe, shadow = row[:12]
                decision, bucket, count, total = row[12:]
                stats = found.get(hook)
                if stats is None:
                    stats = found[hook] = HookStats(
                        event, name, source, kind, mode, priority, policy, bool(observe), bool(shadow)
                    )
                stats.decisions[decision] = stats.decisions.get(decision, 0) + int(count)
                stats.buckets[bucket] = stats.buckets.get(bucket, 0) + int(count)
                stats.total_ms += total
        return list(found.values())

    def coverage(self, since: float | None = None) -> list[Covered]:
        """How many steps passed with which events unheard, the ungated first."""
        table = schema.coverage
        columns = (table.c.kind, table.c.name, table.c.agent, table.c.unheard, table.c.ungated)
        query = select(*columns, func.sum(table.c.n)).group_by(*columns)
        if since is not None:
            query = query.where(table.c.day >= int(since // 86400))
        query = query.order_by(table.c.ungated.desc(), func.sum(table.c.n).desc())
        with self.connection() as connection:
            return [
                Covered(kind, name, agent or None, _words(unheard), bool(ungated), int(count))
                for kind, name, agent, unheard, ungated, count in connection.execute(query)
            ]

    def ungated_steps(self, kind: str, name: str | None = None, *, limit: int = 50) -> list[tuple[str, Step]]:
        """The newest steps that no gate saw, each with its run's id."""
        query = select(_runs.c.run_id, *_STEP_COLUMNS).join(_runs, _runs.c.run == _steps.c.run)
        query = query.where(text("record_steps.ungated"), _steps.c.kind == self.as_stored(kind))
        if name is not None:
            query = query.where(_steps.c.name == self.as_stored(name))
        with self.connection() as connection:
            rows = connection.execute(query.order_by(_steps.c.step.desc()).limit(limit)).fetchall()
        return [(row[0], _step(row[1:])) for row in rows]

    def totals(self) -> Totals:
        """The size of the store, from its running totals."""
        stats, marks = schema.hook_stats, schema.marks
        with self.connection() as connection:
            seq = connection.execute(select(schema.heads.c.seq)).scalar_one()
            runs = connection.execute(select(func.count()).select_from(_runs)).scalar_one()
            still_open = connection.execute(
                select(func.count()).select_from(_runs).where(_runs.c.status == "open", _UNUSUAL)
            ).scalar_one()
            by_decision = {
                decision: int(count)
                for decision, count in connection.execute(
                    select(stats.c.decision, func.sum(stats.c.n)).group_by(stats.c.decision)
                )
            }
            lost = connection.execute(select(func.sum(marks.c.count)).where(marks.c.kind == "lost")).scalar()
            first, last = connection.execute(select(func.min(_runs.c.started_at), func.max(_runs.c.started_at))).one()
        return Totals(
            int(seq), int(runs), int(still_open), sum(by_decision.values()), by_decision.get("deny", 0),
            by_decision.get("failed", 0), int(lost or 0), first, last,
        )  # fmt: skip

    def last_seq(self) -> int:
        """The number of the last entry: whether the store has grown since."""
        with self.connection() as connection:
            return int(connection.execute(select(schema.heads.c.seq)).scalar_one())

    def marks(self, limit: int = 20) -> list[Mark]:
        """The newest marks of the log about itself."""
        with self.connection() as connection:
            rows = connection.execute(select(schema.marks).order_by(schema.marks.c.seq.desc()).limit(limit)).fetchall()
        return [
            Mark(seq, kind, at, count, last_seq, tuple(json.loads(open_runs)) if open_runs else ())
            for seq, kind, at, count, last_seq, open_runs in rows
        ]

    @property
    def engine(self) -> Engine:
        """The database, for what this class does not offer."""
        return self._engine

    def _add_payloads(self, connection: Connection, steps: Sequence[Step]) -> None:
        by_key = {step.key: step for step in steps}
        for seq, which, body in _payload_rows(connection, list(by_key)):
            by_key[seq].payloads[which] = json.loads(body)


def _payload_rows(connection: Connection, seqs: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    for start in range(0, len(seqs), 500):
        part = seqs[start : start + 500]
        for row in connection.execute(select(_payloads).where(_payloads.c.seq.in_(part), _alive())):
            yield row[0], row[1], row[2]


_RUN_COLUMNS = (
    _runs.c.run, _runs.c.run_id, _runs.c.system, _runs.c.session_id, _runs.c.user_id, _runs.c.organization_id,
    _runs.c.generation, _runs.c.message_digest, _runs.c.started_at, _runs.c.ended_at, _runs.c.status,
    _runs.c.error_type, _runs.c.duration_ms, _runs.c.usage, _runs.c.steps, _runs.c.hook_runs, _runs.c.denied,
    _runs.c.broke,
)  # fmt: skip
_STEP_COLUMNS = (
    _steps.c.step, _steps.c.step_id, _steps.c.parent_id, _steps.c.kind, _steps.c.name, _steps.c.agent,
    _steps.c.started_at, _steps.c.status, _steps.c.error_type, _steps.c.outcome, _steps.c.refused_by, _steps.c.reason,
    _steps.c.duration_ms, _steps.c.opened, _steps.c.closed, _steps.c.unheard, _steps.c.ungated,
)  # fmt: skip


def _alive() -> ColumnElement[bool]:
    return or_(_payloads.c.expires_at.is_(None), _payloads.c.expires_at > time.time())


_QUIET = and_(
    _hook_runs.c.decision.in_(("allow", "none")), _hook_runs.c.step.is_not(None), _hook_runs.c.context.is_(False),
    _hooks.c.shadow.is_(False),
)  # fmt: skip


def _quiet_query(run: int) -> Select[Any]:
    """How many quiet hook runs each step of a run had."""
    joined = _hook_runs.join(_hooks, _hooks.c.hook == _hook_runs.c.hook)
    query = select(_hook_runs.c.step, func.count()).select_from(joined)
    return query.where(_hook_runs.c.run == run, _QUIET).group_by(_hook_runs.c.step)


def _records_query() -> Select[Any]:
    joined = (
        _hook_runs.join(_hooks, _hooks.c.hook == _hook_runs.c.hook)
        .outerjoin(_runs, _runs.c.run == _hook_runs.c.run)
        .outerjoin(_steps, _steps.c.step == _hook_runs.c.step)
    )
    run, hook, step, owner = _hook_runs.c, _hooks.c, _steps.c, _runs.c
    return select(
        run.seq, run.record_id, owner.run_id, step.step_id, step.parent_id,
        func.coalesce(run.agent, step.agent), run.at, hook.event, hook.hook_id, hook.hook_name, hook.hook_kind,
        hook.source, hook.mode, run.grp, hook.priority, hook.policy, hook.observe, hook.shadow, run.decision,
        run.reason, run.broke, run.failure_type, run.changed, run.before_digest, run.after_digest, run.duration_ms,
        run.context, owner.generation, step.kind, step.name, step.outcome, step.refused_by, step.error_type,
    ).select_from(joined)  # fmt: skip


def _record(row: Any) -> Record:
    values = list(row)
    values[22] = tuple(values[22].split(",")) if values[22] else ()
    return Record(*values)


def _run_row(row: Any) -> RunRow:
    values = list(row)
    values[13] = _mapping(values[13])
    return RunRow(*values)


def _step(row: Any) -> Step:
    values = list(row)
    values[13], values[14] = _mapping(values[13]), _mapping(values[14])
    values[15], values[16] = _words(values[15]), bool(values[16])
    return Step(*values)


def _parents_missing(steps: Mapping[str, Step]) -> set[str]:
    return {step.parent_id for step in steps.values() if step.parent_id is not None} - steps.keys()


def _tree(
    run: RunRow, steps: list[Step], records: list[Record], quiet: Mapping[int, int], earlier: int | None
) -> RunDetail:
    by_id = {step.step_id: step for step in steps}
    roots: list[Step] = []
    for step in steps:
        parent = by_id.get(step.parent_id) if step.parent_id is not None else None
        (roots if parent is None or parent is step else parent.children).append(step)
    loose: list[Record] = []
    for record in records:
        owner = by_id.get(record.step_id) if record.step_id is not None else None
        (loose if owner is None else owner.records).append(record)
    return RunDetail(run, roots, steps, loose, dict(quiet), earlier)


def _mapping(value: str | None) -> Mapping[str, Any]:
    found = json.loads(value) if value else {}
    return found if isinstance(found, dict) else {}


def _words(value: str | None) -> tuple[str, ...]:
    return tuple(value.split(" ")) if value else ()


def _load_lines(path: Path) -> Engine:
    """A JSON lines file as a database in memory."""
    from agent_engine.records.facts import clean
    from agent_engine.records.jsonlsink import fact_of, read_lines
    from agent_engine.records.sqlsink import SqlSink

    if not path.is_file():
        raise RecordsError(f"There are no records at {path}; name a store with --store, or run something first.")
    engine = engine_for("sqlite:")
    sink = SqlSink("sqlite:", RecordSettings(), engine)
    sink.open()
    batch = []
    try:
        for entry in read_lines(path):
            batch.append(clean(fact_of(entry)))
            if len(batch) >= 2000:
                sink.write(batch)
                batch.clear()
        if batch:
            sink.write(batch)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError, sqlite3.Error) as error:
        raise RecordsError(
            f"{path} holds an entry that no writer of records makes ({type(error).__name__}); was it edited?"
        ) from error
    sink.close()
    return engine
