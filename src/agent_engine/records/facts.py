"""Entries become facts: flat values without payloads, the form in which every store keeps them.

A fact is ``(kind, values, payloads)``; the names of its values are in :data:`FIELDS`. Digests are taken and payloads
are redacted here, on the writer's thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from agent_engine.records.canonical import NoDigest, canonical, digest, payload_form
from agent_engine.records.journal import Entry, HookRan, RunClosed, RunOpened, StepClosed, StepOpened
from agent_engine.records.settings import RecordSettings

if TYPE_CHECKING:
    from agent_engine.hooks.result import HookRun

FIELDS: dict[str, tuple[str, ...]] = {
    "run_opened": (
        "run_id",
        "system",
        "session_id",
        "user_id",
        "organization_id",
        "at",
        "message_digest",
        "generation",
    ),
    "run_closed": ("run_id", "status", "error_type", "at", "duration_ms", "usage"),
    "step_opened": ("run_id", "step_id", "parent_id", "kind", "name", "agent", "at", "detail"),
    "step_closed": (
        "run_id",
        "step_id",
        "status",
        "error_type",
        "outcome",
        "refused_by",
        "reason",
        "duration_ms",
        "detail",
        "unheard",
    ),
    "hook": (
        "record_id",
        "run_id",
        "step_id",
        "agent",
        "at",
        "decision",
        "reason",
        "broke",
        "failure_type",
        "changed",
        "before_digest",
        "after_digest",
        "duration_ms",
        "grp",
        "context",
        "event",
        "hook_id",
        "hook_name",
        "hook_kind",
        "source",
        "mode",
        "priority",
        "policy",
        "observe",
        "shadow",
    ),
    "lost": ("at", "count"),
    "recovered": ("at", "last_seq", "open_runs"),
    "stopped": ("at",),
}
"""kind of fact → names of its values. ``at`` is seconds since the epoch; ``usage`` and ``detail`` are JSON text."""

HOOK_IDENTITY = FIELDS["hook"].index("event")
"""Where, in a hook's fact, the values begin that say which hook it was (the ones before say what it did)."""

Payloads: TypeAlias = Sequence[tuple[str, str]]
"""(which, JSON text): before and after of a hook; asked, used and result of a step."""


class Fact(NamedTuple):
    kind: str
    values: tuple[Any, ...]
    payloads: Payloads = ()

    def as_dict(self) -> dict[str, Any]:
        return dict(zip(FIELDS[self.kind], self.values, strict=True))


_STEP_EVENTS = {
    ("tool", "asked"): "before_tool",
    ("tool", "used"): "before_tool",
    ("tool", "result"): "after_tool",
    ("model", "asked"): "before_llm",
    ("model", "used"): "before_llm",
    ("model", "result"): "after_llm",
    ("agent", "asked"): "before_agent",
    ("agent", "used"): "before_agent",
    ("agent", "result"): "after_agent",
}


