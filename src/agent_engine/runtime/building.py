"""Building an engine, in the one order, and taking down what was built in the reverse of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.events import HookEvent

if TYPE_CHECKING:
    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.result import HookRun, Verdict
    from agent_engine.hooks.scope import HookScope
    from agent_engine.hooks.site import Site, Where
    from agent_engine.mcp.client import McpClients
    from agent_engine.plugins.loader import PluginSpace
    from agent_engine.records.journal import Journal
    from agent_engine.runtime.graph import ModelBook, ToolBook
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.limits import Limits
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.prompts import Prompts
    from agent_engine.spec.load import Loaded

logger = logging.getLogger("agent_engine.runtime")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the application hands to an engine besides the system."""

    hooks: Any = None
    platform_hooks: tuple[HookDefinition, ...] = ()
    approver: Any = None
    records: Any = None
    store: Any = None
    model: Any = None
    limits: Limits | None = None

    def __post_init__(self) -> None:
        """Raises TypeError for what would only fail, or silently mean no, in the middle of a run."""
        from agent_engine.memory.store import ConversationStore
        from agent_engine.runtime import options
        from agent_engine.runtime.limits import Limits

        options.is_approver(self.approver)
        if not (self.store is None or isinstance(self.store, (str, os.PathLike, ConversationStore))):
            raise TypeError(f"store is a store, the path of an SQLite file or None, not {options.kind(self.store)}")
        if isinstance(self.records, os.PathLike):
            raise TypeError(f"records takes an address, such as 'jsonl:{os.fspath(self.records)}', and no bare path")
        if not (self.limits is None or isinstance(self.limits, Limits)):
            raise TypeError(f"limits is a Limits or None, not {options.kind(self.limits)}")


@dataclass(slots=True)
class Built:
    """A built engine. ``stack`` takes it down."""

    loaded: Loaded
    root: Node
    host: Host
    registry: HookRegistry
    tools: ToolBook
    clients: McpClients | None
    space: PluginSpace
    stack: AsyncExitStack
    warnings: list[str] = field(default_factory=list)

    @property
    def all_warnings(self) -> tuple[str, ...]:
        return (*self.warnings, *(self.clients.warnings if self.clients is not None else ()))


async def build(loaded: Loaded, parts: Parts) -> Built:
    """on_config → plugins load (on_init) → setup → on_engine_start → MCP discovery. A failure leaves nothing behind."""
    async with AsyncExitStack() as stack:
        built = await _Builder(loaded, parts, stack).build()
        built.stack = stack.pop_all()
        return built


