"""``agentctl records``: what hooks decided, read from a store."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_engine.cli.main import PROBLEM, USAGE
from agent_engine.cli.plaintext import plain, shortened
from agent_engine.cli.records_view import (
    COLUMNS,
    line_row,
    lines_of,
    print_fields,
    print_line,
    print_lines,
    print_run,
    print_table,
    run_dict,
    stats_dict,
    write_rows,
)

if TYPE_CHECKING:
    from agent_engine.records.query import RecordReader
    from agent_engine.records.views import Fold, RecordFilter

_STEPS = {"agent": "turn", "model": "model call", "tool": "tool call", "mcp": "MCP request"}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Decision records: which hook decided what, and what became of the step.",
)

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="sqlite:FILE, jsonl:FILE or postgresql://…; else AGENT_ENGINE_RECORDS, else .agent_engine/records.db.",
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", readable=False, help="Take the store beside this agents.yaml.")
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, one object a line.")]
RunId = Annotated[
    str | None, typer.Option("--run", metavar="ID", help="Of this run; the beginning of its id is enough.")
]
Event = Annotated[str | None, typer.Option("--event", help="At this event.")]
Hook = Annotated[str | None, typer.Option("--hook", metavar="NAME", help="Of this hook.")]
Tool = Annotated[str | None, typer.Option("--tool", metavar="NAME", help="At calls of this tool.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="In this agent.")]
Decision = Annotated[
    str | None, typer.Option("--decision", help="allow, modify, ask, deny, failed, or none (only observed).")
]
Since = Annotated[str | None, typer.Option("--since", metavar="AGE", help="Not older than this, such as 15m, 12h, 7d.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10**9, help="How many lines.")]
Each = Annotated[bool, typer.Option("--each", help="Every record on a line of its own, also those that are alike.")]


@app.command("list")
def list_records(
    store: Store = None,
    config: Config = None,
    run: RunId = None,
    event: Event = None,
    hook: Hook = None,
    tool: Tool = None,
    agent: Agent = None,
    decision: Decision = None,
    since: Since = None,
    limit: Limit = 50,
    each: Each = False,
    runs: Annotated[bool, typer.Option("--runs", help="List runs instead of decision records.")] = False,
    status: Annotated[
        str | None, typer.Option("--status", help="With --runs: open, completed, blocked, failed, waiting, …")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List decision records, the newest first.

    What a hook decides alike at one step again and again, as at the pieces of a stream, is one line with a count;
    with --each, and as JSON, every record is there.
    """
    _check_list(runs, status, run or event or hook)
    wanted = _wanted(run, event, hook, tool, agent, decision, since)
    with _reader(store, config) as reader:
        if runs:
            _list_runs(reader, wanted, status, limit, as_json)
            return
        lines, unread = _newest(reader, _of_run(reader, wanted), limit, each or as_json)
    if as_json:
        print_lines(line.first.to_dict() for line in lines)
    elif not lines:
        typer.echo("No records match.")
    else:
        print_table(COLUMNS, (line_row(line) for line in lines))
        if any(line.count > 1 for line in lines):
            typer.echo("× counts what one hook decided alike at one step; --each shows every record.", err=True)
        if unread:
            typer.echo("Older records were not looked at; --each goes further back.", err=True)


@app.command()
def show(
    id_: Annotated[str, typer.Argument(metavar="ID", help="A record's id or number, or a run's id or its beginning.")],
    store: Store = None,
    config: Config = None,
    each: Each = False,
    as_json: AsJson = False,
) -> None:
    """Show one decision record with everything it holds, or one run with its steps."""
    with _reader(store, config) as reader:
        record = reader.record(id_)
        if record is not None:
            shown = {**record.to_dict(), "payloads": reader.payloads_of(record.seq)}
            if as_json:
                print_lines([shown])
            else:
                print_fields(shown)
            return
        detail = reader.run(reader.run_id_of(id_))
    if detail is None:
        typer.echo(f"There is no record and no run {shortened(plain(id_), 200)!r} in this store.", err=True)
        raise typer.Exit(PROBLEM)
    if as_json:
        print_lines([run_dict(detail)])
    else:
        print_run(detail, each)


