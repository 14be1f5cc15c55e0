"""``load_system``: a file becomes a checked, typed system, or one SpecError with everything that is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_engine.spec.document import Document, Positions, parse_document, read_document
from agent_engine.spec.problems import Problem, SpecError
from agent_engine.spec.shape import read_shape

if TYPE_CHECKING:
    from agent_engine.spec.system import System


@dataclass(frozen=True, slots=True)
class Loaded:
    """A system that can be built. ``problems`` holds warnings alone; ``path`` is the file it was read from."""

    system: System
    problems: tuple[Problem, ...]
    positions: Positions
    path: Path
    environ: Mapping[str, str]

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @property
    def folder(self) -> Path:
        """The folder that prompts, plugins and import roots are relative to."""
        return self.path.parent


def load_system(path: str | Path, *, environ: Mapping[str, str] | None = None) -> Loaded:
    """Read, check and type an ``agents.yaml``.

    ``environ`` fills ``${NAME}`` (default: the process's environment). Nothing of the system's own Python is imported.
    Raises SpecError with every problem of the file.
    """
    loaded, problems = examine(path, environ=environ)
    if loaded is None or any(problem.severity == "error" for problem in problems):
        raise SpecError(problems)
    return loaded


def examine(path: str | Path, *, environ: Mapping[str, str] | None = None) -> tuple[Loaded | None, list[Problem]]:
    """As :func:`load_system`, but returns the problems; the system is None where its shape is wrong."""
    environ = os.environ if environ is None else environ
    try:
        document = read_document(path)
    except SpecError as exc:
        return None, list(exc.problems)
    return _examine(document, Path(path), environ)


def examine_text(
    text: str | bytes, path: str | Path, *, environ: Mapping[str, str] | None = None
) -> tuple[Loaded | None, list[Problem]]:
    """:func:`examine` for text that is not on disk yet; files it names are looked for beside ``path``."""
    try:
        document = parse_document(text, str(path))
    except SpecError as exc:
        return None, list(exc.problems)
    return _examine(document, Path(path), os.environ if environ is None else environ)


def _examine(document: Document, path: Path, environ: Mapping[str, str]) -> tuple[Loaded | None, list[Problem]]:
    system, problems = read_shape(document)
    problems = [*document.problems, *problems]
    problems.sort(key=lambda problem: (problem.line, problem.column))
    if system is None:
        return None, problems
    return Loaded(system, tuple(problems), document.positions, path, environ), problems
