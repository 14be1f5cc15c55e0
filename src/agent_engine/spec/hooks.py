"""The entries under ``hooks:`` as hooks: loading what they name, and registering it in file order."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.definition import CommandHook, FunctionHook, HookDefinition, WebhookHook
from agent_engine.hooks.errors import HookLoadError, HookRegistrationError
from agent_engine.plugins.loader import LoadError, PluginSpace
from agent_engine.plugins.manifest import MANIFEST, Manifest, read_manifest
from agent_engine.plugins.problems import Problem, SpecError, did_you_mean
from agent_engine.spec.checks.context import words
from agent_engine.spec.compose import DocPath
from agent_engine.spec.document import Positions, read_document

if TYPE_CHECKING:
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.spec.system import HookEntry, System


class PluginInstances:
    """One instance a plugin id, made when first asked for, kept for the engine's life."""

    def __init__(self, space: PluginSpace, manifest: Manifest) -> None:
        self._space = space
        self._manifest = manifest
        self.made: dict[str, Any] = {}

    def get(self, plugin: str, point: str) -> Any:
        """The instance; HookLoadError names the point that needed it."""
        if plugin not in self.made:
            self.made[plugin] = self._make(plugin, point)
        return self.made[plugin]

    def _make(self, plugin: str, point: str) -> Any:
        entry = self._manifest.hooks.get(plugin)
        if entry is None:
            raise HookLoadError(point, plugin, f"it is not in [hooks.plugins] of {MANIFEST}")
        try:
            cls = self._space.load(entry.ref)
        except LoadError as exc:
            raise HookLoadError(point, entry.ref, exc.reason) from exc
        if not isinstance(cls, type):
            raise HookLoadError(point, entry.ref, "a class is expected there, of which the engine makes one instance")
        try:
            return cls()
        except (Exception, SystemExit) as exc:
            raise HookLoadError(point, entry.ref, f"making an instance without arguments raised {_kind(exc)}") from exc

    def method(self, plugin: str, name: str, point: str) -> Callable[..., Any]:
        instance = self.get(plugin, point)
        ref = f"{plugin}.{name}"
        if not hasattr(type(instance), name) and not hasattr(instance, name):
            public = [one for one in dir(type(instance)) if not one.startswith("_")]
            owner = type(instance).__name__
            raise HookLoadError(point, ref, f"{owner} has no method '{name}'{did_you_mean(name, public)}")
        method = getattr(instance, name)
        if not callable(method):
            raise HookLoadError(point, ref, f"{type(instance).__name__}.{name} is no method")
        return method  # type: ignore[no-any-return]  # callable is all that is known of it


def _kind(exc: BaseException) -> str:
    return type(exc).__name__


def definition(
    event: str,
    entry: HookEntry,
    *,
    folder: Path,
    source: str,
    plugins: PluginInstances | None = None,
    space: PluginSpace | None = None,
) -> HookDefinition:
    """The hook that an entry declares.

    Without ``plugins`` and ``space`` nothing is imported: a hook in Python has no callable then. Raises HookLoadError
    for code that is not there, HookRegistrationError for an entry that makes no sense at its event.
    """
    common: dict[str, Any] = {
        "event": event,
        "matcher": entry.matcher,
        "sequential": entry.sequential,
        "timeout": entry.timeout,
        "priority": entry.priority,
        "failure_policy": entry.failure_policy,
        "observe": entry.observe,
        "hold_back": entry.hold_back,
        "shadow": entry.shadow,
        "agents": tuple(entry.agents) or None,
        "servers": tuple(entry.servers) or None,
        "source": source,
    }
    if entry.plugin is not None:
        name = f"{entry.plugin}.{entry.method}"
        func = plugins.method(entry.plugin, str(entry.method), event) if plugins is not None else None
        return _function(
            event, name, func, common | {"name": entry.name or name, "plugin": entry.plugin, "method": entry.method}
        )
    if entry.ref is not None:
        func = _referred(event, entry.ref, space) if space is not None else None
        return _function(event, entry.ref, func, common | {"name": entry.name or entry.ref, "ref": entry.ref})
    common["name"] = entry.name or ""
    if entry.url is not None:
        return WebhookHook(url=entry.url, **common)
    return CommandHook(
        command=entry.command,
        args=tuple(entry.args) if entry.args is not None else None,
        env=dict(entry.env),
        pass_env=tuple(entry.pass_env),
        cwd=str(folder.resolve()),
        **common,
    )


