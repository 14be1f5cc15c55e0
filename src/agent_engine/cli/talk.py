"""Who the chat talks with: an engine in this process, or a server somewhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agent_engine.cli.chat import Console
    from agent_engine.runtime.engine import Engine


class Talk(Protocol):
    """One conversation. ``session_id`` may be set to begin another."""

    name: str
    session_id: str

    def send(self, message: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of the answer to a message: their type and data, as RunEvent has them."""
        ...


class LocalTalk:
    """A conversation with an engine that is built in this process."""

    def __init__(self, engine: Engine, name: str, session_id: str, user_id: str | None) -> None:
        self._engine = engine
        self.name = name
        self.session_id = session_id
        self._user_id = user_id

    async def send(self, message: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        from agent_engine.hooks.managed import RunContext

        context = RunContext(conversation_id=self.session_id, user_id=self._user_id)
        async for event in self._engine.stream(message, context=context):
            yield event.type, event.data


@asynccontextmanager
async def open_talk(
    config: Path | None,
    url: str | None,
    *,
    session_id: str,
    user_id: str | None,
    model: str | None,
    records: str | None,
    console: Console,
) -> AsyncIterator[Talk]:
    """The conversation that ``--config`` or ``--url`` asks for, ready to be talked with."""
    if config is None:
        assert url is not None
        from agent_engine.cli.remote import RemoteTalk

        async with RemoteTalk.connect(url, session_id=session_id, user_id=user_id, console=console) as remote:
            yield remote
        return
    from agent_engine.cli.console import TerminalApprover
    from agent_engine.cli.state import open_store
    from agent_engine.runtime.engine import Engine

    approver = TerminalApprover(console.make_room, console.stop, console.read)
    options: dict[str, Any] = {"approver": approver, "store": open_store(config), "model": model, "records": records}
    async with Engine.from_yaml(config, **options) as engine:
        yield LocalTalk(engine, engine.loaded.system.system.name, session_id, user_id)
