"""The name of the configuration in force changes with whatever is configured, and with nothing else."""

from __future__ import annotations

from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.scope import HookScope
from agent_engine.records.generation import Generations


def hook(_: object) -> None:
    return None


def _scope(**options: object) -> tuple[HookRegistry, HookScope]:
    registry = HookRegistry()
    registry.register_function("before_tool", hook, name="guard", **options)  # type: ignore[arg-type]
    return registry, HookScope(registry, with_default=False)


def test_two_processes_with_the_same_configuration_name_it_alike() -> None:
    names = {Generations({"system": {"name": "demo"}}).name(_scope()[1]) for _ in range(2)}
    assert len(names) == 1
    assert len(names.pop()) == 12


def test_a_change_of_the_declaration_or_of_any_hook_is_another_generation() -> None:
    names = {
        Generations(None).name(_scope()[1]),
        Generations({"system": {"name": "demo"}}).name(_scope()[1]),
        Generations(None).name(_scope(priority=7)[1]),
        Generations(None).name(_scope(shadow=True)[1]),
        Generations(None).name(_scope(failure_policy="warn")[1]),
        Generations(None).name(_scope(matcher="search")[1]),
        Generations(None).name(_scope(agents=["clerk"])[1]),
    }
    assert len(names) == 7


def test_a_hook_that_comes_or_goes_is_noticed_by_the_next_run() -> None:
    generations = Generations(None)
    registry, scope = _scope()
    first = generations.name(scope)
    assert generations.name(scope) == first
    other = registry.register_function("before_tool", hook, name="second")
    second = generations.name(scope)
    assert second != first
    registry.disable_hook(other)
    assert generations.name(scope) == first
