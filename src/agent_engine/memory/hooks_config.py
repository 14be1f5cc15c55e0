"""``.agent_engine/hooks.json``: the file of a workspace's hooks, read and checked."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

EVENTS: Final = tuple(
    f"{when}_{what}"
    for what in ("read_code", "write_code", "run_command", "user_prompt", "mcp_tool_use")
    for when in ("pre", "post")
)
CONFIG_PATH: Final = Path(".agent_engine") / "hooks.json"
DEFAULT_TIMEOUT: Final = 30.0

EXAMPLE: Final = {
    "enabled": True,
    "timeout": 30,
    "hooks": {
        "pre_run_command": [
            {"command": "cat > /dev/null", "timeout": 10, "enabled": True, "block_on_failure": True, "pass_input": True}
        ],
        "post_write_code": "true",
    },
}


class HooksConfigError(ValueError):
    """The file of a workspace's hooks is wrong; the text says where and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One hook, from the file or from Python. ``timeout`` is in seconds; None is the file's."""

    name: str
    command: str | None = None
    function: Callable[[dict[str, Any]], Any] | None = None
    timeout: float | None = None
    enabled: bool = True
    block_on_failure: bool = False
    pass_input: bool = True


def known_event(name: str) -> str:
    """``name`` if it is one of the ten events.

    Raises:
        ValueError: it is not; the text lists them and the nearest.
    """
    if name in EVENTS:
        return name
    raise ValueError(f"Unknown hook event: '{name}'{_nearest(str(name), EVENTS)}. Valid events: {', '.join(EVENTS)}")


@dataclass(slots=True)
class Config:
    """What the file says; ``timeout`` is in seconds, ``hooks`` by event."""

    enabled: bool = True
    timeout: float = DEFAULT_TIMEOUT
    hooks: dict[str, list[Entry]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Config:
        """The file at ``path``, or the defaults where there is none.

        Raises:
            HooksConfigError: it cannot be read, is not JSON, or holds something unknown.
        """
        try:
            text = path.read_text("utf-8-sig")
        except FileNotFoundError:
            return cls()
        except OSError as problem:
            raise HooksConfigError(f"{path} cannot be read: {problem.strerror}") from None
        except UnicodeDecodeError as problem:
            raise HooksConfigError(f"{path} is not UTF-8 text: byte {problem.start} cannot be read as such") from None
        try:
            document = json.loads(text, object_pairs_hook=_unique)
        except json.JSONDecodeError as problem:
            raise HooksConfigError(f"{path}:{problem.lineno}:{problem.colno} is not JSON: {problem.msg}") from None
        except (ValueError, RecursionError) as problem:
            raise HooksConfigError(f"{path} is not usable: {problem}") from None
        return _Reader(path).config(document)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Checks one document; every complaint names the file and the key."""

    path: Path

    def config(self, document: object) -> Config:
        top = self._object(document, "", ("enabled", "timeout", "hooks"))
        hooks = self._object(top.get("hooks", {}), "hooks", EVENTS)
        return Config(
            enabled=self._flag(top, "enabled", "", True),
            timeout=self._seconds(top, "timeout", "") or DEFAULT_TIMEOUT,
            hooks={
                event: [
                    self._entry(one, f"hooks.{event}" + (f"[{index}]" if isinstance(given, list) else ""))
                    for index, one in enumerate(given if isinstance(given, list) else [given])
                ]
                for event, given in hooks.items()
            },
        )

    def _entry(self, given: object, where: str) -> Entry:
        if isinstance(given, str):
            given = {"command": given}
        if not isinstance(given, dict):
            raise self._wrong(where, "must be a command line, an object with a command, or a list of these")
        hook = self._object(given, where, ("command", "timeout", "enabled", "block_on_failure", "pass_input"))
        command = hook.get("command")
        if not isinstance(command, str) or not command.strip():
            raise self._wrong(f"{where}.command", "must be a command line")
        return Entry(
            name=command,
            command=command,
            timeout=self._seconds(hook, "timeout", where),
            enabled=self._flag(hook, "enabled", where, True),
            block_on_failure=self._flag(hook, "block_on_failure", where, False),
            pass_input=self._flag(hook, "pass_input", where, True),
        )

    def _object(self, value: object, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(where or "the file", "must be an object")
        for key in value:
            if key not in keys:
                raise self._wrong(
                    f"{where}.{key}" if where else key,
                    f"is no known key{_nearest(key, keys)} (known: {', '.join(keys)})",
                )
        return value

    def _flag(self, holder: dict[str, Any], key: str, where: str, default: bool) -> bool:
        value = holder.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(f"{where}.{key}" if where else key, "must be true or false")
        return value

    def _seconds(self, holder: dict[str, Any], key: str, where: str) -> float | None:
        value = holder.get(key)
        if key in holder and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf")
        ):
            raise self._wrong(f"{where}.{key}" if where else key, "must be a number of seconds above 0")
        return value

    def _wrong(self, where: str, problem: str) -> HooksConfigError:
        return HooksConfigError(f"{self.path}: {where} {problem}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _nearest(name: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f", did you mean '{near[0]}'?" if near else ""
