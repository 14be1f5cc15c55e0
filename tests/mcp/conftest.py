"""Servers and protocols for the tests of the MCP client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakes.mcp_server import FakeMcpServer

from agent_engine.hooks.registry import HookRegistry


@pytest.fixture(params=["legacy", "modern"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Both generations of the protocol: with a handshake and sessions, and without."""
    return str(request.param)


@pytest.fixture
def server() -> Iterator[FakeMcpServer]:
    with FakeMcpServer(json_response=True) as running:
        yield running


@pytest.fixture
def streaming() -> Iterator[FakeMcpServer]:
    """A server that answers with streams of events, which can be resumed."""
    with FakeMcpServer(resumable=True) as running:
        yield running


@pytest.fixture
def registry() -> HookRegistry:
    return HookRegistry()
