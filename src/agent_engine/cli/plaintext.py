"""Text of strangers (models, tools, servers, hooks), made fit to show: it must not steer a terminal, or fake a line."""

from __future__ import annotations

import json
import unicodedata
from typing import IO

_STEERS = frozenset("\x7f\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def plain(text: str, keep: str = "") -> str:
    """One line in which every character that cannot be seen is written as its escape, those of ``keep`` aside."""
    if text.isprintable():
        return text
    return "".join(char if _seen(char) or char in keep else repr(char)[1:-1] for char in text)


def _seen(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


def answer_for(out: IO[str], text: str) -> str:
    """An answer as it goes to ``out``: as it is to a file or a program, without what steers to a terminal."""
    if text.isprintable() or not out.isatty():
        return text
    return "".join(char for char in text if char in "\n\t" or not _steers(char))


def _steers(char: str) -> bool:
    return char < " " or "\x80" <= char <= "\x9f" or char in _STEERS


def text_of(output: object) -> str:
    """An answer as text: text as it is, anything else as JSON."""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2, default=str)


def shortened(text: str, limit: int) -> str:
    """Beginning and end, about ``limit`` characters in all; what is left out is counted, so that it is not missed."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}… [{len(text) - head - tail:,} characters not shown] …{text[-tail:]}"
