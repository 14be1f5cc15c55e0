"""Context variables: who sees what somebody set. One table."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from agent_engine import Agent, AuthContext, RunContext
from agent_engine.hooks import current_run_context
from agent_engine.hooks.registry import HookRegistry
from agent_engine.models.scripted import ScriptedModel

from .run_kit import call, calls, made

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def setter(value: str, *, is_async: bool) -> Any:
    async def on_the_loop(seen: Any) -> None:
        TENANT.set(value)

    def in_a_thread(seen: Any) -> None:
        TENANT.set(value)

    return on_the_loop if is_async else in_a_thread


class Seen:
    """What each place of a run sees."""

    def __init__(self, registry: HookRegistry) -> None:
        self.at: dict[str, list[str]] = {}
        for event in (
            "on_run_start",
            "before_agent",
            "before_llm",
            "after_llm",
            "before_tool",
            "after_tool",
            "after_agent",
            "on_run_end",
        ):
            registry.register_function(event, self.look(event), sequential=True, priority=500)

    def look(self, place: str) -> Any:
        async def looked(seen: Any) -> None:
            self.at.setdefault(place, []).append(TENANT.get())

        return looked

    async def work(self, n: int = 0) -> str:
        """Work."""
        self.at.setdefault("tool", []).append(TENANT.get())
        TENANT.set("the tool")
        return "done"

    def thread(self, n: int = 0) -> str:
        """Work in a thread."""
        self.at.setdefault("thread", []).append(TENANT.get())
        TENANT.set("the thread")
        return "done"


TURNS = [call("work"), call("thread"), "answer"]
WHOLE = {
    "on_run_start": ["x"],
    "before_agent": ["x"],
    "before_llm": ["x"] * 3,
    "after_llm": ["x"] * 3,
    "before_tool": ["x"] * 2,
    "after_tool": ["x"] * 2,
    "tool": ["x"],
    "thread": ["x"],
    "after_agent": ["x"],
    "on_run_end": ["x"],
}


async def seen_by(event: str | None, *, is_async: bool = True, **options: Any) -> dict[str, list[str]]:
    registry = HookRegistry()
    seen = Seen(registry)
    if event is not None:
        registry.register_function(event, setter("x", is_async=is_async), **{"sequential": True, **options})
    one = made(TURNS, [seen.work, seen.thread], registry=registry)
    await one.run()
    assert TENANT.get() == "nobody", "a run leaves its caller's variables as they were"
    return seen.at


async def test_set_by_the_caller_everyone_sees_it() -> None:
    async def as_a_tenant() -> dict[str, list[str]]:
        TENANT.set("x")
        registry = HookRegistry()
        seen = Seen(registry)
        await made(TURNS, [seen.work, seen.thread], registry=registry).run()
        assert TENANT.get() == "x"
        return seen.at

    assert await asyncio.create_task(as_a_tenant()) == WHOLE


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("event", ["on_run_start", "before_agent"])
async def test_set_at_the_start_the_whole_run_sees_it(event: str, is_async: bool) -> None:
    expected = dict(WHOLE)
    if event == "before_agent":
        expected["on_run_start"] = ["nobody"]
    assert await seen_by(event, is_async=is_async) == expected


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_set_before_a_tool_its_step_and_closing_event_see_it(is_async: bool) -> None:
    seen = await seen_by("before_tool", is_async=is_async)
    assert seen["before_tool"] == seen["tool"] + seen["thread"] == seen["after_tool"] == ["x", "x"]
    for elsewhere in ("before_llm", "after_llm", "after_agent", "on_run_end"):
        assert set(seen[elsewhere]) == {"nobody"}


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_set_before_a_model_call_its_closing_event_sees_it_and_no_tool_does(is_async: bool) -> None:
    seen = await seen_by("before_llm", is_async=is_async)
    assert seen["before_llm"] == seen["after_llm"] == ["x"] * 3
    for elsewhere in ("tool", "thread", "before_tool", "after_agent", "on_run_end"):
        assert set(seen[elsewhere]) == {"nobody"}


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_set_by_a_parallel_hook_nobody_else_sees_it(is_async: bool) -> None:
    seen = await seen_by("before_tool", is_async=is_async, sequential=False)
    assert {value for values in seen.values() for value in values} == {"nobody"}


async def test_set_by_a_tool_nobody_else_sees_it() -> None:
    seen = await seen_by(None)
    assert {value for values in seen.values() for value in values} == {"nobody"}


async def test_concurrent_tool_calls_never_see_each_others() -> None:
    both = asyncio.Barrier(2)
    seen: list[tuple[int, str]] = []

    async def work(n: int) -> None:
        """Work."""
        TENANT.set(str(n))
        await both.wait()
        seen.append((n, TENANT.get()))

    await made([calls(("work", {"n": 1}), ("work", {"n": 2})), "answer"], [work]).run()
    assert sorted(seen) == [(1, "1"), (2, "2")]


async def test_two_tenants_in_parallel_never_see_each_other() -> None:
    async def tenant(name: str) -> None:
        TENANT.set(name)
        registry = HookRegistry()
        seen = Seen(registry)
        await made(TURNS, [seen.work, seen.thread], registry=registry).run()
        assert {value for values in seen.at.values() for value in values} == {name}

    await asyncio.gather(*(asyncio.create_task(tenant(f"t{n}")) for n in range(20)))


def test_the_sync_faces_carry_the_callers_variables_in_and_none_out() -> None:
    registry = HookRegistry()
    seen = Seen(registry)
    token = TENANT.set("x")
    try:
        agent = Agent("a", model=ScriptedModel(TURNS), tools=[seen.work, seen.thread], hooks=registry)
        assert agent.start("go") == "answer"
        assert seen.at == WHOLE
        assert TENANT.get() == "x"
        agent = Agent("a", model=ScriptedModel(TURNS), tools=[seen.work, seen.thread], hooks=registry)
        registry.register_function("on_run_start", setter("from a hook", is_async=True), priority=1)
        assert agent.start("go") == "answer"
        assert TENANT.get() == "x"
        assert "".join(Agent("a", model=ScriptedModel(["answer"]), hooks=registry).stream("go")) == "answer"
        assert TENANT.get() == "x"
    finally:
        TENANT.reset(token)


async def test_the_run_context_is_the_runs_wherever_one_looks() -> None:
    assert current_run_context() is None
    seen: list[Any] = []

    async def work() -> str:
        """Work."""
        seen.append(current_run_context())
        return "done"

    one = made([call("work"), "answer"], [work])
    one.registry.register_function("on_run_start", lambda context: context.replace(user_id="changed"))
    one.registry.register_function("before_llm", lambda payload: seen.append(current_run_context()) or None)
    result = await one.run(context=RunContext(user_id="u"))
    assert {(context.user_id, context.run_id) for context in seen} == {("changed", result.run_id)}
    assert current_run_context() is None


async def test_what_on_run_start_edits_in_place_is_its_runs_alone() -> None:
    def edits(context: RunContext) -> None:
        context.metadata["tags"].append("b")
        context.auth_context.metadata["roles"].append("admin")

    def caller() -> RunContext:
        return RunContext(metadata={"tags": ["a"]}, auth_context=AuthContext(metadata={"roles": ["user"]}))

    seen: list[object] = []
    one = made(["answer", "answer"])
    one.registry.register_function("on_run_start", edits)
    one.registry.register_function("before_agent", lambda _: seen.append(current_run_context()))
    given = caller()
    for _ in range(2):
        await one.run(context=given)
    assert given == caller()
    for context in seen:
        assert isinstance(context, RunContext)
        assert (context.metadata, context.auth_context.metadata) == ({"tags": ["a", "b"]}, {"roles": ["user", "admin"]})
