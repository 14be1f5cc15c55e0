"""Stores to test against: every test that takes ``address`` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.postgres import Postgres, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'records.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.address()


@pytest.fixture(params=["sqlite", "postgres", "jsonl"])
def any_address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, JSON lines included."""
    if request.param == "jsonl":
        return f"jsonl:{tmp_path / 'records.jsonl'}"
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'records.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.address()
