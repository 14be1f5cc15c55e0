"""The calls of past runs, read from a store for a replay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, literal_column, select, tuple_

from agent_engine.hooks.events import CATALOGUE
from agent_engine.records import schema

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Select

_CHUNK = 1000
_scan = json.JSONDecoder().raw_decode
"""Reads what :mod:`agent_engine.records.canonical` wrote: one document, without blanks around it."""
_RANK = {"allow": 0, "none": 0, "modify": 1, "ask": 2, "deny": 3}


@dataclass(slots=True)
class Call:
    """One past dispatch: the payload as it came in, and what the hooks of that time said."""

    run_id: str | None
    step_id: str | None
    record_id: str | None
    event: str
    target: str | None
    server: str | None
    agent: str | None
    identity: tuple[str | None, str | None, str | None]
    body: Any
    decision: str = "allow"
    reason: str | None = None
    by_hook: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayFilter:
    """Which past calls; None leaves a matter open."""

    event: str | None = None
    run_id: str | None = None
    tool: str | None = None
    since: float | None = None
    limit: int | None = None


_hook_runs, _hooks, _runs, _steps, _payloads = (
    schema.hook_runs,
    schema.hooks,
    schema.runs,
    schema.steps,
    schema.payloads,
)


def recorded_query(wanted: ReplayFilter) -> Select[Any]:
    """Hook runs whose payload was captured, by run and in order."""
    joined = (
        _hook_runs.join(_hooks, _hooks.c.hook == _hook_runs.c.hook)
        .join(_payloads, (_payloads.c.seq == _hook_runs.c.seq) & (_payloads.c.which == "before"))
        .outerjoin(_runs, _runs.c.run == _hook_runs.c.run)
        .outerjoin(_steps, _steps.c.step == _hook_runs.c.step)
    )
    query = select(
        _hook_runs.c.run, _hook_runs.c.seq, _hook_runs.c.step, _hook_runs.c.record_id, _runs.c.run_id,
        _steps.c.step_id, _steps.c.name, _steps.c.kind, _steps.c.opened,
        func.coalesce(_hook_runs.c.agent, _steps.c.agent),
        _runs.c.user_id, _runs.c.organization_id, _runs.c.session_id, _hooks.c.event, _hooks.c.hook_name,
        _hook_runs.c.decision, _hook_runs.c.reason, _hooks.c.policy, _hooks.c.observe, _hooks.c.shadow,
        _payloads.c.body,
    ).select_from(joined)  # fmt: skip
    conditions: list[ColumnElement[bool]] = [_hook_runs.c.run.is_not(None)]
    if wanted.event is not None:
        conditions.append(_hooks.c.event == wanted.event)
    if wanted.tool is not None:
        conditions += [_steps.c.kind == "tool", _steps.c.name == wanted.tool]
    if wanted.run_id is not None:
        conditions.append(_runs.c.run_id == wanted.run_id)
    if wanted.since is not None:
        conditions.append(_hook_runs.c.at >= wanted.since)
    return query.where(*conditions).order_by(_hook_runs.c.run, _hook_runs.c.seq)


def asked_query(wanted: ReplayFilter) -> Select[Any]:
    """Tool calls whose arguments were captured although no hook's payload was: nothing listened then."""
    heard = (
        select(literal_column("1"))
        .select_from(
            _hook_runs.join(_hooks, _hooks.c.hook == _hook_runs.c.hook).join(
                _payloads.alias("heard"), literal_column("heard.seq") == _hook_runs.c.seq
            )
        )
        .where(_hook_runs.c.run == _steps.c.run, _hook_runs.c.step == _steps.c.step, _hooks.c.event == "before_tool")
        .exists()
    )
    query = select(
        _steps.c.step, _steps.c.step_id, _steps.c.name, _steps.c.agent, _steps.c.opened, _runs.c.run_id,
        _runs.c.user_id, _runs.c.organization_id, _runs.c.session_id, _payloads.c.body,
    ).select_from(
        _payloads.join(_steps, _steps.c.step == _payloads.c.seq).join(_runs, _runs.c.run == _steps.c.run)
    )  # fmt: skip
    conditions: list[ColumnElement[bool]] = [_payloads.c.which == "asked", _steps.c.kind == "tool", ~heard]
    if wanted.event not in (None, "before_tool"):
        conditions.append(literal_column("1") == literal_column("0"))
    if wanted.tool is not None:
        conditions.append(_steps.c.name == wanted.tool)
    if wanted.run_id is not None:
        conditions.append(_runs.c.run_id == wanted.run_id)
    if wanted.since is not None:
        conditions.append(_steps.c.started_at >= wanted.since)
    return query.where(*conditions).order_by(_steps.c.step)


