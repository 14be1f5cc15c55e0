"""The tables of a store, the same in SQLite and PostgreSQL.

Every entry of the log has a sequence number, counted without gaps in ``record_heads`` under a lock, so that several
processes can write to one store. A run's and a step's key is the number of the entry that opened it: newer is larger.
``record_hook_stats`` and ``record_coverage`` are running totals a day, so that no page scans a million records.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()
Key = BigInteger().with_variant(Integer, "sqlite")

heads = Table(
    "record_heads",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("mac", String(64), nullable=False),
    Column("audited", Boolean, nullable=False),
)

writers = Table(
    "record_writers",
    metadata,
    Column("writer", Key, primary_key=True, autoincrement=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("born", Text),
    Column("started_at", Float, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("last_at", Float, nullable=False),
    Column("stopped_at", Float),
)

runs = Table(
    "record_runs",
    metadata,
    Column("run", Key, primary_key=True, autoincrement=False),
    Column("run_id", Text, nullable=False, unique=True),
    Column("writer", BigInteger),
    Column("system", Text),
    Column("session_id", Text),
    Column("user_id", Text),
    Column("organization_id", Text),
    Column("generation", Text),
    Column("message_digest", String(64)),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("status", Text, nullable=False),
    Column("error_type", Text),
    Column("duration_ms", Float),
    Column("usage", Text),
    Column("steps", Integer, nullable=False),
    Column("hook_runs", Integer, nullable=False),
    Column("denied", Integer, nullable=False),
    Column("broke", Integer, nullable=False),
)
_unusual = text("status <> 'completed'")
Index(
    "ix_record_runs_unusual",
    runs.c.status,
    runs.c.run,
    sqlite_where=_unusual,
    postgresql_where=_unusual,
)
Index("ix_record_runs_started", runs.c.started_at)
Index("ix_record_runs_owner", runs.c.user_id, runs.c.organization_id, runs.c.run)

facets = Table(
    "record_facets",
    metadata,
    Column("facet", Text, primary_key=True),
    Column("value", Text, primary_key=True),
    Column("run", Key, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

steps = Table(
    "record_steps",
    metadata,
    Column("step", Key, primary_key=True, autoincrement=False),
    Column("run", BigInteger, nullable=False),
    Column("step_id", Text, nullable=False),
    Column("parent_id", Text),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("agent", Text),
    Column("started_at", Float),
    Column("status", Text),
    Column("error_type", Text),
    Column("outcome", Text, nullable=False),
    Column("refused_by", Text),
    Column("reason", Text),
    Column("duration_ms", Float),
    Column("opened", Text),
    Column("closed", Text),
    Column("unheard", Text),
    Column("ungated", Boolean, nullable=False),
)
Index("ix_record_steps_run", steps.c.run)
Index(
    "ix_record_steps_ungated",
    steps.c.kind,
    steps.c.name,
    steps.c.step,
    sqlite_where=text("ungated"),
    postgresql_where=text("ungated"),
)

hooks = Table(
    "record_hooks",
    metadata,
    Column("hook", Integer, primary_key=True, autoincrement=True),
    Column("ident", String(64), nullable=False, unique=True),
    Column("event", Text, nullable=False),
    Column("hook_id", Text, nullable=False),
    Column("hook_name", Text, nullable=False),
    Column("hook_kind", Text, nullable=False),
    Column("source", Text),
    Column("mode", Text, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("policy", Text),
    Column("observe", Boolean, nullable=False),
    Column("shadow", Boolean, nullable=False),
)

hook_runs = Table(
    "record_hook_runs",
    metadata,
    Column("seq", Key, primary_key=True, autoincrement=False),
    Column("record_id", Text, nullable=False),
    Column("run", BigInteger),
    Column("step", BigInteger),
    Column("hook", Integer, nullable=False),
    Column("agent", Text),
    Column("at", Float, nullable=False),
    Column("decision", Text, nullable=False),
    Column("reason", Text),
    Column("broke", Boolean, nullable=False),
    Column("failure_type", Text),
    Column("changed", Text),
    Column("before_digest", String(64)),
    Column("after_digest", String(64)),
    Column("duration_ms", Float, nullable=False),
    Column("grp", Integer, nullable=False),
    Column("context", Boolean, nullable=False),
)
Index("ix_record_hook_runs_run", hook_runs.c.run, hook_runs.c.seq)
Index("ux_record_hook_runs_id", hook_runs.c.record_id, unique=True)
_notable = text("decision NOT IN ('allow', 'none')")
Index(
    "ix_record_hook_runs_notable",
    hook_runs.c.hook,
    hook_runs.c.decision,
    hook_runs.c.seq,
    sqlite_where=_notable,
    postgresql_where=_notable,
)

payloads = Table(
    "record_payloads",
    metadata,
    Column("seq", Key, primary_key=True, autoincrement=False),
    Column("which", String(8), primary_key=True),
    Column("body", Text, nullable=False),
    Column("expires_at", Float),
)
Index("ix_record_payloads_expires", payloads.c.expires_at)

hook_stats = Table(
    "record_hook_stats",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("hook", Integer, primary_key=True, autoincrement=False),
    Column("decision", Text, primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("n", BigInteger, nullable=False),
    Column("total_ms", Float, nullable=False),
    sqlite_with_rowid=False,
)

coverage = Table(
    "record_coverage",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("unheard", Text, primary_key=True),
    Column("ungated", Boolean, nullable=False),
    Column("n", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

chain = Table(
    "record_chain",
    metadata,
    Column("seq", Key, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("mac", String(64), nullable=False),
)

marks = Table(
    "record_marks",
    metadata,
    Column("seq", Key, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("at", Float, nullable=False),
    Column("count", BigInteger),
    Column("last_seq", BigInteger),
    Column("open_runs", Text),
)
