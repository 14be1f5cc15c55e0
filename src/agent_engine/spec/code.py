"""Where the Python of each id is looked for: the manifest's word first, then the place that ``generate`` uses."""

from __future__ import annotations

from collections.abc import Iterator

from agent_engine.plugins.loader import PluginSpace
from agent_engine.plugins.manifest import Manifest
from agent_engine.spec.system import python_name


def tool_ref(manifest: Manifest, tool: str) -> str:
    """The import path of a tool's function."""
    entry = manifest.tools.get(tool)
    name = python_name(tool)
    return entry.ref if entry is not None else f"plugins.tools.{name}:{name}"


def resolver_places(manifest: Manifest, space: PluginSpace, name: str, node_id: str) -> Iterator[tuple[str, str]]:
    """(class, method) where the value ``name`` of a node may come from, nearest first."""
    method = python_name(name)
    for key, default in (
        (node_id, f"plugins.resolvers.{python_name(node_id)}:Resolver"),
        ("shared", "plugins.resolvers.shared:SharedResolver"),
    ):
        entry = manifest.resolvers.get(key)
        if entry is not None:
            yield entry.ref, method
        elif space.find_file(default.partition(":")[0]) is not None:
            yield default, method
    if name in manifest.resolvers and name not in (node_id, "shared"):
        yield manifest.resolvers[name].ref, method
