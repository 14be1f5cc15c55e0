"""Entries as a run would write them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from agent_engine.hooks.definition import FunctionHook
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.result import HookRun
from agent_engine.records.journal import Entry, HookRan, RunClosed, RunOpened, StepClosed, StepOpened

AT = 1_800_000_000.0


def hook(name: str = "guard", event: str = "before_tool", **fields: Any) -> FunctionHook:
    return FunctionHook(id=f"{event}:{name}", name=name, event=event, func=print, source="plugins/hooks.py:7", **fields)


def hook_run(name: str = "guard", decision: str = "allow", *, event: str = "before_tool", **fields: Any) -> HookRun:
    fields.setdefault("started_at", AT)
    fields.setdefault("duration_ms", 0.25)
    return HookRun(hook=hook(name, event), event=hook(name, event).event, decision=decision, **fields)


def payload(**arguments: Any) -> BeforeToolInput:
    return BeforeToolInput(call_id="c1", tool_name="search", tool_input=arguments, agent_name="main")


def tool_step(
    run_id: str,
    step_id: str = "t1",
    *,
    name: str = "search",
    hooks: Sequence[HookRun] = (),
    outcome: str = "ran",
    refused_by: str | None = None,
    unheard: Sequence[str] = (),
    parent: str | None = "turn",
    opened: dict[str, Any] | None = None,
    closed: dict[str, Any] | None = None,
) -> list[Entry]:
    status = {"ran": "ok", "refused": "denied", "declined": "denied", "failed": "error"}.get(outcome, "ok")
    error = "ValueError" if outcome == "failed" and refused_by is None else None
    return [
        StepOpened(run_id, step_id, parent, "tool", name, "main", AT, {"call_id": "c1", **(opened or {})}),
        *(HookRan(run_id, step_id, "main", run) for run in hooks),
        StepClosed(run_id, step_id, status, error, outcome, refused_by, None, 3.0, closed or {}, tuple(unheard)),  # type: ignore[arg-type]
    ]


def run(run_id: str, *steps: Sequence[Entry], at: float = AT, closed: bool = True, **who: Any) -> list[Entry]:
    """A whole run: a turn with the given steps inside."""
    identity = {"session_id": "s1", "user_id": "ann", "organization_id": "acme", **who}
    entries: list[Entry] = [
        RunOpened(run_id, "demo", at=at, generation="7", **identity),
        StepOpened(run_id, "turn", None, "agent", "main", "main", at, {}),
        *(entry for step in steps for entry in step),
    ]
    if closed:
        entries += [
            StepClosed(run_id, "turn", "ok", None, "ran", None, None, 8.0),
            RunClosed(run_id, "completed", None, at + 1, 9.0, {"input_tokens": 5, "output_tokens": 2}),
        ]
    return entries


async def record(address: str, entries: Sequence[Entry], **settings: Any) -> Any:
    """Write entries to a store and stop cleanly; returns the journal."""
    from agent_engine.records.journal import open_journal
    from agent_engine.records.settings import RecordSettings

    journal = open_journal(address, settings=RecordSettings(batch_s=0.001, **settings))
    assert journal is not None
    await journal.start()
    for entry in entries:
        journal.write(entry)
    await journal.stop()
    return journal


def now() -> float:
    return time.time()
