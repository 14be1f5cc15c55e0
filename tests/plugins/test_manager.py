"""Plugins: their hooks come with them and leave with them, and a failed start leaves nothing."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from agent_engine.hooks import GuardrailBlocked, HookEvent, HookRegistry, HookResult, errors
from agent_engine.plugins import GuardrailBlocked as ReExported
from agent_engine.plugins import Plugin, PluginManager
from agent_engine.testing import Recorder, fresh_default_registry, payload, run_hook


class Guard(Plugin):
    """Refuses one tool and redacts what every tool gives."""

    name = "guard"
    version = "1.2"
    description = "keeps an eye on tools"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_init(self, given: Any) -> None:
        self.seen.append(f"on_init {given.plugin_name} {given.plugin_version}")

    def on_shutdown(self, given: Any) -> None:
        self.seen.append(f"on_shutdown {given.plugin_name}")

    def before_tool(self, given: Any) -> HookResult | None:
        self.seen.append(f"before_tool {given.tool_name}")
        return HookResult.deny("policy") if given.tool_name == "rm" else None

    async def after_tool(self, given: Any) -> str:
        return str(given.tool_output).replace("secret", "[masked]")


def test_the_base_has_one_method_for_every_event() -> None:
    for event in HookEvent:
        assert callable(getattr(Plugin, event.value))
    assert Plugin().before_tool(payload("before_tool")) is None  # type: ignore[attr-defined]  # made from the catalogue
    assert ReExported is GuardrailBlocked is errors.GuardrailBlocked


def test_its_hooks_come_with_a_plugin_and_leave_with_it() -> None:
    registry = HookRegistry()
    manager, guard = PluginManager(registry), Guard()

    assert manager.register(guard) == "guard"
    assert {event: [row["name"] for row in rows] for event, rows in registry.list_hooks().items()} == {
        "after_tool": ["guard.after_tool"],
        "before_tool": ["guard.before_tool"],
    }
    assert run_hook(registry, "before_tool", tool_name="rm").reason == "policy"
    assert run_hook(registry, "after_tool", tool_output="a secret").payload.tool_output == "a [masked]"
    assert manager.plugins == (guard,)

    assert manager.unregister(guard)
    assert len(registry) == 0
    assert manager.plugins == ()
    assert not manager.unregister(guard)
    assert guard.seen == ["on_init guard 1.2", "before_tool rm", "on_shutdown guard"]


def test_other_hooks_stay_where_they_are() -> None:
    registry = HookRegistry()
    kept = registry.register_function("before_tool", lambda given: None)
    manager = PluginManager(registry)
    manager.register(Guard())
    manager.unregister("guard")

    assert [hook.id for hook in registry.get_hooks("before_tool")] == [kept]


def test_on_init_and_on_shutdown_are_fired_for_others_and_called_for_the_plugin_alone() -> None:
    registry = HookRegistry()
    recorder = Recorder().attach(registry, "on_init", "on_shutdown")
    manager, first = PluginManager(registry), Guard()
    manager.register(first)

    class Second(Guard):
        name = "second"

    manager.register(Second())
    manager.unregister("second")

    assert [
        (event, seen.plugin_name, seen.plugin_version, seen.plugin_description) for event, seen in recorder.calls
    ] == [
        ("on_init", "guard", "1.2", "keeps an eye on tools"),
        ("on_init", "second", "1.2", "keeps an eye on tools"),
        ("on_shutdown", "second", "1.2", "keeps an eye on tools"),
    ]
    assert first.seen == ["on_init guard 1.2"]


def test_a_failed_on_init_leaves_nothing_registered_and_is_raised() -> None:
    class Broken(Guard):
        def on_init(self, given: Any) -> None:
            raise RuntimeError("no database")

    registry = HookRegistry()
    recorder = Recorder().attach(registry, "on_init")
    manager = PluginManager(registry)
    with pytest.raises(RuntimeError, match="no database"):
        manager.register(Broken())

    assert (manager.plugins, len(registry), recorder.calls) == ((), 1, [])
    manager.register(Guard())
    assert len(manager.plugins) == 1


def test_a_hook_that_cannot_be_registered_leaves_nothing_registered() -> None:
    class Broken(Plugin):
        options = {"before_tool": {"matcher": "("}}  # noqa: RUF012

        def after_tool(self, given: Any) -> None: ...

        def before_tool(self, given: Any) -> None: ...

    registry = HookRegistry()
    with pytest.raises(ValueError, match="matcher"):
        PluginManager(registry).register(Broken())

    assert len(registry) == 0


def test_a_failed_on_shutdown_is_raised_and_the_plugin_has_left_all_the_same() -> None:
    class Clinging(Guard):
        def on_shutdown(self, given: Any) -> None:
            raise RuntimeError("busy")

    registry = HookRegistry()
    manager = PluginManager(registry)
    manager.register(Clinging())
    with pytest.raises(RuntimeError, match="busy"):
        manager.unregister("guard")

    assert (len(registry), manager.plugins) == (0, ())


def test_the_same_plugin_twice_is_registered_once_and_another_of_its_name_refused() -> None:
    registry = HookRegistry()
    manager, guard = PluginManager(registry), Guard()
    for _ in range(100):
        manager.register(guard)

    assert len(registry) == 2
    assert len([line for line in guard.seen if line.startswith("on_init")]) == 1
    with pytest.raises(ValueError, match="'guard' is registered already"):
        manager.register(Guard())
    assert not manager.unregister(Guard())


@pytest.mark.parametrize("wrong", ["befor_tool", "on_runstart", "after_llms"])
def test_a_method_that_is_nearly_an_event_is_refused(wrong: str) -> None:
    kind = type("Misspelt", (Plugin,), {wrong: lambda self, given: None})

    with pytest.raises(ValueError, match=rf"Misspelt\.{wrong} is named like no event; did you mean"):
        PluginManager(HookRegistry()).register(kind())


def test_helpers_and_options_for_what_is_not_there() -> None:
    class Helped(Plugin):
        def helper(self) -> None: ...

        def before_llm(self, given: Any) -> None: ...

    class Wrong(Helped):
        options = {"after_llm": {"priority": 1}}  # noqa: RUF012

    registry = HookRegistry()
    PluginManager(registry).register(Helped())
    assert list(registry.list_hooks()) == ["before_llm"]
    with pytest.raises(ValueError, match="'after_llm', which is no event that it has a method for"):
        PluginManager(registry).register(Wrong())
    with pytest.raises(TypeError, match="derived from Plugin"):
        PluginManager(registry).register(object())  # type: ignore[arg-type]  # on purpose


def test_options_are_the_keywords_of_the_registration() -> None:
    class Picky(Plugin):
        options = {"before_tool": {"matcher": "write_*", "priority": 5, "sequential": True}}  # noqa: RUF012

        def before_tool(self, given: Any) -> bool:
            return False

    registry = HookRegistry()
    PluginManager(registry).register(Picky())
    (row,) = registry.list_hooks()["before_tool"]

    assert (row["name"], row["matcher"], row["priority"], row["sequential"]) == (
        "Picky.before_tool",
        "write_*",
        5,
        True,
    )
    assert run_hook(registry, "before_tool", tool_name="write_file").denied
    assert not run_hook(registry, "before_tool", tool_name="read_file").denied


class Connected(Plugin):
    """Has async ends."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def on_init(self, given: Any) -> None:
        self.loops.append(asyncio.get_running_loop())

    async def on_shutdown(self, given: Any) -> None:
        self.loops.append(asyncio.get_running_loop())


