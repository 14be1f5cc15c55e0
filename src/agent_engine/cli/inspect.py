"""``agentctl inspect``: a system as the engine sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_engine.cli.options import EnvFile

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree


def inspect(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", readable=False, help="The agents.yaml to look at.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    ui: Annotated[bool, typer.Option("--ui", help="Serve pages that show the recorded runs of the system.")] = False,
    store: Annotated[
        str | None, typer.Option("--store", metavar="ADDRESS", help="With --ui: the records to show, by their address.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="With --ui: the port; 0 takes a free one.")
    ] = 8090,
    env: EnvFile = None,
) -> None:
    """Show a system: its graph, models, tools, servers, and its hooks in the order they run.

    Each hook comes with where it was declared. Nothing is sent anywhere; plugins are imported, as for a run.
    """
    if ui:
        from agent_engine.cli.serve import serve_ui

        serve_ui(store, file, port=port)
        return
    if file is None:
        raise typer.BadParameter("the file to look at is missing.", param_hint="FILE")
    from agent_engine.cli.inspection import inspect_system

    found = inspect_system(file)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    about = found["system"]
    console.print(Text.assemble((about["name"], "bold"), f"  {about['description']}" if about["description"] else ""))
    console.print()
    console.print(_graph(found))
    for title, rows in (("Tools", _tools(found)), ("Servers", _servers(found)), ("Hooks", _hooks(found))):
        if rows:
            console.print()
            console.print(_table(title, rows))
    for warning in found["warnings"]:
        console.print(Text(warning, "yellow"))


def _graph(found: dict[str, Any]) -> Tree:
    from rich.tree import Tree as RichTree

    def grow(tree: Tree, children: dict[str, Any]) -> None:
        for name, below in children.items():
            grow(tree.add(_label(name, found["nodes"][name])), below)

    (root, children) = next(iter(found["graph"].items()))
    tree = RichTree(_label(root, found["nodes"][root]), guide_style="dim")
    grow(tree, children)
    return tree


def _label(name: str, node: dict[str, Any]) -> Any:
    from rich.text import Text

    uses = ", ".join([*node.get("tools", ()), *(f"mcp {one}" for one in node.get("mcps", ()))])
    marks = [node["kind"], node["model"]]
    marks += ["protected"] if node["protected"] else []
    marks += ["asks before every call"] if node.get("auto") is False else []
    return Text.assemble((name, "bold"), (f"  {' · '.join(marks)}", "dim"), f"  {uses}" if uses else "")


def _tools(found: dict[str, Any]) -> list[list[str]]:
    return [
        [name, tool["description"], "needs approval" if tool["approval"] else ""]
        for name, tool in found["tools"].items()
    ]


def _servers(found: dict[str, Any]) -> list[list[str]]:
    return [
        [name, server["transport"], server["where"], "" if server["required"] else "may be absent"]
        for name, server in found["servers"].items()
    ]


def _hooks(found: dict[str, Any]) -> list[list[str]]:
    rows = []
    for hook in found["hooks"]:
        notes = [hook["failure_policy"], "in order" if hook["sequential"] else "parallel"]
        notes += [f"matches {hook['matcher']}"] if hook["matcher"] else []
        notes += [f"agents {', '.join(hook['agents'])}"] if hook["agents"] else []
        notes += [f"servers {', '.join(hook['servers'])}"] if hook["servers"] else []
        notes += [word for word in ("observe", "shadow") if hook[word]]
        notes += [f"priority {hook['priority']}"] if hook["priority"] != 100 else []
        rows.append([hook["event"], hook["name"], ", ".join(notes), hook["source"]])
    return rows


def _table(title: str, rows: list[list[str]]) -> Table:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(title=Text(title, "bold"), title_justify="left", show_header=False, box=None, pad_edge=False)
    for _ in rows[0]:
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, "bold" if number == 0 else "") for number, cell in enumerate(row)))
    return table
