"""Entries become facts: digests are taken, payloads to be stored are redacted.

What takes microseconds is done where the entry is written; what may take longer waits for the writer's thread. A fact
holds text and numbers alone, so that a queue of them is nothing to the garbage collector; a queue of entries makes it
walk over everything in the program every few thousand entries, which holds all threads for many milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from agent_engine.records.canonical import (
    NoDigest,
    canonical,
    canonical_small,
    digest,
    digest_small,
    is_large,
    payload_form,
)
from agent_engine.records.facts import Fact, Payloads
from agent_engine.records.journal import Entry, HookRan, RunClosed, RunOpened, StepClosed, StepOpened
from agent_engine.records.settings import RecordSettings

if TYPE_CHECKING:
    from agent_engine.hooks.result import HookRun

Taken: TypeAlias = Entry | Fact
"""What waits in a queue: a fact, or an entry that is still to become one."""

_AT_ONCE = 2_000
"""Characters (a container counts as 16) up to which a payload is digested where the entry is written."""

_MOST_HOOKS = 4_096

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


class _LaterError(Exception):
    """This entry is for the writer's thread."""


class FactMaker:
    """Turns entries into facts: ``take`` from any thread, ``make`` from the writer's, a batch at a time.

    A payload that several hooks share is digested once.
    """

    def __init__(self, settings: RecordSettings) -> None:
        self._settings = settings
        self._reason = settings.reason
        self._last: tuple[object, str | None] = (None, None)
        self._seen: dict[int, tuple[object, str | None]] = {}
        self._kinds: dict[tuple[str | None, str], str] = {}
        self._hooks: dict[tuple[object, ...], tuple[object, tuple[Any, ...]]] = {}
        self.chars = 0

    def take(self, entry: Entry) -> Taken:
        """The fact where it is a matter of microseconds, else the entry itself, for ``make``."""
        kind = entry.__class__
        if kind is HookRan:
            run = entry.run  # type: ignore[union-attr]  # kind is HookRan, here and below
            payload, found = self._last
            if run.before is None:
                return "hook", (), *self._hook_values(entry, run, None, None)  # type: ignore[arg-type]
            if run.before is payload and run.after is payload and not self._settings.capture:
                return "hook", (), *self._hook_values(entry, run, found, found)  # type: ignore[arg-type]
        elif (kind is StepOpened or kind is StepClosed) and not self._settings.capture:
            detail = entry.detail  # type: ignore[union-attr]  # kind is one of these two
            if "payload" not in detail:
                text = _json(detail)
                if kind is StepOpened:
                    return "step_opened", (), *_opened_values(entry, text)  # type: ignore[arg-type]
                return "step_closed", (), *_closed_values(entry, text, self._reason)  # type: ignore[arg-type]
        try:
            return self._fact(entry, at_once=True)
        except _LaterError:
            return entry

    def begin(self) -> None:
        """Forget the payloads of the batch before; their ids may stand for others now."""
        self._seen.clear()
        self.chars = 0

    def make(self, taken: Taken) -> Fact:
        """The fact for what ``take`` gave."""
        if type(taken) is tuple:
            return taken
        return self._fact(taken, at_once=False)  # type: ignore[arg-type]  # what is no tuple is an entry

    def _fact(self, entry: Entry, *, at_once: bool) -> Fact:
        if isinstance(entry, HookRan):
            return self._hook(entry, entry.run, at_once)
        if isinstance(entry, StepOpened):
            return self._step_opened(entry, at_once)
        if isinstance(entry, StepClosed):
            return self._step_closed(entry, at_once)
        if isinstance(entry, RunOpened):
            return "run_opened", (), *_run_opened(entry)
        return "run_closed", (), *_run_closed(entry)

    def _hook(self, entry: HookRan, run: HookRun, at_once: bool) -> Fact:
        event, settings = str(run.event), self._settings
        before = after = None
        payloads: list[tuple[str, str]] = []
        if run.before is not None:
            changed = run.after is not None and run.after is not run.before
            if settings.capture and settings.captures(event):
                payloads = self._stored(event, at_once, before=payload_form(event, run.before))
                if changed:
                    payloads += self._stored(event, at_once, after=payload_form(event, run.after))
            if settings.digests:
                before = self._digest(event, run.before, at_once)
                after = self._digest(event, run.after, at_once) if changed else before
        return "hook", tuple(payloads), *self._hook_values(entry, run, before, after)

    def _hook_values(self, entry: HookRan, run: HookRun, before: str | None, after: str | None) -> tuple[Any, ...]:
        return (
            entry.record_id,
            entry.run_id,
            entry.step_id,
            entry.agent,
            run.started_at,
            run.decision,
            _cap(run.reason, self._reason),
            bool(run.broke),
            run.failure_type,
            ",".join(run.changed) if run.changed else None,
            before,
            after,
            round(run.duration_ms, 4),
            run.group,
            bool(run.additional_context),
            *self._identity(run),
        )

    def _identity(self, run: HookRun) -> tuple[Any, ...]:
        """What says which hook it was; worked out once for each."""
        hook = run.hook
        key = (id(hook), run.event, run.mode, run.policy, run.observe, run.shadow)
        known = self._hooks.get(key)
        if known is None or known[0] is not hook:
            if len(self._hooks) >= _MOST_HOOKS:
                self._hooks.clear()
            known = self._hooks[key] = (hook, _identity_of(run))
        return known[1]

    def _step_opened(self, entry: StepOpened, at_once: bool) -> Fact:
        if self._settings.capture:
            self._kinds[(entry.run_id, entry.step_id)] = entry.kind
        detail, payloads = self._detail(entry.detail, entry.kind, at_once)
        return "step_opened", payloads, *_opened_values(entry, detail)

    def _step_closed(self, entry: StepClosed, at_once: bool) -> Fact:
        key = (entry.run_id, entry.step_id)
        detail, payloads = self._detail(entry.detail, self._kinds.get(key, "tool"), at_once)
        if self._kinds and entry.outcome != "waiting":
            self._kinds.pop(key, None)
        return "step_closed", payloads, *_closed_values(entry, detail, self._reason)

    def _detail(self, detail: Mapping[str, Any], kind: str, at_once: bool) -> tuple[str | None, Payloads]:
        """The safe part of a step's detail as JSON (digests in the place of payloads), and the payloads to store."""
        if "payload" not in detail:
            return _json(detail), ()
        safe, settings = dict(detail), self._settings
        payloads: list[tuple[str, str]] = []
        for which, value in (safe.pop("payload") or {}).items():
            if settings.capture and settings.captures(_STEP_EVENTS.get((kind, which), "")):
                payloads += self._stored(_STEP_EVENTS[kind, which], at_once, **{which: value})
            if settings.digests:
                safe[f"{which}_digest"] = self._digest("", value, at_once)
        return _json(safe), tuple(payloads)

    def _digest(self, event: str, payload: object, at_once: bool) -> str | None:
        known = self._last if at_once else self._seen.get(id(payload), self._last)
        if known[0] is payload:
            return known[1]
        form = payload_form(event, payload, at_once) if event else payload
        if at_once and (form is None or is_large(form, _AT_ONCE)):
            raise _LaterError
        try:
            found: str | None = digest_small(form) if at_once else digest(form)
        except NoDigest:
            found = None
        if at_once:
            self._last = (payload, found)
        else:
            self._seen[id(payload)] = (payload, found)
        return found

    def _stored(self, event: str, at_once: bool, **forms: Any) -> list[tuple[str, str]]:
        if at_once:
            raise _LaterError
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


