"""A plan: the hooks of one event for one target, put into groups once, and run as often as the event happens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from agent_engine.hooks.callbacks import Reader, reader_of
from agent_engine.hooks.definition import CommandHook, FunctionHook, HookDefinition, WebhookHook
from agent_engine.hooks.dispatch import Dispatch
from agent_engine.hooks.events import CATALOGUE, EventSpec, HookEvent
from agent_engine.hooks.folding import Folding, same
from agent_engine.hooks.managed import HookInvocation
from agent_engine.hooks.payloads import payload_type, private_copy, set_turn
from agent_engine.hooks.quick import Patience, Underway, call_all, call_all_timed, relay, set_off, together, walk
from agent_engine.hooks.result import HookExecutionResult, HookResult
from agent_engine.hooks.tally import let_through
from agent_engine.hooks.told import Telling
from agent_engine.hooks.workers import MOST_OVERRUN, overrun

if TYPE_CHECKING:
    from agent_engine.hooks.result import Verdict
    from agent_engine.hooks.site import Where

Kind = Literal["async", "inline", "worker", "command", "webhook", "missing"]
OnFailure = Literal["raise", "refuse", "log"]

INLINE, WALK, RELAY, TOGETHER = "inline", "walk", "relay", "together"
TIMED: Final = (INLINE, WALK)

NEVER_RAISES: Final = frozenset({HookEvent.ON_ENGINE_STOP, HookEvent.ON_RUN_ERROR})
"""Here a failing hook must not mask what has already happened; the next hook runs."""


@dataclass(slots=True, frozen=True)
class Entry:
    """One hook of a plan with everything about it worked out.

    ``counts`` is False for observers and shadows. ``live`` says that the hook is handed the payload itself: its failure
    stops the step, so nothing that it left half done is ever used.
    """

    hook: HookDefinition
    name: str
    ref: str
    kind: Kind
    call: Callable[..., Any]
    limit: float
    on_failure: OnFailure
    counts: bool
    live: bool
    sequential: bool
    managed: bool
    when: Callable[..., object] | None

    def argument(self, payload: Any, site: Where) -> Any:
        """What the callable is called with: the payload, or the invocation that holds it."""
        if not self.managed:
            return payload
        hook = self.hook
        assert isinstance(hook, FunctionHook)
        return HookInvocation(
            hook_point=str(hook.event),
            payload=payload,
            plugin=hook.plugin,
            method=hook.method,
            ref=hook.ref,
            run_context=private_copy(site.run_context),
            metadata=private_copy(site.metadata or {}),
        )


@dataclass(slots=True, frozen=True)
class Group:
    """Neighbours of one mode. ``runs`` are neighbours of which all or none go to a worker thread."""

    sequential: bool
    entries: tuple[Entry, ...]
    runs: tuple[tuple[Entry, ...], ...]

    def after(self, position: int) -> list[Group]:
        """What is left of a group behind one of its hooks."""
        return _groups(self.entries[position + 1 :])


class Plan:
    """What happens at one event for one target. Immutable; shared by any number of dispatches on any thread.

    ``_way`` is the quick way through it, "" where it has none; ``_own`` is the type of payload that may take it, None
    where none may.
    """

    __slots__ = (
        "_folding",
        "_foldings",
        "_names",
        "_own",
        "_patience",
        "_way",
        "calls",
        "entries",
        "event",
        "groups",
        "limits",
        "reader",
        "spec",
    )

    def __init__(self, event: HookEvent, entries: Sequence[Entry]) -> None:
        self.event = event
        self.spec: EventSpec = CATALOGUE[event]
        self.entries = tuple(entries)
        self.limits = tuple(entry.limit for entry in entries)
        self.groups = tuple(_groups(self.entries))
        self.reader: Reader = reader_of(self.spec)
        self.calls = tuple(entry.call for entry in self.entries)
        self._way = _way(self.spec, self.groups)
        self._names = tuple((entry.hook.id, entry.name) for entry in entries)
        self._patience = Patience()
        own_type = payload_type(event)
        self._folding = Folding(self.spec, own_type)
        self._foldings = {own_type: self._folding}
        self._own = own_type if self._way else None

    def folding(self, payload: Any) -> Folding:
        """What may be changed in a payload of this one's type."""
        kind = type(payload)
        found = self._foldings.get(kind)
        if found is None:
            found = self._foldings[kind] = Folding(self.spec, kind)
        return found

    async def dispatch(self, payload: Any, site: Where) -> Verdict:
        """Run the hooks on ``payload`` and give the verdict. The payload is the dispatcher's from here on.

        Raises:
            HookExecutionError: a hook under ``fail`` broke (at a strict site: the hook's own exception).
        """
        if type(payload) is not self._own or site.sink is not None:
            return await self._general(payload, site)
        folding = self._folding
        before = folding.keep(payload)
        pending = iter(self.calls)
        set_turn(payload, pending)
        way = self._way
        worked_on = None
        try:
            if way is INLINE:
                outcome = call_all(pending, payload)
            elif way is WALK:
                gone = set_off(pending, payload)
                outcome = await gone.arrive(self.limits) if isinstance(gone, Underway) else gone
            elif overrun() >= MOST_OVERRUN:
                return await Dispatch(self, payload, site).run()
            elif way is RELAY:
                outcome, worked_on = await relay(pending, payload, self.limits, folding, self._patience)
            else:
                group = await together(self.entries, payload, folding)
                if group is not None:
                    return Dispatch(self, payload, site).settle_group(*group)
                return let_through(payload, changed=False)
        finally:
            set_turn(payload, None)
        if outcome is not None:
            return await Dispatch(self, payload, site).go_on(folding.named(before), *outcome, worked_on=worked_on)
        after = folding.read(payload)
        return let_through(payload, after is not before and not same(after, before))

    async def _general(self, payload: Any, site: Where) -> Verdict:
        """The way that serves every plan, or the quick one that tells the site of each hook."""
        if type(payload) is not self._own or self._way not in TIMED:
            return await Dispatch(self, payload, site).run()
        folding = self._folding
        pending = Telling(self, payload, site, folding)
        before = pending.known
        set_turn(payload, pending)
        try:
            if self._way is INLINE:
                outcome = call_all(pending, payload)
            else:
                outcome = await walk(pending, payload, self.limits)
        finally:
            set_turn(payload, None)
        if outcome is not None:
            return await Dispatch(self, payload, site).go_on(folding.named(before), *outcome, told=pending)
        return let_through(payload, pending.known is not before and not same(pending.known, before))

    async def dispatch_rows(self, payload: Any, site: Where) -> tuple[Verdict, list[HookExecutionResult]]:
        """The same with a row for each hook that ran; a hook's failure is a row and a refusal, never an exception."""
        if type(payload) is not self._own or site.sink is not None or self._way not in TIMED:
            one = Dispatch(self, payload, site, rows=[])
            verdict = await one.run()
            return verdict, one.rows or []
        folding = self._folding
        before = folding.keep(payload)
        pending = iter(self.calls)
        times = [time.perf_counter()]
        set_turn(payload, pending)
        try:
            if self._way is INLINE:
                outcome = call_all_timed(pending, payload, times)
            else:
                outcome = await walk(pending, payload, self.limits, times)
        finally:
            set_turn(payload, None)
        rows = self._plain_rows(times)
        if outcome is not None:
            one = Dispatch(self, payload, site, rows)
            return await one.go_on(folding.named(before), *outcome, begun=times[-1]), rows
        return let_through(payload, not same(folding.read(payload), before)), rows

    def _plain_rows(self, times: Sequence[float]) -> list[HookExecutionResult]:
        """Rows of the hooks that simply said "go on"; ``times`` is when each began, and when the last one had ended."""
        event = self.event.value
        return [
            HookExecutionResult(hook_id, name, event, True, HookResult(), "", "", None, (end - start) * 1000)
            for (hook_id, name), start, end in zip(self._names, times, times[1:], strict=False)
        ]


