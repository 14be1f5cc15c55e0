"""The first form of the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "record_chain",
        sa.Column("seq", _KEY, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("mac", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "record_coverage",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("unheard", sa.Text(), nullable=False),
        sa.Column("ungated", sa.Boolean(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "kind", "name", "agent", "unheard"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "record_facets",
        sa.Column("facet", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("run", _KEY, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("facet", "value", "run"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "record_heads",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("mac", sa.String(length=64), nullable=False),
        sa.Column("audited", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "record_hook_runs",
        sa.Column("seq", _KEY, autoincrement=False, nullable=False),
        sa.Column("record_id", sa.Text(), nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("hook", sa.Integer(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("broke", sa.Boolean(), nullable=False),
        sa.Column("failure_type", sa.Text(), nullable=True),
        sa.Column("changed", sa.Text(), nullable=True),
        sa.Column("before_digest", sa.String(length=64), nullable=True),
        sa.Column("after_digest", sa.String(length=64), nullable=True),
        sa.Column("duration_ms", sa.Float(), nullable=False),
        sa.Column("grp", sa.Integer(), nullable=False),
        sa.Column("context", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index(
        "ix_record_hook_runs_notable",
        "record_hook_runs",
        ["hook", "decision", "seq"],
        unique=False,
        sqlite_where=sa.text("decision NOT IN ('allow', 'none')"),
        postgresql_where=sa.text("decision NOT IN ('allow', 'none')"),
    )
    op.create_index("ix_record_hook_runs_run", "record_hook_runs", ["run", "seq"], unique=False)
    op.create_index("ux_record_hook_runs_id", "record_hook_runs", ["record_id"], unique=True)
    op.create_table(
        "record_hook_stats",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hook", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("bucket", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("total_ms", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("day", "hook", "decision", "bucket"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "record_hooks",
        sa.Column("hook", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("ident", sa.String(length=64), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("hook_id", sa.Text(), nullable=False),
        sa.Column("hook_name", sa.Text(), nullable=False),
        sa.Column("hook_kind", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("observe", sa.Boolean(), nullable=False),
        sa.Column("shadow", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("hook"),
        sa.UniqueConstraint("ident"),
    )
    op.create_table(
        "record_marks",
        sa.Column("seq", _KEY, autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=True),
        sa.Column("last_seq", sa.BigInteger(), nullable=True),
        sa.Column("open_runs", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "record_payloads",
        sa.Column("seq", _KEY, autoincrement=False, nullable=False),
        sa.Column("which", sa.String(length=8), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("seq", "which"),
    )
    op.create_index("ix_record_payloads_expires", "record_payloads", ["expires_at"], unique=False)
    op.create_table(
        "record_runs",
        sa.Column("run", _KEY, autoincrement=False, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("writer", sa.BigInteger(), nullable=True),
        sa.Column("system", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("organization_id", sa.Text(), nullable=True),
        sa.Column("generation", sa.Text(), nullable=True),
        sa.Column("message_digest", sa.String(length=64), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("duration_ms", sa.Float(), nullable=True),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("hook_runs", sa.Integer(), nullable=False),
        sa.Column("denied", sa.Integer(), nullable=False),
        sa.Column("broke", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run"),
        sa.UniqueConstraint("run_id"),
    )
    op.create_index("ix_record_runs_owner", "record_runs", ["user_id", "organization_id", "run"], unique=False)
    op.create_index("ix_record_runs_started", "record_runs", ["started_at"], unique=False)
    op.create_index(
        "ix_record_runs_unusual",
        "record_runs",
        ["status", "run"],
        unique=False,
        sqlite_where=sa.text("status <> 'completed'"),
        postgresql_where=sa.text("status <> 'completed'"),
    )
    op.create_table(
        "record_steps",
        sa.Column("step", _KEY, autoincrement=False, nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("step_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("refused_by", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("duration_ms", sa.Float(), nullable=True),
        sa.Column("opened", sa.Text(), nullable=True),
        sa.Column("closed", sa.Text(), nullable=True),
        sa.Column("unheard", sa.Text(), nullable=True),
        sa.Column("ungated", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_index(
        "ix_record_steps_ungated",
        "record_steps",
        ["kind", "name", "step"],
        unique=False,
        sqlite_where=sa.text("ungated"),
        postgresql_where=sa.text("ungated"),
    )
    op.create_index("ix_record_steps_run", "record_steps", ["run"], unique=False)
    op.create_table(
        "record_writers",
        sa.Column("writer", _KEY, autoincrement=False, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("born", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.Float(), nullable=False),
        sa.Column("stopped_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("writer"),
    )
    op.execute("INSERT INTO record_heads (id, seq, mac, audited) VALUES (1, 0, '', false)")
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION record_chain_is_append_only()")


_TABLES = (
    "record_chain",
    "record_coverage",
    "record_facets",
    "record_heads",
    "record_hook_runs",
    "record_hook_stats",
    "record_hooks",
    "record_marks",
    "record_payloads",
    "record_runs",
    "record_steps",
    "record_writers",
)
# No defence against an intruder (the chain is); it stops a slip of the hand.
_APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER record_chain_no_{verb.lower()} BEFORE {verb} ON record_chain "
        "BEGIN SELECT RAISE(ABORT, 'record_chain is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION record_chain_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'record_chain is append-only'; END $$",
        "CREATE TRIGGER record_chain_append_only BEFORE UPDATE OR DELETE ON record_chain "
        "FOR EACH ROW EXECUTE FUNCTION record_chain_is_append_only()",
    ],
}