@app.command()
def tail(
    store: Store = None,
    config: Config = None,
    run: RunId = None,
    event: Event = None,
    hook: Hook = None,
    tool: Tool = None,
    agent: Agent = None,
    decision: Decision = None,
    limit: Limit = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Go on as records come.")] = True,
    each: Each = False,
    as_json: AsJson = False,
) -> None:
    """Show the last decision records and go on as new ones come, until Ctrl+C."""
    wanted = _wanted(run, event, hook, tool, agent, decision, None)
    address = _address(store, config)
    if address.startswith("jsonl:") and follow:
        typer.echo("A JSON lines file is followed with `tail -f`; say --no-follow to read it once.", err=True)
        raise typer.Exit(USAGE)
    with _reader(store, config) as reader:
        wanted = _of_run(reader, wanted)
        each, after = each or as_json, reader.last_seq()
        lines, _ = _newest(reader, wanted, limit, each, before=after + 1)
        lines.reverse()
        while True:
            for line in lines:
                if as_json:
                    print_lines([line.first.to_dict()])
                else:
                    print_line(line)
            if not follow:
                return
            time.sleep(0.2)
            found = reader.records(wanted, after=after, limit=1000)
            after, lines = found[-1].seq if found else after, lines_of(found, each)


@app.command()
def stats(store: Store = None, config: Config = None, since: Since = None, as_json: AsJson = False) -> None:
    """Count: runs, records, and for each hook its decisions, refusal rate and latency; then steps no gate saw."""
    from agent_engine.records.views import iso

    not_before = _since(since)
    with _reader(store, config) as reader:
        totals, hooks = reader.totals(), reader.hook_stats(not_before)
        covered, marks = reader.coverage(not_before), reader.marks()
    if as_json:
        print_lines([stats_dict(totals, hooks, covered)])
        return
    typer.echo(
        f"{totals.runs} runs ({totals.open_runs} open), {totals.records} records: "
        f"{totals.denied} denied, {totals.failed} failed"
        + (f"; {totals.lost} entries lost" if totals.lost else "")
        + (f"; from {iso(totals.first_at)} to {iso(totals.last_at)}" if totals.first_at and totals.last_at else "")
    )
    header = ("event", "hook", "runs", "denied", "rate", "modified", "asked", "failed", "p50 ms", "p95 ms", "p99 ms")
    print_table(
        header,
        (
            (
                one.event, one.hook_name + (" (shadow)" if one.shadow else ""), str(one.runs), str(one.refused),
                f"{one.refusal_rate:.1%}", str(one.decisions.get("modify", 0)), str(one.decisions.get("ask", 0)),
                str(one.failed), *(f"{one.percentile(share):.2f}" for share in (0.5, 0.95, 0.99)),
            )
            for one in hooks
        ),
    )  # fmt: skip
    ungated = [one for one in covered if one.ungated]
    for one in ungated:
        step = _STEPS.get(one.kind, plain(one.kind)) + ("" if one.count == 1 else "s")
        where = f", in {one.agent}" if one.agent and one.agent != one.name else ""
        typer.echo(f"No gate saw {one.count} {step} ({plain(one.name)}{plain(where)}).")
    for mark in marks:
        if mark.kind == "recovered":
            typer.echo(f"{iso(mark.at)}: the log had not been closed; runs open then: {len(mark.open_runs)}.")
        elif mark.kind == "lost":
            typer.echo(f"{iso(mark.at)}: {mark.count} entries were lost before entry {mark.seq}.")


@app.command()
def verify(
    store: Store = None,
    config: Config = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="HEAD", help="A head printed earlier; shows whether the tail was cut."),
    ] = None,
) -> None:
    """Check an audit log with the key in AGENT_ENGINE_AUDIT_KEY: any edit, gap or reorder is found."""
    from agent_engine.records.audit import Head
    from agent_engine.records.settings import AUDIT_KEY
    from agent_engine.records.verify import verify as check

    key = os.environ.get(AUDIT_KEY, "")
    if not key:
        typer.echo(f"Set {AUDIT_KEY} to the key that the log was written with.", err=True)
        raise typer.Exit(USAGE)
    with _problems():
        found = check(_address(store, config), key.encode(), Head.parse(head) if head is not None else None)
    if found.holds:
        typer.echo(f"The log holds: {found.entries} entries, and nothing was changed, moved or left out.")
        if head is None:
            typer.echo("Whether its end was cut off shows only against a head that was printed earlier (--head).")
        typer.echo(f"head {found.head}")
        return
    for problem in found.problems:
        typer.echo(plain(problem), err=True)
    raise typer.Exit(PROBLEM)


@app.command("head")
def print_head(store: Store = None, config: Config = None) -> None:
    """Print where an audit log ends. Keep it elsewhere, and give it to `verify --head` later."""
    from agent_engine.records.verify import head

    with _problems():
        typer.echo(str(head(_address(store, config))))