class FactMaker:
    """Turns entries into facts. One batch at a time: a payload that several hooks share is digested once."""

    def __init__(self, settings: RecordSettings) -> None:
        self._settings = settings
        self._seen: dict[int, tuple[object, str | None]] = {}
        self._kinds: dict[tuple[str | None, str], str] = {}
        self.chars = 0

    def begin(self) -> None:
        """Forget the payloads of the batch before; their ids may stand for others now."""
        self._seen.clear()
        self.chars = 0

    def make(self, entry: Entry) -> Fact:
        if isinstance(entry, HookRan):
            return self._hook(entry, entry.run)
        if isinstance(entry, StepOpened):
            return self._step_opened(entry)
        if isinstance(entry, StepClosed):
            return self._step_closed(entry)
        if isinstance(entry, RunOpened):
            values = (entry.run_id, entry.system, entry.session_id, entry.user_id, entry.organization_id, entry.at)
            return Fact("run_opened", (*values, entry.message_digest, _text(entry.generation)))
        return Fact("run_closed", _run_closed(entry))

    def _hook(self, entry: HookRan, run: HookRun) -> Fact:
        hook = run.hook
        event = str(run.event)
        before = after = None
        payloads: list[tuple[str, str]] = []
        if run.before is not None and self._settings.digests:
            before = self._digest(event, run.before)
            same = run.after is None or run.after is run.before
            after = before if same else self._digest(event, run.after)
        if run.before is not None and self._settings.capture and self._settings.captures(event):
            payloads = self._stored(event, before=payload_form(event, run.before))
            if run.after is not None and run.after is not run.before:
                payloads += self._stored(event, after=payload_form(event, run.after))
        values = (
            entry.record_id,
            entry.run_id,
            entry.step_id,
            entry.agent,
            run.started_at,
            run.decision,
            self._cap(run.reason),
            bool(run.broke),
            run.failure_type,
            ",".join(run.changed) if run.changed else None,
            before,
            after,
            round(run.duration_ms, 4),
            run.group,
            bool(run.additional_context),
            event,
            hook.id,
            hook.name,
            _kind_of(hook),
            _text(getattr(hook, "source", None)),
            run.mode,
            hook.priority,
            run.policy,
            bool(run.observe),
            bool(run.shadow),
        )
        return Fact("hook", values, payloads)

    def _step_opened(self, entry: StepOpened) -> Fact:
        detail, payloads = self._detail(entry.detail, entry.kind)
        if payloads:
            self._kinds[(entry.run_id, entry.step_id)] = entry.kind
        values = (entry.run_id, entry.step_id, entry.parent_id, entry.kind, entry.name, entry.agent, entry.at, detail)
        return Fact("step_opened", values, payloads)

    def _step_closed(self, entry: StepClosed) -> Fact:
        kind = self._kinds.pop((entry.run_id, entry.step_id), "tool")
        detail, payloads = self._detail(entry.detail, kind)
        unheard = _sorted_words(tuple(entry.unheard)) if entry.unheard else None
        values = (
            entry.run_id,
            entry.step_id,
            entry.status,
            entry.error_type,
            entry.outcome,
            entry.refused_by,
            self._cap(entry.reason),
            round(entry.duration_ms, 4),
            detail,
            unheard,
        )
        return Fact("step_closed", values, payloads)

    def _detail(self, detail: Mapping[str, Any], kind: str) -> tuple[str | None, Payloads]:
        """The safe part of a step's detail as JSON (digests in the place of payloads), and the payloads to store."""
        if not detail:
            return None, ()
        if "payload" not in detail:
            return _json(detail), ()
        values = detail["payload"] or {}
        safe = {key: value for key, value in detail.items() if key != "payload"}
        payloads: list[tuple[str, str]] = []
        for which, value in values.items():
            if self._settings.digests:
                safe[f"{which}_digest"] = self._digest("", value)
            event = _STEP_EVENTS.get((kind, which))
            if event is not None and self._settings.captures(event):
                payloads += self._stored(event, **{which: value})
        return _json(safe), payloads

    def _digest(self, event: str, payload: object) -> str | None:
        known = self._seen.get(id(payload))
        if known is not None:
            return known[1]
        try:
            found: str | None = digest(payload_form(event, payload) if event else payload)
        except NoDigest:
            found = None
        self._seen[id(payload)] = (payload, found)
        return found

    def _stored(self, event: str, **forms: Any) -> list[tuple[str, str]]:
        kept = []
        for which, form in forms.items():
            text = self._redacted(event, form)
            if text is not None:
                self.chars += len(text)
                kept.append((which, text))
        return kept

    def _redacted(self, event: str, form: Any) -> str | None:
        try:
            text = canonical(form)
            if self._settings.redact is None:
                return text
            shown = self._settings.redact(event, json.loads(text))
            return None if shown is None else canonical(shown)
        except NoDigest as error:
            return canonical({"not_stored": str(error)})
        except Exception as error:  # noqa: BLE001 - whatever a redaction does, an unredacted payload must not be stored
            return canonical({"not_stored": f"the redaction failed ({type(error).__name__})"})

    def _cap(self, reason: str | None) -> str | None:
        if reason is None or len(reason) <= self._settings.reason:
            return reason
        return reason[: self._settings.reason - 1] + "…"


def lost(count: int) -> Fact:
    return Fact("lost", (time.time(), count))


def _run_closed(entry: RunClosed) -> tuple[Any, ...]:
    usage = _json(entry.usage) if entry.usage else None
    return (entry.run_id, entry.status, entry.error_type, entry.at, round(entry.duration_ms, 4), usage)


def _json(value: Mapping[str, Any]) -> str | None:
    if not value:
        return None
    try:
        return canonical(value if type(value) is dict else dict(value))
    except NoDigest as error:
        return canonical({"unreadable": str(error)})


@lru_cache(4096)
def _sorted_words(words: tuple[str, ...]) -> str:
    return " ".join(sorted(str(word) for word in words))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _kind_of(hook: object) -> str:
    name = type(hook).__name__
    return {"CommandHook": "command", "WebhookHook": "webhook", "FunctionHook": "function"}.get(name, "function")


def clean(fact: Fact) -> Fact:
    """The fact with texts that every database takes: no NUL, no lone surrogate."""
    values = tuple(_clean_value(value) for value in fact.values)
    return Fact(fact.kind, values, [(which, _clean_text(body)) for which, body in fact.payloads])


def _clean_value(value: object) -> object:
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return max(-(2**63), min(2**63 - 1, value))
    return value


def _clean_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\0")
