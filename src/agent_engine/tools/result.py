"""How the result of a tool reads: as text for hooks, and as what the model is told."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import pathlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar

_MAX_DEPTH = 200
_MAX_VALUES = 2_000_000
_SIMPLE = frozenset({str, int, bool, type(None)})
_LONGEST_INT_BITS = 4 * 3000  # more may have more digits than the interpreter agrees to print

# One encoder for all: json.dumps makes a new one at each call where it is not asked for its defaults.
_encode = json.JSONEncoder(ensure_ascii=False).encode

T = TypeVar("T")


def text_of(value: object) -> str:
    """The text form of a result: text as it is, anything else as JSON. It never fails; see :func:`plain`."""
    if isinstance(value, str):
        return printable(value)
    return _json(value)


def for_model(value: object) -> str:
    """What the model reads: text as it is, dict and list as JSON, any other value as ``{"result": …}``."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, (dict, list)):
        return _json(value)
    return _dumps({"result": plain(value)})


def error_for_model(text: str) -> str:
    """What the model reads about a failed call: ``{"error": text}``."""
    return _dumps({"error": text})


def printable(text: str) -> str:
    """The text with lone surrogates, which no encoding can carry, written as ``\\udXXX``."""
    if type(text) is not str:
        text = str.__str__(text)  # not what a subclass makes of itself
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def _json(value: object) -> str:
    if type(value) in (dict, list) and _is_flat(value):
        try:
            return printable(_encode(value))
        except ValueError:
            pass  # a number too long to print
    return _dumps(plain(value))


def _is_flat(value: Any) -> bool:
    """Whether a dict or list holds plain text, whole numbers and the like alone, as most do: JSON takes it as it is."""
    if type(value) is dict:
        return all(type(key) is str and type(item) in _SIMPLE for key, item in value.items())
    return all(type(item) in _SIMPLE for item in value)


def _dumps(value: object) -> str:
    return printable(_encode(value))


def plain(value: object) -> Any:
    """JSON-ready data that says as much as it can of any object.

    Dataclasses and pydantic models become their fields, dates ISO 8601, bytes base64, sets lists; NaN and infinities
    become text. What JSON cannot hold becomes a text in angle brackets that says so: a cycle, more than 200 levels,
    an object of another kind.
    """
    return _Walk().plain(value, 0)


class _Walk:
    """One conversion: the containers it is inside of, and how many values it may still write."""

    __slots__ = ("_above", "_left")

    def __init__(self) -> None:
        self._above: set[int] = set()
        self._left = _MAX_VALUES

    def plain(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False or type(value) is str:
            return value
        if isinstance(value, enum.Enum):
            return self.plain(value.value, depth)
        if isinstance(value, (int, float, str)):
            return _scalar(value)
        leaf = _leaf(value)
        if leaf is not None:
            return leaf
        if id(value) in self._above:
            return "<cycle>"
        if depth >= _MAX_DEPTH:
            return f"<nested deeper than {_MAX_DEPTH} levels>"
        self._above.add(id(value))
        try:
            return self._container(value, depth + 1)
        except Exception as error:  # noqa: BLE001 - any object may come out of a tool; its own code may raise anything
            return f"<{type(value).__qualname__}: {type(error).__name__} while reading it>"
        finally:
            self._above.discard(id(value))

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return {_key(key): self.plain(item, depth) for key, item in self._counted(value.items())}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {name: self.plain(item, depth) for name, item in zip(value._fields, value, strict=False)}
        if isinstance(value, (list, tuple)):
            return [self.plain(item, depth) for item in self._counted(value)]
        if isinstance(value, Set):
            return sorted((self.plain(item, depth) for item in self._counted(value)), key=_sorting)
        return self._object(value, depth)

    def _object(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, type):
            return f"<class {value.__qualname__}>"
        if callable(getattr(value, "get_secret_value", None)):
            return "***"
        if dataclasses.is_dataclass(value):
            shown = getattr(value, "to_dict", None)  # an object that hides a secret says here what may be seen
            if callable(shown):
                return self.plain(shown(), depth)
            return {f.name: self.plain(getattr(value, f.name), depth) for f in dataclasses.fields(value)}
        if hasattr(kind, "__pydantic_fields__"):
            return self.plain(value.model_dump(), depth)
        if _says_itself(kind):
            return str(value)
        return f"<{kind.__qualname__} object>"

    def _counted(self, items: Iterable[T]) -> Iterator[T]:
        """The items, as long as the document does not grow without end (one list, held a million times)."""
        for item in items:
            self._left -= 1
            if self._left < 0:
                raise OverflowError
            yield item


def _says_itself(kind: type) -> bool:
    methods: list[object] = [kind.__str__, kind.__repr__]
    return methods != [object.__str__, object.__repr__]


_sorting = functools.partial(json.dumps, sort_keys=True)


def _scalar(value: float | str) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value.bit_length() > _LONGEST_INT_BITS:
        return f"<integer of {value.bit_length()} bits>"
    return int(value)


def _leaf(value: Any) -> str | None:
    """The text of a value that JSON writes as text, or None for anything else."""
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (decimal.Decimal, uuid.UUID, pathlib.PurePath, datetime.timedelta)):
        return str(value)
    if isinstance(value, BaseException):
        return f"<{type(value).__qualname__}>"
    return None


def _key(key: object) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str.__str__(key)
    shaped = plain(key)
    return shaped if isinstance(shaped, str) else json.dumps(shaped, ensure_ascii=False)
