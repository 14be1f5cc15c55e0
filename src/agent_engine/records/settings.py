"""What a store of records keeps, and how it is told: in Python, or after the ``?`` of its address."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode

Redaction: TypeAlias = Callable[[str, Any], Any]
"""``redact(event, payload)`` gets the JSON form of a payload and returns what may be stored, None to store nothing."""

AUDIT_KEY = "AGENT_ENGINE_AUDIT_KEY"
"""The environment variable that holds the key of an audit log. Its text is used as UTF-8 bytes."""

STORE = "AGENT_ENGINE_RECORDS"
"""The environment variable that names the store agentctl uses where no ``--store`` is given."""

_LONGEST_S = 100 * 366 * 86400
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_OPTIONS = ("audit", "capture", "digests", "queue", "reason", "redact", "ttl")


class RecordsError(Exception):
    """A store of records cannot be opened, written or read; the message says which, why, and what to do."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """
    Attributes:
        digests: sha256 of each payload before and after a hook, over its canonical JSON.
        capture: events whose payloads are stored too; empty (the default) stores none. ``*`` means every event.
            ``before_tool`` also keeps what a model asked of a tool and what the tool was given, ``after_tool`` the
            result, ``before_llm`` and ``after_llm`` likewise for a model call.
        redact: applied to each payload before it is stored. If it raises, that payload is not stored.
        ttl: seconds a stored payload is kept; None keeps it for good.
        audit: chain the log with an HMAC under the key in AGENT_ENGINE_AUDIT_KEY.
        reason: longest reason kept, in characters.
        queue: entries waiting to be written at which runs are asked to slow down.
        batch_s: longest time an entry waits for others before it is written, in seconds.
    """

    digests: bool = True
    capture: frozenset[str] = frozenset()
    redact: Redaction | None = None
    ttl: float | None = None
    audit: bool = False
    reason: int = 500
    queue: int = 10_000
    batch_s: float = 0.1
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def captures(self, event: str) -> bool:
        return event in self.capture or "*" in self.capture

    @property
    def wants_payloads(self) -> bool:
        return self.digests or bool(self.capture)

    def audit_key(self) -> bytes | None:
        """The key of an audit log, or None where this is no audit log.

        Raises:
            RecordsError: an audit log without a key.
        """
        if not self.audit:
            return None
        key = self.environ.get(AUDIT_KEY, "")
        if not key:
            raise RecordsError(
                f"An audit log needs its key: set {AUDIT_KEY} to a long random text and keep it elsewhere."
            )
        return key.encode()


def split_address(address: str, settings: RecordSettings | None = None) -> tuple[str, RecordSettings]:
    """The address without the options that follow its ``?``, and the settings with them applied.

    As in any URL, a ``?`` in the name of a file or folder is written ``%3F``, and a ``%`` ``%25``.

    Options: ``audit=on``, ``digests=off``, ``capture=before_tool,after_tool``, ``ttl=7d`` (s, m, h, d),
    ``redact=module:function``, ``reason=500``, ``queue=10000``. For PostgreSQL other options go to the driver.

    Raises:
        ValueError: an unknown option or a bad value; the message names it.
    """
    settings = settings or RecordSettings()
    base, mark, query = address.partition("?")
    if not mark:
        return address, settings
    foreign: list[tuple[str, str]] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _OPTIONS:
            settings = _with_option(settings, name, value)
        elif base.startswith("postgres"):
            foreign.append((name, value))
        else:
            raise ValueError(f"Unknown option {name!r} in {base!r}; options are {', '.join(_OPTIONS)}.")
    return base + ("?" + urlencode(foreign) if foreign else ""), settings


def file_address(scheme: str, path: Path | str) -> str:
    """The address of any file, whatever its name: ``?`` and ``%``, which mean something in an address, are escaped."""
    return f"{scheme}:{str(path).replace('%', '%25').replace('?', '%3F')}"


def file_of(base: str) -> Path:
    """The file behind ``sqlite:PATH`` or ``jsonl:PATH``, an address without its options."""
    return Path(unquote(base.partition(":")[2], errors="surrogateescape")).expanduser()


def seconds(text: str) -> float:
    """``90s``, ``15m``, ``12h``, ``7d`` or a plain number, in seconds.

    Raises:
        ValueError: anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no duration; write a number with s, m, h or d, such as 7d.")
    length = float(found[1]) * _UNITS[found[2] or "s"]
    if length > _LONGEST_S:
        raise ValueError(
            f"A duration of {text.strip()[:40]!r} is longer than anything lasts here; take a hundred years at most."
        )
    return length


def default_store(config: Path | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The address agentctl and serve use where none is given.

    AGENT_ENGINE_RECORDS, else a SQLite file in ``.agent_engine`` beside the system's file, or in the work folder.
    """
    folder = (config.parent.resolve() if config is not None else Path()) / ".agent_engine"
    return environ.get(STORE) or file_address("sqlite", folder / "records.db")


def _with_option(settings: RecordSettings, name: str, value: str) -> RecordSettings:
    if name in ("audit", "digests"):
        words = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}
        if value.lower() not in words:
            raise ValueError(f"{name}={value!r}: write on or off.")
        flag = words[value.lower()]
        return replace(settings, audit=flag) if name == "audit" else replace(settings, digests=flag)
    if name == "capture":
        return replace(settings, capture=frozenset(_event(word) for word in value.split(",") if word.strip()))
    if name == "ttl":
        return replace(settings, ttl=seconds(value))
    if name == "redact":
        return replace(settings, redact=_redaction(value))
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{name}={value!r}: write a whole number above 0.")
    return replace(settings, reason=int(value)) if name == "reason" else replace(settings, queue=int(value))


def _event(word: str) -> str:
    from agent_engine.hooks.events import event_of

    word = word.strip()
    return word if word == "*" else str(event_of(word))


def _redaction(ref: str) -> Redaction:
    module, _, attribute = ref.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"redact={ref!r} cannot be loaded ({type(error).__name__}); write module:function.") from error
    if not callable(found):
        raise ValueError(f"redact={ref!r} is no function.")
    redaction: Redaction = found
    return redaction


def shown_start(address: str) -> str:
    """The start of an address that is not understood: what follows may be a password."""
    return address.split("@")[0].split("//")[0][:40]
