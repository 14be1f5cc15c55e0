"""How an account looks: a tree at a terminal, plain lines where the output is piped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

from agent_engine.cli.account import Inside, LogLine, Run, Step, Style, change_of, hook_name
from agent_engine.cli.plaintext import plain
from agent_engine.records.journal import Entry, HookRan, RunClosed, RunOpened, StepClosed, StepOpened

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

_OUTCOMES = {"refused": "refused", "declined": "declined", "failed": "failed", "withheld": "withheld"}
_STYLES = {
    "deny": "bold red",
    "failed": "bold red",
    "ask": "yellow",
    "modify": "yellow",
    "allow": "green",
    "none": "dim",
}


def style_for(out: IO[str] | None = None, *, as_json: bool = False, quiet: bool = False) -> Style:
    """The style that fits an output: JSON or nothing where asked for, a tree on a terminal, else plain lines."""
    from agent_engine.cli.account import JsonLines, Silent

    stream = out or sys.stderr
    if quiet:
        return Silent()
    if as_json:
        return JsonLines(stream)
    return TreeView(stream) if stream.isatty() else PlainLines(stream)


def duration(milliseconds: float) -> str:
    """A time as people read it."""
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"


def describe(step: StepOpened) -> str:
    """A step in a few words: its kind, its name and where it goes."""
    detail = step.detail
    if step.kind == "mcp":
        operation = detail.get("operation") or step.name
        target = f" {detail['tool_name']}" if detail.get("tool_name") else ""
        return f"mcp {detail.get('server_id') or step.name}: {operation}{target}"
    if step.kind == "tool" and detail.get("server_id"):
        return f"tool {step.name} (mcp {detail['server_id']})"
    return f"{step.kind} {step.name}"


def outcome(closed: StepClosed | None, *, with_reason: bool = True) -> str:
    """What became of a step, where it is not simply that it ran; the reason can be left to the hook's own line."""
    if closed is None:
        return "not finished"
    if closed.outcome == "ran":
        code = closed.detail.get("status_code")
        return str(code) if code else ""
    text = _OUTCOMES.get(closed.outcome, closed.outcome)
    if closed.refused_by:
        text += f" by {closed.refused_by}"
    if closed.reason and with_reason:
        text += f": {closed.reason}"
    elif closed.error_type:
        text += f": {closed.error_type}"
    return text


def hook_line(entry: HookRan) -> tuple[str, str, str]:
    """A hook's run as three texts: where and which, what it decided, and what it changed or why."""
    run = entry.run
    notes = []
    change = change_of(run)
    if change:
        notes.append(change)
    if run.reason:
        notes.append(run.reason)
    elif run.failure_type:
        notes.append(run.failure_type)
    if run.decision == "failed":
        notes.append(f"policy {run.policy}")
    if run.shadow:
        notes.append("shadow: counts for nothing")
    decision = "observed" if run.decision == "none" else run.decision
    return f"{run.event} · {hook_name(run)}", decision, " · ".join(notes)


