"""What is wrong with the files of a system: one Problem a fault, and the SpecError that carries them all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault at one place.

    ``line`` and ``column`` count from 1; 0 means that the fault belongs to the file as a whole. ``path`` is the dotted
    path of the value (``hooks.before_tool[0].plugin``), empty for the whole file. ``shape`` says that the published
    JSON Schema refuses the same fault.
    """

    file: str
    line: int
    column: int
    path: str
    message: str
    severity: Severity = "error"
    shape: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else f"{self.file}:"
        word = "warning: " if self.severity == "warning" else ""
        return f"{place} {word}{self.path}: {self.message}" if self.path else f"{place} {word}{self.message}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "path": self.path,
            "message": self.message,
            "severity": self.severity,
        }


_LONGEST_WORD = 100
_MOST_CHOICES = 500


class SpecError(Exception):
    """A declared system that cannot be used. ``problems`` lists every fault, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems) or "the system cannot be used")

    def __reduce__(self) -> tuple[type[SpecError], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that ``word`` was most likely meant to be, or None where nothing is close."""
    options = sorted(set(choices))
    if not word or len(word) > _LONGEST_WORD:
        return None
    folded = {option.casefold().replace("-", "_"): option for option in reversed(options)}
    key = word.casefold().replace("-", "_")
    if key in folded:
        return folded[key]
    if len(folded) > _MOST_CHOICES:
        return None
    hits = difflib.get_close_matches(key, list(folded), n=1, cutoff=0.6)
    return folded[hits[0]] if hits else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest choice, else the choices themselves, else nothing."""
    options = sorted(set(choices))
    hit = nearest(word, options)
    if hit is not None:
        return f"; did you mean '{hit}'?"
    if not options:
        return ""
    shown = ", ".join(options[:20]) + (", …" if len(options) > 20 else "")
    return f"; use one of: {shown}"


def shown(value: object, limit: int = 40) -> str:
    """A value as an error message quotes it: short, on one line, and in YAML's words for true, false and null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
