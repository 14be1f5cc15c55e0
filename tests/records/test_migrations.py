"""The tables come from the migrations, and are the ones the code knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from tests.records.build import record, run

from agent_engine.records import schema
from agent_engine.records.connect import engine_for
from agent_engine.records.journal import open_journal
from agent_engine.records.migrate import HEAD, revision
from agent_engine.records.query import RecordReader
from agent_engine.records.settings import RecordsError


async def test_a_new_store_has_exactly_the_tables_of_the_schema(address: str) -> None:
    await record(address, run("r1"))
    engine = engine_for(address)
    with engine.connect() as connection:
        options = {"version_table": "record_schema_version", "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []
        assert revision(connection) == HEAD
    engine.dispose()


def test_the_code_knows_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", "agent_engine.records:migrations")
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


async def test_a_store_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}"
    await record(address, run("r1"))
    engine = engine_for(address)
    with engine.connect().execution_options(writing=True) as connection, connection.begin():
        connection.exec_driver_sql("UPDATE record_schema_version SET version_num = '9999'")
    engine.dispose()
    journal = open_journal(address)
    assert journal is not None
    with pytest.raises(RecordsError, match="revision 9999, which this version"):
        await journal.start()
    with pytest.raises(RecordsError, match="revision 9999"):
        RecordReader.open(address)