def _identity_of(run: HookRun) -> tuple[Any, ...]:
    hook = run.hook
    return (
        str(run.event),
        hook.id,
        hook.name,
        _KINDS.get(type(hook).__name__, "function"),
        _text(getattr(hook, "source", None)),
        run.mode,
        hook.priority,
        run.policy,
        bool(run.observe),
        bool(run.shadow),
    )


def _opened_values(entry: StepOpened, detail: str | None) -> tuple[Any, ...]:
    return entry.run_id, entry.step_id, entry.parent_id, entry.kind, entry.name, entry.agent, entry.at, detail


def _closed_values(entry: StepClosed, detail: str | None, reason: int) -> tuple[Any, ...]:
    return (
        entry.run_id,
        entry.step_id,
        entry.status,
        entry.error_type,
        entry.outcome,
        entry.refused_by,
        _cap(entry.reason, reason),
        round(entry.duration_ms, 4),
        detail,
        _sorted_words(tuple(entry.unheard)) if entry.unheard else None,
    )


def _run_opened(entry: RunOpened) -> tuple[Any, ...]:
    who = (entry.run_id, entry.system, entry.session_id, entry.user_id, entry.organization_id)
    return (*who, entry.at, entry.message_digest, _text(entry.generation))


def _run_closed(entry: RunClosed) -> tuple[Any, ...]:
    usage = _json(entry.usage) if entry.usage else None
    return (entry.run_id, entry.status, entry.error_type, entry.at, round(entry.duration_ms, 4), usage)


def _json(value: Mapping[str, Any]) -> str | None:
    """Metadata as JSON; it is small by agreement."""
    if not value:
        return None
    try:
        return canonical_small(value if type(value) is dict else dict(value))
    except NoDigest as error:
        return canonical({"unreadable": str(error)})


@lru_cache(4096)
def _sorted_words(words: tuple[str, ...]) -> str:
    return " ".join(sorted(str(word) for word in words))


def _cap(reason: str | None, most: int) -> str | None:
    return reason if reason is None or len(reason) <= most else reason[: most - 1] + "…"


def _text(value: object) -> str | None:
    return None if value is None else str(value)


_KINDS = {"CommandHook": "command", "WebhookHook": "webhook", "FunctionHook": "function"}
