"""agents.yaml to a typed system, every problem with its line.

Writing what is missing is :func:`agent_engine.spec.generate.generate`, under its module's own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.spec.check import check_project as check_project
    from agent_engine.spec.load import Loaded as Loaded
    from agent_engine.spec.load import load_system as load_system
    from agent_engine.spec.problems import Problem as Problem
    from agent_engine.spec.problems import SpecError as SpecError
    from agent_engine.spec.schema import json_schema as json_schema
    from agent_engine.spec.system import System as System

_HOMES = {
    "Loaded": "load",
    "Problem": "problems",
    "SpecError": "problems",
    "System": "system",
    "check_project": "check",
    "json_schema": "schema",
    "load_system": "load",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agent_engine.spec' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from importlib import import_module

    value = getattr(import_module(f"agent_engine.spec.{home}"), name)
    globals()[name] = value
    return value
