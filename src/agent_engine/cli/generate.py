"""``agentctl generate``: the stubs, manifest entries and prompts that a system still lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from agent_engine.cli.options import EnvFile


def generate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", readable=False, help="The agents.yaml to write the missing parts of.")
    ],
    mode: Annotated[
        Literal["all", "children", "child"],
        typer.Option(help="Everything; everything below the root; or the one node that --agent names."),
    ] = "all",
    agent: Annotated[str | None, typer.Option(help="The node to generate for, with --mode child.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write generated files anew, hand-written text included.")
    ] = False,
    env: EnvFile = None,
) -> None:
    """Write what is missing, and keep what is there.

    Tools, resolvers, hooks, access checks and prompts get a stub each; plugins.toml gets their entries; a class that
    exists gets the methods it lacks. A second run changes nothing.
    """
    from agent_engine.spec.generate import generate as write_missing

    if (mode == "child") != (agent is not None):
        raise typer.BadParameter("--mode child and --agent ID go together.", param_hint="--agent")
    try:
        changes = write_missing(file, mode=mode, agent=agent, force=force)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    for change in changes:
        typer.echo(str(change))
    if not changes:
        typer.echo("Nothing is missing.")