def compile_plan(event: HookEvent, hooks: Sequence[tuple[HookDefinition, float]]) -> Plan:
    """The plan for ``hooks``, given in the order they run, each with its limit in seconds."""
    spec = CATALOGUE[event]
    return Plan(event, [_entry(spec, hook, limit) for hook, limit in hooks])


def _entry(spec: EventSpec, hook: HookDefinition, limit: float) -> Entry:
    counts = not hook.observe and not hook.shadow
    on_failure = _on_failure(spec, hook) if counts else "log"
    kind, call = _kind(hook, limit)
    return Entry(
        hook=hook,
        name=hook.name,
        ref=_ref(hook),
        kind=kind,
        call=call,
        limit=limit,
        on_failure=on_failure,
        counts=counts,
        live=counts and on_failure != "log",
        sequential=hook.runs_sequentially,
        managed=isinstance(hook, FunctionHook) and hook.managed_call,
        when=hook.when,
    )


def _on_failure(spec: EventSpec, hook: HookDefinition) -> OnFailure:
    if spec.event in NEVER_RAISES:
        return "log"
    if hook.failure_policy == "fail":
        return "raise"
    if spec.event is HookEvent.ON_PERMISSION_ASK:
        return "refuse"  # a hook that broke while it was asked for leave has not given it, whatever its policy
    return "refuse" if hook.failure_policy == "deny" and spec.refuses else "log"


def _kind(hook: HookDefinition, limit: float) -> tuple[Kind, Callable[..., Any]]:
    if isinstance(hook, CommandHook):
        from agent_engine.hooks.command import run_command

        return "command", run_command
    if isinstance(hook, WebhookHook):
        from agent_engine.hooks.webhook import post_webhook

        return "webhook", post_webhook
    func = hook.func if isinstance(hook, FunctionHook) else None
    if func is None:
        return "missing", _nothing
    assert isinstance(hook, FunctionHook)
    return ("async" if hook.is_async else "inline" if hook.inline else "worker"), func


def _nothing(_: Any) -> None:
    raise AssertionError("a hook without a callable is never called")


def _ref(hook: HookDefinition) -> str:
    if isinstance(hook, FunctionHook):
        if hook.plugin is not None:
            return f"{hook.plugin}.{hook.method}"
        if hook.ref is not None:
            return hook.ref
    return hook.name


def _way(spec: EventSpec, groups: Sequence[Group]) -> str:
    """The quick way through a plan; "" where it has none."""
    if spec.managed or spec.event is HookEvent.ON_PERMISSION_ASK or len(groups) != 1:
        return ""
    group = groups[0]
    if not all(entry.live and entry.when is None and not entry.managed for entry in group.entries):
        return ""
    kinds = {entry.kind for entry in group.entries}
    if group.sequential:
        return {"inline": INLINE, "async": WALK, "worker": RELAY}.get(kinds.pop(), "") if len(kinds) == 1 else ""
    return TOGETHER if kinds <= {"async", "worker"} else ""


def _groups(entries: Sequence[Entry]) -> list[Group]:
    groups = []
    for sequential, members in itertools.groupby(entries, key=lambda entry: entry.sequential):
        chosen = tuple(members)
        runs = tuple(tuple(run) for _, run in itertools.groupby(chosen, key=lambda entry: entry.kind == "worker"))
        groups.append(Group(sequential, chosen, runs))
    return groups


__all__ = ["NEVER_RAISES", "Entry", "Group", "Plan", "compile_plan"]