def recorded_calls(connection: Connection, wanted: ReplayFilter) -> Iterator[Call]:
    """Hook runs put together again into the dispatches they were part of."""
    open_calls: dict[tuple[int | None, str], Call] = {}
    current: int | None = None
    query = recorded_query(wanted)
    after: tuple[int, int] | None = None
    while True:
        page = query if after is None else query.where(tuple_(_hook_runs.c.run, _hook_runs.c.seq) > after)
        rows = _plain_rows(connection, page.limit(_CHUNK))
        for row in rows:
            run, step = row[0], row[2]
            if run != current:
                yield from open_calls.values()
                open_calls.clear()
                current = run
            event, hook = row[13], row[14]
            call = open_calls.get((step, event))
            if call is None or hook in call.by_hook:
                if call is not None:
                    yield call
                call = open_calls[(step, event)] = _call_of(row)
            _add(call, hook, *row[15:20])
        if len(rows) < _CHUNK:
            break
        after = (rows[-1][0], rows[-1][1])
    yield from open_calls.values()


_TARGETS = {event.value: spec.target for event, spec in CATALOGUE.items() if spec.target is not None}


def _plain_rows(connection: Connection, query: Select[Any]) -> list[tuple[Any, ...]]:
    """The driver's own rows: a hundred thousand of them are read here, and nothing needs their names."""
    result = connection.execute(query)
    rows: list[tuple[Any, ...]] = list(result.cursor.fetchall()) if result.cursor is not None else []
    result.close()
    return rows


def _call_of(row: Sequence[Any]) -> Call:
    _run, _seq, _step, record_id, run_id, step_id, name, _kind, opened, agent, user, organization, session, event = row[
        :14
    ]
    body, _ = _scan(row[20], 0)
    server, target = _server(opened), name
    wanted = _TARGETS.get(event)
    if wanted is not None and isinstance(body, dict):
        shown = body.get("payload", body)
        target = (shown.get(wanted) if isinstance(shown, dict) else None) or name
    return Call(run_id, step_id, record_id, event, target, server, agent, (user, organization, session), body)


def _add(call: Call, hook: str, decision: str, reason: str | None, policy: str, observe: bool, shadow: bool) -> None:
    """Fold one hook's decision into what the dispatch came to."""
    call.by_hook[hook] = decision
    if observe or shadow:
        return
    effective = decision
    if decision == "failed":
        effective = "allow" if policy == "warn" else "deny"
    if _RANK.get(effective, 0) > _RANK.get(call.decision, 0):
        call.decision, call.reason = effective, reason


def asked_calls(connection: Connection, wanted: ReplayFilter) -> Iterator[Call]:
    query, after = asked_query(wanted), 0
    while True:
        rows = connection.execute(query.where(_steps.c.step > after).limit(_CHUNK)).fetchall()
        for step, step_id, name, agent, opened, run_id, user, organization, session, body in rows:
            after = step
            detail = json.loads(opened) if opened else {}
            arguments = {"event": "before_tool", "call_id": detail.get("call_id") or "", "tool_name": name}
            arguments["tool_input"] = json.loads(body)
            identity = (user, organization, session)
            yield Call(run_id, step_id, None, "before_tool", name, _server(opened), agent, identity, arguments)
        if len(rows) < _CHUNK:
            return


def _server(opened: str | None) -> str | None:
    if not opened or '"server_id"' not in opened:
        return None
    found = json.loads(opened).get("server_id")
    return found if isinstance(found, str) else None
