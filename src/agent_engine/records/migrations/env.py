"""Alembic's entry: it runs on the connection that :mod:`agent_engine.records.migrate` hands over."""

from __future__ import annotations

from alembic import context

from agent_engine.records.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="record_schema_version",
    transactional_ddl=False,
)
context.run_migrations()
