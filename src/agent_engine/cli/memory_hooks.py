"""``agentctl memory-hooks``: the commands of a workspace that HooksManager runs when it is asked to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_engine.cli.main import PROBLEM

if TYPE_CHECKING:
    from agent_engine.memory.hooks_manager import HooksManager

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A workspace's own hooks (.agent_engine/hooks.json). They run only when HooksManager.execute() is called.",
)

Workspace = Annotated[
    Path | None, typer.Option("--workspace", "-w", metavar="FOLDER", help="The workspace; else the current folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command("list")
def list_hooks(workspace: Workspace = None, as_json: AsJson = False) -> None:
    """List the hooks of the file, by event, in the order they run."""
    manager = _manager(workspace)
    found = manager.list_hooks()
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not manager.enabled:
        typer.echo("All hooks are switched off ('enabled': false).", err=True)
    if not found:
        if manager.config_path.is_file():
            typer.echo(f"No hooks: {manager.config_path} has none.", err=True)
        else:
            typer.echo(
                f"No hooks: there is no {manager.config_path}. `agentctl memory-hooks init` makes one.", err=True
            )
    for event, hooks in found.items():
        typer.echo(event)
        for hook in hooks:
            notes = [f"{hook['timeout']:g} s"]
            notes += ["blocks on failure"] if hook["block_on_failure"] else []
            notes += [] if hook["enabled"] else ["switched off"]
            typer.echo(f"  {hook['name']}  ({', '.join(notes)})")


@app.command()
def stats(workspace: Workspace = None, as_json: AsJson = False) -> None:
    """Show where the file is, whether it is on, and how many hooks each event has."""
    found = _manager(workspace).get_stats()
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    there = "" if found["config_exists"] else "  (there is no such file)"
    typer.echo(f"file     {found['config_path']}{there}")
    typer.echo(f"enabled  {'yes' if found['enabled'] else 'no'}")
    typer.echo(f"timeout  {found['timeout']:g} s")
    typer.echo(f"hooks    {found['total_hooks']}")
    for event, count in found["hooks"].items():
        typer.echo(f"  {event}  {count}")


@app.command()
def init(
    workspace: Workspace = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Make a file with an example in it."""
    from agent_engine.memory.hooks_manager import HooksManager

    folder = workspace or Path.cwd()
    try:
        path = HooksManager.write_example(folder, force=force)
    except OSError as error:
        if isinstance(error, FileExistsError) and error.errno is None:
            typer.echo(f"{error}; --force writes over it.", err=True)
            raise typer.Exit(PROBLEM) from None
        typer.echo(f"{error.filename or folder} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(PROBLEM) from None
    typer.echo(f"Wrote {path}")


def _manager(workspace: Path | None) -> HooksManager:
    from agent_engine.memory.hooks_manager import HooksConfigError, HooksManager

    try:
        return HooksManager(workspace)
    except HooksConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(PROBLEM) from None