@app.command()
def export(
    store: Store = None,
    config: Config = None,
    run: RunId = None,
    event: Event = None,
    hook: Hook = None,
    tool: Tool = None,
    agent: Agent = None,
    decision: Decision = None,
    since: Since = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; without it, stdout.")] = None,
    form: Annotated[str, typer.Option("--format", help="jsonl or csv.")] = "jsonl",
    payloads: Annotated[bool, typer.Option("--payloads", help="With the payloads that were captured.")] = False,
) -> None:
    """Write all matching decision records, the oldest first."""
    if form not in ("jsonl", "csv"):
        typer.echo(f"There is no format {plain(form)!r}; write jsonl or csv.", err=True)
        raise typer.Exit(USAGE)
    from agent_engine.records.views import RECORD_FIELDS

    wanted = _wanted(run, event, hook, tool, agent, decision, since)
    with _reader(store, config) as reader:
        rows = _export_rows(reader, _of_run(reader, wanted), payloads)
        columns = (*RECORD_FIELDS, *(["payloads"] if payloads else []))
        if output is None:
            write_rows(rows, columns, form, sys.stdout)
        else:
            with output.open("w", encoding="utf-8", newline="") as file:
                write_rows(rows, columns, form, file)


def _check_list(runs: bool, status: str | None, of_records: str | None) -> None:
    """An option that would be passed over is refused."""
    if runs and of_records:
        typer.echo("--run, --event and --hook choose records; leave --runs out.", err=True)
        raise typer.Exit(USAGE)
    if status and not runs:
        typer.echo("--status chooses runs; say --runs as well.", err=True)
        raise typer.Exit(USAGE)


def _newest(
    reader: RecordReader, wanted: RecordFilter, limit: int, each: bool, before: int | None = None
) -> tuple[list[Fold], bool]:
    """So many lines, the newest first, and whether older records were left unread before there were as many."""
    if each:
        return lines_of(reader.records(wanted, before=before, limit=limit), each), False
    return reader.folded(wanted, before=before, lines=limit)


class _Problems:
    """Turns what is wrong with a store or an option into one sentence and an exit code."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from agent_engine.records.settings import RecordsError

        if isinstance(error, RecordsError):
            typer.echo(str(error), err=True)
            raise typer.Exit(PROBLEM) from None
        if isinstance(error, ValueError):
            typer.echo(str(error), err=True)
            raise typer.Exit(USAGE) from None


_problems = _Problems


def _address(store: str | None, config: Path | None) -> str:
    from agent_engine.records.settings import default_store

    return store or default_store(config)


def _reader(store: str | None, config: Path | None) -> RecordReader:
    from agent_engine.records.query import RecordReader

    with _problems():
        return RecordReader.open(_address(store, config))
    raise AssertionError("a reader was opened or the command ended")


def _since(text: str | None) -> float | None:
    from agent_engine.records.settings import seconds

    if text is None:
        return None
    with _problems():
        return time.time() - seconds(text)
    return None


def _wanted(
    run: str | None,
    event: str | None,
    hook: str | None,
    tool: str | None,
    agent: str | None,
    decision: str | None,
    since: str | None,
) -> RecordFilter:
    from agent_engine.hooks.events import event_of
    from agent_engine.records.views import RecordFilter

    with _problems():
        event = str(event_of(event)) if event is not None else None
        if decision is not None and decision not in ("allow", "modify", "ask", "deny", "failed", "none"):
            raise ValueError(f"{decision!r} is no decision; write allow, modify, ask, deny, failed or none.")
    return RecordFilter(
        run_id=run, event=event, hook=hook, tool=tool, agent=agent, decision=decision, since=_since(since)
    )


def _of_run(reader: RecordReader, wanted: RecordFilter) -> RecordFilter:
    return wanted if wanted.run_id is None else replace(wanted, run_id=reader.run_id_of(wanted.run_id))


def _list_runs(reader: RecordReader, wanted: RecordFilter, status: str | None, limit: int, as_json: bool) -> None:
    from agent_engine.records.views import RunFilter, iso

    chosen = RunFilter(
        status=status, agent=wanted.agent, tool=wanted.tool, decision=wanted.decision, since=wanted.since
    )
    found = reader.runs(chosen, limit=limit)
    if as_json:
        print_lines(
            {**{name: getattr(row, name) for name in row.__slots__ if name != "key"}, "started_at": iso(row.started_at)}
            for row in found
        )
        return
    header = ("started", "run", "system", "status", "ms", "steps", "hook runs", "denied", "broke")
    rows = (
        (
            iso(row.started_at), row.run_id, row.system or "", row.status,
            "" if row.duration_ms is None else f"{row.duration_ms:.0f}", str(row.steps), str(row.hook_runs),
            str(row.denied or ""), str(row.broke or ""),
        )
        for row in found
    )  # fmt: skip
    print_table(header, rows)


def _export_rows(reader: RecordReader, wanted: RecordFilter, payloads: bool) -> Iterable[dict[str, Any]]:
    for record in reader.all_records(wanted):
        row = record.to_dict()
        if payloads:
            row["payloads"] = reader.payloads_of(record.seq)
        yield row
