"""``check_project``: everything the loader checks, and the Python behind the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent_engine.spec.problems import Problem


def check_project(path: str | Path, *, environ: Mapping[str, str] | None = None) -> list[Problem]:
    """All problems of a project, offline: the file, its hooks (they are imported) and stubs not filled in.

    ``severity`` tells errors from warnings. Never raises for a fault of the project.
    """
    from agent_engine.spec.load import examine

    _, problems = examine(path, environ=environ)
    return problems
