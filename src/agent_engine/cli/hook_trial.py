"""A trial of hooks on one payload: run them, collect what each said, and show it."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_engine.cli.plaintext import plain
from agent_engine.hooks.definition import callable_name
from agent_engine.hooks.events import CATALOGUE, HookEvent, event_of
from agent_engine.hooks.folding import copy_of
from agent_engine.hooks.jsonform import JsonFormError, payload_json
from agent_engine.hooks.scope import HookScope, Site

if TYPE_CHECKING:
    from rich.table import Table

    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.hooks.result import HookRun, Verdict

_EXAMPLES: dict[str, Any] = {
    "session_id": "example-session",
    "run_id": "example-run",
    "agent_name": "example-agent",
    "agent_id": "example-agent",
    "call_id": "call-1",
    "tool_name": "example_tool",
    "tool_input": {"text": "an example"},
    "tool_output": "an example",
    "result": "an example",
    "prompt": "An example of what a person asks.",
    "response": "An example of an answer.",
    "text": "An example of streamed text.",
    "messages": [{"role": "user", "content": "An example of what a person asks."}],
    "model": "example-model",
    "content": "An example of a message.",
    "message": "An example of a message.",
    "platform": "http",
    "server_id": "example-server",
    "operation": "tools/call",
    "system_name": "example-system",
    "user_id": "example-user",
    "plugin_name": "example-plugin",
}
_STYLES = {"deny": "red", "failed": "yellow", "ask": "cyan", "modify": "blue"}


@dataclass(slots=True)
class Trial:
    """What came of one trial: the hooks' own runs, the verdict (None where a hook aborted it) and the changes."""

    event: HookEvent
    runs: list[HookRun] = field(default_factory=list)
    verdict: Verdict | None = None
    error: str | None = None
    changes: list[tuple[str, Any, Any]] = field(default_factory=list)
    duration_ms: float = 0.0


def field_names(event: HookEvent) -> set[str]:
    """The fields of the payload of ``event``."""
    from agent_engine.hooks.payloads import payload_type

    return {str(one.name) for one in dataclasses.fields(payload_type(event))}


def example_fields(event: HookEvent) -> dict[str, Any]:
    """Fields of an example payload of ``event``."""
    known = field_names(event)
    return {name: json.loads(json.dumps(value)) for name, value in _EXAMPLES.items() if name in known}


def alone(hook: HookDefinition) -> HookScope:
    """A scope with this hook and no other, for every target, agent and server."""
    from agent_engine.hooks.registry import HookRegistry

    registry = HookRegistry(platform=hook.priority < 0)
    registry.register(dataclasses.replace(hook, matcher=None, agents=None, servers=None))
    return HookScope(registry, with_default=False)


async def try_hooks(scope: HookScope, event: HookEvent, payload: Any, target: str | None = None) -> Trial:
    """Run the hooks of ``event`` on ``payload``. A hook that aborts the step ends the trial, and is its error."""
    from agent_engine.hooks.errors import HookExecutionError

    trial = Trial(event)
    attribute = CATALOGUE[event].target
    if target is None and attribute is not None:
        target = getattr(payload, attribute, None) or None
    agent = getattr(payload, "agent_name", None) or getattr(payload, "agent_id", None) or None
    plan = scope.plan(event, target, agent=agent, server=getattr(payload, "server_id", None) or None)
    if plan is None:
        return trial
    before = _form(payload, event)
    started = time.perf_counter()
    try:
        trial.verdict = await plan.dispatch(copy_of(payload), Site(sink=lambda site, run: trial.runs.append(run)))
    except HookExecutionError as error:
        trial.error = str(error)
    trial.duration_ms = (time.perf_counter() - started) * 1000
    if trial.verdict is not None:
        trial.changes = list(_changes("", before, _form(trial.verdict.payload, event)))
    return trial


def hook_row(hook: HookDefinition) -> dict[str, Any]:
    """One hook as ``hooks list --json`` shows it."""
    return {
        "event": str(hook.event),
        **hook.describe(),
        "failure_policy": hook.failure_policy,
        "timeout": hook.timeout,
        "agents": list(hook.agents or ()),
        "servers": list(hook.servers or ()),
        "when": None if hook.when is None else callable_name(hook.when),
        "observe": hook.observe,
        "shadow": hook.shadow,
        "description": hook.description,
    }


