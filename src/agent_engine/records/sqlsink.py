"""Writing rows to SQLite and PostgreSQL with the driver's own prepared statements.

Many rows travel in one statement: each call of a driver gives up the interpreter's lock and must win it back, which
costs far more than the row while others compute.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import chain as flatten
from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DatabaseError as SqlAlchemyDatabaseError

from agent_engine.records import migrate, schema
from agent_engine.records.connect import cannot_open, engine_for, is_running, process_birth, shown
from agent_engine.records.facts import Fact
from agent_engine.records.pace import Pace
from agent_engine.records.rows import Batch, Row, RowBuilder
from agent_engine.records.runstate import RunState, StepState, is_ungated
from agent_engine.records.settings import RecordsError, RecordSettings, file_of
from agent_engine.records.sink import OpenRun, Recovery, StoreGone, same_file

if TYPE_CHECKING:
    from sqlalchemy import Engine, Table

_LINGERS_S = 10.0
_SIZES = (128, 32, 8, 2, 1)
_DOCUMENT = 128
"""Rows in one JSON document."""
_LOOK = 256
"""Facts that are looked through at a time."""
_POSTGRES = postgresql.dialect()  # type: ignore[no-untyped-call]  # the library leaves it untyped
_RUN_STATE = (
    "run", "run_id", "system", "session_id", "user_id", "organization_id", "generation", "message_digest", "started_at",
    "ended_at", "status", "error_type", "duration_ms", "usage",
)  # fmt: skip
_STEP_STATE = (
    "step", "run", "step_id", "parent_id", "kind", "name", "agent", "started_at", "opened", "status", "error_type",
    "outcome", "refused_by", "reason", "duration_ms", "closed", "unheard",
)  # fmt: skip


class SqlSink:
    """One writer to one database. Used from one thread."""

    def __init__(self, address: str, settings: RecordSettings, engine: Engine | None = None) -> None:
        self._address = address
        self._settings = settings
        self._key = settings.audit_key()
        self._engine = engine or engine_for(address)
        self._owns_engine = engine is None
        self._sqlite = self._engine.dialect.name == "sqlite"
        self._file = file_of(address) if self._owns_engine and self._sqlite else None
        self.rows = RowBuilder(self._key, settings.ttl)
        self._writer = secrets.randbits(62)
        self._sql = _Statements("?" if self._sqlite else "%s")
        self._pool: Any = None
        self._connection: Any = None

    def open(self) -> Recovery:
        """Upgrade the tables, see how the log was left, and enter this process as a writer.

        Raises:
            RecordsError: the store cannot be reached, is of a newer version, or is an audit log and this is no audit
                writer (or the other way round).
        """
        try:
            with self._engine.connect().execution_options(writing=True) as connection, connection.begin():
                migrate.upgrade(connection)
            self._connect()
            return self._enter()
        except (SqlAlchemyDatabaseError, OSError) as error:
            raise cannot_open(self._address, error) from error

    def write(self, facts: Sequence[Fact]) -> int:
        """Write all facts in one transaction, or none of them."""
        if self._file is not None and not same_file(self._file, self._opened):
            raise StoreGone(str(self._file))
        self._begin()
        try:
            seq, mac, _ = self._run(self._sql.lock).fetchone()
            self._learn(facts)
            batch = self.rows.build(facts, seq, mac)
            self._write(batch)
            self._run("COMMIT")
        except BaseException:
            self.rows.forget()
            self._roll_back()
            raise
        self.rows.written(batch)
        return batch.seq

    def tidy(self) -> None:
        """Delete payloads whose time to live has ended, a thousand at a time."""
        sql = self._sql
        while True:
            self._begin()
            removed = self._run(sql.expired(self._sqlite), (time.time(),)).rowcount
            self._run("COMMIT")
            if removed < 1000:
                return

    def reopen(self) -> None:
        if self._file is None:
            self._disconnect()
            self._connect()
        elif not same_file(self._file, self._opened):
            self._disconnect()
            self._engine.dispose()
            self._engine = engine_for(self._address)
            self.rows.forget()
            self.open()

    def close(self) -> None:
        try:
            self._begin()
            # Under the lock of whoever opens the store: it must not see this writer gone but not yet stopped.
            self._run(self._sql.lock)
            now = time.time()
            self._run(self._sql.fill("UPDATE record_writers SET stopped_at = ?, last_at = ? WHERE writer = ?"),
                      (now, now, self._writer))  # fmt: skip
            self._run("COMMIT")
        finally:
            self._disconnect()
            if self._owns_engine:
                self._engine.dispose()

    # -- connection ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._file is not None:
            self._opened = self._file.stat()
        self._pool = self._engine.raw_connection()
        self._connection = self._pool.driver_connection
        if self._sqlite:
            self._connection.execute(f"PRAGMA synchronous={'FULL' if self._key else 'NORMAL'}")
        else:
            self._connection.rollback()
            self._connection.autocommit = True
            # Held as long as this connection lives: how others see that this writer does.
            self._connection.execute("SELECT pg_advisory_lock(%s)", (self._writer,))

    def _disconnect(self) -> None:
        if self._pool is not None:
            if not self._sqlite:
                self._pool.invalidate()
            self._pool.close()
            self._pool = self._connection = None

    def _run(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        if self._sqlite:
            return self._connection.execute(sql, parameters)
        return self._connection.execute(sql, parameters or None)

    def _begin(self) -> None:
        self._run("BEGIN IMMEDIATE" if self._sqlite else "BEGIN")

    def _roll_back(self) -> None:
        try:
            self._run("ROLLBACK")
        except Exception:  # noqa: BLE001 - the connection is gone or no transaction stands; the first error is raised
            self.rows.forget()

    # -- opening ------------------------------------------------------------------------------------------------------

    def _enter(self) -> Recovery:
        fill = self._sql.fill
        gone = self._gone()
        self._begin()
        try:
            seq, mac, audited = self._run(self._sql.lock).fetchone()
            self._check_audit(seq, bool(audited))
            if self._key is not None and not audited:
                self._run(fill("UPDATE record_heads SET audited = ? WHERE id = 1"), (True,))
            recovery = self._recover(seq, gone)
            now = time.time()
            self._run(
                fill(
                    "INSERT INTO record_writers (writer, host, pid, born, started_at, last_seq, last_at, stopped_at) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, NULL)"
                ),
                (self._writer, socket.gethostname(), os.getpid(), process_birth(os.getpid()), now, seq, now),
            )
            if recovery.crashed:
                runs = json.dumps([run.run_id for run in recovery.open_runs])
                self._write(self.rows.build([("recovered", (), now, seq, runs)], seq, mac))
            self._run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return recovery

    def _check_audit(self, seq: int, audited: bool) -> None:
        if audited and self._key is None:
            raise RecordsError(f"{shown(self._address)} is an audit log; open it with audit=on and its key.")
        if self._key is not None and not audited and seq > 0:
            raise RecordsError(
                f"{shown(self._address)} holds records that are not chained; begin an audit log in a store of its own."
            )

    def _gone(self) -> set[int]:
        """Writers that have not stopped and are no more. Asked before the log is locked: one's last transaction may
        be waiting for that lock."""
        found = self._run("SELECT writer, host, pid, born, last_at FROM record_writers WHERE stopped_at IS NULL")
        return {row[0] for row in found.fetchall() if not self._lives(*row)}

    def _recover(self, seq: int, suspected: set[int]) -> Recovery:
        """Close what writers that are gone have left open."""
        fill = self._sql.fill
        found = self._run("SELECT writer, last_at FROM record_writers WHERE stopped_at IS NULL").fetchall()
        gone = [row for row in found if row[0] in suspected]
        if not gone:
            return Recovery(last_seq=seq)
        open_runs: list[OpenRun] = []
        for writer, last_at in gone:
            columns = "run_id, system, started_at"
            left = f"SELECT {columns} FROM record_runs WHERE status = 'open' AND writer = ? ORDER BY run"  # noqa: S608
            rows = self._run(fill(left), (writer,)).fetchall()
            open_runs += [OpenRun(*row) for row in rows]
            self._run(
                fill(
                    "UPDATE record_runs SET status = 'interrupted', ended_at = ? WHERE status = 'open' AND writer = ?"
                ),
                (last_at, writer),
            )
            self._run(fill("UPDATE record_writers SET stopped_at = ? WHERE writer = ?"), (time.time(), writer))
        return Recovery(True, seq, max(row[1] for row in gone), tuple(open_runs))

    def _lives(self, writer: int, host: str, pid: int, born: str | None, last_at: float) -> bool:
        if self._sqlite:
            return is_running(host, pid, born, last_at)
        (free,) = self._run("SELECT pg_try_advisory_lock(%s)", (writer,)).fetchone()
        until = time.monotonic() + _LINGERS_S
        while not free and not is_running(host, pid, born, last_at) and time.monotonic() < until:
            # The process is gone; the server has yet to find out, and may be at its last transaction still.
            time.sleep(0.05)
            (free,) = self._run("SELECT pg_try_advisory_lock(%s)", (writer,)).fetchone()
        if free:
            self._run("SELECT pg_advisory_unlock(%s)", (writer,))
        return not free

    # -- writing ------------------------------------------------------------------------------------------------------

    def _learn(self, facts: Sequence[Fact]) -> None:
        """Look up the runs and hooks of these facts that are not remembered."""
        runs: set[str] = set()
        hooks: set[Row] = set()
        pace = Pace()
        for start in range(0, len(facts), _LOOK):
            part = facts[start : start + _LOOK]
            runs |= self.rows.unknown_runs(part)
            hooks |= self.rows.unknown_hooks(part)
            pace.step()
        if runs:
            in_list = self._in(sorted(runs))
            loaded = [RunState(*row) for row in self._run(*self._select(_RUN_STATE, "record_runs", "run_id", in_list))]
            for run in loaded:
                self.rows.runs[run.run_id] = run
            if loaded:
                keys = {run.key: run for run in loaded}
                steps = self._run(*self._select(_STEP_STATE, "record_steps", "run", self._in(sorted(keys))))
                for step in (StepState(*row) for row in steps):
                    keys[step.run].by_step[step.step_id] = step
        if forgotten := self.rows.unknown_steps(facts):
            self._learn_steps(forgotten)
        for identity in hooks:
            self.rows.hooks[identity] = self._hook_key(identity)

    def _learn_steps(self, wanted: set[tuple[int, str]]) -> None:
        """Steps that ended so long ago that they were forgotten."""
        owners = {run.key: run for run in map(self.rows.runs.__getitem__, self.rows.trimmed)}
        for run, step_id in sorted(wanted):
            columns = ", ".join(_STEP_STATE)
            one = f"SELECT {columns} FROM record_steps WHERE run = ? AND step_id = ?"  # noqa: S608 - constants
            for row in self._run(self._sql.fill(one), (run, step_id)).fetchall():
                owners[run].by_step[step_id] = StepState(*row)

    def _in(self, values: Sequence[Any]) -> Any:
        return json.dumps(values) if self._sqlite else list(values)

    def _select(self, columns: Sequence[str], table: str, key: str, values: Any) -> tuple[str, tuple[Any, ...]]:
        among = "IN (SELECT value FROM json_each(?))" if self._sqlite else "= ANY(%s)"
        return f"SELECT {', '.join(columns)} FROM {table} WHERE {key} {among}", (values,)  # noqa: S608 - constants

    def _hook_key(self, identity: Row) -> int:
        ident = sha256(json.dumps(identity).encode()).hexdigest()
        columns = ("ident", "event", "hook_id", "hook_name", "hook_kind", "source", "mode", "priority", "policy",
                   "observe", "shadow")  # fmt: skip
        self._run(self._sql.insert(schema.hooks, columns, 1, "ON CONFLICT (ident) DO NOTHING"), (ident, *identity))
        (key,) = self._run(self._sql.fill("SELECT hook FROM record_hooks WHERE ident = ?"), (ident,)).fetchone()
        return int(key)

    def _write(self, batch: Batch) -> None:
        self._put(schema.runs, _RUN_COLUMNS, list(batch.runs.values()), _RUN_CONFLICT, self._run_row)
        self._put(schema.steps, _STEP_COLUMNS, list(batch.steps.values()), _STEP_CONFLICT, _step_row)
        self._put(schema.hook_runs, _columns(schema.hook_runs), batch.hook_runs)
        self._put(schema.payloads, _columns(schema.payloads), _last_of_each(batch.payloads), _PAYLOAD_CONFLICT)
        self._put(schema.facets, _columns(schema.facets), batch.facets, "ON CONFLICT DO NOTHING")
        self._put(schema.marks, _columns(schema.marks), batch.marks)
        self._put(schema.chain, _columns(schema.chain), batch.chain)
        stats = [(*key, int(total[0]), total[1]) for key, total in batch.stats.items()]
        self._put(schema.hook_stats, _columns(schema.hook_stats), stats, _STATS_CONFLICT)
        covered = [(*key, *total) for key, total in batch.coverage.items()]
        self._put(schema.coverage, _columns(schema.coverage), covered, _COVERAGE_CONFLICT)
        fill = self._sql.fill
        self._run(fill("UPDATE record_heads SET seq = ?, mac = ? WHERE id = 1"), (batch.seq, batch.mac))
        self._run(
            fill("UPDATE record_writers SET last_seq = ?, last_at = ? WHERE writer = ?"),
            (batch.seq, time.time(), self._writer),
        )

    def _put(
        self,
        table: Table,
        columns: Sequence[str],
        rows: Sequence[Any],
        conflict: str = "",
        row_of: Callable[[Any], Row] | None = None,
    ) -> None:
        """Insert rows, made by ``row_of`` from what is given, a statement for so many that nobody waits long."""
        if not self._sqlite:
            self._put_as_json(table, columns, rows, conflict, row_of)
            return
        start, left = 0, len(rows)
        for size in _SIZES:
            while left >= size:
                part = rows[start : start + size]
                if row_of is not None:
                    part = [row_of(one) for one in part]
                self._run(self._sql.insert(table, columns, size, conflict), tuple(flatten.from_iterable(part)))
                start, left = start + size, left - size

    def _put_as_json(
        self,
        table: Table,
        columns: Sequence[str],
        rows: Sequence[Any],
        conflict: str,
        row_of: Callable[[Any], Row] | None,
    ) -> None:
        """One JSON document a statement: PostgreSQL's driver takes a statement of thousands of parameters apart in
        Python, each time anew."""
        for start in range(0, len(rows), _DOCUMENT):
            part = rows[start : start + _DOCUMENT]
            made = part if row_of is None else [row_of(one) for one in part]
            document = json.dumps([dict(zip(columns, row, strict=True)) for row in made], allow_nan=False)
            self._run(self._sql.insert_json(table, columns, conflict), (document,))

    def _run_row(self, run: RunState) -> Row:
        return (
            run.key, run.run_id, run.system, run.session_id, run.user_id, run.organization_id, run.generation,
            run.message_digest, run.started_at, run.ended_at, run.status, run.error_type, run.duration_ms, run.usage,
            self._writer, run.steps, run.hook_runs, run.denied, run.broke,
        )  # fmt: skip


class _Statements:
    """The statements, made once each: a driver knows a prepared statement by its text."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.lock = "SELECT seq, mac, audited FROM record_heads WHERE id = 1"
        if mark != "?":
            self.lock += " FOR UPDATE"
        self._made: dict[Any, str] = {}

    def fill(self, sql: str) -> str:
        return sql if self._mark == "?" else sql.replace("?", self._mark)

    def insert(self, table: Table, columns: Sequence[str], rows: int, conflict: str) -> str:
        made = self._made.get((table.name, rows))
        if made is None:
            one = "(" + ", ".join([self._mark] * len(columns)) + ")"
            values = ", ".join([one] * rows)
            made = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES {values} {conflict}"  # noqa: S608 - constants
            self._made[(table.name, rows)] = made
        return made

    def insert_json(self, table: Table, columns: Sequence[str], conflict: str) -> str:
        made = self._made.get(table.name)
        if made is None:
            names = ", ".join(columns)
            types = ", ".join(f"{name} {table.c[name].type.compile(_POSTGRES)}" for name in columns)
            made = (
                f"INSERT INTO {table.name} ({names}) SELECT {names} "  # noqa: S608 - constants
                f"FROM json_to_recordset(%s::json) AS given ({types}) {conflict}"
            )
            self._made[table.name] = made
        return made

    def expired(self, sqlite: bool) -> str:
        row = "rowid" if sqlite else "ctid"
        return self.fill(
            f"DELETE FROM record_payloads WHERE {row} IN "  # noqa: S608 - constants
            f"(SELECT {row} FROM record_payloads WHERE expires_at < ? LIMIT 1000)"
        )


