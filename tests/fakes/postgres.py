"""A real PostgreSQL server for tests, started from the system's binaries on a socket in a folder of its own."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_USER = "postgres"
_numbers = itertools.count(1)


class Postgres:
    """A running server. Each test gets a database of its own with ``address()``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def address(self, database: str | None = None) -> str:
        """The address of a database; a new and empty one where none is named."""
        if database is None:
            import psycopg

            database = f"test_{os.getpid()}_{next(_numbers)}"
            with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {database} STRATEGY wal_log")
        return self._address(database)

    def _address(self, database: str) -> str:
        return f"postgresql://{_USER}@/{database}?host={self.folder}"


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server; stop it and remove its data afterwards. Root may not run one, so it runs as ``postgres``."""
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="ae-pg-"))
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = pwd.getpwnam(_USER)
        os.chown(folder, account.pw_uid, account.pw_gid)
        as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [account.pw_gid]}
    data, log = folder / "data", folder / "log"
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off -c max_connections=60"
    try:
        _call([binaries / "initdb", "-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N"], as_user)
        _call([binaries / "pg_ctl", "-D", data, "-w", "-t", "240", "-l", log, "-o", options, "start"], as_user)
        try:
            yield Postgres(folder)
        finally:
            _call([binaries / "pg_ctl", "-D", data, "-m", "immediate", "-w", "-t", "240", "stop"], as_user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if found:
        return found[-1].parent
    on_path = shutil.which("pg_ctl")
    if on_path is None:
        raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
    return Path(on_path).parent


def _call(command: list[Any], as_user: dict[str, Any]) -> None:
    done = subprocess.run(
        [str(part) for part in command], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=300, **as_user,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{command[0].name} failed: {done.stdout[-1000:]}")
