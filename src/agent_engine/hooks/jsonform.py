"""The JSON form of a payload: what command hooks, webhooks, records and ``to_dict`` see.

Strict on purpose. What JSON cannot carry (NaN, a cycle, an open file) is an error that names where it stands, never a
guess. The contexts of managed points keep their secrets to themselves: they stand as ``***``.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from agent_engine.hooks.errors import HookError, LimitReached, RunBlocked, RunCancelled
from agent_engine.hooks.managed import MASK, Context, Headers, ToolResultContext
from agent_engine.hooks.payloads import HookInput

MAX_DEPTH = 200
"""Containers inside containers; a value nested deeper has no JSON form."""

MAX_NODES = 5_000_000
"""Values in one document. A small structure that refers to itself from many places can unfold without end."""

_LONGEST_INT_BITS = 12_000
"""An int of more bits may have more decimal digits than the interpreter agrees to print (4300 by default)."""


class JsonFormError(ValueError):
    """A value has no JSON form.

    ``path`` says where it stands, in the way Python would reach it: ``tool_input['when'][2]``; "" is the value itself.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'the payload'} {problem}")
        self.path = path
        self.problem = problem


def to_json(value: object) -> bytes:
    """One UTF-8 JSON document for ``value``.

    Text that UTF-8 cannot carry (a lone surrogate) is written as a ``\\uXXXX`` escape.

    Raises:
        JsonFormError: something in ``value`` has no JSON form; the error names its path.
    """
    return _document(to_plain(value))


def _document(plain: Any) -> bytes:
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate is the only thing UTF-8 refuses, and what `backslashreplace` makes of it is JSON's own escape.
    return text.encode("utf-8", "backslashreplace")


def payload_json(payload: object, event: str) -> bytes:
    """The document that a process or an endpoint gets: the payload's fields and ``event_name``.

    At ``on_run_error`` it has the error's type, and its text where the error is the engine's own: another's may quote
    user input. At ``transform_tool_result`` it has the result itself, which that point is there to change.

    Raises:
        JsonFormError: see ``to_json``.
    """
    if isinstance(payload, BaseException):
        own = isinstance(payload, HookError | RunBlocked | LimitReached | RunCancelled)
        plain: Any = {"error_type": type(payload).__name__, **({"error_message": str(payload)} if own else {})}
    else:
        plain = payload.to_dict() if isinstance(payload, HookInput) else to_plain(payload)
    if not isinstance(plain, dict):
        raise JsonFormError("", f"is a {type(payload).__name__}; a payload has fields")
    if isinstance(payload, ToolResultContext):
        plain["result"] = payload.result
    return _document({**plain, "event_name": plain.get("event_name") or str(event)})


def to_plain(value: object, path: str = "") -> Any:
    """``value`` made of dict, list, str, int, float, bool and None only, sharing no container with it.

    datetime, date and time become ISO 8601 text, bytes base64, Decimal, UUID and paths their text, an Enum its value; a
    dataclass or a pydantic object becomes the object of its fields.

    Raises:
        JsonFormError: NaN, infinity, a cycle, more than 200 levels, a key that is no text, or a type not listed here.
    """
    try:
        return _Walk().plain(value, path, 0)
    except RecursionError:
        raise JsonFormError(path, "is nested deeper than the stack has room for here") from None


