"""``{{ name }}`` in prompts: finding the names and putting the values in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_PROMPT_BYTES = 512 * 1024

# Only what looks like a name is a placeholder: JSON and code in double braces stay as they are.
_PLACEHOLDER = re.compile(r"\{\{([^{}\n]{1,200})\}\}")
_NAME = re.compile(r"[A-Za-z_][\w.\- \t]*\Z")


@dataclass(frozen=True, slots=True)
class Found:
    """One placeholder: its name and its offset in the text."""

    name: str
    start: int


def names_in(text: str) -> Iterator[Found]:
    for match in _PLACEHOLDER.finditer(text):
        name = match.group(1).strip()
        if _NAME.match(name):
            yield Found(name, match.start())


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with each known name replaced once; values are not looked through again."""
    return _PLACEHOLDER.sub(lambda match: values.get(match.group(1).strip(), match.group()), text)


def read_prompt(path: Path) -> str:
    """The text of a prompt file. Raises OSError, UnicodeDecodeError, and ValueError where it is too large."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("no regular file")
    with path.open("rb") as stream:
        raw = stream.read(MAX_PROMPT_BYTES + 1)
    if len(raw) > MAX_PROMPT_BYTES:
        raise ValueError(f"over {MAX_PROMPT_BYTES} bytes")
    return raw.decode("utf-8-sig")
