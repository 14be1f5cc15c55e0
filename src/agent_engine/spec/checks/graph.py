"""The graph: one root, known nodes, agents as leaves, no node above itself."""

from __future__ import annotations

from typing import Any

from agent_engine.spec.checks.context import Check
from agent_engine.spec.compose import DocPath
from agent_engine.spec.system import is_id


def run(check: Check) -> None:
    graph = check.data.get("graph")
    nodes = check.node_ids()
    if not nodes and _is_map_or_absent(check, "agents") and _is_map_or_absent(check, "orchestrators"):
        key = next((name for name in ("agents", "orchestrators") if name in check.data), None)
        check.note(
            (key,) if key else (), "no node is declared; add one under agents or orchestrators", key=True, shape=True
        )
    if isinstance(graph, dict):
        if not graph:
            check.note(("graph",), "the graph is empty; name the root: `graph: {my_agent: }`", shape=True)
        for extra in list(graph)[1:]:
            what = f"a graph has one root; '{next(iter(graph))}' is the first, so place '{extra}' below it"
            check.note(("graph", extra), what, key=True, shape=True)
        for name, children in graph.items():
            _node(check, name, children, ("graph", name), ())
        check.graph_stands = not any(
            one.severity == "error" and one.path.partition(".")[0] == "graph" for one in check.problems
        )
    if check.graph_stands:
        _unreachable(check)


def _is_map_or_absent(check: Check, name: str) -> bool:
    return name not in check.data or isinstance(check.data[name], dict)


def _node(check: Check, name: str, children: Any, path: DocPath, above: tuple[str, ...]) -> None:
    agents, orchestrators = check.section("agents"), check.section("orchestrators")
    check.reachable.add(name)
    if not is_id(name):
        check.note(path, f"'{name}' is no id; use letters, digits, _ and -", key=True, shape=True)
    elif name not in agents and name not in orchestrators:
        check.note(path, f"no agent or orchestrator is called '{name}'{_meant(check, name)}", key=True)
    if name in above:
        way = " → ".join((*above[above.index(name) :], name))
        check.note(path, f"'{name}' stands below itself ({way}); a path may hold a node once", key=True)
        return
    if children is None or children == []:
        children = {}
    if not isinstance(children, dict):
        hint = ""
        if isinstance(children, list) and all(isinstance(item, str) for item in children):
            hint = f": write `{name}: {{{', '.join(f'{item}: ' for item in children)}}}`"
        elif isinstance(children, str):
            hint = f": write `{name}: {{{children}: }}`"
        check.note(path, f"the children of '{name}' are keys of a mapping{hint}", shape=True)
        return
    if children and name in agents and name not in orchestrators:
        what = f"'{name}' is an agent and has no children; declare it under orchestrators, or move {_list(children)}"
        check.note(path, what, key=True)
    if not children and name in orchestrators:
        what = f"the orchestrator '{name}' has nobody to route to here"
        check.note(path, what, key=True, severity="warning")
    for child, below in children.items():
        if name in orchestrators and child in agents and isinstance(agents[child], dict):
            _described(check, child)
        _node(check, child, below, (*path, child), (*above, name))


def _described(check: Check, name: str) -> None:
    block = check.section("agents")[name]
    path = ("agents", name)
    if "description" not in block:
        what = "'description' is missing; the orchestrator above it chooses by it"
        check.note(path, what, key=True)


def _meant(check: Check, name: str) -> str:
    if name in check.section("tools"):
        return "; it is a tool: list it under tools of an agent"
    if name in check.section("mcps"):
        return "; it is an MCP server: list it under mcps of an agent"
    return check.meant(name, check.node_ids())


def _unreachable(check: Check) -> None:
    for section in ("orchestrators", "agents"):
        for name in check.section(section):
            if name not in check.reachable:
                check.note(
                    (section, name),
                    f"'{name}' is not in the graph, so nothing reaches it",
                    key=True,
                    severity="warning",
                )


def _list(children: dict[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in list(children)[:5])
