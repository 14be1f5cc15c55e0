"""How ``agentctl records`` shows what it found."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from agent_engine.cli.plaintext import plain

if TYPE_CHECKING:
    from agent_engine.records.views import Covered, Fold, HookStats, Record, RunDetail, Step, Totals

COLUMNS = ("time", "run", "agent", "event", "step", "hook", "decision", "became", "reason", "ms", "record")


def line_row(line: Fold) -> tuple[str, ...]:
    from agent_engine.records.views import iso

    record = line.first
    return (
        iso(record.at)[11:23], (record.run_id or "")[:8], record.agent or "", record.event, record.step_name or "",
        record.hook_name, decision_of(line), record.became, record.reason or "", f"{line.duration_ms:.2f}",
        record.record_id,
    )  # fmt: skip


def decision_of(line: Fold) -> str:
    decision = f"{line.first.decision} (shadow)" if line.first.shadow else line.first.decision
    return decision if line.count == 1 else f"{decision} ×{line.count:,}"


def print_line(line: Fold) -> None:
    typer.echo("  ".join(plain(part) for part in line_row(line) if part))


def lines_of(records: Iterable[Record], each: bool) -> list[Fold]:
    """A line for each record, or one for those that a hook left at a step with the same decision."""
    from agent_engine.records.views import Folds

    if each:
        return [line for record in records for line in Folds([record]).lines]
    return Folds(records).lines


def print_lines(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        typer.echo(json.dumps(row, ensure_ascii=False, default=dict))


def print_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in header:
        table.add_column(name, overflow="fold", no_wrap=name in ("time", "run", "record", "started"))
    for row in rows:
        styles = _STYLES.get(row[6], "") if header is COLUMNS else ""
        table.add_row(*(Text(plain(part)) for part in row), style=styles)
    console.print(table)


_STYLES = {"deny": "red", "failed": "yellow", "ask": "cyan", "modify": "blue"}


def print_fields(shown: dict[str, Any]) -> None:
    for name, value in shown.items():
        if value is None or value == [] or value == {}:
            continue
        if name == "payloads":
            for which, body in value.items():
                typer.echo(f"payload {which}:")
                typer.echo(plain(json.dumps(body, indent=2, ensure_ascii=False), keep="\n"))
            continue
        text = ", ".join(value) if isinstance(value, list) else str(value)
        typer.echo(f"{name.replace('_', ' '):>14}  {plain(text)}")


def print_run(detail: RunDetail, each: bool) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    run = detail.run
    who = " ".join(part for part in (run.user_id, run.organization_id) if part)
    tree = Tree(Text(plain(f"{run.run_id}  {run.system or ''}  {run.status}  {who}")))

    def grow(below: Tree, step: Step) -> None:
        took = "" if step.duration_ms is None else f"  {step.duration_ms:.1f} ms"
        by = f" by {step.refused_by}" if step.refused_by else ""
        bare = "  no gate saw it" if step.ungated else ""
        branch = below.add(Text(plain(f"{step.kind} {step.name}  {step.outcome}{by}{took}{bare}")))
        for line in lines_of(step.records, each):
            _add_line(branch, line)
        for child in step.children:
            grow(branch, child)

    for line in lines_of(detail.records, each):
        _add_line(tree, line)
    for root in detail.roots:
        grow(tree, root)
    Console(highlight=False).print(tree)


def _add_line(tree: Any, line: Fold) -> None:
    from rich.text import Text

    record = line.first
    reason = f": {record.reason}" if record.reason else ""
    changed = f" ({', '.join(record.changed)})" if record.changed else ""
    text = f"{record.event}  {record.hook_name}  {decision_of(line)}{changed}{reason}  {line.duration_ms:.2f} ms"
    tree.add(Text(plain(text), style=_STYLES.get(record.decision, "dim")))


def run_dict(detail: RunDetail) -> dict[str, Any]:
    from agent_engine.records.views import iso

    def step_dict(step: Step) -> dict[str, Any]:
        plain = {name: getattr(step, name) for name in step.__slots__ if name not in ("records", "children", "key")}
        plain["records"] = [record.to_dict() for record in step.records]
        plain["steps"] = [step_dict(child) for child in step.children]
        return plain

    run = {name: getattr(detail.run, name) for name in detail.run.__slots__ if name != "key"}
    return {
        **run,
        "started_at": iso(detail.run.started_at),
        "records": [record.to_dict() for record in detail.records],
        "steps": [step_dict(step) for step in detail.roots],
    }


def stats_dict(totals: Totals, hooks: list[HookStats], covered: list[Covered]) -> dict[str, Any]:
    return {
        **{name: getattr(totals, name) for name in totals.__slots__},
        "hooks": [
            {
                "event": one.event, "hook": one.hook_name, "source": one.source, "priority": one.priority,
                "decisions": one.decisions, "refusal_rate": round(one.refusal_rate, 4),
                "p50_ms": round(one.percentile(0.5), 3), "p95_ms": round(one.percentile(0.95), 3),
                "p99_ms": round(one.percentile(0.99), 3),
            }
            for one in hooks
        ],
        "coverage": [
            {"kind": one.kind, "name": one.name, "agent": one.agent, "unheard": list(one.unheard),
             "ungated": one.ungated, "count": one.count}
            for one in covered
        ],
    }  # fmt: skip


def write_rows(rows: Iterable[dict[str, Any]], columns: Sequence[str], form: str, file: Any) -> None:
    """Write records as JSON lines, or as CSV with a header even where there is none."""
    if form == "jsonl":
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=True) + "\n")
        return
    import csv

    # All text is quoted: where a spreadsheet parts cells at semicolons or tabs, one in a reason must begin no cell.
    writer = csv.DictWriter(file, columns, quoting=csv.QUOTE_NONNUMERIC)
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})


_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""What begins a formula; some spreadsheets take the wide forms as well."""


def _cell(value: Any) -> Any:
    """A value as one cell: names parted by commas, payloads as JSON, and nothing where there is none of either."""
    if isinstance(value, list):
        value = ",".join(str(one) for one in value)
    elif isinstance(value, dict):
        value = json.dumps(value) if value else ""
    # A spreadsheet would run a text that begins like a formula; reasons and names come from strangers.
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(_FORMULA) else value
