"""MCP servers and models: which of their keys go together."""

from __future__ import annotations

import re
from typing import Any

from agent_engine.plugins.problems import shown
from agent_engine.spec.checks.context import Check
from agent_engine.spec.compose import DocPath
from agent_engine.spec.system import KEYLESS

_STDIO = ("args", "env", "pass_env", "cwd")
_HTTP = ("tool_tags", "tool_tag_transport")


def run(check: Check, *, files: bool) -> None:
    for _, name, block in check.blocks("mcps"):
        _server(check, block, ("mcps", name))
        if files:
            _process(check, block, ("mcps", name))
    defaults = check.section("defaults")
    if isinstance(defaults.get("model"), dict):
        _model(check, defaults["model"], ("defaults", "model"))
    for section, name, block in check.blocks("orchestrators", "agents"):
        if isinstance(block.get("model"), dict):
            _model(check, block["model"], (section, name, "model"))


def _server(check: Check, block: dict[str, Any], path: DocPath) -> None:
    url, command = "url" in block, "command" in block
    if url and command:
        check.note(
            (*path, "command"), "a server has url (streamable HTTP) or command (stdio), not both", key=True, shape=True
        )
    elif not url and not command:
        what = "'url' or 'command' is missing: url for streamable HTTP, command for a local process"
        check.note(path, what, key=True, shape=True)
    else:
        for key in _STDIO if url else _HTTP:
            if key in block:
                has, wants = ("url", "command") if url else ("command", "url")
                what = f"'{key}' goes with {wants}, and this server has {has}"
                check.note((*path, key), what, key=True, shape=True)
    _address(check, block.get("url"), (*path, "url"))
    for index, name in enumerate(block.get("pass_env") or ()) if isinstance(block.get("pass_env"), list) else ():
        if isinstance(name, str) and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            check.note((*path, "pass_env", index), "must be the name of an environment variable, not a value")


def _process(check: Check, block: dict[str, Any], path: DocPath) -> None:
    command, cwd = block.get("command"), block.get("cwd")
    folder = check.folder
    if isinstance(cwd, str) and cwd and "$" not in cwd:
        folder = folder / cwd
        if not folder.is_dir():
            check.note((*path, "cwd"), f"there is no folder {shown(cwd)} beside the file", severity="warning")
            return
    if not isinstance(command, str) or (isinstance(cwd, str) and "$" in cwd):
        return
    program, *more = command.split() or [""]
    if more and not (folder / command).exists():
        what = f"{shown(command)} is the name of one program here; write `command: {program}` and the rest under args"
        check.note((*path, "command"), what, severity="warning")
    else:
        check.program([command], (*path, "command"), folder)


def _model(check: Check, block: dict[str, Any], path: DocPath) -> None:
    _named(check, block, path)
    fallback = block.get("fallback")
    for index, one in enumerate(fallback if isinstance(fallback, list) else [fallback]):
        if isinstance(one, dict):
            _named(check, one, (*path, "fallback", index) if isinstance(fallback, list) else (*path, "fallback"))


def _named(check: Check, block: dict[str, Any], path: DocPath) -> None:
    provider = block.get("provider")
    if isinstance(provider, str) and "name" not in block:
        if provider == "scripted":
            what = "'name' is missing; name the file of turns: `name: turns.yaml`"
            check.note(path, what, key=True, shape=True)
        elif provider not in KEYLESS:
            check.note(path, "'name' is missing; name the model as its provider does", key=True, shape=True)
    _address(check, block.get("base_url"), (*path, "base_url"))


def _address(check: Check, text: Any, path: DocPath) -> None:
    is_text = isinstance(text, str) and text != "" and "${" not in text
    if is_text and not re.match(r"https?://[^/\s]", text):
        check.note(path, "must begin with http:// or https:// and name a host")
