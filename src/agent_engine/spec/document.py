"""Reading YAML 1.2 into plain data that remembers where each value stands.

The text is composed from parser events (:mod:`agent_engine.spec.compose`), not by a YAML library's constructor: so that
an alias bomb is refused before anything is expanded, every duplicate key is found, and each value keeps its line.
Scalars follow the core schema of YAML 1.2: ``yes`` and ``on`` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_engine.plugins.problems import Problem, SpecError
from agent_engine.spec.compose import Composer, Node, PathPart

MAX_BYTES = 128 * 1024

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Positions:
    """Where each value of a file stands."""

    def __init__(self, root: Node | None) -> None:
        self._root = root

    def of(self, path: Sequence[PathPart]) -> tuple[int, int]:
        """Line and column (from 1) of the value at ``path``; of the nearest block above it where it is absent."""
        node, _, _ = self._walk(path)
        return (node.line, node.column) if node is not None else (1, 1)

    def of_key(self, path: Sequence[PathPart]) -> tuple[int, int]:
        """Line and column of the key that leads to ``path``; a list item's own place."""
        node, key, whole = self._walk(path)
        place = key if key is not None and whole else node
        return (place.line, place.column) if place is not None else (1, 1)

    def quoted(self, path: Sequence[PathPart]) -> bool:
        node, _, whole = self._walk(path)
        return bool(node is not None and whole and node.quoted)

    def has(self, path: Sequence[PathPart]) -> bool:
        return self._walk(path)[2]

    def _walk(self, path: Sequence[PathPart]) -> tuple[Node | None, Node | None, bool]:
        node, key = self._root, None
        for part in path:
            if node is None:
                return None, None, False
            step_key, step = node.child(part)
            if step is None:
                if isinstance(part, int) and node.kind != "seq":
                    continue  # a single value where a list may stand: its item 0 is the value itself
                return (key if key is not None else node), key, False
            node, key = step, step_key
        return node, key, True


@dataclass(slots=True)
class Document:
    """A file as read: ``data`` is plain (dict, list, str, int, float, bool, None)."""

    file: str
    data: Any
    positions: Positions
    problems: list[Problem]
    text: str = ""


def read_document(path: str | Path) -> Document:
    """Read and compose a YAML file. Raises SpecError where it is no file or no YAML at all."""
    file = str(path)
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecError([Problem(file, 0, 0, "", "there is no such file")]) from None
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or type(exc).__name__
        raise SpecError([Problem(file, 0, 0, "", f"cannot be read: {reason}")]) from None
    return parse_document(raw, file)


def parse_document(raw: bytes | str, file: str = "agents.yaml") -> Document:
    """Compose YAML text. Raises SpecError where there is no usable document; lesser faults are in ``problems``."""
    text = _decoded(raw, file)
    composer = Composer(file)
    root = composer.compose(_events(text, file))
    if root is None:
        raise SpecError([Problem(file, 1, 1, "", "the file is empty; it needs at least system, agents and graph")])
    return Document(file, composer.to_plain(root, ()), Positions(root), composer.problems, text)


def _decoded(raw: bytes | str, file: str) -> str:
    size = len(raw.encode("utf-8", "surrogatepass")) if isinstance(raw, str) else len(raw)
    if size > MAX_BYTES:
        raise SpecError(
            [Problem(file, 0, 0, "", f"the file is over {MAX_BYTES // 1024} KiB; split the system or shorten it")]
        )
    if isinstance(raw, str):
        text = raw
    else:
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            line = raw.count(b"\n", 0, exc.start) + 1
            column = exc.start - (raw.rfind(b"\n", 0, exc.start) + 1) + 1
            what = f"byte 0x{raw[exc.start]:02x} is not UTF-8; save the file as UTF-8"
            raise SpecError([Problem(file, line, column, "", what)]) from None
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - (text.rfind("\n", 0, bad.start()) + 1) + 1
        what = f"the character U+{ord(bad.group()):04X} is not allowed in YAML; remove it or write it as an escape"
        raise SpecError([Problem(file, line, column, "", what)])
    return text


_HINTS = {
    "'\\t'": "; indent with spaces, not with tabs",
    "cannot start any token": "; put text that begins with this character in quotes",
    "mapping values are not allowed": (
        "; put text with a colon and a blank in it in quotes, and see that the line above has its own colon"
    ),
    "alphabetic or numeric character": "; put text that begins with * or & in quotes",
    "block end": "; look at the indentation of this line and of those above it",
    "found unexpected end of stream": "; a quote or bracket above is not closed",
    "but got '{'": "; put text with braces in quotes",
}


def _hint(what: str) -> str:
    """What most people have to do about a complaint of the YAML parser."""
    return next((hint for words, hint in _HINTS.items() if words in what), "")


def _events(text: str, file: str) -> Iterator[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except SpecError:
        raise
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        what = " ".join(str(exc.problem or exc.context or "not readable").split())
        raise SpecError([Problem(file, line, column, "", f"not valid YAML: {what[:200]}{_hint(what)}")]) from None
    except Exception as exc:  # noqa: BLE001  the parser fails on some broken input in ways of its own
        raise SpecError([Problem(file, 1, 1, "", f"not valid YAML ({type(exc).__name__})")]) from None
