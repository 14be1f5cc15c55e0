"""``agentctl validate``: everything that can be wrong with a system, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from agent_engine.cli.main import PROBLEM, show_problems
from agent_engine.cli.options import EnvFile


def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="The agents.yaml to check.")],
    env: EnvFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the problems as JSON on stdout.")] = False,
) -> None:
    """Check a system without running it, and list every problem with its line.

    The file itself, the prompts, the plugins behind it (hooks are imported), and stubs that still wait for their code.
    Nothing is sent anywhere. Exit code 1 where there is an error; warnings alone are fine.
    """
    from agent_engine.spec.check import check_project

    problems = check_project(file)
    errors = [problem for problem in problems if problem.severity == "error"]
    if as_json:
        typer.echo(json.dumps([problem.to_dict() for problem in problems], indent=2, ensure_ascii=False))
    else:
        show_problems(problems)
        typer.echo(f"{file}: {_count(len(errors), len(problems) - len(errors))}", err=bool(errors))
    if errors:
        raise typer.Exit(PROBLEM)


def _count(errors: int, warnings: int) -> str:
    parts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return ", ".join(parts) if parts else "no problem found"
