"""Hook entries: the event, one way to name the hook, and what goes with that way."""

from __future__ import annotations

import re
import shlex
from typing import Any
from urllib.parse import urlsplit

from agent_engine.plugins.loader import is_ref
from agent_engine.plugins.manifest import MANIFEST, read_manifest
from agent_engine.plugins.problems import nearest
from agent_engine.spec.checks.context import Check, words
from agent_engine.spec.compose import DocPath
from agent_engine.spec.events import ON_CONFIG, event_names, hook_event, target_of

_WAYS = ("plugin", "method", "ref", "command", "args", "url")
_PROCESS = ("env", "pass_env")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def run(check: Check, *, files: bool) -> None:
    for event in check.section("hooks"):
        _event(check, event)
    for event, index, entry in check.hook_entries():
        _entry(check, event, entry, ("hooks", event, index))
        if files:
            _program(check, entry, ("hooks", event, index))
    if files:
        _plugins(check)


def _event(check: Check, event: str) -> None:
    if event == "on_config":
        check.note(("hooks", event), ON_CONFIG, key=True, shape=True)
    elif hook_event(event) is None:
        names = event_names()
        check.hints -= 1
        hit = nearest(event, names) if check.hints >= 0 else None
        end = f"; did you mean '{hit}'?" if hit else f"; events are {', '.join(names)}"
        check.note(("hooks", event), f"unknown event{end}", key=True, shape=True)


def _entry(check: Check, event: str, entry: dict[str, Any], path: DocPath) -> None:
    ways = [key for key in _WAYS if key in entry]
    kinds = {"plugin" if key == "method" else "args" if key == "command" else key for key in ways}
    if not kinds:
        what = "say which hook: plugin and method, or ref, or command or args, or url"
        check.note(path, what, shape=True)
    elif len(kinds) > 1 or {"command", "args"} <= set(ways):
        advice = "keep one way to name the hook"
        if kinds == {"args"}:
            advice = "args is the whole command as a list, the program first; command is one shell line"
        what = f"{' and '.join(ways)} exclude one another; {advice}"
        check.note((*path, ways[-1]), what, key=True, shape=True)
    elif kinds == {"plugin"}:
        for key, other in (("plugin", "method"), ("method", "plugin")):
            if key in entry and other not in entry:
                check.note((*path, key), f"'{key}' needs '{other}' beside it", key=True, shape=True)
    if not kinds & {"args"}:
        for key in _PROCESS:
            if key in entry:
                check.note((*path, key), f"'{key}' is for commands; code reads os.environ", key=True, shape=True)
    _ref(check, entry, path)
    _matcher(check, event, entry, path)
    _url(check, entry, path)
    if entry.get("observe") is True and entry.get("shadow") is True:
        check.note((*path, "shadow"), "observe and shadow exclude one another", key=True)


def _ref(check: Check, entry: dict[str, Any], path: DocPath) -> None:
    ref, method = entry.get("ref"), entry.get("method")
    if isinstance(ref, str) and ref and not is_ref(ref):
        check.note((*path, "ref"), "write it as module:attribute, for example plugins.hooks.audit:record")
    if isinstance(method, str) and method and not method.isidentifier():
        check.note((*path, "method"), "must be the name of a method of the plugin's class")


def _matcher(check: Check, event: str, entry: dict[str, Any], path: DocPath) -> None:
    if "matcher" not in entry or hook_event(event) is None:
        return
    if target_of(event) is None:
        what = f"{event} has no target to match; remove it, or limit the hook with agents"
        check.note((*path, "matcher"), what, key=True, shape=True)
        return
    matcher = entry["matcher"]
    if isinstance(matcher, str) and matcher:
        from agent_engine.hooks.matcher import compile_matcher

        try:
            compile_matcher(matcher)
        except ValueError as exc:
            check.note((*path, "matcher"), f"cannot be read: {exc}")


def _program(check: Check, entry: dict[str, Any], path: DocPath) -> None:
    args, command = entry.get("args"), entry.get("command")
    if isinstance(args, list):
        check.program([word for _, word in words(args[:1])], (*path, "args"))
    elif isinstance(command, str):
        try:
            check.program(shlex.split(command)[:1], (*path, "command"))
        except ValueError:
            return  # the shell's own to complain about


def _url(check: Check, entry: dict[str, Any], path: DocPath) -> None:
    url = entry.get("url")
    if not isinstance(url, str) or not url or "${" in url:
        return
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        parts, host = None, None
    if parts is None or not host or parts.scheme not in ("http", "https"):
        check.note((*path, "url"), "must begin with https:// and name a host")
    elif parts.scheme == "http" and host not in _LOOPBACK:
        check.note((*path, "url"), "must be https; http is for this machine alone")


def _plugins(check: Check) -> None:
    manifest = read_manifest(check.folder)
    check.problems.extend(manifest.problems)
    if manifest.problems and not (manifest.hooks or manifest.tools or manifest.resolvers):
        return  # nothing of it could be read, so nothing is known to be missing from it
    missing: set[str] = set()
    for event, index, entry in check.hook_entries():
        plugin = entry.get("plugin")
        if not isinstance(plugin, str) or not plugin or plugin in manifest.hooks or plugin in missing:
            continue
        missing.add(plugin)
        near = nearest(plugin, manifest.hooks) if len(missing) < 100 else None
        hit = f"; did you mean '{near}'?" if near else ""
        example = re.sub(r"\W", "_", plugin)
        advice = f'; add `{plugin} = "plugins.hooks.{example}:Class"` there, or run agentctl generate'
        what = f"the plugin '{plugin}' is not in [hooks.plugins] of {MANIFEST}{hit or advice}"
        check.note(("hooks", event, index, "plugin"), what)
