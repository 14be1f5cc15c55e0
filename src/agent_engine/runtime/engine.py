"""Engine: a declared system, built, run and closed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.scope import HookScope
    from agent_engine.models.base import Message
    from agent_engine.records.journal import Journal
    from agent_engine.runtime.approvals import Approver, Decision
    from agent_engine.runtime.building import Built
    from agent_engine.runtime.limits import Limits
    from agent_engine.runtime.result import RunEvent, RunResult
    from agent_engine.spec.load import Loaded
    from agent_engine.spec.system import System

logger = logging.getLogger("agent_engine.runtime")

GRACE_SECONDS = 5.0
"""How long ``close`` waits for runs that are under way before it cancels them."""
T = TypeVar("T")


class EngineError(RuntimeError):
    """An engine used at the wrong time: before it is built, or after it was closed."""


class Engine:
    """Runs one declared system. Use it as ``async with Engine.from_yaml(path) as engine:``.

    Args:
        system: a checked system (``load_system``), the path of its file, or a System made in Python, whose paths are
            relative to the working folder.
        hooks: what an Agent's ``hooks`` takes: HooksConfig, a dict of its keys, a HookRegistry, a list of middleware.
            They add to the file's hooks and to the process-wide registry.
        platform_hooks: hooks that run before everything else and cannot be removed, disabled or preceded.
        approver: answers asks: a callable, ``"later"`` (the run stops and waits), or None (nobody: every ask is a no).
        records: where hook decisions go: an address (``"sqlite:records.db"``), a journal, or a list of either.
        store: conversations and waiting runs: a store, the path of an SQLite file, or None for memory.
        model: ``"PROVIDER:NAME"`` or a Model, in the place of every model of the file.
        limits: in the place of what ``execution`` declares.

    Raises:
        SpecError: the file is wrong; every problem is in it.
        TypeError: an option is no such thing; the message says what it takes.
    """

    def __init__(
        self,
        system: Loaded | System | str | Path,
        *,
        hooks: Any = None,
        platform_hooks: Sequence[HookDefinition] = (),
        approver: Approver | Literal["later"] | None = None,
        records: Any = None,
        store: Any = None,
        model: Any = None,
        limits: Limits | None = None,
    ) -> None:
        from agent_engine.runtime.building import Parts
        from agent_engine.spec.load import Loaded, load_system, loaded_from

        if isinstance(system, (str, Path)):
            system = load_system(system)
        self._loaded = system if isinstance(system, Loaded) else loaded_from(system)
        self._parts = Parts(
            hooks=hooks,
            platform_hooks=tuple(platform_hooks),
            approver=approver,
            records=records,
            store=store,
            model=model,
            limits=limits,
        )
        self._built: Built | None = None
        self._state: Literal["new", "building", "open", "closing", "closed"] = "new"
        # Runs may be under way on any loop.
        self._under_way: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def from_yaml(cls, path: str | Path, *, environ: Mapping[str, str] | None = None, **options: Any) -> Self:
        """An engine for an ``agents.yaml``; ``options`` are those of the class. Raises SpecError."""
        from agent_engine.spec.load import load_system

        return cls(load_system(path, environ=environ), **options)

    def __repr__(self) -> str:
        return f"<Engine '{self._loaded.system.system.name}' {self._state}>"

    # Life

    async def __aenter__(self) -> Self:
        await self.build()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def build(self) -> None:
        """Make the system ready: on_config, plugins, setup, on_engine_start, then the MCP servers.

        Raises:
            SpecError, HookLoadError: something the file names is not there.
            RunBlocked: a hook refused the build. HookExecutionError: a hook failed under ``fail``.
            McpServerError: a required server does not answer.
        """
        if self._state != "new":
            raise EngineError(f"this engine is {self._state}; an engine is built once, make a new one")
        from agent_engine.runtime.building import build

        self._state = "building"
        try:
            self._built = await build(self._loaded, self._parts)
        except BaseException:
            self._state = "closed"
            raise
        self._state = "open"

    async def close(self) -> None:
        """Let runs under way end (5 s, then they are cancelled), close servers, run on_engine_stop, unload plugins.

        Closing twice, or closing what was never built, is harmless.
        """
        if self._state in ("open", "closing"):
            self._state = "closing"
            if self._closing is None:
                self._closing = asyncio.ensure_future(self._close())
            try:
                await asyncio.shield(self._closing)
            except asyncio.CancelledError:
                await asyncio.wait({self._closing})  # nothing is left half closed behind a caller that goes away
                raise
        elif self._state == "new":
            self._state = "closed"

    async def _close(self) -> None:
        runs = {_ended(task, loop): (task, loop) for task, loop in list(self._under_way.items())}
        if runs:
            _, late = await asyncio.wait(runs, timeout=GRACE_SECONDS)
            for one in late:
                task, loop = runs[one]
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    loop.call_soon_threadsafe(task.cancel)
            if late:
                await asyncio.wait(late, timeout=2 * GRACE_SECONDS)
        try:
            if self._built is not None:
                await self._built.stack.aclose()
        finally:
            self._state = "closed"

    # Requests

    async def run(
        self, message: str | list[dict[str, Any]], context: RunContext | None = None, history: Sequence[Message] = ()
    ) -> RunResult:
        """Answer one message.

        ``context`` says who asks; with a conversation_id the conversation goes on. ``history`` are messages that came
        before. Raises what :func:`agent_engine.runtime.run.run_request` raises.
        """
        from agent_engine.runtime.run import run_request

        return await self._tracked(
            "run",
            lambda built: run_request(built.root, message, host=built.host, context=context, history=history),
        )

    def stream(
        self, message: str | list[dict[str, Any]], context: RunContext | None = None, history: Sequence[Message] = ()
    ) -> AsyncIterator[RunEvent]:
        """The events of one request as they happen, ``final`` last; then the run's own exception, if it failed."""
        self._ready("stream")
        from agent_engine.runtime.run import run_request
        from agent_engine.runtime.streaming import stream_events

        return stream_events(
            lambda emit: self._tracked(
                "stream",
                lambda built: run_request(
                    built.root, message, host=built.host, context=context, history=history, emit=emit
                ),
            )
        )

    async def call_tool(self, name: str, arguments: Mapping[str, Any], context: RunContext | None = None) -> Any:
        """Call one tool of the system through the tool door, with every hook, as a request without a model.

        The nearest agent that has the tool and exists for this caller makes the call. Returns the result after its
        hooks; where a hook refused the call, the text that a model would read.

        Raises:
            LookupError: no such agent has the tool. Any other exception is the one the tool raised, or the request's.
        """
        from agent_engine.runtime.run import call_tool_directly

        outcome = await self._tracked(
            "call_tool",
            lambda built: call_tool_directly(built.root, name, arguments, host=built.host, context=context),
        )
        if outcome.error is not None:
            raise outcome.error
        if outcome.status not in ("ok", "denied"):
            from agent_engine.tools.base import ToolError

            raise ToolError(outcome.text)
        return outcome.value

    async def resume(
        self, run_id: str, decisions: Mapping[str, Decision], context: RunContext | None = None
    ) -> RunResult:
        """Go on with a waiting run. ``decisions`` maps call ids to ``"yes"``, ``"session"`` or ``"no"``; what it leaves
        out stays open, and the run waits on for that.

        Raises:
            LookupError: no such run waits, or somebody else has gone on with it.
            PermissionError: ``context`` is another caller's.
            ValueError: an unknown word, or a call id that the run does not wait for.
        """
        from agent_engine.runtime.run import resume_request

        return await self._tracked(
            "resume",
            lambda built: resume_request(built.root, run_id, decisions, host=built.host, context=context),
        )

    def resume_stream(
        self,
        run_id: str,
        decisions: Mapping[str, Decision],
        context: RunContext | None = None,
        *,
        claimed: Callable[[], None] | None = None,
    ) -> AsyncIterator[RunEvent]:
        """The events of a waiting run that goes on, as :meth:`stream` gives those of a new one.

        ``claimed`` is called once the run is this caller's and the decisions count.
        """
        self._ready("resume_stream")
        from agent_engine.runtime.run import resume_request
        from agent_engine.runtime.streaming import stream_events

        return stream_events(
            lambda emit: self._tracked(
                "resume_stream",
                lambda built: resume_request(
                    built.root, run_id, decisions, host=built.host, context=context, emit=emit, claimed=claimed
                ),
            )
        )

    async def waiting(self) -> list[dict[str, Any]]:
        """The stored runs that wait for an approval, oldest first."""
        return await self._ready("waiting").host.store.list_waiting()

    async def _tracked(self, what: str, work: Callable[[Built], Awaitable[T]]) -> T:
        """Await ``work``, which ``close`` waits for; an engine that was closed before it began does nothing."""
        built = self._ready(what)
        task = asyncio.current_task()
        if task is None or task in self._under_way:
            return await work(built)
        self._under_way[task] = asyncio.get_running_loop()
        try:
            return await work(built)
        finally:
            self._under_way.pop(task, None)

    def _ready(self, what: str) -> Built:
        if self._state != "open" or self._built is None:
            if self._state == "new":
                raise EngineError(
                    f"{what} needs a built engine: use `async with engine:` or await engine.build() first"
                )
            raise EngineError(f"{what} is not possible: this engine is {self._state}")
        return self._built

    # What it is

    @property
    def loaded(self) -> Loaded:
        """The system as it was read; after the build, as an on_config hook left it."""
        return self._built.loaded if self._built is not None else self._loaded

    @property
    def built(self) -> Built:
        """The parts of a built engine, for those who show or serve it. Raises EngineError before the build."""
        return self._ready("built")

    @property
    def scope(self) -> HookScope:
        """The hooks that hold for every run of this engine."""
        return self._ready("scope").host.scope

    @property
    def journal(self) -> Journal | None:
        return self._ready("journal").host.journal

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was odd but no error: in the file, at the MCP servers, in matchers that match nothing."""
        found = [str(problem) for problem in self.loaded.warnings]
        return (*found, *(self._built.all_warnings if self._built is not None else ()))


def _ended(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
    """What tells this loop that a task has ended, which may live on another one."""
    if loop is asyncio.get_running_loop():
        return task
    ended: concurrent.futures.Future[None] = concurrent.futures.Future()
    try:
        loop.call_soon_threadsafe(task.add_done_callback, lambda _: ended.set_result(None))
    except RuntimeError:
        ended.set_result(None)  # its loop is closed
    return asyncio.wrap_future(ended)
