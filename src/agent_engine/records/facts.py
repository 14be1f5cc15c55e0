"""Facts: entries as flat values without payloads, the form in which every store keeps them.

A fact is one flat tuple, ``(kind, payloads, *values)``; the names of its values are in :data:`FIELDS`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, TypeAlias

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

HEAD = 2
"""Where the values of a fact begin."""


def place(kind: str, name: str) -> int:
    """Where in a fact of this kind a value stands."""
    return HEAD + FIELDS[kind].index(name)


HOOK_IDENTITY = place("hook", "event")
"""Where, in a hook's fact, the values begin that say which hook it was (the ones before say what it did)."""

Payloads: TypeAlias = Sequence[tuple[str, str]]
"""(which, JSON text): before and after of a hook; asked, used and result of a step."""


Fact: TypeAlias = tuple[Any, ...]
"""``(kind, payloads, *values)``. One plain tuple of plain values, which the garbage collector soon leaves alone: from
the queue to the database there are thousands of them."""


def as_dict(fact: Fact) -> dict[str, Any]:
    """The values of a fact by their names."""
    return dict(zip(FIELDS[fact[0]], fact[HEAD:], strict=True))


def lost(count: int) -> Fact:
    return "lost", (), time.time(), count


_LONGEST_NAME = 200
_NAMES = frozenset((
    "run_id", "step_id", "parent_id", "name", "agent", "system",
    "session_id", "user_id", "organization_id", "generation", "record_id", "hook_id",
    "hook_name", "source", "refused_by", "error_type", "failure_type",
))  # fmt: skip


def clean(fact: Fact) -> Fact:
    """The fact with texts that every database takes: no NUL, no lone surrogate, no name too long for an index."""
    values = [
        _short(_clean_value(value)) if name in _NAMES else _clean_value(value) for name, value in as_dict(fact).items()
    ]
    return fact[0], tuple((which, clean_text(body)) for which, body in fact[1]), *values


def _short(value: object) -> object:
    """A name cut to a length that an index can hold; two that begin alike stay two."""
    if not isinstance(value, str) or len(value) <= _LONGEST_NAME:
        return value
    return f"{value[:_LONGEST_NAME]}…{sha256(value.encode()).hexdigest()[:16]}"


def _clean_value(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return max(-(2**63), min(2**63 - 1, value))
    return value


def clean_text(text: str) -> str:
    """The text as every database takes it."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\0")
