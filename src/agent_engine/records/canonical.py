"""Canonical JSON, and digests over it: the same content gives the same digest, in every process.

Keys sorted, no blanks, ASCII with ``\\u`` escapes, no NaN. A payload's digest is taken over its event and its own
fields; where and when (``cwd``, ``timestamp``, run, session, agent) are left out, the record has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from hashlib import sha256
from json import encoder as json_encoder
from typing import Any

from agent_engine.hooks.jsonform import MAX_DEPTH, JsonFormError, to_plain
from agent_engine.records.pace import Pace

_LEFT_OUT = frozenset({"cwd", "timestamp", "event_name", "session_id", "run_id", "agent_name"})
_LARGE = 50_000
"""Characters (a container counts as 16) from which a value is encoded in pieces, so that no thread waits for it."""
_PIECE = 1 << 15


def _make_encoder() -> Callable[[Any], str]:
    """``json.JSONEncoder.encode``, without what it sets up anew for each value: a good part of a small one's time."""
    make = getattr(json_encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, default=to_plain).encode
    text = json_encoder.encode_basestring_ascii
    # No markers: a circle ends in a RecursionError, and the walk below names its place.
    chunks: Callable[[Any, int], Iterable[str]] = make(None, to_plain, text, None, ":", ",", True, False, False)
    return lambda value: "".join(chunks(value, 0))


_encode = _make_encoder()


class NoDigest(ValueError):
    """A value has no canonical JSON; the text says why and where."""


def canonical(value: object) -> str:
    """The canonical JSON of ``value``.

    Raises:
        NoDigest: a cycle, NaN, too deep, or a type without a JSON form.
    """
    return "".join(pieces(value)) if is_large(value) else canonical_small(value)


def digest(value: object) -> str:
    """sha256 over the canonical JSON of ``value``, as 64 hex digits.

    Raises:
        NoDigest: as for :func:`canonical`.
    """
    if not is_large(value):
        return digest_small(value)
    hasher = sha256()
    for piece in pieces(value):
        hasher.update(piece.encode("ascii"))
    return hasher.hexdigest()


def digest_small(value: object) -> str:
    """The same for a value of which :func:`is_large` says that it is not, in one go."""
    return sha256(canonical_small(value).encode("ascii")).hexdigest()


def payload_form(event: str, payload: object, at_once: bool = False) -> Any:
    """What is digested and stored of a hook's payload: its event and its own fields, ready for :func:`canonical`.

    None where that might take long and ``at_once`` is true.
    """
    if isinstance(payload, BaseException):
        return {"event": event, "error_type": type(payload).__name__}
    names = _own_fields(type(payload))
    if names is None:
        if at_once and not isinstance(payload, str):
            return None
        return {"event": event, "payload": payload if isinstance(payload, dict | list | str) else _plain(payload)}
    form: dict[str, Any] = payload._raw(names)  # type: ignore[attr-defined]  # a HookInput, says _own_fields
    form["event"] = event
    return form


def is_large(value: object, most: int = _LARGE) -> bool:
    """Whether ``value`` has more than ``most`` characters (a container counts as 16, other values as 8).

    As a rule, whether encoding it in one go could keep other threads waiting for a good part of a millisecond.
    """
    budget = most
    containers: list[Any] = [(value,)]
    for container in containers:
        budget -= 16
        for item in container.values() if type(container) is dict else container:
            kind = type(item)
            if kind is str or kind is bytes:
                budget -= len(item)
            elif kind is dict or kind is list or kind is tuple:
                containers.append(item)
            else:
                budget -= 8
            if budget < 0:
                return True
    return False


def pieces(value: object) -> Iterator[str]:
    """The canonical JSON of a large value, bit by bit, with a breath for other threads in between."""
    pace = Pace()
    for piece in _walk(value, "", 0):
        yield piece
        pace.step()


def canonical_small(value: object) -> str:
    """The same as :func:`canonical` for a value of which :func:`is_large` says that it is not, in one go."""
    try:
        return _encode(value)
    except JsonFormError as error:
        raise NoDigest(str(error)) from None
    except (TypeError, ValueError, RecursionError):
        # The walk knows more forms than the encoder (keys that are no text) and names the place where it cannot go on.
        return _encode(_plain(value))


def _plain(value: object) -> Any:
    try:
        return to_plain(value)
    except JsonFormError as error:
        raise NoDigest(str(error)) from None


def _walk(value: Any, path: str, depth: int) -> Iterator[str]:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise NoDigest(f"{path or 'the payload'} is nested more than {MAX_DEPTH} levels deep, or in a circle")
    if kind is str:
        yield '"'
        for start in range(0, len(value), _PIECE):
            yield _encode(value[start : start + _PIECE])[1:-1]
        yield '"'
    elif kind is dict and all(type(key) is str for key in value):
        yield "{"
        for index, key in enumerate(sorted(value)):
            yield ("," if index else "") + _encode(key) + ":"
            yield from _part(value[key], f"{path}[{key!r}]" if path else key, depth + 1)
        yield "}"
    elif kind is list or kind is tuple:
        yield "["
        for index, item in enumerate(value):
            if index:
                yield ","
            yield from _part(item, f"{path}[{index}]", depth + 1)
        yield "]"
    else:
        plain = _plain(value)
        yield from [_encode(plain)] if not isinstance(plain, dict | list | str) else _walk(plain, path, depth + 1)


def _part(value: Any, path: str, depth: int) -> Iterator[str]:
    if is_large(value):
        yield from _walk(value, path, depth)
    else:
        yield canonical_small(value)


_FIELDS: dict[type, tuple[str, ...] | None] = {}


def _own_fields(kind: type) -> tuple[str, ...] | None:
    """The field names of a payload type; None for what must decide itself what it shows (contexts, plain data)."""
    try:
        return _FIELDS[kind]
    except KeyError:
        from agent_engine.hooks.payloads import HookInput

        names: tuple[str, ...] | None = None
        if issubclass(kind, HookInput) and is_dataclass(kind):
            names = tuple(field.name for field in fields(kind) if field.name not in _LEFT_OUT)
        _FIELDS[kind] = names
        return names
