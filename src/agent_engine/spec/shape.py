"""From plain data to the typed system: every fault of shape, in words that say what to write instead."""

from __future__ import annotations

from agent_engine.spec.document import Document, dotted
from agent_engine.spec.problems import Problem
from agent_engine.spec.system import System


def read_shape(document: Document) -> tuple[System | None, list[Problem]]:
    """The typed system, or None with the problems of shape."""
    from pydantic import ValidationError

    try:
        return System.model_validate(document.data), []
    except ValidationError as exc:
        problems = []
        for error in exc.errors(include_url=False, include_input=False):
            line, column = document.positions.of(error["loc"])
            problems.append(Problem(document.file, line, column, dotted(error["loc"]), error["msg"], shape=True))
        return None, problems
