"""Small declared systems for tests: files are written, an engine is built on scripted models."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_engine.models.scripted import ScriptedModel
from agent_engine.runtime.engine import Engine


def project(folder: Path, yaml: str, files: Mapping[str, str] | None = None) -> Path:
    """Write ``agents.yaml`` and the files beside it; returns the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    path = folder / "agents.yaml"
    path.write_text(textwrap.dedent(yaml).lstrip("\n"))
    return path


def call(name: str, arguments: Mapping[str, Any] | None = None, call_id: str = "c1") -> dict[str, Any]:
    """A turn of a script: one tool call."""
    return {"tool_calls": [{"id": call_id, "name": name, "arguments": dict(arguments or {})}]}


def engine(path: Path, turns: Sequence[Any], **options: Any) -> tuple[Engine, ScriptedModel]:
    """An engine whose every node plays one script, and the script's model with the requests it got."""
    model = ScriptedModel(list(turns))
    return Engine.from_yaml(path, model=model, **options), model
