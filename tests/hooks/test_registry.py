"""Registries: order, replacing, removing, sources, and what is refused at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from agent_engine.hooks import add_hook, get_default_registry, has_hook, remove_hook, set_default_registry
from agent_engine.hooks.definition import CommandHook, FunctionHook, HookDefinition
from agent_engine.hooks.errors import HookRegistrationError
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.registry import HookRegistry


def _allow(payload: object) -> None:
    return None


@pytest.fixture
def registry() -> HookRegistry:
    return HookRegistry()


@pytest.fixture
def default(registry: HookRegistry) -> Any:
    before = get_default_registry()
    set_default_registry(registry)
    yield registry
    set_default_registry(before)


def test_hooks_run_by_priority_then_by_registration(registry: HookRegistry) -> None:
    for name, priority in [("c", 100), ("a", 10), ("d", 100), ("b", 50)]:
        registry.register_function("before_tool", _allow, name=name, priority=priority)
    assert [hook.name for hook in registry.get_hooks("before_tool")] == ["a", "b", "c", "d"]
    assert [row["name"] for row in registry.list_hooks()["before_tool"]] == ["a", "b", "c", "d"]


def test_one_counter_orders_registrations_over_all_registries(registry: HookRegistry) -> None:
    other = HookRegistry()
    first = registry.register_function("before_tool", _allow)
    second = other.register_function("before_tool", _allow)
    by_id = {hook.id: hook.seq for one in (registry, other) for hook in one.get_hooks("before_tool")}
    assert by_id[first] < by_id[second]


def test_a_row_says_all_about_a_hook(registry: HookRegistry) -> None:
    hook_id = registry.register_function("after_tool", _allow, matcher="read", name="mask", priority=7)
    (row,) = registry.list_hooks()["after_tool"]
    assert row.pop("source").endswith(f"test_registry.py:{_allow.__code__.co_firstlineno}")
    assert row == {
        "id": hook_id,
        "name": "mask",
        "type": "function",
        "matcher": "read",
        "enabled": True,
        "sequential": True,
        "priority": 7,
    }


def test_a_command_knows_where_it_was_registered(registry: HookRegistry) -> None:
    registry.register_command("before_tool", "true")
    assert "test_registry.py:" in registry.list_hooks()["before_tool"][0]["source"]


def test_an_id_registered_twice_replaces_the_first_and_fires_once(registry: HookRegistry) -> None:
    for _ in range(100):
        registry.register(FunctionHook(id="guard", event="before_tool", func=_allow))
    assert len(registry) == 1
    registry.register(FunctionHook(id="guard", event="after_tool", func=_allow))
    assert [len(registry.get_hooks(event)) for event in ("before_tool", "after_tool")] == [0, 1]


def test_a_removed_hook_is_gone_and_removing_it_again_is_false(registry: HookRegistry) -> None:
    hook_id = registry.register_function("before_tool", _allow)
    assert registry.unregister(hook_id)
    assert not registry.unregister(hook_id)
    assert not registry.has_hooks("before_tool")


def test_a_disabled_hook_does_not_run_and_can_be_enabled(registry: HookRegistry) -> None:
    hook_id = registry.register_function("before_tool", _allow)
    assert registry.disable_hook(hook_id)
    assert registry.get_hooks("before_tool") == []
    assert registry.list_hooks()["before_tool"][0]["enabled"] is False
    assert registry.enable_hook(hook_id)
    assert registry.has_hooks("before_tool")
    assert not registry.disable_hook("nobody")


def test_clearing_takes_one_event_or_all(registry: HookRegistry) -> None:
    for event in ("before_tool", "after_tool", "before_llm"):
        registry.register_function(event, _allow)
    registry.clear(HookEvent.BEFORE_TOOL)
    assert len(registry) == 2
    registry.clear()
    assert len(registry) == 0
    assert bool(registry)


def test_a_temporary_hook_leaves_with_its_block_whatever_happens(registry: HookRegistry) -> None:
    with pytest.raises(KeyError), registry.temporarily("before_tool", _allow, matcher="x") as hook_id:
        assert registry.get_hooks("before_tool", "x")[0].id == hook_id
        raise KeyError
    assert len(registry) == 0
    with registry.temporarily(FunctionHook(event="before_tool", func=_allow)):
        assert len(registry) == 1
    assert len(registry) == 0


def test_a_decorator_without_an_event_or_for_none_that_is_there_is_told_at_once(registry: HookRegistry) -> None:
    for register in (add_hook, registry.on):
        with pytest.raises(TypeError, match="Name the event that the function is for"):
            register(_allow)  # type: ignore[arg-type]  # what the test is about
        with pytest.raises(ValueError, match=r"Did you mean 'before_tool'\?"):
            register("before_tol")


def test_the_decorator_returns_the_function_and_its_id_is_found(registry: HookRegistry) -> None:
    assert registry.on("before_tool", matcher="x")(_allow) is _allow
    hook_id = registry.hook_id_of(_allow)
    assert hook_id is not None
    assert registry.unregister(hook_id)
    assert registry.hook_id_of(_allow) is None


def test_the_short_functions_work_on_the_process_wide_registry(default: HookRegistry) -> None:
    hook_id = add_hook("before_tool", _allow)
    assert has_hook(HookEvent.BEFORE_TOOL)
    assert default.get_hooks("before_tool")[0].priority == 100
    assert remove_hook(hook_id)
    assert not has_hook("before_tool")

    @add_hook("before_tool", priority=10)
    def hook(payload: object) -> None: ...

    assert default.hook_id_of(hook) is not None
    assert default.get_hooks("before_tool")[0].priority == 10


class _Called:
    def __call__(self, payload: object) -> None: ...


class _CalledAsync:
    async def __call__(self, payload: object) -> None: ...

    async def method(self, payload: object) -> None: ...


async def _async(payload: object) -> None: ...


def _given(policy: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As a decorator of dependency injection: the wrapper takes one argument, and hands over two."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(func)
        def wrapper(payload: object) -> Any:
            return func(payload, policy)

        return wrapper

    return decorate


@_given("house rules")
def _with_a_policy(payload: object, policy: str) -> None:
    assert policy == "house rules"


@wraps(_allow)
def _wants_two(payload: object, policy: str) -> None:
    raise AssertionError("never called")


async def _async_generator(payload: object) -> Any:
    yield None


def _generator(payload: object) -> Any:
    yield None


class _CalledGenerator:
    async def __call__(self, payload: object) -> Any:
        yield None


@pytest.mark.parametrize(
    ("func", "is_async"),
    [
        (_allow, False),
        (lambda payload: None, False),
        (_Called(), False),
        (partial(_allow), False),
        (print, False),
        (_async, True),
        (_CalledAsync(), True),
        (_CalledAsync().method, True),
        (partial(_async), True),
        (partial(_CalledAsync()), True),
        (_with_a_policy, False),
    ],
)
def test_whatever_takes_one_argument_can_be_a_hook(registry: HookRegistry, func: Any, is_async: bool) -> None:
    registry.register_function("before_tool", func)
    (hook,) = registry.get_hooks("before_tool")
    assert isinstance(hook, FunctionHook)
    assert hook.is_async is is_async
    assert hook.source


@pytest.mark.parametrize(
    ("func", "problem"),
    [
        (lambda: None, "'<lambda>' cannot be called with one argument"),
        (lambda a, b: None, "cannot be called with one argument"),
        ("not a function", "is not callable"),
        (_async_generator, "'_async_generator' is a generator function"),
        (_generator, "'_generator' is a generator function"),
        (_CalledGenerator(), "'_CalledGenerator' is a generator function"),
        (partial(_async_generator), "'_async_generator' is a generator function"),
        (_wants_two, "cannot be called with one argument"),
    ],
)
def test_what_cannot_answer_is_refused_when_it_is_registered(registry: HookRegistry, func: Any, problem: str) -> None:
    with pytest.raises(HookRegistrationError, match=problem):
        registry.register_function("before_tool", func)
    assert len(registry) == 0


def test_a_function_hook_without_a_function_may_be_registered(registry: HookRegistry) -> None:
    registry.register(FunctionHook(id="broken", name="broken", event=HookEvent.BEFORE_TOOL, func=None))
    assert len(registry) == 1


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        ({"priority": -1}, r"priorities below 0 are for Engine\(platform_hooks=\[...\]\) only"),
        ({"priority": True}, "priority is a whole number"),
        ({"priority": 1.5}, "priority is a whole number"),
        ({"timeout": 0}, "timeout is a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout is a number of seconds above 0"),
        ({"timeout": "5"}, "timeout is a number of seconds above 0"),
        ({"failure_policy": "Warn"}, "failure_policy 'Warn' is none of fail, deny, warn"),
        ({"matcher": 3}, "matcher is text"),
        ({"sequential": "no"}, "sequential is True, False or None"),
        ({"observe": 1}, "observe is True or False"),
        ({"hold_back": 4}, "hold_back is for on_llm_delta only"),
        ({"when": "always"}, "when is a plain function of the RunContext"),
        ({"agents": []}, "agents is empty, so this hook would never run"),
        ({"servers": ()}, "servers is empty, so this hook would never run"),
        ({"agents": 3}, "Hook '.*' on before_tool: agents is a list of names, not int"),
        ({"agents": ""}, "agents is a list of names; an empty text is none"),
        ({"agents": [object()]}, "agents is a list of names; a object is none"),
        ({"servers": ["wiki", None]}, "servers is a list of names; a NoneType is none"),
        ({"description": 5}, "description is text, not int"),
        ({"is_async": "yes"}, "is_async is True, False or None, not 'yes'"),
    ],
)
def test_a_keyword_that_makes_no_sense_is_refused_by_name(
    registry: HookRegistry, keywords: dict[str, Any], problem: str
) -> None:
    with pytest.raises(HookRegistrationError, match=problem):
        registry.register_function("before_tool", _allow, name="guard", **keywords)


def test_a_matcher_where_there_is_no_target_is_refused(registry: HookRegistry) -> None:
    with pytest.raises(HookRegistrationError, match="this event has no target"):
        registry.register_function("before_agent", _allow, matcher="x")


def test_a_foreign_object_is_no_hook(registry: HookRegistry) -> None:
    with pytest.raises(HookRegistrationError, match="there is register_function"):
        registry.register(_allow)  # type: ignore[arg-type]  # the point of the test


def test_a_command_needs_exactly_one_way_to_be_started() -> None:
    with pytest.raises(HookRegistrationError, match="either command= .* or args="):
        CommandHook(event="before_tool")
    with pytest.raises(HookRegistrationError, match="either command= .* or args="):
        CommandHook(event="before_tool", command="true", args=("true",))


def test_a_platform_registry_is_fixed_once_sealed() -> None:
    platform = HookRegistry(platform=True)
    hook_id = platform.register_function("before_tool", _allow, priority=-10)
    platform.seal()
    assert not platform.unregister(hook_id)
    assert not platform.disable_hook(hook_id)
    with pytest.raises(HookRegistrationError, match="cannot be removed"):
        platform.clear()
    with pytest.raises(HookRegistrationError, match="cannot be disabled"):
        platform.enabled = False
    with pytest.raises(HookRegistrationError, match="fixed when the engine is made"):
        platform.register_function("before_tool", _allow)
    assert [hook.id for hook in platform.get_hooks("before_tool")] == [hook_id]


def test_a_disabled_registry_has_no_hooks() -> None:
    registry = HookRegistry(enabled=False)
    registry.register_function("before_tool", _allow)
    assert not registry.has_hooks("before_tool")
    assert registry.get_hooks("before_tool") == []
    registry.enabled = True
    assert registry.has_hooks("before_tool")


@pytest.mark.parametrize("bad", [0, -1, float("inf"), True, "60"])
def test_the_global_limit_is_a_number_of_seconds(registry: HookRegistry, bad: Any) -> None:
    with pytest.raises(ValueError, match="number of seconds above 0"):
        registry.set_global_timeout(bad)


def test_registering_from_many_threads_loses_nothing(registry: HookRegistry) -> None:
    def work(number: int) -> None:
        for one in range(50):
            hook_id = registry.register_function("before_tool", _allow, name=f"{number}.{one}")
            registry.get_hooks(HookEvent.BEFORE_TOOL)
            if one % 2:
                registry.unregister(hook_id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hooks: list[HookDefinition] = registry.get_hooks("before_tool")
    assert sorted(hook.name for hook in hooks) == sorted(f"{n}.{one}" for n in range(8) for one in range(0, 50, 2))
    assert [hook.seq for hook in hooks] == sorted(hook.seq for hook in hooks)


def test_replacing_a_hook_never_leaves_a_moment_without_it(registry: HookRegistry) -> None:
    make: Callable[[], FunctionHook] = lambda: FunctionHook(id="gate", event="before_tool", func=_allow)  # noqa: E731
    registry.register(make())
    stop, gaps = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            if not registry.has_hooks("before_tool"):
                gaps.append(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2000):
        registry.register(make())
    stop.set()
    watcher.join()
    assert gaps == []


def test_a_temporary_hook_gives_back_the_id_that_it_took(registry: HookRegistry) -> None:
    gate = FunctionHook(id="gate", event=HookEvent.BEFORE_TOOL, func=_allow)
    registry.register(gate)

    with registry.temporarily(FunctionHook(id="gate", event=HookEvent.BEFORE_LLM, func=_allow)):
        assert not registry.has_hooks(HookEvent.BEFORE_TOOL)

    assert registry.get_hooks(HookEvent.BEFORE_TOOL) == [gate]
    assert len(registry) == 1


def test_a_hook_that_replaced_a_temporary_one_stays(registry: HookRegistry) -> None:
    gate = FunctionHook(id="gate", event=HookEvent.BEFORE_TOOL, func=_allow)

    with registry.temporarily(FunctionHook(id="gate", event=HookEvent.BEFORE_TOOL, func=_allow)):
        registry.register(gate)

    assert [hook is gate for hook in registry.get_hooks(HookEvent.BEFORE_TOOL)] == [True]


def _named(name: str) -> FunctionHook:
    return FunctionHook(id="gate", event=HookEvent.BEFORE_TOOL, func=_allow, name=name)


def test_what_a_command_or_an_endpoint_is_given_is_checked_by_name(registry: HookRegistry) -> None:
    hook_id = registry.register_command("before_tool", "true", pass_env="MAIL")  # one name, not four letters
    (hook,) = registry.get_hooks("before_tool")
    assert isinstance(hook, CommandHook)
    assert (hook.id, hook.pass_env) == (hook_id, ("MAIL",))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"pass_env": 5}, "pass_env is a list of names, not int"),
        ({"env": ["A=1"]}, "env maps names to values, it is no list"),
        ({"env": {"A": None}}, "env gives A as text, not as None"),
        ({"shell": "no"}, "shell is True or False, not 'no'"),
        ({"cwd": 5}, "cwd is a folder, not int"),
    ]
    for keywords, says in wrong:
        with pytest.raises(HookRegistrationError, match=f"Hook 'true' on before_tool: {says}"):
            registry.register_command("before_tool", "true", **keywords)
    with pytest.raises(HookRegistrationError, match="Hook 'example.com' on before_tool: header_env maps"):
        registry.register_webhook("before_tool", "https://example.com", header_env="TOKEN")  # type: ignore[arg-type]


def test_one_hook_may_be_there_for_a_while_twice(registry: HookRegistry) -> None:
    gate = _named("gate")

    with registry.temporarily(gate):
        with registry.temporarily(gate):
            assert len(registry) == 1
        assert len(registry) == 1

    assert len(registry) == 0


def test_temporary_hooks_of_one_id_may_end_in_any_order(registry: HookRegistry) -> None:
    for order in itertools.permutations(range(3)):
        registry.register(_named("original"))
        blocks = [registry.temporarily(_named(f"for a while {number}")) for number in range(3)]
        for block in blocks:
            block.__enter__()
        left = set(order)
        for number in order:
            assert [hook.name for hook in registry.get_hooks("before_tool")] == [f"for a while {max(left)}"]
            blocks[number].__exit__(None, None, None)
            left.discard(number)
        assert [hook.name for hook in registry.get_hooks("before_tool")] == ["original"]


def test_there_is_no_moment_without_a_hook_when_a_temporary_one_ends(registry: HookRegistry) -> None:
    registry.register(_named("original"))
    seen: list[int] = []
    changed = registry._changed

    def look() -> None:
        seen.append(len(registry.hooks_of(HookEvent.BEFORE_TOOL)))
        changed()

    registry._changed = look  # type: ignore[method-assign]
    with registry.temporarily(_named("for a while")):
        pass
    assert seen == [1, 1]


def test_a_hook_that_two_registries_share_is_switched_in_one_of_them(registry: HookRegistry) -> None:
    hook = FunctionHook(id="gate", event=HookEvent.BEFORE_TOOL, func=_allow)
    other, platform = HookRegistry(), HookRegistry(platform=True)
    for one in (registry, other, platform):
        one.register(hook)

    registry.disable_hook("gate")
    hook.enabled = False

    assert not registry.has_hooks(HookEvent.BEFORE_TOOL)
    assert platform.has_hooks(HookEvent.BEFORE_TOOL)
    hook.enabled = True
    assert other.has_hooks(HookEvent.BEFORE_TOOL)


def test_a_temporary_hook_that_was_switched_off_leaves_too(registry: HookRegistry) -> None:
    with registry.temporarily(HookEvent.BEFORE_TOOL, _allow) as hook_id:
        registry.disable_hook(hook_id)

    assert len(registry) == 0
