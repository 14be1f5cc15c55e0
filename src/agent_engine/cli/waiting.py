"""Runs that wait for a person: those of a system's own store, or of a server somewhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import typer

if TYPE_CHECKING:
    from agent_engine.memory.store import ConversationStore

Decision = Literal["yes", "session", "no"]


@dataclass(frozen=True, slots=True)
class Source:
    """Whose waiting runs are meant, a file's or a server's, and with what a file's run goes on."""

    config: Path | None = None
    url: str | None = None
    model: str | None = None
    records: str | None = None
    quiet: bool = False


@dataclass(slots=True)
class WaitingRun:
    """A stored run and what it asks. ``saved_at`` is seconds since the epoch; ``expired``: its 24 hours are over."""

    run_id: str
    saved_at: float | None
    expired: bool
    asks: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class WaitingRuns(Protocol):
    """Where waiting runs are, and how one goes on."""

    async def all(self) -> list[WaitingRun]:
        """Every waiting run, oldest first."""
        ...

    async def resume(self, run: WaitingRun, decisions: Mapping[str, Decision]) -> int:
        """Go on with a run, show what happens, print its answer, and return the exit code."""
        ...


class LocalRuns:
    """The waiting runs of a system in this folder. The engine is built only when one of them goes on."""

    def __init__(self, config: Path, store: ConversationStore, source: Source) -> None:
        self._config = config
        self._store = store
        self._source = source

    async def all(self) -> list[WaitingRun]:
        from agent_engine.cli.state import state_path
        from agent_engine.memory.store import waiting_expired

        if not state_path(self._config).exists():
            return []  # nothing was ever kept, and asking makes no file
        return [
            WaitingRun(str(one["run_id"]), one.get("saved_at"), waiting_expired(one), list(one.get("asks", ())))
            for one in await self._store.list_waiting()
        ]

    async def resume(self, run: WaitingRun, decisions: Mapping[str, Decision]) -> int:
        from agent_engine.cli.account import Account
        from agent_engine.cli.account_view import style_for
        from agent_engine.cli.run import finish, resuming
        from agent_engine.runtime.engine import Engine

        model, records = self._source.model, self._source.records
        account = Account(style_for(quiet=self._source.quiet))
        engine = Engine.from_yaml(
            self._config,
            approver="later",
            records=[account, records] if records else account,
            store=self._store,
            model=model,
        )
        async with engine:
            options = resuming(self._config, model, records)
            return await finish(engine.resume(run.run_id, decisions), account, options=options)


@asynccontextmanager
async def waiting_runs(source: Source) -> AsyncIterator[WaitingRuns]:
    """The waiting runs that ``--config`` or ``--url`` means."""
    config = source.config
    if (config is None) == (source.url is None):
        raise typer.BadParameter("give either --config FILE or --url URL.", param_hint="--config")
    if config is None:
        from agent_engine.cli.remote import RemoteRuns

        async with RemoteRuns.connect(str(source.url)) as remote:
            yield remote
        return
    from agent_engine.cli.state import open_store
    from agent_engine.spec.load import load_system

    load_system(config)
    store = open_store(config)
    try:
        yield LocalRuns(config, store, source)
    finally:
        await store.close()