class PlainLines:
    """One line for each thing as it happens, indented by its depth; no colour and nothing that moves."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def happened(self, thing: Entry | LogLine, run: Run, depth: int) -> None:
        for line in _plain(thing, run):
            print("  " * depth + plain(line), file=self._out, flush=True)

    def ended(self, run: Run) -> None: ...

    def result(self, summary: Mapping[str, Any]) -> None: ...

    def pause(self) -> None: ...

    def close(self) -> None: ...


def _plain(thing: Entry | LogLine, run: Run) -> Iterable[str]:
    if isinstance(thing, RunOpened):
        yield f"run {thing.run_id} {thing.system or ''}".rstrip()
    elif isinstance(thing, RunClosed):
        error = f" ({thing.error_type})" if thing.error_type else ""
        yield f"run {thing.run_id} {thing.status}{error} in {duration(thing.duration_ms)}{_tokens(thing)}"
    elif isinstance(thing, StepOpened):
        if thing.kind in ("agent", "tool", "mcp"):
            yield f"{describe(thing)} …"
    elif isinstance(thing, StepClosed):
        step = run.steps.get(thing.step_id)
        if step is not None:
            yield from _plain_end(step)
    elif isinstance(thing, LogLine):
        yield f"log {thing.logger}: {thing.text}"
    else:
        what, decision, notes = hook_line(thing)
        yield f"hook {what}: {decision}{f' ({notes})' if notes else ''} {duration(thing.run.duration_ms)}"


def _plain_end(step: Step) -> Iterable[str]:
    assert step.closed is not None
    told = any(isinstance(one, HookRan) and one.run.reason for one in step.inside)
    notes = [note for note in (outcome(step.closed, with_reason=not told), header_note(step)) if note]
    ending = f": {', '.join(notes)}" if notes else ""
    what = describe(step.opened)
    yield f"{what}{ending} {duration(step.closed.duration_ms)}"


def header_note(step: Step) -> str:
    """Whether hooks gave an MCP request a header; the names alone."""
    if step.opened.kind != "mcp":
        return ""
    names = sorted({name for entry in step.hooks("before_mcp_request") for name in _headers(entry)})
    return f"header {', '.join(names)}" if names else "no header added"


def _headers(entry: HookRan) -> list[str]:
    after, before = getattr(entry.run.after, "headers", None), getattr(entry.run.before, "headers", None)
    if "headers" not in entry.run.changed or after is None:
        return []
    return [str(name) for name in after if name not in (before or {})]


def _tokens(closed: RunClosed) -> str:
    total = closed.usage.get("total") or sum(closed.usage.get(name) or 0 for name in ("input_tokens", "output_tokens"))
    return f", {total:,} tokens" if total else ""


class TreeView:
    """A tree for each run once it is over; until then one line that says where the run is."""

    def __init__(self, out: IO[str], console: Console | None = None) -> None:
        from rich.console import Console as RichConsole

        self.console = console or RichConsole(file=out, highlight=False, soft_wrap=False)
        self._status: Any = None

    def happened(self, thing: Entry | LogLine, run: Run, depth: int) -> None:
        if isinstance(thing, RunOpened):
            self._status = self.console.status("thinking", spinner="dots")
            self._status.start()
        elif isinstance(thing, StepOpened) and self._status is not None:
            where = f"{thing.agent} › " if thing.agent and thing.agent != thing.name else ""
            self._status.update(f"[dim]{_escape(where + describe(thing))}[/dim]")

    def pause(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def ended(self, run: Run) -> None:
        self.pause()
        self.console.print(tree_of(run))
        self.console.print()

    def result(self, summary: Mapping[str, Any]) -> None: ...

    def close(self) -> None:
        self.pause()


def tree_of(run: Run) -> Tree:
    """A run as a rich tree."""
    from rich.tree import Tree as RichTree

    tree = RichTree(_title(run), guide_style="dim")
    for one in run.inside:
        _add(tree, one)
    return tree


def _title(run: Run) -> Text:
    if run.opened is None:
        return _text(("the engine", "bold"), ("  outside any run", "dim"))
    closed = run.closed
    parts = [(run.opened.system or "run", "bold"), (f"  run {run.opened.run_id[:8]}", "dim")]
    if closed is None:
        return _text(*parts, ("  not finished", "yellow"))
    colour = "green" if closed.status == "completed" else "yellow" if closed.status == "waiting" else "bold red"
    error = f" ({closed.error_type})" if closed.error_type else ""
    return _text(
        *parts, (f"  {closed.status}{error}", colour), (f"  {duration(closed.duration_ms)}{_tokens(closed)}", "dim")
    )


def _add(tree: Tree, one: Inside) -> None:
    if isinstance(one, LogLine):
        tree.add(_text((f"{one.logger}  ", "magenta"), (one.text, "dim")))
        return
    if isinstance(one, HookRan):
        what, decision, notes = hook_line(one)
        line = [("hook ", "dim"), (f"{what}  ", "cyan"), (decision, _STYLES.get(decision, "dim"))]
        if notes:
            line.append((f"  {notes}", ""))
        tree.add(_text(*line, (f"  {duration(one.run.duration_ms)}", "dim")))
        return
    delegate = _delegate(one)
    branch = tree.add(_step_text(one, "agent" if delegate is not None else one.opened.kind))
    for child in one.inside:
        for shown in delegate.inside if child is delegate and delegate is not None else [child]:
            _add(branch, shown)


def _delegate(step: Step) -> Step | None:
    """The turn of an agent that was called as a tool of the same name: the two are one to a person."""
    if step.opened.kind != "tool":
        return None
    turns = [one for one in step.inside if isinstance(one, Step) and one.opened.kind == "agent"]
    return turns[0] if len(turns) == 1 and turns[0].opened.name == step.opened.name else None


def _step_text(step: Step, kind: str) -> Text:
    colours = {"agent": "bold", "tool": "bold blue", "mcp": "blue", "model": ""}
    what = f"agent {step.opened.name}" if kind == "agent" else describe(step.opened)
    parts = [(what, colours.get(kind, ""))]
    asked = (step.opened.detail.get("payload") or {}).get("asked")
    if isinstance(asked, dict) and asked:
        parts.append((f"  {_arguments(asked)}", "dim"))
    told = any(isinstance(one, HookRan) and one.run.reason for one in step.inside)
    ending = outcome(step.closed, with_reason=not told)
    if ending:
        good = step.closed is not None and step.closed.outcome == "ran"
        parts.append((f"  {ending}", "green" if good else "bold red"))
    note = header_note(step)
    if note:
        parts.append((f"  {note}", "dim" if note.startswith("no ") else "yellow"))
    if step.closed is not None:
        parts.append((f"  {duration(step.closed.duration_ms)}", "dim"))
    return _text(*parts)


def _arguments(asked: dict[str, Any]) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in asked.items()).replace("\n", " ")
    return shown if len(shown) <= 70 else shown[:69] + "…"


def _text(*parts: tuple[str, str]) -> Text:
    from rich.text import Text as RichText

    return RichText.assemble(*((plain(text), style) for text, style in parts if text))


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(plain(text))
