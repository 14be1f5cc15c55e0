"""The published JSON Schema of ``agents.yaml``."""

from __future__ import annotations

from typing import Any


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), JSON-ready: it says every shape; what needs the whole file is the loader's alone."""
    from agent_engine.spec.system import System

    return System.model_json_schema()
