"""Engine: a declared system, built, run and closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.hooks.managed import RunContext
    from agent_engine.runtime.result import RunEvent, RunResult
    from agent_engine.spec.load import Loaded


class Engine:
    """Runs one declared system. Use it as ``async with Engine.from_yaml(path) as engine:``.

    ``hooks`` takes what an Agent's ``hooks`` takes. ``platform_hooks`` run before everything else and cannot be removed.
    ``approver`` answers asks (a callable, or ``"later"``); ``records`` is an address, a journal or a list of them;
    ``store`` keeps conversations and waiting runs. ``model`` (``PROVIDER:NAME``) takes the place of every model of the file.
    """

    def __init__(
        self,
        system: Loaded,
        *,
        hooks: Any = None,
        platform_hooks: Sequence[HookDefinition] = (),
        approver: Any = None,
        records: Any = None,
        store: Any = None,
        model: Any = None,
    ) -> None:
        self.loaded = system

    @classmethod
    def from_yaml(cls, path: str | Path, *, environ: Mapping[str, str] | None = None, **options: Any) -> Self:
        """An engine for an ``agents.yaml``; raises SpecError with every problem of the file."""
        from agent_engine.spec.load import load_system

        return cls(load_system(path, environ=environ), **options)

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def build(self) -> None: ...

    async def run(
        self, message: str, context: RunContext | None = None, history: Sequence[Mapping[str, Any]] = ()
    ) -> RunResult:
        raise NotImplementedError

    def stream(
        self, message: str, context: RunContext | None = None, history: Sequence[Mapping[str, Any]] = ()
    ) -> AsyncIterator[RunEvent]:
        raise NotImplementedError

    async def call_tool(self, name: str, arguments: Mapping[str, Any], context: RunContext | None = None) -> Any:
        raise NotImplementedError

    async def resume(self, run_id: str, decisions: Mapping[str, str], context: RunContext | None = None) -> RunResult:
        raise NotImplementedError

    async def close(self) -> None: ...