async def test_async_ends_run_on_the_callers_loop_with_the_async_twins() -> None:
    manager, plugin = PluginManager(HookRegistry()), Connected()
    await manager.aregister(plugin)
    assert await manager.aunregister(plugin)
    assert not await manager.aunregister(plugin)

    assert plugin.loops == [asyncio.get_running_loop()] * 2


async def test_async_ends_are_awaited_by_the_sync_ones_too() -> None:
    manager, plugin = PluginManager(HookRegistry()), Connected()
    manager.register(plugin)
    manager.unregister(plugin)

    assert len(plugin.loops) == 2


def test_without_a_registry_the_process_wide_one_is_used(isolated_hooks: HookRegistry) -> None:
    PluginManager().register(Guard())

    assert len(isolated_hooks) == 2


def test_a_method_under_an_old_name_and_one_of_the_object_are_heard() -> None:
    class Odd(Plugin):
        options: ClassVar = {"before_message": {"priority": 7}}

        def __init__(self) -> None:
            self.before_tool = lambda payload: False

        def before_message(self, payload: Any) -> str:
            return "no"

    registry = HookRegistry()
    PluginManager(registry).register(Odd())

    assert run_hook(registry, "before_tool", tool_name="x").denied
    assert run_hook(registry, "message_received", content="hi").reason == "no"
    assert registry.list_hooks()["message_received"][0]["priority"] == 7


def test_two_names_of_one_event_are_refused() -> None:
    class Twice(Plugin):
        def before_message(self, payload: Any) -> None: ...

        def message_received(self, payload: Any) -> None: ...

    with pytest.raises(ValueError, match="two methods for message_received"):
        PluginManager(HookRegistry()).register(Twice())


def test_a_plugin_that_is_unregistered_while_it_makes_ready_leaves_nothing() -> None:
    registry = HookRegistry()
    manager = PluginManager(registry)

    class Shy(Plugin):
        def on_init(self, given: Any) -> None:
            manager.unregister(self)

        def before_tool(self, payload: Any) -> bool:
            return False

    manager.register(Shy())

    assert len(registry) == 0
    assert manager.plugins == ()


def test_hooks_leave_the_registry_they_were_put_in() -> None:
    class Renamed(Plugin):
        name = "before"

        def before_tool(self, payload: Any) -> bool:
            return False

    plugin, manager = Renamed(), PluginManager()
    with fresh_default_registry() as registry:
        manager.register(plugin)
        assert len(registry) == 1
        with fresh_default_registry():
            plugin.name = "after"
            assert manager.unregister(plugin)
        assert len(registry) == 0
