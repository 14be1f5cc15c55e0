"""What the demo shows around the answers: a heading for each question, and at the end what the hooks did, counted."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import IO, Any

from agent_engine.cli.account import LogLine, Run, Style, change_of
from agent_engine.cli.account_view import header_note
from agent_engine.records.journal import Entry, HookRan, StepClosed


class WatchedStream:
    """An output that notices, and holds back, text that must never be shown.

    ``hidden`` maps what something is to its text; ``seen`` collects what was caught. It is the demo's own proof: if a
    hook let a secret through, the tour fails.
    """

    def __init__(self, out: IO[str], hidden: dict[str, str], seen: set[str] | None = None) -> None:
        self._out = out
        self.hidden = hidden
        self.seen = set() if seen is None else seen

    def write(self, text: str) -> int:
        for what, secret in self.hidden.items():
            if secret in text:
                self.seen.add(what)
                text = text.replace(secret, "*" * 8)
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


class Tally:
    """Passes an account on to its style, and counts what the hooks did."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.requests: dict[str, Counter[str]] = {}
        self.changed: list[str] = []
        self.denied: list[str] = []
        self.audit_lines = 0

    def happened(self, thing: Entry | LogLine, run: Run, depth: int) -> None:
        self.style.happened(thing, run, depth)
        if isinstance(thing, LogLine):
            self.audit_lines += thing.logger == "audit"
        elif isinstance(thing, HookRan):
            self._count_hook(thing)
        elif isinstance(thing, StepClosed) and thing.step_id in run.steps:
            step = run.steps[thing.step_id]
            if step.opened.kind == "mcp":
                server = str(step.opened.detail.get("server_id") or step.opened.name)
                self.requests.setdefault(server, Counter())[header_note(step)] += 1

    def _count_hook(self, entry: HookRan) -> None:
        hook = entry.run
        event = str(hook.event)
        if hook.decision == "deny" and hook.reason:
            self.denied.append(f"{hook.hook.name}: {hook.reason}")
        elif event in ("transform_tool_result", "after_tool") and hook.decision == "modify":
            self.changed.append(f"{hook.hook.name}: {change_of(hook)}")

    def ended(self, run: Run) -> None:
        self.style.ended(run)

    def pause(self) -> None:
        self.style.pause()

    def close(self) -> None:
        self.style.close()

    def result(self, summary: Mapping[str, Any]) -> None:
        self.style.result(summary)


def greet(out: Any, addresses: dict[str, str]) -> None:
    print("Two MCP servers of the demo's own are up:", file=out)
    for name, address in addresses.items():
        kind = "refuses requests without its key" if name.startswith("PRIVATE") else "open to everyone"
        print(f"  {name.removesuffix('_URL').lower():17} {address}  ({kind})", file=out)
    print(file=out, flush=True)


def heading(out: Any, number: int, count: int, question: str) -> None:
    place = f"Question {number} of {count}: " if count > 1 else ""
    bold, plain = ("\x1b[1m", "\x1b[0m") if out.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    print(f"\n{'─' * 78}\n{bold}{place}{question}{plain}\n", file=out, flush=True)


def sum_up(out: Any, tally: Tally, leaked: set[str]) -> None:
    """What a person should have noticed, from what was counted and from nothing else."""
    print(f"\n{'─' * 78}\nWhat the hooks did, outside every model's reach:", file=out)
    for server, kinds in sorted(tally.requests.items()):
        text = ", ".join(f"{count} with {kind}" for kind, count in sorted(kinds.items()))
        _point(out, f"requests to {server}", text.replace("with no header added", "without a header"))
    for change in tally.changed:
        _point(out, "changed a result", change)
    for denial in tally.denied:
        _point(out, "denied a call", denial)
    _point(out, "audit lines", str(tally.audit_lines))
    watched = "none was shown" if not leaked else f"SHOWN, and that is a fault: {', '.join(sorted(leaked))}"
    _point(out, "secrets", watched)


def _point(out: Any, what: str, text: str) -> None:
    print(textwrap.fill(f"{what}: {text}", 100, initial_indent="  · ", subsequent_indent="    "), file=out, flush=True)
