"""``agentctl approvals``: runs that wait for a person, and going on with one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from agent_engine.cli.main import USAGE
from agent_engine.cli.options import EnvFile, ModelName, Records
from agent_engine.cli.plaintext import plain
from agent_engine.cli.waiting import Decision, Source, WaitingRun

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Runs that wait for an approval: list them, say yes or no."
)

ConfigOrNone = Annotated[
    Path | None, typer.Option("--config", "-c", readable=False, help="The agents.yaml whose waiting runs are meant.")
]
Url = Annotated[str | None, typer.Option("--url", help="The address of a running `agentctl serve`, instead of a file.")]
RunOrCall = Annotated[str, typer.Argument(metavar="ID", help="A run's id, for all it asks, or RUN:CALL for one call.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No account of how the run goes on.")]


@app.command("list")
def list_waiting(
    config: ConfigOrNone = None,
    url: Url = None,
    env: EnvFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List what waits for an answer, oldest first."""
    from agent_engine.cli.console import ask_of, describe_ask
    from agent_engine.cli.waiting import waiting_runs

    async def find() -> list[WaitingRun]:
        async with waiting_runs(Source(config, url)) as source:
            return await source.all()

    runs = asyncio.run(find())
    if as_json:
        typer.echo(json.dumps([run.to_dict() for run in runs], indent=2, ensure_ascii=False, default=str))
        return
    for run in runs:
        typer.echo(f"{plain(run.run_id)}  {_age(run.saved_at)}{'  (too old: a no)' if run.expired else ''}")
        for ask in run.asks:
            call = plain(f"{run.run_id}:{ask['call_id']}")
            typer.echo(f"  {call}  {describe_ask(ask_of(ask))}")
    if not runs:
        typer.echo("Nothing waits for an approval.")


@app.command()
def approve(
    id_: RunOrCall,
    config: ConfigOrNone = None,
    url: Url = None,
    session: Annotated[
        bool, typer.Option("--session", help="Also the same tool for the same agent until the session ends.")
    ] = False,
    env: EnvFile = None,
    model: ModelName = None,
    records: Records = None,
    quiet: Quiet = False,
) -> None:
    """Say yes, and go on with the run; its answer is printed."""
    _go_on(id_, "session" if session else "yes", Source(config, url, model, records, quiet))


@app.command()
def deny(
    id_: RunOrCall,
    config: ConfigOrNone = None,
    url: Url = None,
    env: EnvFile = None,
    model: ModelName = None,
    records: Records = None,
    quiet: Quiet = False,
) -> None:
    """Say no, and go on with the run: the model reads that the call was declined."""
    _go_on(id_, "no", Source(config, url, model, records, quiet))


def _go_on(wanted: str, decision: Decision, where: Source) -> NoReturn:
    if where.url is not None and where.model is not None:
        raise typer.BadParameter("the server at --url has its own model.", param_hint="--model")
    raise typer.Exit(asyncio.run(_decide(wanted, decision, where)))


async def _decide(wanted: str, decision: Decision, where: Source) -> int:
    from agent_engine.cli.waiting import waiting_runs

    async with waiting_runs(where) as source:
        run_id, _, call_id = wanted.partition(":")
        run = _pick(await source.all(), run_id)
        if run is None:
            print(f"No run whose id begins with '{run_id}' waits for an approval.", file=sys.stderr)
            return USAGE
        calls = [str(ask["call_id"]) for ask in run.asks]
        chosen = [call for call in calls if call.startswith(call_id)] if call_id else calls
        if not chosen:
            print(f"Run {run.run_id} does not wait for '{call_id}'; it waits for {', '.join(calls)}.", file=sys.stderr)
            return USAGE
        return await source.resume(run, dict.fromkeys(chosen, decision))


def _pick(runs: list[WaitingRun], beginning: str) -> WaitingRun | None:
    """The one run whose id is, or begins with, what was typed."""
    found = [run for run in runs if run.run_id == beginning] or [
        run for run in runs if beginning and run.run_id.startswith(beginning)
    ]
    if len(found) > 1:
        raise typer.BadParameter(f"{len(found)} waiting runs begin with '{beginning}'; give more of the id.")
    return found[0] if found else None


def _age(saved_at: float | None) -> str:
    if saved_at is None:
        return "waiting"
    minutes = max(0, int((time.time() - saved_at) / 60))
    return f"waiting {minutes} min" if minutes < 120 else f"waiting {minutes // 60} h"
