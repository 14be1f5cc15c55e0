"""Opening the database behind an address."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy import URL, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

from agent_engine.records.settings import RecordsError, file_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

_BUSY_S = 30.0
_ENDED = ("Z", "X")
"""States of a process that has ended, though its parent has not asked for its end yet."""


def engine_for(address: str, *, create: bool = True) -> Engine:
    """A SQLAlchemy engine for ``sqlite:PATH``, ``sqlite:`` (in memory) or ``postgresql://…``.

    SQLite files are made readable by their owner alone and put in WAL mode.

    Raises:
        RecordsError: ``create`` is false and there is no such file; or the address is no such address.
    """
    if address.startswith("sqlite:"):
        return _sqlite(None if address == "sqlite:" else file_of(address), create=create)
    return _postgres(address)


def shown(address: str) -> str:
    """The address as it may be printed: without a password."""
    if not address.startswith("postgres"):
        return address
    try:
        return make_url(address).render_as_string(hide_password=True)
    except ArgumentError:
        return "postgresql://…"


def process_birth(pid: int) -> str | None:
    """When a process of this machine began, as the kernel counts it; None where that cannot be told or it is gone."""
    found = _stat(pid)
    return None if found is None else found[19]


def _stat(pid: int) -> list[str] | None:
    """What the kernel tells of a process, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def is_running(host: str, pid: int, born: str | None, last_at: float) -> bool:
    """Whether a writer's process still lives; of one on another machine, whether it wrote within the hour."""
    if host != socket.gethostname():
        return time.time() - last_at < 3600
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    found = _stat(pid)
    if found is None:
        return True
    return found[0] not in _ENDED and (born is None or found[19] == born)


def _sqlite(file: Path | None, *, create: bool) -> Engine:
    if file is None:
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        if not create and not file.is_file():
            raise RecordsError(f"There are no records at {file}; name a store with --store, or run something first.")
        if create:
            _make(file)
        readable_only = not create and not os.access(file.parent, os.W_OK)
        url = _read_only(file) if readable_only else URL.create("sqlite", database=str(file))
        engine = create_engine(url, connect_args={"check_same_thread": False, "timeout": _BUSY_S})
        if readable_only:
            return engine
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _read_only(file: Path) -> URL:
    """A file in a folder that nothing may be written to (an archive, or somebody else's): SQLite must make no files."""
    wal = Path(f"{file}-wal")
    still_written = wal.exists() and wal.stat().st_size > 0
    how = {"mode": "ro"} if still_written else {"immutable": "1"}
    return URL.create("sqlite", database=f"file:{quote(str(file.absolute()))}", query={**how, "uri": "true"})


def _make(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise RecordsError(f"The store {file} cannot be made: {error.strerror}.") from error


def _set_up(connection: Any, _record: object) -> None:
    # Transactions are begun by hand: the driver would begin none before DDL, and only late before an insert.
    connection.isolation_level = None
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except Exception as error:
            # Switching to WAL does not wait for other openers, whatever the timeout says.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA cache_size=-16000")
    # A page that is changed again and again is copied into the file once for all of that.
    connection.execute("PRAGMA wal_autocheckpoint=4000")


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writing") else "BEGIN")


def _postgres(address: str) -> Engine:
    try:
        url = make_url(address)
    except ArgumentError:
        raise RecordsError(f"{shown(address)} is no database address; write postgresql://USER@HOST/DATABASE.") from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    return create_engine(url, pool_pre_ping=True, pool_size=4)


def cannot_read(engine: Engine, error: Exception) -> RecordsError:
    """The error for a store that was opened and cannot be read now."""
    where = (
        engine.url.render_as_string(hide_password=True) if engine.dialect.name == "postgresql" else engine.url.database
    )
    return RecordsError(
        f"The store {where} cannot be read now ({_kind(error)}){_hint(error, 'is it there, whole and free?')}"
    )


def _kind(error: Exception) -> str:
    """What kind of error is behind SQLAlchemy's; its text is left out, since it may hold an address."""
    cause = getattr(error, "orig", None) or error
    return type(cause).__name__


def _hint(error: Exception, otherwise: str) -> str:
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, UnicodeError) or getattr(cause, "sqlite_errorname", "") in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        return ": it is damaged, or no SQLite file; name another store, or a copy of this one from before."
    return f"; {otherwise}"


def cannot_open(address: str, error: Exception) -> RecordsError:
    """The error for a store that did not open, without the text of its cause (it may hold an address)."""
    return RecordsError(
        f"The store {shown(address)} cannot be opened ({_kind(error)}){_hint(error, 'is it there and free?')}"
    )