class _Builder:
    def __init__(self, loaded: Loaded, parts: Parts, stack: AsyncExitStack) -> None:
        from agent_engine.hooks.registry import HookRegistry
        from agent_engine.hooks.scope import HookScope
        from agent_engine.runtime.given_hooks import read_hooks

        self.loaded = loaded
        self.parts = parts
        self.stack = stack
        self.given = read_hooks(parts.hooks)
        if not self.given.inherit_default:
            raise ValueError(
                "hooks of an Engine always add to the process-wide ones; inherit_default=False is for an Agent"
            )
        self.registry = HookRegistry()
        platform = None
        if parts.platform_hooks:
            platform = HookRegistry(platform=True)
            for hook in parts.platform_hooks:
                platform.register(hook)
            platform.seal()
        own = (self.given.registry,) if self.given.registry is not None else ()
        self.scope: HookScope = HookScope(*own, self.registry, platform=platform)
        self.journal: Journal | None = None
        self.warnings: list[str] = []

    async def build(self) -> Built:
        from agent_engine.runtime.graph import ModelBook
        from agent_engine.runtime.host import Host

        await self._open_journal()
        await self._config()
        await self._plugins()
        tools, prompts = self._code()
        models = ModelBook(self.loaded.folder, self.loaded.environ, self.parts.model)
        await self._setup(models.providers(self.loaded.system))
        self._models(models)
        clients = await self._servers(tools)
        from agent_engine.runtime.graph import GraphBuilder, limits_of

        root = GraphBuilder(
            self.loaded.system,
            prompts,
            tools,
            models,
            self.parts.limits or limits_of(self.loaded.system.execution),
            self.given.middleware,
            self.given.on_step,
            self.given.on_tool_call,
        ).root()
        host = Host(
            system_name=self.loaded.system.system.name,
            scope=self.scope,
            journal=self.journal,
            approver=self.parts.approver,
            store=self._store(),
            configuration=self.loaded.data,
        )
        self.stack.push_async_callback(_quietly, "ending the sessions", lambda: host.sessions.end_all("closed"))
        self._warn_of_matchers(tools)
        return Built(self.loaded, root, host, self.registry, tools, clients, self.space, self.stack, self.warnings)

    async def _open_journal(self) -> None:
        if self.parts.records is None:
            return
        from agent_engine.records.journal import open_journal

        self.journal = open_journal(self.parts.records)
        if self.journal is not None:
            self.stack.push_async_callback(_quietly, "closing the records", self.journal.stop)
            await self.journal.start()

    def _store(self) -> Any:
        """A store that was handed over stays its owner's to close; one that is opened here is closed here."""
        store = self.parts.store
        if not isinstance(store, (str, os.PathLike)):
            return store
        from agent_engine.memory.sqlite import SqliteStore

        opened = SqliteStore(os.fspath(store).removeprefix("sqlite:"))
        self.stack.push_async_callback(_quietly, "closing the store", opened.close)
        return opened

    async def _config(self) -> None:
        """on_config: what it changes is checked as the file was."""
        plan = self.scope.plan(HookEvent.ON_CONFIG)
        if plan is None:
            return
        from agent_engine.hooks.payloads import OnConfigInput, private_copy
        from agent_engine.spec.load import reload_data

        payload = OnConfigInput(path=str(self.loaded.path), config=private_copy(self.loaded.data))
        verdict = await plan.dispatch(payload, self._site())
        self._refused(HookEvent.ON_CONFIG, verdict)
        if verdict.payload.config != self.loaded.data:
            self.loaded = reload_data(self.loaded, verdict.payload.config)

    async def _plugins(self) -> None:
        """Load the code of the hooks, register them in file order, and tell about each plugin."""
        from agent_engine.plugins.loader import PluginSpace
        from agent_engine.plugins.manifest import read_manifest
        from agent_engine.spec.hooks import PluginInstances, register_hooks

        system = self.loaded.system
        self.space = PluginSpace(self.loaded.folder, system.plugins.import_roots)
        self.stack.callback(self.space.close)
        self.manifest = read_manifest(self.loaded.folder)
        instances = PluginInstances(self.space, self.manifest)
        register_hooks(
            self.registry,
            system,
            file=str(self.loaded.path),
            positions=self.loaded.positions,
            plugins=instances,
            space=self.space,
            folder=self.loaded.folder,
        )
        for name, plugin in instances.made.items():
            await self._loaded_plugin(name, plugin)

    async def _loaded_plugin(self, name: str, plugin: Any) -> None:
        from agent_engine.hooks.payloads import OnInitInput, OnShutdownInput

        facts: dict[str, Any] = {
            "plugin_name": name,
            "plugin_version": str(getattr(plugin, "version", "")),
            "plugin_description": str(getattr(plugin, "description", "")),
        }
        self.stack.push_async_callback(
            _quietly, f"on_shutdown of '{name}'", lambda: self._fire(HookEvent.ON_SHUTDOWN, OnShutdownInput(**facts))
        )
        await self._fire(HookEvent.ON_INIT, OnInitInput(**facts))

    def _code(self) -> tuple[ToolBook, Prompts]:
        """Tools and prompts: what can be missing is found before anything is started."""
        from agent_engine.runtime.graph import ToolBook
        from agent_engine.runtime.prompts import Prompts

        tools = ToolBook(self.loaded.system, self.space, self.manifest)
        tools.load()
        return tools, Prompts(self.loaded.system, self.loaded.folder, self.space, self.manifest)

    def _models(self, models: ModelBook) -> None:
        """Models come after on_engine_start: a hook there may bring their keys, or say better what is missing."""
        from agent_engine.models.base import close_model

        try:
            for node_id in (*self.loaded.system.orchestrators, *self.loaded.system.agents):
                models.models(self.loaded.system.model_of(node_id))
        finally:
            for model in models.made:
                if model is not models.override:  # the caller's own is the caller's to close
                    self.stack.push_async_callback(_quietly, "closing a model", partial(close_model, model))

    async def _setup(self, providers: list[str]) -> None:
        """setup and on_engine_start; its metadata names the providers, so that a hook can look for their keys."""
        from agent_engine.hooks.managed import EngineContext
        from agent_engine.hooks.payloads import SetupInput

        await self._fire(HookEvent.SETUP, SetupInput(source="startup"))
        context = EngineContext(system_name=self.loaded.system.system.name, metadata={"providers": providers})
        verdict = await self._fire(HookEvent.ON_ENGINE_START, context)
        if verdict is not None:
            self._refused(HookEvent.ON_ENGINE_START, verdict)
        self.stack.push_async_callback(
            _quietly, "on_engine_stop", lambda: self._fire(HookEvent.ON_ENGINE_STOP, context)
        )

    async def _servers(self, tools: ToolBook) -> McpClients | None:
        specs = self.loaded.system.mcps
        if not specs:
            return None
        from agent_engine.mcp.client import McpClients
        from agent_engine.mcp.server import McpServer

        servers = [self._server(McpServer, server_id, spec) for server_id, spec in specs.items()]
        clients = McpClients(servers, self.scope, journal=self.journal, taken_names=tuple(tools.local))
        await clients.__aenter__()
        self.stack.push_async_callback(_quietly, "closing the MCP servers", clients.aclose)
        tools.clients = clients
        tools.take(await clients.discover())
        return clients

    def _server(self, kind: Any, server_id: str, spec: Any) -> Any:
        """A relative ``cwd`` starts from the folder of the file, which is also where a process without one runs."""
        if spec.command is not None:
            folder = self.loaded.folder.resolve()
            spec = spec.model_copy(update={"cwd": str(folder / spec.cwd) if spec.cwd else str(folder)})
        try:
            return kind.from_spec(server_id, spec)
        except ValueError as exc:
            from agent_engine.plugins.problems import Problem, SpecError

            line, column = self.loaded.positions.of_key(("mcps", server_id))
            raise SpecError([Problem(str(self.loaded.path), line, column, f"mcps.{server_id}", str(exc))]) from exc

    def _warn_of_matchers(self, tools: ToolBook) -> None:
        for text in unmatched(self.loaded, self.scope, tools):
            self.warnings.append(text)
            logger.warning("%s", text)

    async def _fire(self, event: HookEvent, payload: Any) -> Verdict | None:
        plan = self.scope.plan(event)
        return await plan.dispatch(payload, self._site()) if plan is not None else None

    def _site(self) -> Site:
        from agent_engine.hooks.site import Site

        journal = self.journal
        if journal is None:
            return Site()
        from agent_engine.records.journal import HookRan

        def sink(site: Where, run: HookRun) -> None:
            journal.write(HookRan(None, site.step_id, site.agent, run))

        return Site(sink=sink, wants_payloads=journal.wants_payloads)

    def _refused(self, event: HookEvent, verdict: Verdict) -> None:
        if verdict.denied or verdict.asked:
            from agent_engine.hooks.errors import RunBlocked

            raise RunBlocked(event, verdict.hook, verdict.public_reason)


