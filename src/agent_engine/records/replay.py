"""Recorded payloads of past runs against another set of hooks: which decisions would differ.

The hooks run for real, so whatever they do beyond deciding they do again. Nothing is recorded, and no tool or model is
called.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func

from agent_engine.hooks.errors import HookExecutionError
from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.managed import RUN_CONTEXT, AuthContext, RunContext
from agent_engine.hooks.payloads import HookInput, payload_type
from agent_engine.hooks.site import Site, Where
from agent_engine.records.past_calls import Call, ReplayFilter, asked_calls, asked_query, recorded_calls, recorded_query

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from agent_engine.hooks.result import HookRun
    from agent_engine.hooks.scope import HookScope
    from agent_engine.records.query import RecordReader

NOT_THERE = "absent"
"""The decision of a hook that did not run on one of the two sides."""


@dataclass(slots=True)
class Difference:
    """One call that would go another way; ``old`` and ``new`` are decisions, with the reasons that were given."""

    event: str
    target: str | None
    run_id: str | None
    record_id: str | None
    old: str
    new: str
    old_reason: str | None
    new_reason: str | None
    hook: str | None
    body: Any


@dataclass(slots=True)
class Comparison:
    """What a replay found.

    Attributes:
        calls: payloads that were run through the new hooks.
        same: calls with the same decision.
        unreadable: payloads that could not be rebuilt (redacted into another shape, or of an unknown event).
        by_target: (event, tool or server, old decision, new decision) → count, where the two differ.
        by_hook: (event, hook, old, new) → count, where the two differ; ``absent`` on the side where it did not run.
        examples: up to some differences for each key of ``by_target``.
        seconds: how long it took.
    """

    calls: int = 0
    same: int = 0
    unreadable: int = 0
    by_target: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    by_hook: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str, str, str], list[Difference]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def differ(self) -> int:
        return self.calls - self.same


class Replay:
    """Runs the calls of a store through the hooks of a scope."""

    def __init__(self, reader: RecordReader, scope: HookScope, wanted: ReplayFilter, *, examples: int = 3) -> None:
        self._reader = reader
        self._scope = scope
        self._wanted = reader.asked(wanted)
        self._examples = examples
        self._now: dict[str, str] = {}
        self._context = RunContext()
        self._makers: dict[str, Callable[[Any, Call], Any] | None] = {}
        self.result = Comparison()

    def total(self) -> int:
        """How many calls there may be, for a progress bar; an upper bound."""
        with self._reader.connection() as connection:
            recorded = recorded_query(self._wanted).with_only_columns(func.count()).order_by(None)
            asked = asked_query(self._wanted).with_only_columns(func.count()).order_by(None)
            found = connection.execute(recorded).scalar_one() + connection.execute(asked).scalar_one()
        return min(int(found), self._wanted.limit or int(found))

    async def run(self, progress: Callable[[int], None] | None = None) -> Comparison:
        """Run them all; ``progress`` is told now and then how many are done."""
        started, done = time.perf_counter(), 0
        outside = RUN_CONTEXT.set(self._context)
        with self._reader.connection() as connection:
            for call in itertools.islice(self._calls(connection), self._wanted.limit):
                await self._one(call)
                done += 1
                if progress is not None and done % 500 == 0:
                    progress(done)
        RUN_CONTEXT.reset(outside)
        if progress is not None:
            progress(done)
        self.result.seconds = time.perf_counter() - started
        return self.result

    def _calls(self, connection: Connection) -> Iterator[Call]:
        yield from recorded_calls(connection, self._wanted)
        yield from asked_calls(connection, self._wanted)

    async def _one(self, call: Call) -> None:
        payload = self._payload(call)
        if payload is None:
            self.result.unreadable += 1
            return
        self.result.calls += 1
        event, matched = _EVENTS[call.event]
        target: Any = call.target if matched is not None else None
        if call.server is not None and matched == "tool_name":
            target = (call.target, f"{call.server}__{call.target}", f"mcp__{call.server}__{call.target}")
        plan = self._scope.plan(event, target, agent=call.agent, server=call.server)
        self._now = {}
        decision, reason, hook = "allow", None, None
        if plan is not None:
            try:
                verdict = await plan.dispatch(
                    payload, Site(self._run_context(call), call.agent, call.step_id, self._keep)
                )
                decision, reason, hook = verdict.decision, verdict.reason, verdict.hook
            except HookExecutionError as error:
                decision, reason, hook = "deny", str(error), error.ref
        self._compare(call, decision, reason, hook)

    def _run_context(self, call: Call) -> RunContext:
        """Who ran it, as far as the records know: no token, no metadata."""
        if self._context.run_id != call.run_id:
            user, organization, session = call.identity
            run_id = call.run_id or ""
            self._context = RunContext(
                run_id=run_id, conversation_id=session, user_id=user, organization_id=organization
            )
            RUN_CONTEXT.set(self._context)
        return self._context

    def _keep(self, _site: Where, row: HookRun) -> None:
        self._now[row.hook.name] = row.decision

    def _compare(self, call: Call, decision: str, reason: str | None, hook: str | None) -> None:
        now, before = self._now, call.by_hook
        if now != before:
            counts, event = self.result.by_hook, call.event
            for name, new in now.items():
                old = before.get(name, NOT_THERE)
                if old != new:
                    counts[event, name, old, new] += 1
            for name, old in before.items():
                if name not in now:
                    counts[event, name, old, NOT_THERE] += 1
        if decision == call.decision:
            self.result.same += 1
            return
        key = (call.event, call.target or "", call.decision, decision)
        self.result.by_target[key] += 1
        examples = self.result.examples.setdefault(key, [])
        if len(examples) < self._examples:
            difference = Difference(
                call.event, call.target, call.run_id, call.record_id, call.decision, decision, call.reason,
                reason, hook, call.body,
            )  # fmt: skip
            examples.append(difference)

    def _payload(self, call: Call) -> Any:
        maker = self._makers.get(call.event, _MISSING)
        if maker is _MISSING:
            maker = self._makers[call.event] = _maker(call.event)
        if maker is None or not isinstance(call.body, dict) or "not_stored" in call.body:
            return None
        try:
            return maker(call.body, call)
        except (TypeError, ValueError, AttributeError):
            return None


_MISSING: Any = object()
_EVENTS = {event.value: (event, CATALOGUE[event].target) for event in HookEvent}
"""name → event, and the attribute of its payload that a matcher is tried against."""


def _maker(event: str) -> Callable[[Any, Call], Any] | None:
    """A function that builds the payload of an event from its stored form."""
    try:
        kind = payload_type(event)
    except ValueError:
        return None
    if not is_dataclass(kind):
        return None
    names = frozenset(str(one.name) for one in fields(kind))
    if issubclass(kind, HookInput):

        def build(body: dict[str, Any], call: Call) -> Any:
            known = {name: value for name, value in body.items() if name in names}
            return kind(session_id=call.identity[2], agent_name=call.agent, run_id=call.run_id, **known)

        return build

    def build_context(body: dict[str, Any], call: Call) -> Any:
        known = {name: value for name, value in body["payload"].items() if name in names}
        if isinstance(known.get("auth_context"), dict):
            known["auth_context"] = AuthContext(**known["auth_context"])
        return kind(**known)

    return build_context
