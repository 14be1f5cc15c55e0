"""Composing YAML parser events into nodes, with every limit checked before anything is expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_engine.plugins.problems import Problem, SpecError, shown

MAX_DEPTH = 64
MAX_NODES = 10_000
_MAX_FAULTS = 200

PathPart = str | int
DocPath = tuple[PathPart, ...]

_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_CONSTANTS: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_CONSTANTS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)
_CONSTANTS |= dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf"))
_CONSTANTS |= dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf"))
_CONSTANTS |= dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan"))
_TAG = "tag:yaml.org,2002:"


@dataclass(slots=True, eq=False)
class Node:
    """One value of the file. ``size`` counts nodes and ``height`` levels, both with aliases expanded."""

    kind: Literal["scalar", "map", "seq"]
    line: int
    column: int
    value: Any = None
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    quoted: bool = False
    size: int = 1
    height: int = 1
    open: bool = True
    merge: bool = False
    plain: Any = None
    made: bool = False
    index: dict[str, tuple[Node, Node]] | None = None

    def child(self, part: PathPart) -> tuple[Node | None, Node | None]:
        """(key, value) of one step down; (None, None) where there is none."""
        if self.kind == "map":
            if self.index is None:
                self.index = {key.value: (key, value) for key, value in self.pairs if isinstance(key.value, str)}
            return self.index.get(part, (None, None)) if isinstance(part, str) else (None, None)
        if self.kind == "seq" and isinstance(part, int) and 0 <= part < len(self.items):
            return None, self.items[part]
        return None, None


def dotted(path: Sequence[PathPart]) -> str:
    """``('hooks', 'before_tool', 0)`` as ``hooks.before_tool[0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


class Composer:
    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._anchors: dict[str, Node] = {}
        self._total = 0

    def _refuse(self, line: int, column: int, message: str) -> SpecError:
        return SpecError([*self.problems, Problem(self.file, line, column, "", message)])

    def _note(self, node: Node, path: DocPath, message: str, *, shape: bool = False) -> None:
        if len(self.problems) < _MAX_FAULTS:
            self.problems.append(Problem(self.file, node.line, node.column, dotted(path), message, shape=shape))

    def compose(self, events: Iterator[Any]) -> Node | None:
        stack: list[Node] = []
        pending: list[Node | None] = []  # per open mapping: the key that waits for its value
        root: Node | None = None
        documents = 0
        for event in events:
            kind = type(event).__name__
            line, column = event.start_mark.line + 1, event.start_mark.column + 1
            if kind == "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    raise self._refuse(line, column, "a second YAML document starts here; one file holds one system")
            elif kind in ("MappingEndEvent", "SequenceEndEvent"):
                node = stack.pop()
                pending.pop()
                self._close(node)
                root = self._attach(node, stack, pending) or root
            elif kind in ("MappingStartEvent", "SequenceStartEvent"):
                node = Node("map" if kind == "MappingStartEvent" else "seq", line, column)
                self._count(1, line, column)
                if len(stack) >= MAX_DEPTH:
                    raise self._refuse(line, column, f"nested deeper than {MAX_DEPTH} levels")
                self._check_tag(event, node)
                if event.anchor:
                    self._anchors[event.anchor] = node
                stack.append(node)
                pending.append(None)
            elif kind == "ScalarEvent":
                self._count(1, line, column)
                node = self._scalar(event, line, column)
                if event.anchor:
                    self._anchors[event.anchor] = node
                root = self._attach(node, stack, pending) or root
            elif kind == "AliasEvent":
                root = self._attach(self._aliased(event, stack, line, column), stack, pending) or root
        if root is not None and root.kind == "scalar" and root.value is None and not root.quoted:
            return None
        return root

    def _count(self, nodes: int, line: int, column: int) -> None:
        self._total += nodes
        if self._total > MAX_NODES:
            raise self._refuse(line, column, f"more than {MAX_NODES:,} values (aliases counted in full)")

    def _aliased(self, event: Any, stack: list[Node], line: int, column: int) -> Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            raise self._refuse(
                line,
                column,
                f"the alias *{event.anchor} names no anchor above it; put it in quotes if it is meant as text",
            )
        if node.open:
            raise self._refuse(line, column, f"the alias *{event.anchor} stands inside the value it names")
        self._count(node.size, line, column)
        if len(stack) + node.height - 1 > MAX_DEPTH:
            raise self._refuse(line, column, f"nested deeper than {MAX_DEPTH} levels")
        return node

    def _attach(self, node: Node, stack: list[Node], pending: list[Node | None]) -> Node | None:
        """Put a finished node into the block that is open; it is returned when it is the whole document."""
        if not stack:
            return node
        parent = stack[-1]
        if parent.kind == "seq":
            parent.items.append(node)
        elif pending[-1] is None:
            pending[-1] = node
        else:
            parent.pairs.append((pending[-1], node))
            pending[-1] = None
        return None

    def _close(self, node: Node) -> None:
        children = node.items if node.kind == "seq" else [part for pair in node.pairs for part in pair]
        node.size = 1 + sum(child.size for child in children)
        node.height = 1 + max((child.height for child in children if child.kind != "scalar"), default=0)
        node.open = False

    def _check_tag(self, event: Any, node: Node) -> None:
        tag = str(event.tag or "")
        if tag and tag not in ("!", f"{_TAG}{node.kind}"):
            self._note(
                node, (), f"the tag {tag.replace(_TAG, '!!')} is not supported here; write the value without a tag"
            )

    def _scalar(self, event: Any, line: int, column: int) -> Node:
        plain = bool(event.implicit[0]) and not event.tag
        text = event.value
        node = Node("scalar", line, column, value=text, quoted=not plain, open=False)
        tag = str(event.tag or "")
        if plain:
            node.value = resolve(text)
            node.merge = text == "<<"
        elif tag and tag not in ("!", f"{_TAG}str"):
            name = tag.replace(_TAG, "")
            value = resolve(text)
            fits = {
                "int": isinstance(value, int) and not isinstance(value, bool),
                "float": isinstance(value, (int, float)) and not isinstance(value, bool),
                "bool": isinstance(value, bool),
                "null": value is None,
            }.get(name, False)
            if fits:
                node.value = float(value) if name == "float" else value
            else:
                self._note(
                    node,
                    (),
                    f"the tag {tag.replace(_TAG, '!!')} does not fit here; write the value without a tag",
                )
        return node

    def to_plain(self, node: Node, path: DocPath) -> Any:
        """Plain data; each node is built once, so that aliases share it."""
        if node.made:
            return node.plain
        if node.kind == "scalar":
            node.plain = node.value
        elif node.kind == "seq":
            node.plain = [self.to_plain(item, (*path, index)) for index, item in enumerate(node.items)]
        else:
            node.plain = self._mapping(node, path)
        node.made = True
        return node.plain

    def _mapping(self, node: Node, path: DocPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, Node] = {}
        merged: list[tuple[Node, Node]] = []
        kept: list[tuple[Node, Node]] = []
        for key, value in node.pairs:
            if key.merge:
                merged.extend(self._merge(value, (*path, "<<")))
            elif key.kind != "scalar" or not isinstance(key.value, str):
                what = shown(key.value) if key.kind == "scalar" else "a list or mapping"
                self._note(key, path, f"a key must be text, not {what}; put it in quotes if it is meant as a name")
            elif key.value in first:
                where = f"line {first[key.value].line}"
                self._note(
                    key, (*path, key.value), f"the key '{key.value}' stands here twice (first in {where}); keep one"
                )
            else:
                first[key.value] = key
                kept.append((key, value))
                result[key.value] = self.to_plain(value, (*path, key.value))
        for key, value in merged:
            if key.value not in result:
                kept.append((key, value))
                result[key.value] = value.plain
        node.pairs = kept
        return result

    def _merge(self, value: Node, path: DocPath) -> list[tuple[Node, Node]]:
        sources = value.items if value.kind == "seq" else [value]
        pairs: list[tuple[Node, Node]] = []
        for source in sources:
            if source.kind != "map":
                self._note(source, path, "a merge key takes a mapping or a list of mappings")
                continue
            self.to_plain(source, path)
            pairs.extend(source.pairs)
        return pairs


def resolve(text: str) -> Any:
    """A plain scalar by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > 100 or text[0] not in "+-.0123456789":
        return text
    if _INT.match(text):
        return int(text)
    if _OCTAL.match(text):
        return int(text[2:], 8)
    if _HEX.match(text):
        return int(text, 16)
    return float(text) if _FLOAT.match(text) else text
