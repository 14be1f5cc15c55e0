"""``load_system``: a file becomes a checked, typed system, or one SpecError with everything that is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_engine.spec.checks import Check, run_checks
from agent_engine.spec.document import Document, Positions, parse_document, read_document
from agent_engine.spec.events import hook_event
from agent_engine.spec.problems import Problem, SpecError
from agent_engine.spec.secrets import redact
from agent_engine.spec.shape import read_shape
from agent_engine.spec.variables import fill_variables

if TYPE_CHECKING:
    from agent_engine.spec.system import System


_LONGEST = 800


@dataclass(frozen=True, slots=True)
class Loaded:
    """A system that can be built.

    ``problems`` holds warnings alone; ``path`` is the file it was read from; ``data`` is what it said, with
    ``${NAME}`` as it stands there.
    """

    system: System
    problems: tuple[Problem, ...]
    positions: Positions
    path: Path
    environ: Mapping[str, str] = field(repr=False)
    data: dict[str, Any] = field(repr=False)

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


def examine(
    path: str | Path, *, environ: Mapping[str, str] | None = None, files: bool = True
) -> tuple[Loaded | None, list[Problem]]:
    """As :func:`load_system`, but returns the problems; the system is None where its shape is wrong.

    ``files`` False leaves out what needs prompts, manifest and folders to exist.
    """
    try:
        document = read_document(path)
    except SpecError as exc:
        return None, list(exc.problems)
    return examine_document(document, Path(path), environ=environ, files=files)


def examine_text(
    text: str | bytes, path: str | Path, *, environ: Mapping[str, str] | None = None, files: bool = True
) -> tuple[Loaded | None, list[Problem]]:
    """:func:`examine` for text that is not on disk yet; files it names are looked for beside ``path``."""
    try:
        document = parse_document(text, str(path))
    except SpecError as exc:
        return None, list(exc.problems)
    return examine_document(document, Path(path), environ=environ, files=files)


def loaded_from(system: System, folder: str | Path = ".", *, environ: Mapping[str, str] | None = None) -> Loaded:
    """A System that was made in Python, checked like a file beside which its prompts and plugins lie."""
    from agent_engine.spec.system import System

    if not isinstance(system, System):
        raise TypeError(
            f"an Engine takes the path of a file, or a System, not {type(system).__name__}; an Agent runs by itself"
        )
    data = system.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    path = Path(folder) / "agents.yaml"
    loaded, problems = examine_document(Document(str(path), data, Positions(None), []), path, environ=environ)
    if loaded is None or any(problem.severity == "error" for problem in problems):
        raise SpecError(problems)
    return loaded


def reload_data(loaded: Loaded, data: dict[str, Any]) -> Loaded:
    """The system that ``data`` says in the place of what the file said (an on_config hook changed it).

    Raises SpecError; problems carry the lines of the file where the same path stands in it.
    """
    document = Document(str(loaded.path), data, loaded.positions, [])
    result, problems = examine_document(document, loaded.path, environ=loaded.environ)
    if result is None or any(problem.severity == "error" for problem in problems):
        raise SpecError(problems)
    return result


def examine_document(
    document: Document, path: Path, *, environ: Mapping[str, str] | None = None, files: bool = True
) -> tuple[Loaded | None, list[Problem]]:
    """:func:`examine` for a document that was read already."""
    environ = os.environ if environ is None else environ
    problems = list(document.problems)
    if not isinstance(document.data, dict):
        return None, problems + read_shape(document)[1]
    check = Check(document.file, path.parent, document.data, document.positions, environ)
    run_checks(check, files=files)
    filled = fill_variables(document.data, environ)
    system, faults = read_shape(replace(document, data=filled))
    problems = [*problems, *faults, *check.problems]
    if system is None:
        return None, in_order(problems)
    problems = in_order([*problems, *_impossible_hooks(system, check, problems, files=files)])
    return Loaded(system, tuple(problems), document.positions, path, environ, document.data), problems


def _clean(text: str) -> str:
    """Fit for one line of a terminal: no credential, no control character, not endless."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in redact(text[:2_000]))
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "…"


def _impossible_hooks(system: System, check: Check, problems: list[Problem], *, files: bool) -> list[Problem]:
    """Entries that the kernel would refuse, told before anything is built; those that have a problem are left out.

    Without ``files`` commands are left out too: the kernel looks for their scripts.
    """
    from agent_engine.hooks.errors import HookRegistrationError
    from agent_engine.spec.hooks import definition

    found: list[Problem] = []
    told = {one.path.partition("]")[0] + "]" for one in problems if one.path.startswith("hooks.")}
    for event, entries in system.hooks.items():
        for index, entry in enumerate(entries):
            name = f"hooks.{event}[{index}]"
            if hook_event(event) is None or name in told or (entry.kind == "command" and not files):
                continue
            try:
                definition(event, entry, folder=check.folder, source=check.file)
            except HookRegistrationError as exc:
                line, column = check.positions.of(("hooks", event, index))
                found.append(Problem(check.file, line, column, name, str(exc)))
    return found


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, in the order of the files, with nothing in it that looks like a credential."""
    seen: dict[tuple[str, int, int, str, str], Problem] = {}
    for problem in problems:
        clean = replace(problem, message=_clean(problem.message), path=_clean(problem.path))
        seen.setdefault((clean.file, clean.line, clean.column, clean.path, clean.message), clean)
    first = {problem.file: index for index, problem in reversed(list(enumerate(seen.values())))}
    return sorted(seen.values(), key=lambda one: (first[one.file], one.line, one.column, one.path))