def _referred(event: str, ref: str, space: PluginSpace) -> Callable[..., Any]:
    try:
        func = space.load(ref)
    except LoadError as exc:
        raise HookLoadError(event, ref, exc.reason) from exc
    if not callable(func) or isinstance(func, type):
        raise HookLoadError(event, ref, "a function of one argument is expected there")
    return func  # type: ignore[no-any-return]  # callable is all that is known of it


def _function(event: str, ref: str, func: Callable[..., Any] | None, options: dict[str, Any]) -> FunctionHook:
    try:
        return FunctionHook(func=func, managed_call=True, **options)
    except HookRegistrationError as exc:
        if func is not None and not _takes_one(func):
            raise HookLoadError(event, ref, "it must take one argument, the HookInvocation") from exc
        raise


def _takes_one(func: Callable[..., Any]) -> bool:
    try:
        inspect.signature(func, follow_wrapped=False).bind(object())
    except (TypeError, ValueError):
        return False
    return True


def register_hooks(
    registry: HookRegistry,
    system: System,
    *,
    file: str,
    positions: Positions,
    plugins: PluginInstances,
    space: PluginSpace,
    folder: Path,
) -> None:
    """Register every entry, in file order. Raises HookLoadError or SpecError at the first that cannot be."""
    for event, entries in system.hooks.items():
        for index, entry in enumerate(entries):
            path: DocPath = ("hooks", event, index)
            line, column = positions.of(path)
            try:
                hook = definition(event, entry, folder=folder, source=f"{file}:{line}", plugins=plugins, space=space)
            except HookRegistrationError as exc:
                raise SpecError([Problem(file, line, column, f"hooks.{event}[{index}]", str(exc))]) from exc
            registry.register(hook)


def _around(name: str, hooks: Any) -> dict[str, Any]:
    """A system around hooks that stand alone; the agents and servers that they are limited to are somebody else's."""
    entries = [entry for listed in (hooks.values() if isinstance(hooks, dict) else ()) for entry in listed or ()]
    named = {key: [name for entry in entries if isinstance(entry, dict) for _, name in words(entry.get(key))]
             for key in ("agents", "servers")}  # fmt: skip
    root = next(iter(named["agents"]), "agent")
    around: dict[str, Any] = {"system": {"name": name}, "agents": {one: {} for one in [root, *named["agents"]]}}
    if named["servers"]:
        around["mcps"] = {server: {"command": "none"} for server in named["servers"]}
    return {**around, "graph": {root: None}}


def registry_from_yaml(path: str | Path, *, environ: Mapping[str, str] | None = None) -> HookRegistry:
    """A registry with the hooks of a file, for an Agent. The file may hold a whole system, or ``hooks`` alone.

    Raises SpecError with every problem of its hooks, HookLoadError for code that cannot be loaded.
    """
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.spec.load import examine_document

    path = Path(path)
    document = read_document(path)
    data = document.data
    if isinstance(data, dict) and not {"system", "graph"} & set(data):
        document.data = {**_around(path.stem, data.get("hooks")), **data}
    loaded, problems = examine_document(document, path, environ=environ)
    ours = [
        one
        for one in problems
        if one.severity == "error" and (one.path == "" or one.path.startswith(("hooks", "plugins")))
    ]
    if loaded is None or ours:
        raise SpecError(ours or problems)
    system: System = loaded.system
    registry = HookRegistry()
    space = PluginSpace(loaded.folder, system.plugins.import_roots)
    weakref.finalize(registry, space.close)
    register_hooks(
        registry,
        system,
        file=str(path),
        positions=loaded.positions,
        plugins=PluginInstances(space, read_manifest(loaded.folder)),
        space=space,
        folder=loaded.folder,
    )
    return registry