def _columns(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


def _step_row(step: StepState) -> Row:
    return (
        step.key, step.run, step.step_id, step.parent_id, step.kind, step.name, step.agent, step.started_at,
        step.opened, step.status, step.error_type, step.outcome, step.refused_by, step.reason, step.duration_ms,
        step.closed, step.unheard, is_ungated(step.kind, step.unheard),
    )  # fmt: skip


def _last_of_each(rows: Iterable[Row]) -> list[Row]:
    """One row for each key: a statement must not touch a row twice."""
    return list({row[:2]: row for row in rows}.values())


def _update(columns: Iterable[str], added: Iterable[str] = (), table: str = "") -> str:
    sets = [f"{name} = excluded.{name}" for name in columns]
    sets += [f"{name} = {table}.{name} + excluded.{name}" for name in added]
    return "DO UPDATE SET " + ", ".join(sets)


_RUN_COLUMNS = (*_RUN_STATE, "writer", "steps", "hook_runs", "denied", "broke")
_RUN_CONFLICT = "ON CONFLICT (run) " + _update(
    (*_RUN_STATE[2:8], *_RUN_STATE[9:], "writer"), ("steps", "hook_runs", "denied", "broke"), "record_runs"
)
_STEP_COLUMNS = (*_STEP_STATE, "ungated")
_STEP_CONFLICT = "ON CONFLICT (step) " + _update((*_STEP_STATE[3:], "ungated"))
_PAYLOAD_CONFLICT = "ON CONFLICT (seq, which) " + _update(("body", "expires_at"))
_STATS_CONFLICT = "ON CONFLICT (day, hook, decision, bucket) " + _update((), ("n", "total_ms"), "record_hook_stats")
_COVERAGE_CONFLICT = "ON CONFLICT (day, kind, name, agent, unheard) " + _update((), ("n",), "record_coverage")
