"""An authorisation server, and the secret with which the engine makes itself known to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakes.auth_server import AuthServer


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Iterator[AuthServer]:
    monkeypatch.setenv("ENGINE_SECRET", "engine-secret-7f3a")
    with AuthServer() as running:
        yield running
