"""Conversations and waiting runs in a SQLite file: safe across loops, threads and processes."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from agent_engine.memory.store import ConversationKey, StoreError, stamped

if TYPE_CHECKING:
    from agent_engine.memory.message import Message

T = TypeVar("T")

_BUSY_SECONDS = 10.0
_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS message (
    conversation TEXT NOT NULL,
    position INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (conversation, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS waiting (
    run_id TEXT PRIMARY KEY,
    saved_at REAL NOT NULL,
    document TEXT NOT NULL
) WITHOUT ROWID;
"""


class SqliteStore:
    """A ConversationStore in one file, readable by its owner alone. It is opened on first use.

    Each operation is one transaction in a worker thread; several processes may use the file at once, forked ones too,
    and wait for each other for up to ten seconds.

    Args:
        path: the file; its folder is made if need be. ``:memory:`` keeps everything in this process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        _stores.add(self)

    def __repr__(self) -> str:
        return f"<SqliteStore {self.path}>"

    async def load(self, key: ConversationKey) -> list[Message]:
        rows = await self._read(lambda db: db.execute(_LOAD, (_name(key),)).fetchall())
        return [json.loads(body) for (body,) in rows]

    async def append(self, key: ConversationKey, messages: Iterable[Message]) -> None:
        bodies = [json.dumps(message) for message in messages]
        await self._write(lambda db: _append(db, _name(key), bodies))

    async def replace(self, key: ConversationKey, messages: Iterable[Message]) -> None:
        bodies = [json.dumps(message) for message in messages]

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM message WHERE conversation = ?", (_name(key),))
            _append(db, _name(key), bodies)

        await self._write(work)

    async def delete(self, key: ConversationKey) -> None:
        await self._write(lambda db: db.execute("DELETE FROM message WHERE conversation = ?", (_name(key),)))

    async def save_waiting(self, run_id: str, document: Mapping[str, Any]) -> None:
        kept = stamped(document, run_id)
        row = (run_id, float(kept["saved_at"]), json.dumps(kept))
        await self._write(lambda db: db.execute("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?)", row))

    async def load_waiting(self, run_id: str) -> dict[str, Any] | None:
        query = "SELECT document FROM waiting WHERE run_id = ?"
        row = await self._read(lambda db: db.execute(query, (run_id,)).fetchone())
        return None if row is None else dict(json.loads(row[0]))

    async def list_waiting(self) -> list[dict[str, Any]]:
        query = "SELECT document FROM waiting ORDER BY saved_at, run_id"
        rows = await self._read(lambda db: db.execute(query).fetchall())
        return [dict(json.loads(document)) for (document,) in rows]

    async def remove_waiting(self, run_id: str, document: Mapping[str, Any] | None = None) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            row = db.execute("SELECT document FROM waiting WHERE run_id = ?", (run_id,)).fetchone()
            if row is None or (document is not None and json.loads(row[0]) != document):
                return False
            db.execute("DELETE FROM waiting WHERE run_id = ?", (run_id,))
            return True

        return await self._write(work)

    async def close(self) -> None:
        from agent_engine.hooks.workers import run_in_worker

        await run_in_worker(self._close)

    def _close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Who only reads waits for no writer, and can do so on a disk that takes nothing."""
        from agent_engine.hooks.workers import run_in_worker

        return await run_in_worker(self._transaction, work, "BEGIN")

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        from agent_engine.hooks.workers import run_in_worker

        return await run_in_worker(self._transaction, work, "BEGIN IMMEDIATE")

    def _transaction(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
        """Run ``work`` as one transaction, all of it or nothing."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                db = self._connection
                db.execute(begin)
                try:
                    value = work(db)
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
                return value
            except (sqlite3.Error, OSError) as error:
                kind = type(error).__name__
                raise StoreError(f"The conversation store {self.path} cannot be used now ({kind}).") from None

    def begin_anew(self) -> None:
        """In a forked child: the connection to a file is the parent's, and stays as it is; the next use opens another.
        (What is in memory alone was copied with the process.)"""
        self._lock = threading.Lock()
        if self._connection is not None and self.path != ":memory:":
            _of_parents.append(self._connection)
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self.path != ":memory:":
            file = Path(self.path)
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise StoreError(
                    f"The conversation store {self.path} was written by a newer version (its format is {version},"
                    f" this one knows {_VERSION}); upgrade agent-engine or choose another file."
                )
            if version < _VERSION:
                db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
        except BaseException:
            db.close()
            raise
        return db


def _after_fork() -> None:
    for store in list(_stores):
        store.begin_anew()


_stores: WeakSet[SqliteStore] = WeakSet()
_of_parents: list[sqlite3.Connection] = []
"""Connections that this process was forked with. They are neither used nor closed here."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_LOAD = "SELECT body FROM message WHERE conversation = ? ORDER BY position"


def _name(key: ConversationKey) -> str:
    """One text for a key; JSON keeps None apart from the word, and each part apart from the next."""
    return json.dumps(list(key))


def _append(db: sqlite3.Connection, name: str, bodies: list[str]) -> None:
    query = "SELECT coalesce(max(position), -1) FROM message WHERE conversation = ?"
    with closing(db.execute(query, (name,))) as cursor:
        (last,) = cursor.fetchone()
    rows = [(name, last + number, body) for number, body in enumerate(bodies, 1)]
    db.executemany("INSERT INTO message VALUES (?, ?, ?)", rows)
