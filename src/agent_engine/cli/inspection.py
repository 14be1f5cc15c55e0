"""What a declared system is, as data: its graph, models, tools, servers and hooks in the order they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.spec.load import Loaded
    from agent_engine.spec.system import McpSpec, ModelSpec, System


def inspect_system(file: Path) -> dict[str, Any]:
    """Everything that ``agentctl inspect`` shows, JSON-ready.

    Hooks and tools are imported, as for a run: a hook that a plugin registers from Python is listed as well.
    Raises SpecError or HookLoadError where the system cannot be used.
    """
    from agent_engine.spec.load import load_system

    loaded = load_system(file)
    system = loaded.system
    return {
        "file": str(file),
        "system": {"name": system.system.name, "description": system.system.description},
        "graph": system.graph,
        "nodes": {node_id: _node(system, node_id) for node_id in [*system.orchestrators, *system.agents]},
        "tools": {
            name: {"description": tool.description, "approval": tool.approval} for name, tool in system.tools.items()
        },
        "servers": {name: _server(server) for name, server in system.mcps.items()},
        "hooks": hooks_of(loaded),
        "warnings": [str(problem) for problem in loaded.warnings],
    }


def hooks_of(loaded: Loaded) -> list[dict[str, Any]]:
    """The hooks of a system in the order they run, event by event, each with where it was declared."""
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.scope import HookScope
    from agent_engine.plugins.loader import PluginSpace
    from agent_engine.plugins.manifest import read_manifest

    registry = HookRegistry.from_yaml(loaded.path)
    space = PluginSpace(loaded.folder, loaded.system.plugins.import_roots)
    try:
        for tool in read_manifest(loaded.folder).tools.values():
            space.load(tool.ref)
        return [_hook(hook, loaded.folder) for hook in HookScope(registry).hooks()]
    finally:
        space.close()


def _hook(hook: HookDefinition, folder: Path) -> dict[str, Any]:
    where, _, line = hook.source.rpartition(":")
    path = Path(where).resolve() if where else folder
    inside = where and path.is_relative_to(folder.resolve())
    source = f"{path.relative_to(folder.resolve())}:{line}" if inside else hook.source
    return {
        "event": str(hook.event),
        "name": hook.name,
        "type": hook.kind,
        "priority": hook.priority,
        "sequential": hook.runs_sequentially,
        "failure_policy": hook.failure_policy,
        "matcher": hook.matcher,
        "agents": list(hook.agents) if hook.agents else None,
        "servers": list(hook.servers) if hook.servers else None,
        "observe": hook.observe,
        "shadow": hook.shadow,
        "timeout": hook.timeout,
        "source": source,
    }


def _node(system: System, node_id: str) -> dict[str, Any]:
    node = system.node(node_id)
    found: dict[str, Any] = {
        "kind": "orchestrator" if node_id in system.orchestrators else "agent",
        "description": node.description,
        "model": model_text(system.model_of(node_id)),
        "protected": node.protected,
    }
    for name in ("tools", "mcps", "auto"):
        if hasattr(node, name):
            found[name] = getattr(node, name)
    return found


def model_text(model: ModelSpec | None) -> str:
    """A model and its fallbacks in one line."""
    if model is None:
        return "AGENT_ENGINE_MODEL, else offline"
    chain = [model, *model.fallback]
    return ", then ".join(f"{one.provider}:{one.name}" if one.name else str(one.provider) for one in chain)


def _server(server: McpSpec) -> dict[str, Any]:
    where = _bare(server.url) if server.url else " ".join([server.command or "", *server.args]).strip()
    return {
        "transport": "streamable HTTP" if server.url else "stdio",
        "where": where,
        "tool_tags": server.tool_tags,
        "required": server.required,
        "discover": server.discover,
    }


def _bare(url: str) -> str:
    """An address without its query, which may hold a key."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
