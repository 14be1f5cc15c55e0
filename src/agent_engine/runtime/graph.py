"""From the declared graph to the nodes of a run: one Node for each place in the graph, leaves first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_engine.runtime.limits import Limits
from agent_engine.runtime.node import Node

if TYPE_CHECKING:
    from pathlib import Path

    from agent_engine.hooks.middleware import MiddlewareChain
    from agent_engine.mcp.client import McpClients
    from agent_engine.models.base import Model, ModelSettings
    from agent_engine.plugins.loader import PluginSpace
    from agent_engine.plugins.manifest import Manifest
    from agent_engine.runtime.prompts import Prompts
    from agent_engine.runtime.state import RunState
    from agent_engine.spec.system import AgentSpec, Execution, ModelSpec, System
    from agent_engine.tools.base import Tool

Models = tuple[tuple["Model", "ModelSettings"], ...]


def limits_of(execution: Execution) -> Limits:
    """The limits that ``execution`` declares, for the request and for each turn in it."""
    return Limits(
        model_calls=execution.max_iterations,
        tool_calls=execution.max_tool_calls,
        tool_calls_per_agent=execution.max_tool_calls_per_agent,
        child_calls=execution.max_child_agent_calls,
        timeout_s=execution.timeout_s,
        max_tokens=execution.max_tokens,
        allow_duplicate_tool_calls=execution.allow_duplicate_tool_calls,
    )


@dataclass(slots=True)
class ModelBook:
    """The models of a system. Nodes that declare the same model share one; ``override`` takes the place of all."""

    folder: Path
    environ: Mapping[str, str]
    override: Any = None
    _made: dict[tuple[Any, ...], Model] = field(default_factory=dict)

    def models(self, spec: ModelSpec | None) -> Models:
        """The model of a node with its settings, then its fallbacks."""
        from agent_engine.models.base import ModelSettings

        if self.override is not None or spec is None:
            settings = ModelSettings() if spec is None else _settings(spec)
            return ((self._model(("override",), self.override), settings),)
        first = (self._model(_key(spec), spec), _settings(spec))
        return (first, *((self._model(_key(one), one), _settings(one)) for one in spec.fallback))

    def providers(self, system: System) -> list[str]:
        """The providers that the system's models come from, without making a model."""
        if self.override is not None and not isinstance(self.override, str):
            return [str(getattr(self.override, "provider", "") or type(self.override).__name__)]
        specs = [system.model_of(node_id) for node_id in (*system.orchestrators, *system.agents)]
        if self.override is not None or None in specs:
            chosen = self.override or self.environ.get("AGENT_ENGINE_MODEL") or "offline"
            found = {"google" if (name := chosen.partition(":")[0]) == "gemini" else name}
            specs = [] if self.override is not None else specs
        else:
            found = set()
        for spec in specs:
            if spec is not None:
                found |= {one.canonical_provider for one in (spec, *spec.fallback)}
        return sorted(found)

    def _model(self, key: tuple[Any, ...], value: Any) -> Model:
        from agent_engine.models.resolve import model_from

        if key not in self._made:
            self._made[key] = model_from(value, self.environ, base=self.folder)
        return self._made[key]

    @property
    def made(self) -> list[Model]:
        return list(self._made.values())


def _key(spec: Any) -> tuple[Any, ...]:
    return (spec.provider, spec.name, spec.region, spec.base_url)


def _settings(spec: Any) -> ModelSettings:
    from agent_engine.models.base import ModelSettings

    return ModelSettings(temperature=spec.temperature, max_tokens=spec.max_tokens, top_p=spec.top_p)


