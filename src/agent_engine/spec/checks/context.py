"""Check: a file under examination, and the pencil that notes its problems."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_engine.plugins.problems import Problem, Severity, did_you_mean, shown
from agent_engine.spec.compose import DocPath, PathPart, dotted
from agent_engine.spec.document import Positions


@dataclass(slots=True)
class Check:
    """``data`` may have any shape: the accessors give only what has the right one."""

    file: str
    folder: Path
    data: dict[str, Any]
    positions: Positions
    environ: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    reachable: set[str] = field(default_factory=set)
    graph_stands: bool = False  # where the graph has faults, what it does not reach says nothing
    hints: int = 100

    def meant(self, word: str, choices: Iterable[str]) -> str:
        """As :func:`did_you_mean`; a file with very many faults gets no more hints, for looking them up is dear."""
        self.hints -= 1
        return did_you_mean(word, choices) if self.hints >= 0 else ""

    def note(
        self,
        path: Sequence[PathPart],
        message: str,
        *,
        key: bool = False,
        severity: Severity = "error",
        shape: bool = False,
    ) -> None:
        line, column = self.positions.of_key(path) if key else self.positions.of(path)
        self.problems.append(Problem(self.file, line, column, dotted(path), message, severity, shape))

    def section(self, name: str) -> dict[str, Any]:
        """A section as id → block; {} where it is missing or no mapping. ``resolvers`` may be a list of ids."""
        value = self.data.get(name)
        if name == "resolvers" and isinstance(value, list):
            return {item: "agent" for item in value if isinstance(item, str)}
        return value if isinstance(value, dict) else {}

    def blocks(self, *names: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """(section, id, block) for every block of these sections that is a mapping."""
        for name in names:
            for key, block in self.section(name).items():
                if isinstance(block, dict):
                    yield name, key, block

    def node_ids(self) -> list[str]:
        return [*self.section("orchestrators"), *self.section("agents")]

    def hook_entries(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """(event, index, entry) for every hook entry that is a mapping, in file order."""
        for event, entries in self.section("hooks").items():
            for index, entry in enumerate(entries if isinstance(entries, list) else ()):
                if isinstance(entry, dict):
                    yield event, index, entry

    def program(self, words: Sequence[str], path: DocPath, folder: Path | None = None) -> None:
        """Warn of a program that is named by its path and is not there, or that nobody may run."""
        name = words[0] if words else ""
        if "/" not in name or "$" in name or "~" in name:
            return
        file = (folder or self.folder) / name
        if not file.exists():
            self.note(path, f"there is no program {shown(name)} beside the file", severity="warning")
        elif not file.is_file() or not os.access(file, os.X_OK):
            what = f"{shown(name)} is no program that may be run; try chmod +x"
            self.note(path, what, severity="warning")

    def texts(self) -> Iterator[tuple[DocPath, str]]:
        """Every text value of the file with its path."""
        yield from _texts(self.data, ())


def _texts(value: Any, path: DocPath) -> Iterator[tuple[DocPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))


def words(value: Any) -> list[tuple[int | None, str]]:
    """(index, text) of a list of texts, or (None, text) of a single one; what is no text is left out."""
    if isinstance(value, str):
        return [(None, value)]
    if isinstance(value, list):
        return [(index, item) for index, item in enumerate(value) if isinstance(item, str)]
    return []
