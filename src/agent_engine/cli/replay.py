"""``agentctl replay``: recorded payloads of past runs against a changed set of hooks."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_engine.cli.main import PROBLEM, USAGE
from agent_engine.cli.options import EnvFile
from agent_engine.cli.plaintext import plain
from agent_engine.cli.records_view import print_lines

if TYPE_CHECKING:
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.scope import HookScope
    from agent_engine.records.past_calls import ReplayFilter
    from agent_engine.records.query import RecordReader
    from agent_engine.records.replay import Comparison, Replay

app = typer.Typer(add_completion=False)


@app.command()
def replay(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", readable=False, help="Take the hooks of this agents.yaml.", show_default=False),
    ] = None,
    imports: Annotated[
        list[str] | None, typer.Option("--import", metavar="MODULE", help="Import this first; it registers hooks.")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="ADDRESS", help="The store with the recorded payloads.")
    ] = None,
    event: Annotated[str | None, typer.Option("--event", help="Only payloads of this event.")] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="Only payloads of this run; the beginning of its id is enough."),
    ] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Only calls of this tool.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="AGE", help="Not older, such as 7d.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, max=10**9, help="At most so many.")] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Examples for each kind of difference.")] = 3,
    with_commands: Annotated[
        bool, typer.Option("--with-commands", help="Also run command hooks and webhooks, with all that they do.")
    ] = False,
    fail: Annotated[bool, typer.Option("--fail", help="Exit 1 where any decision would differ.")] = False,
    env: EnvFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Run recorded payloads through a changed set of hooks and show which decisions would differ.

    Payloads are there where they were captured: record with `sqlite:FILE?capture=before_tool`. Hooks run for real;
    no tool, model or server is called.
    """
    from agent_engine.hooks.events import event_of
    from agent_engine.records.past_calls import ReplayFilter
    from agent_engine.records.query import RecordReader
    from agent_engine.records.settings import RecordsError, default_store, seconds

    if config is None and not imports:
        typer.echo("Say which hooks: --config FILE, or --import MODULE.", err=True)
        raise typer.Exit(USAGE)
    try:
        wanted = ReplayFilter(
            event=str(event_of(event)) if event is not None else None,
            run_id=run,
            tool=tool,
            since=time.time() - seconds(since) if since is not None else None,
            limit=limit,
        )
        reader = RecordReader.open(store or default_store(config))
        wanted = replace(wanted, run_id=reader.run_id_of(run)) if run is not None else wanted
    except RecordsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(PROBLEM) from None
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from None
    with reader:
        scope, left_out = _scope(config, imports or [], with_commands)
        if left_out:
            typer.echo(f"Left out (say --with-commands to run them): {plain(', '.join(left_out))}.", err=True)
        result = asyncio.run(_run(reader, scope, wanted, examples))
    if as_json:
        print_lines([_as_dict(result)])
    else:
        _show(result)
    if fail and result.differ:
        raise typer.Exit(PROBLEM)


async def _run(reader: RecordReader, scope: HookScope, wanted: ReplayFilter, examples: int) -> Comparison:
    from agent_engine.records.replay import Replay

    one = Replay(reader, scope, wanted, examples=examples)
    if not sys.stderr.isatty():
        return await one.run()
    return await _with_bar(one)


async def _with_bar(one: Replay) -> Comparison:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=one.total())
        return await one.run(lambda done: bar.update(task, completed=done))


def _scope(config: Path | None, imports: list[str], with_commands: bool) -> tuple[HookScope, list[str]]:
    """The hooks to run, and the names of those that are left out because they reach beyond this process."""
    from agent_engine.hooks.registry import HookRegistry, get_default_registry
    from agent_engine.hooks.scope import HookScope

    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in imports:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            typer.echo(f"The module {error.name!r} cannot be found from {Path.cwd()}.", err=True)
            raise typer.Exit(PROBLEM) from None
    registries: list[HookRegistry] = [HookRegistry.from_yaml(config)] if config is not None else []
    scope = HookScope(*registries)
    if with_commands:
        return scope, []
    left_out = []
    for registry in (get_default_registry(), *registries):
        for rows in registry.list_hooks().values():
            for row in rows:
                if row["type"] in ("command", "webhook") and row["enabled"]:
                    registry.disable_hook(row["id"])
                    left_out.append(row["name"])
    return scope, left_out


def _show(result: Comparison) -> None:
    rate = f" ({result.calls / result.seconds:,.0f} a second)" if result.calls >= 1000 else ""
    typer.echo(f"{result.calls:,} calls{rate}: {result.same:,} decided as before, {result.differ:,} otherwise.")
    if result.unreadable:
        typer.echo(f"{result.unreadable:,} payloads could not be rebuilt (redacted into another shape).")
    if not result.calls:
        typer.echo("Nothing was captured to replay; record with ?capture=before_tool after the store's address.")
    for (event, hook, old, new), count in result.by_hook.most_common():
        typer.echo(f"  hook {plain(hook)} at {event}: {old} → {new}  {count:,}")
    for key, count in result.by_target.most_common():
        event, target, old, new = key
        typer.echo(f"\n{event} {plain(target)}: {old} → {new}  {count:,}")
        for one in result.examples.get(key, []):
            where = f"run {one.run_id}" + (f", record {one.record_id}" if one.record_id else "")
            shown = one.body.get("tool_input", one.body) if isinstance(one.body, dict) else one.body
            text = json.dumps(shown, ensure_ascii=False)
            typer.echo(f"  {plain(where)}: {plain(text if len(text) <= 160 else text[:159] + '…')}")
            if one.old_reason:
                typer.echo(f"    then: {plain(one.old_reason)}")
            if one.new_reason:
                typer.echo(f"    now: {plain(one.new_reason)}" + (f" ({plain(one.hook)})" if one.hook else ""))


def _as_dict(result: Comparison) -> dict[str, object]:
    return {
        "calls": result.calls,
        "same": result.same,
        "differ": result.differ,
        "unreadable": result.unreadable,
        "seconds": round(result.seconds, 3),
        "by_hook": [
            {"event": event, "hook": hook, "old": old, "new": new, "count": count}
            for (event, hook, old, new), count in result.by_hook.most_common()
        ],
        "by_target": [
            {
                "event": key[0], "target": key[1], "old": key[2], "new": key[3], "count": count,
                "examples": [
                    {"run_id": one.run_id, "record_id": one.record_id, "old_reason": one.old_reason,
                     "new_reason": one.new_reason, "hook": one.hook, "payload": one.body}
                    for one in result.examples.get(key, [])
                ],
            }
            for key, count in result.by_target.most_common()
        ],
    }  # fmt: skip
