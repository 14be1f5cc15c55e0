"""Plugins: objects that bring several hooks at once, and take them along when they leave."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from agent_engine.hooks.errors import GuardrailBlocked
from agent_engine.hooks.events import OLD_NAMES, HookEvent, event_of
from agent_engine.hooks.payloads import OnInitInput, OnShutdownInput
from agent_engine.hooks.portal import run_sync
from agent_engine.hooks.registry import HookRegistry, get_default_registry
from agent_engine.hooks.runner import afire_hook, fire_hook

__all__ = ["GuardrailBlocked", "Plugin", "PluginManager"]

_LIFECYCLE = (HookEvent.ON_INIT, HookEvent.ON_SHUTDOWN)


class Plugin:
    """A plugin to build on: override the method named like an event (``before_tool``, ``after_llm``, ``on_run_start``
    …).

    A method takes the event's payload and returns what any hook of that event may return; it may be async. ``on_init``
    and ``on_shutdown`` are called for this plugin alone, when it is registered and when it is unregistered.

    Attributes:
        name: what it is called; unique in its manager. The class's name by default.
        version, description: told to subscribers of ``on_init`` and ``on_shutdown``.
        options: how single events are registered, as the keywords of ``HookRegistry.register_function``:
            ``{"before_tool": {"matcher": "write_*", "priority": 10}}``.
    """

    name: str = ""
    version: str = "0.0.0"
    description: str = ""
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def on_init(self, payload: OnInitInput) -> Any:
        """Make ready; called before the hooks are registered. May be async."""

    def on_shutdown(self, payload: OnShutdownInput) -> Any:
        """Clean up; called after the hooks have left. May be async."""


def _unheard(self: Plugin, payload: Any) -> Any:
    """Override this to hear the event."""
    return None


for _event in HookEvent:
    if _event not in _LIFECYCLE:
        setattr(Plugin, _event.value, _unheard)


class PluginManager:
    """Registers plugins' hooks on one registry and takes them out again.

    Args:
        registry: where the hooks go; None is the process-wide default registry.
    """

    def __init__(self, registry: HookRegistry | None = None) -> None:
        self._registry = registry
        self._lock = threading.RLock()
        self._plugins: dict[str, Plugin] = {}
        self._hooks: dict[str, list[tuple[HookRegistry, str]]] = {}

    @property
    def registry(self) -> HookRegistry:
        """Where the hooks of its plugins are."""
        return self._registry if self._registry is not None else get_default_registry()

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The registered plugins, in the order they came."""
        with self._lock:
            return tuple(self._plugins.values())

    def register(self, plugin: Plugin) -> str:
        """Call the plugin's on_init, register its hooks, and fire ``on_init``. Returns its name.

        Registering the same object again changes nothing.

        Raises:
            ValueError: another plugin has this name, or a method is named like no event.
            Exception: whatever on_init raised; nothing is registered then.
        """
        name, methods = self._claim(plugin)
        if methods is not None:
            with self._all_or_nothing(name):
                said = plugin.on_init(OnInitInput(event_name=HookEvent.ON_INIT, **_facts(plugin, name)))
                if inspect.isawaitable(said):
                    run_sync(lambda: said)
                self._register_hooks(name, plugin, methods)
            fire_hook(HookEvent.ON_INIT, _facts(plugin, name), registry=self.registry)
        return name

    async def aregister(self, plugin: Plugin) -> str:
        """``register`` for async code; an async on_init runs on this loop."""
        name, methods = self._claim(plugin)
        if methods is not None:
            with self._all_or_nothing(name):
                said = plugin.on_init(OnInitInput(event_name=HookEvent.ON_INIT, **_facts(plugin, name)))
                if inspect.isawaitable(said):
                    await said
                self._register_hooks(name, plugin, methods)
            await afire_hook(HookEvent.ON_INIT, _facts(plugin, name), registry=self.registry)
        return name

    def unregister(self, plugin: Plugin | str) -> bool:
        """Take the plugin's hooks out, call its on_shutdown, and fire ``on_shutdown``. False where it is not
        registered.

        Raises:
            Exception: whatever on_shutdown raised; the plugin has left all the same.
        """
        name, left = self._release(plugin)
        if left is None:
            return False
        try:
            said = left.on_shutdown(OnShutdownInput(event_name=HookEvent.ON_SHUTDOWN, **_facts(left, name)))
            if inspect.isawaitable(said):
                run_sync(lambda: said)
        finally:
            fire_hook(HookEvent.ON_SHUTDOWN, _facts(left, name), registry=self.registry)
        return True

    async def aunregister(self, plugin: Plugin | str) -> bool:
        """``unregister`` for async code; an async on_shutdown runs on this loop."""
        name, left = self._release(plugin)
        if left is None:
            return False
        try:
            said = left.on_shutdown(OnShutdownInput(event_name=HookEvent.ON_SHUTDOWN, **_facts(left, name)))
            if inspect.isawaitable(said):
                await said
        finally:
            await afire_hook(HookEvent.ON_SHUTDOWN, _facts(left, name), registry=self.registry)
        return True

    def _claim(self, plugin: Plugin) -> tuple[str, dict[HookEvent, Callable[[Any], Any]] | None]:
        """The plugin's name, its own from here on, and what it hears; None where it is registered already."""
        if not isinstance(plugin, Plugin):
            raise TypeError(f"A plugin is an object of a class derived from Plugin, not {plugin!r}")
        name = plugin.name or type(plugin).__name__
        methods = _methods(plugin)
        with self._lock:
            there = self._plugins.get(name)
            if there is not None and there is not plugin:
                raise ValueError(f"A plugin named '{name}' is registered already; give this one another name")
            self._plugins[name] = plugin
        return name, methods if there is None else None

    def _release(self, plugin: Plugin | str) -> tuple[str, Plugin | None]:
        with self._lock:
            for name, there in self._plugins.items():
                if there is plugin or name == plugin:
                    self._remove(name)
                    return name, there
        return "", None

    @contextlib.contextmanager
    def _all_or_nothing(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._remove(name)
            raise

    def _register_hooks(self, name: str, plugin: Plugin, methods: Mapping[HookEvent, Callable[[Any], Any]]) -> None:
        registry = self.registry
        with self._lock:
            if self._plugins.get(name) is not plugin:
                return  # unregistered while it made ready
            there = self._hooks.setdefault(name, [])
            chosen = {event_of(named): options for named, options in plugin.options.items()}
            for event, method in methods.items():
                options = dict(chosen.get(event, {}))
                options.setdefault("name", f"{name}.{event}")
                options.setdefault("description", plugin.description)
                there.append((registry, registry.register_function(event, method, **options)))

    def _remove(self, name: str) -> None:
        with self._lock:
            self._plugins.pop(name, None)
            for registry, hook_id in self._hooks.pop(name, ()):
                registry.unregister(hook_id)  # where it was put: the default registry may be another one by now


def _methods(plugin: Plugin) -> dict[HookEvent, Callable[[Any], Any]]:
    """The events that a plugin hears, on_init and on_shutdown aside; a name that is nearly an event's is refused."""
    events = {name: event_of(name) for name in (*(event.value for event in HookEvent), *OLD_NAMES)}
    methods: dict[HookEvent, Callable[[Any], Any]] = {}
    for name in sorted({*dir(type(plugin)), *getattr(plugin, "__dict__", ())}):
        method = inspect.getattr_static(plugin, name)
        if name in events:
            if method is not _unheard and events[name] not in _LIFECYCLE:
                if events[name] in methods:
                    raise ValueError(f"{type(plugin).__name__} has two methods for {events[name]}; '{name}' is one")
                methods[events[name]] = getattr(plugin, name)
        elif not name.startswith("_") and callable(method):
            near = difflib.get_close_matches(name, events, n=1, cutoff=0.85)
            if near:
                raise ValueError(f"{type(plugin).__name__}.{name} is named like no event; did you mean '{near[0]}'?")
    for name in plugin.options:
        if name not in events or events[name] not in methods:
            raise ValueError(
                f"{type(plugin).__name__}.options names '{name}', which is no event that it has a method for"
            )
    return methods


def _facts(plugin: Plugin, name: str) -> dict[str, Any]:
    return {"plugin_name": name, "plugin_version": plugin.version, "plugin_description": plugin.description}
