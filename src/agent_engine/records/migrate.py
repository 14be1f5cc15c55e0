"""Bringing a store's tables up to date when it is opened, however many processes open it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import inspect

from agent_engine.records.settings import RecordsError

if TYPE_CHECKING:
    from sqlalchemy import Connection

HEAD = "0001"
"""The revision this code reads and writes; the newest file in ``migrations/versions``."""

_LOCK = 0x6167_656E_7472_6563
_VERSION = "record_schema_version"


def upgrade(connection: Connection) -> None:
    """Create or upgrade the tables inside the connection's transaction, which must hold SQLite's write lock.

    Raises:
        RecordsError: the store was written by a newer version.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    found = revision(connection)
    if found == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", "agent_engine.records:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise RecordsError(
            f"The store's tables are of revision {found}, which this version ({HEAD}) does not know; "
            "open it with the version of agent-engine that wrote it, or a newer one."
        ) from error


def revision(connection: Connection) -> str | None:
    """The revision of the store's tables; None where there are none yet."""
    if not inspect(connection).has_table(_VERSION):
        return None
    row = connection.exec_driver_sql(f"SELECT version_num FROM {_VERSION}").fetchone()  # noqa: S608 - a constant
    return None if row is None else str(row[0])
