"""References: every id that a block names is declared where such ids are declared."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Any

from agent_engine.spec.checks.context import Check, words
from agent_engine.spec.compose import DocPath

_HOMES = {"tools": "a tool", "mcps": "an MCP server", "resolvers": "a resolver", "agents": "an agent or orchestrator"}


def run(check: Check, *, files: bool) -> None:
    used: dict[str, set[str]] = {"tools": set(), "mcps": set(), "resolvers": set()}
    for section, name, block in check.blocks("orchestrators", "agents"):
        for kind in ("tools", "mcps", "resolvers"):
            if kind != "resolvers" and section == "orchestrators":
                continue
            names = _named(check, kind, block.get(kind), (section, name, kind))
            if name in check.reachable:
                used[kind] |= names
    for _, name, block in check.blocks("resolvers"):
        _named(check, "agents", block.get("agents"), ("resolvers", name, "agents"))
    for name, block in check.section("resolvers").items():
        if isinstance(block, list):
            _named(check, "agents", block, ("resolvers", name))
    for event, index, entry in check.hook_entries():
        path: DocPath = ("hooks", event, index)
        _named(check, "agents", entry.get("agents"), (*path, "agents"))
        _named(check, "mcps", entry.get("servers"), (*path, "servers"))
    for kind in ("tools", "mcps") if check.graph_stands else ():
        for name in check.section(kind):
            if name not in used[kind]:
                what = f"no agent of the graph uses '{name}'"
                check.note((kind, name), what, key=True, severity="warning")
    _roots(check, files=files)


def _named(check: Check, kind: str, value: Any, path: DocPath) -> set[str]:
    declared = dict.fromkeys(check.node_ids() if kind == "agents" else check.section(kind))
    seen: set[str] = set()
    for index, name in words(value):
        place = path if index is None else (*path, index)
        if name in seen:
            check.note(place, f"'{name}' is listed twice; keep one")
        elif name not in declared:
            check.note(place, f"{_HOMES[kind]} '{name}' is not declared{_elsewhere(check, kind, name, declared)}")
        seen.add(name)
    return seen


def _elsewhere(check: Check, kind: str, name: str, declared: Collection[str]) -> str:
    for other in ("tools", "mcps", "resolvers"):
        if other != kind and name in check.section(other):
            return f"; '{name}' is {_HOMES[other]}: list it under {other}"
    if kind != "agents" and name in check.node_ids():
        return f"; '{name}' is a node: say in graph who stands under whom"
    if not declared:
        return f"; declare it under {'agents or orchestrators' if kind == 'agents' else kind} at the top level"
    return check.meant(name, declared)


def _roots(check: Check, *, files: bool) -> None:
    block = check.section("plugins").get("import_roots")
    for index, root in words(block) if isinstance(block, list) else ():
        path = ("plugins", "import_roots", index or 0)
        if PurePosixPath(root).is_absolute():
            check.note(path, "must be relative to the folder of the file")
        elif files and not (check.folder / root).is_dir():
            check.note(path, f"there is no folder '{root}' beside the file")
