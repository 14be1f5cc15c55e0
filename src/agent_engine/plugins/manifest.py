"""``plugins/plugins.toml``: the one place where ids meet import paths, read with the line of each entry."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_engine.plugins.loader import is_ref
from agent_engine.plugins.problems import Problem, did_you_mean, shown

MANIFEST = "plugins/plugins.toml"
MAX_BYTES = 128 * 1024
_TABLES = ("hooks.plugins", "tools", "resolvers")
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_.-]+)\s*=""")


@dataclass(frozen=True, slots=True)
class Entry:
    """``id = "module:attribute"``, with its line and column (from 1)."""

    id: str
    ref: str
    line: int
    column: int


@dataclass(slots=True)
class Manifest:
    """What ``plugins.toml`` says; empty where there is no such file."""

    path: Path
    exists: bool = False
    hooks: dict[str, Entry] = field(default_factory=dict)
    tools: dict[str, Entry] = field(default_factory=dict)
    resolvers: dict[str, Entry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def table(self, name: str) -> dict[str, Entry]:
        return {"hooks.plugins": self.hooks, "tools": self.tools, "resolvers": self.resolvers}[name]


def read_manifest(folder: str | Path) -> Manifest:
    """Read ``plugins/plugins.toml`` below ``folder``. Faults are in ``problems``; nothing is imported."""
    from tomlkit import parse
    from tomlkit.exceptions import ParseError, TOMLKitError

    path = Path(folder) / MANIFEST
    manifest = Manifest(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return manifest
    except OSError as exc:
        manifest.problems.append(Problem(str(path), 0, 0, "", f"cannot be read: {exc.strerror or type(exc).__name__}"))
        return manifest
    manifest.exists = True
    if len(raw) > MAX_BYTES:
        manifest.problems.append(Problem(str(path), 0, 0, "", f"the file is over {MAX_BYTES // 1024} KiB"))
        return manifest
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        manifest.problems.append(Problem(str(path), line, 1, "", "not UTF-8; save the file as UTF-8"))
        return manifest
    try:
        data = parse(text).unwrap()
    except ParseError as exc:
        what = str(exc).partition(" at line ")[0]
        if "'\\x00'" in what:  # the parser's word for the end
            what = "Unexpected end of file"
        manifest.problems.append(Problem(str(path), exc.line, exc.col + 1, "", f"not valid TOML: {what}"))
        return manifest
    except (TOMLKitError, ValueError, RecursionError) as exc:
        what = str(exc) if isinstance(exc, TOMLKitError) else type(exc).__name__
        manifest.problems.append(Problem(str(path), 1, 1, "", f"not valid TOML: {what}"))
        return manifest
    _Reader(manifest, text).read(data)
    return manifest


class _Reader:
    def __init__(self, manifest: Manifest, text: str) -> None:
        self._manifest = manifest
        self._lines = _lines_of(text)

    def _at(self, path: str) -> tuple[int, int]:
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path.rpartition(".")[0]
        return (1, 1)

    def _note(self, path: str, message: str) -> None:
        line, column = self._at(path)
        self._manifest.problems.append(Problem(str(self._manifest.path), line, column, path, message))

    def read(self, data: dict[str, Any]) -> None:
        for name, value in data.items():
            if name == "hooks" and isinstance(value, dict):
                for inner, table in value.items():
                    if inner == "plugins":
                        self._table("hooks.plugins", table)
                    else:
                        self._note(f"hooks.{inner}", "unknown table; hook plugins stand under [hooks.plugins]")
            elif name in ("tools", "resolvers"):
                self._table(name, value)
            else:
                self._note(name, f"unknown table '{name}'{did_you_mean(name, _TABLES)}")

    def _table(self, name: str, table: Any) -> None:
        if not isinstance(table, dict):
            self._note(name, f'a table of id = "module:attribute" is expected, not {shown(table)}')
            return
        for key, ref in table.items():
            path = f"{name}.{key}"
            if not isinstance(ref, str):
                self._note(path, f'write "module:attribute" here, not {shown(ref)}')
            elif not is_ref(ref):
                self._note(path, f"'{ref}' is no import path; write it as module:attribute")
            else:
                line, column = self._at(path)
                self._manifest.table(name)[key] = Entry(key, ref, line, column)


def _lines_of(text: str) -> dict[str, tuple[int, int]]:
    """Line and column of each table header and key, by dotted path. Enough for flat tables, which is all there are."""
    places: dict[str, tuple[int, int]] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            table = ".".join(part.strip().strip("\"'") for part in header.group(1).split("."))
            places.setdefault(table, (number, header.start(1) + 1))
            continue
        key = _KEY.match(line)
        if key is not None:
            name = key.group(1).strip("\"'")
            places.setdefault(f"{table}.{name}" if table else name, (number, key.start(1) + 1))
    return places