@dataclass(slots=True)
class ToolBook:
    """The local tools of a system by id, and the tools of its servers."""

    system: System
    space: PluginSpace
    manifest: Manifest
    clients: McpClients | None = None
    local: dict[str, Tool] = field(default_factory=dict)
    discovered: dict[str, list[Tool]] = field(default_factory=dict)

    def load(self) -> None:
        """Import every declared tool. Raises SpecError with each that cannot be had."""
        from agent_engine.plugins.loader import LoadError
        from agent_engine.plugins.problems import Problem, SpecError
        from agent_engine.spec.code import tool_ref

        problems: list[Problem] = []
        for tool_id in self.system.tools:
            try:
                self.local[tool_id] = self._tool(tool_id, self.space.load(tool_ref(self.manifest, tool_id)))
            except (LoadError, TypeError, ValueError) as exc:
                entry = self.manifest.tools.get(tool_id)
                file, line, column = (
                    (self.space.folder, 0, 0) if entry is None else (self.manifest.path, entry.line, entry.column)
                )
                problems.append(Problem(str(file), line, column, f"tools.{tool_id}", str(exc)))
        if problems:
            raise SpecError(problems)

    def _tool(self, tool_id: str, function: Any) -> Tool:
        from agent_engine.tools.base import Tool
        from agent_engine.tools.function import FunctionTool, tool_of

        spec = self.system.tools[tool_id]
        if isinstance(function, Tool):
            raise TypeError(f"the tool '{tool_id}' must be a function, not a {type(function).__name__}")
        own = tool_of(function)
        return FunctionTool(
            function,
            name=tool_id,
            description=spec.description,
            approval=spec.approval is not None or own.approval,
            retries=own.retries,
        )

    def take(self, tools: Sequence[Tool]) -> None:
        """Tools that were listed at build, by server."""
        self.discovered = {}
        for tool in tools:
            self.discovered.setdefault(str(tool.server_id), []).append(tool)

    def of(self, node_id: str, agent: AgentSpec) -> Sequence[Tool] | Callable[[RunState], Awaitable[Sequence[Tool]]]:
        """The tools of an agent; a function of the run where a server is listed for each caller, or may change."""
        local = [self.local[tool_id] for tool_id in agent.tools]
        clients = self.clients
        if not agent.mcps or clients is None:
            return local

        async def tools(run: RunState) -> Sequence[Tool]:
            from agent_engine.mcp.caller import Caller

            caller = Caller(run.run_context, run.scope, node_id, run.journal, None, run.sink, run.strict)
            found = list(local)
            for server in agent.mcps:
                found.extend(await clients.tools_for(caller, server))
            return found

        return tools


@dataclass(slots=True)
class GraphBuilder:
    """Builds the root Node, and with it all below."""

    system: System
    prompts: Prompts
    tools: ToolBook
    models: ModelBook
    limits: Limits
    middleware: MiddlewareChain | None = None
    on_step: Callable[[Any], Any] | None = None
    on_tool_call: Callable[[Any], Any] | None = None
    _made: dict[tuple[str, str], Node] = field(default_factory=dict)

    def root(self) -> Node:
        (name, children), *_ = self.system.graph.items()
        return self._node(name, children)

    def _node(self, node_id: str, children: Mapping[str, Any]) -> Node:
        """The node of one place in the graph; places with the same id and the same tree below share one."""
        key = (node_id, repr(children))
        if key not in self._made:
            below = tuple(self._node(child, tree) for child, tree in children.items())
            self._made[key] = self._build(node_id, below)
        return self._made[key]

    def _build(self, node_id: str, children: tuple[Node, ...]) -> Node:
        spec = self.system.node(node_id)
        agent = self.system.agents.get(node_id) if node_id not in self.system.orchestrators else None
        return Node(
            name=node_id,
            description=spec.description or spec.name or "",
            prompt=self.prompts.system_text(node_id),
            user_prompt=self.prompts.user_text(node_id),
            models=self.models.models(self.system.model_of(node_id)),
            tools=self.tools.of(node_id, agent) if agent is not None else (),
            children=children,
            visible=self.prompts.access(node_id) if spec.protected else None,
            middleware=self.middleware,
            on_step=self.on_step,
            on_tool_call=self.on_tool_call,
            needs_approval=agent is not None and not agent.auto,
            limits=self.limits,
        )
