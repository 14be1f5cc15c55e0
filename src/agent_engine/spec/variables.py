"""Filling ``${NAME}`` and ``${NAME:-default}`` from the environment, where the file allows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agent_engine.spec.compose import DocPath

VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}")
BROKEN = re.compile(r"\$\{")


def is_filled(path: DocPath) -> bool:
    """Whether variables are filled at this path: mcps.*.url, command, args, cwd; a model's name and base_url."""
    if len(path) >= 3 and path[0] == "mcps":
        return path[2] in ("url", "command", "cwd", "args")
    if not path or path[-1] not in ("name", "base_url"):
        return False
    inside = path[2:] if path[0] == "defaults" else path[3:]
    owner = (
        path[1]
        if path[0] == "defaults"
        else path[2]
        if path[0] in ("agents", "orchestrators") and len(path) > 3
        else None
    )
    return owner == "model" and all(part == "fallback" or isinstance(part, int) for part in inside[:-1])


def fill_variables(data: Any, environ: Mapping[str, str], path: DocPath = ()) -> Any:
    """The data with every allowed variable filled; an unset one without a default is left as it stands."""
    if isinstance(data, dict):
        return {key: fill_variables(value, environ, (*path, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [fill_variables(value, environ, (*path, index)) for index, value in enumerate(data)]
    if isinstance(data, str) and "${" in data and is_filled(path):
        return VARIABLE.sub(lambda match: _value(match, environ), data)
    return data


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    value = environ.get(match.group("name"))
    default = match.group("default")
    if default is not None and not value:
        return default
    return value if value is not None else match.group()
