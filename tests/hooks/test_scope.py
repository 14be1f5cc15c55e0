"""Which registries a step listens to, in which order their hooks run, and when a plan is made anew."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from agent_engine.hooks import registry as registry_module
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.registry import Clock, HookRegistry, add_hook, set_default_registry
from agent_engine.hooks.scope import HookScope, default_scope
from agent_engine.hooks.site import Site

E = HookEvent


def nothing(payload: object) -> None:
    return None


@pytest.fixture
def default() -> Iterator[HookRegistry]:
    before = registry_module.get_default_registry()
    fresh = HookRegistry()
    set_default_registry(fresh)
    yield fresh
    set_default_registry(before)


def names(scope: HookScope, event: HookEvent = E.BEFORE_TOOL, target: str | None = None, **who: str) -> list[str]:
    plan = scope.plan(event, target, **who)
    return [] if plan is None else [entry.name for entry in plan.entries]


def test_where_nobody_listens_there_is_no_plan(default: HookRegistry) -> None:
    scope = HookScope()
    assert scope.plan(E.BEFORE_TOOL) is None
    assert scope.plan(E.BEFORE_TOOL, "tool", agent="a", server="s") is None
    add_hook("after_tool", nothing)
    assert scope.plan(E.BEFORE_TOOL) is None
    assert scope.plan(E.AFTER_TOOL) is not None
    add_hook("before_tool", nothing, matcher="write_*")
    assert scope.plan(E.BEFORE_TOOL, "read_file") is None
    assert scope.plan(E.BEFORE_TOOL) is None
    assert scope.plan(E.BEFORE_TOOL, "write_file") is not None
    assert scope.plan(E.BEFORE_TOOL, ("fs__write_file", "write_file")) is not None


def test_a_plan_is_made_once_until_something_changes(default: HookRegistry) -> None:
    scope, own = HookScope(), HookRegistry()
    inner = scope.extended(own)
    hook_id = add_hook("before_tool", nothing, name="shared")
    first = scope.plan(E.BEFORE_TOOL)
    assert scope.plan(E.BEFORE_TOOL) is first
    HookRegistry().register_function(E.BEFORE_TOOL, nothing)
    own.register_function(E.BEFORE_TOOL, nothing, name="own")
    assert scope.plan(E.BEFORE_TOOL) is first, "a registry of somebody else's changes nothing"
    assert names(inner) == ["shared", "own"]
    default.disable_hook(hook_id)
    assert scope.plan(E.BEFORE_TOOL) is None
    assert names(inner) == ["own"]
    default.enable_hook(hook_id)
    assert names(scope) == ["shared"]
    default.unregister(hook_id)
    assert scope.plan(E.BEFORE_TOOL) is None
    own.enabled = False
    assert inner.plan(E.BEFORE_TOOL) is None
    own.enabled = True
    assert names(inner) == ["own"]
    own.clear()
    assert inner.plan(E.BEFORE_TOOL) is None


def test_a_dispatch_uses_the_plan_it_started_with() -> None:
    registry = HookRegistry()
    scope = HookScope(registry, with_default=False)
    ran: list[str] = []

    def first(payload: object) -> None:
        ran.append("first")
        registry.clear()
        registry.register_function(E.AFTER_LLM, lambda payload: ran.append("new"), name="new")

    registry.register_function(E.AFTER_LLM, first)
    registry.register_function(E.AFTER_LLM, lambda payload: ran.append("second"))
    plan = scope.plan(E.AFTER_LLM)
    assert plan is not None
    from agent_engine.hooks.payloads import AfterLLMInput

    asyncio.run(plan.dispatch(AfterLLMInput(), Site()))
    assert ran == ["first", "second"]
    assert names(scope, E.AFTER_LLM) == ["new"]


def test_another_default_registry_takes_effect(default: HookRegistry) -> None:
    scope = HookScope()
    add_hook("before_tool", nothing, name="old")
    assert names(scope) == names(default_scope()) == ["old"]
    other = HookRegistry()
    other.register_function(E.BEFORE_TOOL, nothing, name="new")
    set_default_registry(other)
    assert names(scope) == names(default_scope()) == ["new"]


def test_layers_are_ordered_by_priority_and_registration_over_all_of_them(default: HookRegistry) -> None:
    engine, agent = HookRegistry(), HookRegistry()
    platform = HookRegistry(platform=True)
    agent.register_function(E.BEFORE_TOOL, nothing, name="agent first", priority=10)
    add_hook("before_tool", nothing, name="default")
    engine.register_function(E.BEFORE_TOOL, nothing, name="engine")
    agent.register_function(E.BEFORE_TOOL, nothing, name="agent")
    platform.register_function(E.BEFORE_TOOL, nothing, name="platform", priority=-5)
    platform.register_function(E.BEFORE_TOOL, nothing, name="platform late", priority=500)
    platform.seal()
    scope = HookScope(engine, platform=platform).extended(agent)
    assert names(scope) == ["platform", "platform late", "agent first", "default", "engine", "agent"]
    assert [hook.name for hook in scope.hooks(E.BEFORE_TOOL)] == names(scope)
    assert [hook.name for hook in scope.hooks()] == names(scope)


def test_a_tie_to_the_default_registry_can_be_cut(default: HookRegistry) -> None:
    engine, agent = HookRegistry(), HookRegistry()
    platform = HookRegistry(platform=True)
    for registry, name in [(engine, "engine"), (agent, "agent"), (platform, "platform"), (default, "default")]:
        registry.register_function(E.BEFORE_TOOL, nothing, name=name)
    scope = HookScope(engine, platform=platform)
    assert names(scope.extended(agent, inherit_default=False)) == ["platform", "engine", "agent"]
    assert names(scope.extended(None, inherit_default=False)) == ["platform", "engine"]
    assert names(scope.extended(agent, inherit_default=False).extended(HookRegistry())) == [
        "platform",
        "engine",
        "agent",
    ]
    assert scope.extended(None) is scope


def test_a_registry_twice_fires_once(default: HookRegistry) -> None:
    engine = HookRegistry()
    engine.register_function(E.BEFORE_TOOL, nothing, name="engine")
    add_hook("before_tool", nothing, name="default")
    scope = HookScope(engine, engine, default)
    for _ in range(50):
        scope = scope.extended(engine)
    assert names(scope) == ["engine", "default"]


def test_a_hook_can_be_for_some_agents_and_servers(default: HookRegistry) -> None:
    registry = HookRegistry()
    registry.register_function(E.BEFORE_TOOL, nothing, name="for a", agents=("a",))
    registry.register_function(E.BEFORE_TOOL, nothing, name="for s", servers=("s",))
    scope = HookScope(registry)
    assert names(scope) == []
    assert names(scope, agent="a") == ["for a"]
    assert names(scope, agent="b", server="s") == ["for s"]
    assert names(scope, agent="a", server="s") == ["for a", "for s"]


def test_only_what_can_hold_something_back_counts_as_listening(default: HookRegistry) -> None:
    scope = HookScope()
    assert not scope.listens(E.AFTER_LLM)
    add_hook("after_llm", nothing, observe=True)
    add_hook("after_llm", nothing, shadow=True)
    assert not scope.listens(E.AFTER_LLM)
    hook_id = add_hook("after_llm", nothing)
    assert scope.listens(E.AFTER_LLM)
    default.disable_hook(hook_id)
    assert not scope.listens(E.AFTER_LLM)


def test_limits_come_from_the_hook_the_runner_or_the_registry(default: HookRegistry) -> None:
    own = HookRegistry()
    add_hook("before_tool", nothing, name="usual")
    own.register_function(E.BEFORE_TOOL, nothing, name="own", timeout=1.5)
    own.register_function(E.BEFORE_TOOL, nothing, name="registrys")

    def limits(scope: HookScope) -> dict[str, float]:
        plan = scope.plan(E.BEFORE_TOOL)
        assert plan is not None
        return {entry.name: entry.limit for entry in plan.entries}

    scope = HookScope(own)
    assert limits(scope) == {"usual": 60.0, "own": 1.5, "registrys": 60.0}
    own.set_global_timeout(7)
    assert limits(scope) == {"usual": 60.0, "own": 1.5, "registrys": 7.0}
    assert limits(HookScope(own, runner_timeout=9.0)) == {"usual": 9.0, "own": 1.5, "registrys": 9.0}


def test_many_targets_do_not_fill_the_memory(default: HookRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.hooks.scope._MAX_PLANS", 10)
    add_hook("before_tool", nothing, matcher="t*")
    scope = HookScope()
    for number in range(100):
        assert scope.plan(E.BEFORE_TOOL, f"t{number}") is not None
    assert len(scope._state.plans[E.BEFORE_TOOL]) <= 10


def test_the_clock_never_shows_a_number_twice() -> None:
    clock = Clock()
    seen: list[int] = []

    def tick() -> None:
        for _ in range(200):
            before = clock.now
            clock.tick()
            seen.append(clock.now)
            assert clock.now != before

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) <= 800
    clock.tick()
    assert clock.now == 801


def test_a_change_from_another_thread_is_seen_by_the_next_plan(default: HookRegistry) -> None:
    scope = HookScope()
    for number in range(50):
        thread = threading.Thread(target=add_hook, args=("before_tool", nothing), kwargs={"name": f"h{number}"})
        thread.start()
        thread.join()
        assert len(names(scope)) == number + 1


async def test_the_plan_of_a_target_holds_what_matches_it(default: HookRegistry) -> None:
    add_hook("before_tool", lambda payload: "no", matcher="rm|delete")
    plan = HookScope().plan(E.BEFORE_TOOL, "rm")
    assert plan is not None
    assert (await plan.dispatch(BeforeToolInput(tool_name="rm"), Site())).denied
    assert HookScope().plan(E.BEFORE_TOOL, "rmdir_safe") is None


def test_nothing_precedes_a_platform_hook_by_taking_its_id() -> None:
    platform, own = HookRegistry(platform=True), HookRegistry()
    platform.register_function(E.BEFORE_TOOL, nothing, id="gate", name="platform", priority=100)
    platform.register_function(E.BEFORE_TOOL, nothing, name="first", priority=-5)
    own.register_function(E.BEFORE_TOOL, nothing, id="gate", name="own", priority=0)

    scope = HookScope(own, platform=platform, with_default=False)

    assert [hook.name for hook in scope.hooks(E.BEFORE_TOOL)] == ["first", "platform", "own"]