def unmatched(loaded: Loaded, scope: HookScope, tools: ToolBook) -> Iterator[str]:
    """A sentence for each hook whose matcher matches no tool, or no server, of a built engine."""
    from agent_engine.hooks.events import CATALOGUE

    system = loaded.system
    every = {server for server, spec in system.mcps.items() if spec.discover == "build"} == set(system.mcps)
    known = every and all(server in tools.discovered for server in system.mcps)
    names: list[tuple[str, ...]] = [(name,) for name in (*system.tools, *system.agents, *system.orchestrators)]
    names.extend((tool.name, *tool.aliases) for listed in tools.discovered.values() for tool in listed)
    for hook in scope.hooks():
        target = CATALOGUE[HookEvent(hook.event)].target
        if hook.matcher is None or target not in ("tool_name", "server_id"):
            continue
        if target == "tool_name" and (not known or any(hook.matches(name) for name in names)):
            continue
        if target == "server_id" and any(hook.matches(server) for server in system.mcps):
            continue
        what = "tool" if target == "tool_name" else "MCP server"
        place = f"Hook '{hook.name}' on {hook.event} ({hook.source})"
        yield f"{place}: the matcher {hook.matcher!r} matches no {what} of this engine"


async def _quietly(what: str, step: Callable[[], Awaitable[Any]]) -> None:
    """Run one step of taking down; its failure is logged and the next step runs."""
    try:
        await step()
    except Exception as exc:  # noqa: BLE001  the steps after it have to run
        logger.error("%s failed: %s", what, type(exc).__name__)