def trial_row(trial: Trial) -> dict[str, Any]:
    """A trial as ``hooks test --json`` shows it."""
    verdict = trial.verdict
    return {
        "event": trial.event.value,
        "decision": "failed" if trial.error else verdict.decision if verdict is not None else "allow",
        "reason": trial.error or (verdict.reason if verdict is not None else None),
        "hook": verdict.hook if verdict is not None else None,
        "broke": trial.error is not None or (verdict is not None and verdict.broke),
        "changes": [{"field": path, "before": old, "after": new} for path, old, new in trial.changes],
        "additional_context": list(verdict.additional_context) if verdict is not None else [],
        "duration_ms": round(trial.duration_ms, 3),
        "hooks": [
            {
                "id": run.hook.id,
                "name": run.hook.name,
                "mode": run.mode,
                "observe": run.observe,
                "shadow": run.shadow,
                "decision": run.decision,
                "reason": run.reason,
                "changed": list(run.changed),
                "failure_type": run.failure_type,
                "duration_ms": round(run.duration_ms, 3),
            }
            for run in trial.runs
        ],
    }


def show_hooks(hooks: Iterable[HookDefinition]) -> None:
    """A table of hooks, in the order they run."""
    table = _table("event", "hook", "type", "mode", "prio", "for", "on failure", "declared at")
    for hook in hooks:
        table.add_row(
            *_cells(
                str(hook.event), hook.name, hook.kind, _mode(hook), str(hook.priority),
                _meant_for(hook), hook.failure_policy, hook.source,
            )
        )  # fmt: skip
    _print(table)


def _mode(hook: HookDefinition) -> str:
    """How a hook runs, and whether it counts."""
    marks = [word for word, on in (("observe", hook.observe), ("shadow", hook.shadow)) if on]
    return ", ".join(["in order" if hook.runs_sequentially else "parallel", *marks])


def _meant_for(hook: HookDefinition) -> str:
    """Which targets, agents, servers and runs a hook is for; "" where it is for all."""
    parts = [hook.matcher or ""]
    parts += [f"agents {', '.join(hook.agents)}"] if hook.agents is not None else []
    parts += [f"servers {', '.join(hook.servers)}"] if hook.servers is not None else []
    parts += [f"when {callable_name(hook.when)}"] if hook.when is not None else []
    return "; ".join(part for part in parts if part)


def show_trial(trial: Trial) -> None:
    """What each hook said, what was changed, and what it came to."""
    if not trial.runs and trial.error is None:
        _print(f"No hook listens to {trial.event} for this payload.")
        return
    table = _table("hook", "mode", "decision", "changed", "ms", "reason")
    for run in trial.runs:
        cells = _cells(
            run.hook.name,
            _mode(run.hook),
            run.decision,
            ", ".join(run.changed),
            f"{run.duration_ms:.2f}",
            run.reason or "",
        )
        table.add_row(*cells, style=_STYLES.get(run.decision, ""))
    _print(table)
    for path, old, new in trial.changes:
        _print(f"\n{path}\n  - {_short(old)}\n  + {_short(new)}")
    verdict = trial.verdict
    for text in verdict.additional_context if verdict is not None else ():
        _print(f"\nadded for the model: {text}")
    said = trial.error or (verdict.reason if verdict is not None else None)
    decision = (
        "failed" if verdict is None else f"{verdict.decision} (a hook broke)" if verdict.broke else verdict.decision
    )
    _print(f"\n{trial.event}: {decision} in {trial.duration_ms:.1f} ms" + (f": {said}" if said else ""))


def _form(payload: Any, event: HookEvent) -> Any:
    try:
        return json.loads(payload_json(payload, event_of(event).value))
    except JsonFormError as problem:
        return {"payload": f"<{problem}>"}


def _changes(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _changes(f"{path}.{key}" if path else str(key), old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{path}[{index}]", left, right)
    elif old != new or type(old) is not type(new):
        yield path, old, new


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 400 else f"{text[:399]}…"


def _table(*header: str) -> Table:
    from rich.table import Table as RichTable

    table = RichTable(box=None, header_style="bold", pad_edge=False)
    for name in header:
        table.add_column(name, overflow="fold", no_wrap=name in ("ms", "prio", "mode", "decision"))
    return table


def _cells(*texts: str) -> list[Any]:
    from rich.text import Text

    return [Text(plain(text)) for text in texts]


def _print(what: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if isinstance(what, str):
        console.print(Text(plain(what, keep="\n")), soft_wrap=True)
    else:
        console.print(what)