class _Walk:
    """One conversion: what it is inside of, and how much it has seen. Two frames a level, for the stack is short."""

    __slots__ = ("_count", "_open")

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._count = 0

    def plain(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind is str or value is None or kind is bool:
            return value
        turn = _SCALARS.get(kind)
        if turn is None and kind not in _CONTAINERS and not isinstance(value, Enum):
            turn = next((turn for base, turn in _BY_BASE if isinstance(value, base)), None)
        if turn is not None:
            return turn(value, path)
        self._enter(value, path, depth)
        try:
            if isinstance(value, list | tuple):
                return self._items(value, path, depth + 1)
            if isinstance(value, Mapping):
                members = dict.fromkeys(value, MASK) if isinstance(value, Headers) else value
                return self._fields(members, path, depth + 1, attributes=not path)
            known, stand_in = _stands_for(value)
            if known:
                return self.plain(stand_in, path, depth + 1)
            return self._fields(_attributes(value, path), path, depth + 1, attributes=True)
        finally:
            self._open.discard(id(value))

    def _enter(self, value: Any, path: str, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise JsonFormError(path, f"is nested more than {MAX_DEPTH} levels deep")
        if id(value) in self._open:
            raise JsonFormError(path, "refers back to something that holds it")
        self._open.add(id(value))

    def _items(self, values: list[Any] | tuple[Any, ...], path: str, depth: int) -> list[Any]:
        self._see(len(values), path)
        plain = []
        for index, item in enumerate(values):
            plain.append(item if type(item) is str else self.plain(item, f"{path}[{index}]", depth))
        return plain

    def _fields(self, members: Mapping[Any, Any], path: str, depth: int, *, attributes: bool) -> dict[str, Any]:
        self._see(len(members), path)
        plain: dict[str, Any] = {}
        for key, item in members.items():
            name = key if type(key) is str else _key(key, path)
            if name in plain:
                raise JsonFormError(path, f"has two keys that both read {name!r} in JSON")
            if type(item) is str or item is None:
                plain[name] = item
            else:
                step = f"{path}[{name!r}]" if not attributes else f"{path}.{name}" if path else name
                plain[name] = self.plain(item, step, depth)
        return plain

    def _see(self, count: int, path: str) -> None:
        self._count += count
        if self._count > MAX_NODES:
            raise JsonFormError(path, f"brings the document to more than {MAX_NODES:,} values")


def _stands_for(value: Any) -> tuple[bool, Any]:
    """Whether something else stands in the place of ``value``, and what."""
    if isinstance(value, Enum):
        return True, value.value
    if callable(getattr(value, "get_secret_value", None)):
        return True, MASK
    if getattr(type(value), "__pydantic_root_model__", False):
        return True, value.root
    return False, None


def _attributes(value: Any, path: str) -> Mapping[Any, Any]:
    """The fields of a context, a dataclass or a pydantic object."""
    if isinstance(value, Context):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    known = getattr(type(value), "__pydantic_fields__", None)
    if isinstance(known, Mapping):
        named = {name: getattr(value, name) for name, field in known.items() if not field.exclude}
        return {**named, **(getattr(value, "__pydantic_extra__", None) or {})}
    raise JsonFormError(path, f"is a {type(value).__module__}.{type(value).__qualname__}, which has no JSON form")


def _key(key: object, path: str) -> str:
    """A key that is no plain text, written as its value would be; keys of other kinds are refused."""
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int):
        return str(_int(key, path))
    if isinstance(key, UUID | PurePath | date):
        return key.isoformat() if isinstance(key, date) else str(key)
    raise JsonFormError(path, f"has a key of type {type(key).__qualname__}; JSON keys are text")


def _int(value: int, path: str) -> int:
    if value.bit_length() > _LONGEST_INT_BITS:
        raise JsonFormError(path, f"is a number of {value.bit_length():,} bits, too long to write down")
    return int(value)


def _float(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise JsonFormError(path, f"is {float(value)!r}, which JSON cannot carry")
    return float(value)


def _decimal(value: Decimal, path: str) -> str:
    if not value.is_finite():
        raise JsonFormError(path, f"is Decimal {value}, which JSON cannot carry")
    return str(value)


def _bytes(value: bytes | bytearray | memoryview, path: str) -> str:
    return base64.b64encode(value).decode("ascii")


def _iso(value: datetime | date | time, path: str) -> str:
    return value.isoformat()


def _text(value: object, path: str) -> str:
    return str(value)


def _plain_str(value: str, path: str) -> str:
    return str.__str__(value)


_Turn = Callable[[Any, str], Any]
_CONTAINERS = (dict, list, tuple)
_SCALARS: dict[type, _Turn] = {int: _int, float: _float, bytes: _bytes, datetime: _iso, Decimal: _decimal, UUID: _text}
_BY_BASE: tuple[tuple[type | tuple[type, ...], _Turn], ...] = (
    (str, _plain_str),
    (int, _int),
    (float, _float),
    ((bytes, bytearray, memoryview), _bytes),
    ((datetime, date, time), _iso),
    (Decimal, _decimal),
    ((UUID, PurePath), _text),
)
