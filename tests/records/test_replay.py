"""Recorded payloads against another set of hooks: what would be decided otherwise."""

from __future__ import annotations

from typing import Any

from tests.records.build import hook_run, payload, record, run, tool_step

from agent_engine.hooks.managed import RunContext, ToolRequestContext, current_run_context
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookResult
from agent_engine.hooks.scope import HookScope
from agent_engine.records.past_calls import ReplayFilter
from agent_engine.records.query import RecordReader
from agent_engine.records.replay import Comparison, Replay

EVERYTHING = frozenset({"*"})


async def _replay(address: str, registry: HookRegistry, **wanted: Any) -> Comparison:
    with RecordReader.open(address) as reader:
        scope = HookScope(registry, with_default=False)
        return await Replay(reader, scope, ReplayFilter(**wanted)).run()


def _policy(*refused: str) -> HookRegistry:
    registry = HookRegistry()

    def policy(event: Any) -> str | None:
        return f"{event.tool_input['path']} is closed" if event.tool_input.get("path") in refused else None

    registry.register_function("before_tool", policy, inline=True, sequential=True)
    return registry


async def test_only_the_calls_that_differ_are_shown_with_examples_and_reasons(address: str) -> None:
    entries = []
    for number, (path, decision) in enumerate([("a", "allow"), ("b", "allow"), ("c", "deny"), ("b", "allow")]):
        hooks = [hook_run("policy", decision, before=payload(path=path), reason="old" if decision == "deny" else None)]
        entries += run(f"r{number}", tool_step(f"r{number}", hooks=hooks))
    await record(address, entries, capture=EVERYTHING)
    result = await _replay(address, _policy("b"))
    assert (result.calls, result.same, result.differ) == (4, 1, 3)
    assert result.by_target == {
        ("before_tool", "search", "allow", "deny"): 2,
        ("before_tool", "search", "deny", "allow"): 1,
    }
    assert result.by_hook[("before_tool", "policy", "allow", "deny")] == 2
    example = result.examples[("before_tool", "search", "allow", "deny")][0]
    assert (example.run_id, example.new_reason, example.hook) == ("r1", "b is closed", "policy")
    assert example.body["tool_input"] == {"path": "b"}


async def test_the_payload_goes_in_as_it_came_before_any_hook_of_then_changed_it(address: str) -> None:
    first = hook_run("one", "modify", before=payload(path="raw"), after=payload(path="clean"), changed=("tool_input",))
    second = hook_run("two", before=payload(path="clean"))
    await record(address, run("r1", tool_step("r1", hooks=[first, second])), capture=EVERYTHING)
    seen: list[Any] = []
    registry = HookRegistry()
    registry.register_function(
        "before_tool", lambda event: seen.append(dict(event.tool_input)), name="two", inline=True
    )
    result = await _replay(address, registry)
    assert seen == [{"path": "raw"}]
    assert result.by_hook == {("before_tool", "one", "modify", "absent"): 1}


async def test_a_call_that_no_hook_saw_is_replayed_from_what_the_model_asked(address: str) -> None:
    asked = {"payload": {"asked": {"path": "b"}}, "server_id": "files"}
    bare = tool_step("r1", name="read", opened=asked, unheard=["before_tool", "before_tool_call"])
    await record(address, run("r1", bare), capture=EVERYTHING)
    registry = _policy("b")
    mcp_only = {"name": "mcp only", "matcher": "mcp__files__*", "inline": True, "priority": 1}
    registry.register_function("before_tool", lambda event: None, sequential=True, **mcp_only)
    result = await _replay(address, registry)
    assert result.by_target == {("before_tool", "read", "allow", "deny"): 1}
    assert result.by_hook == {
        ("before_tool", "policy", "absent", "deny"): 1,
        ("before_tool", "mcp only", "absent", "allow"): 1,
    }


async def test_what_failed_under_warn_counted_as_let_through(address: str) -> None:
    hooks = [
        hook_run("policy", "failed", before=payload(path="a"), broke=True, policy="warn"),
        hook_run("shadow", "deny", before=payload(path="a"), shadow=True),
    ]
    await record(address, run("r1", tool_step("r1", hooks=hooks)), capture=EVERYTHING)
    assert (await _replay(address, _policy())).differ == 0
    assert (await _replay(address, _policy("a"))).differ == 1


async def test_two_dispatches_of_one_step_are_two_calls(address: str) -> None:
    hooks = [hook_run("policy", before=payload(path=path)) for path in ("a", "b")]
    await record(address, run("r1", tool_step("r1", hooks=hooks)), capture=EVERYTHING)
    result = await _replay(address, _policy("b"))
    assert (result.calls, result.differ) == (2, 1)


async def test_managed_points_get_their_context_and_the_callers_identity(address: str) -> None:
    context = ToolRequestContext(agent_id="main", tool_name="search")
    start = RunContext(run_id="r1", user_id="ann")
    hooks = [
        hook_run("m", event="before_tool_call", before=context),
        hook_run("s", event="on_run_start", before=start),
    ]
    await record(address, run("r1", tool_step("r1", hooks=hooks)), capture=EVERYTHING)
    seen: list[Any] = []
    registry = HookRegistry()

    def ask(event: Any) -> HookResult:
        seen.append(event)
        return HookResult.deny("managed")

    registry.register_function("before_tool_call", ask, inline=True)
    users: list[Any] = []

    def who(event: Any) -> None:
        users.append(current_run_context())

    registry.register_function("before_tool_call", who, inline=True, priority=1)
    registry.register_function(
        "on_run_start", lambda context: None, name="when", inline=True, when=lambda context: context.user_id == "ann"
    )
    result = await _replay(address, registry)
    assert isinstance(seen[0], ToolRequestContext)
    assert seen[0].tool_name == "search"
    assert [context.user_id for context in users] == ["ann"]
    assert current_run_context() is None
    assert result.by_hook[("on_run_start", "when", "absent", "allow")] == 1


async def test_filters_and_payloads_of_another_shape(address: str) -> None:
    entries = []
    for number in range(6):
        tool = "search" if number % 2 else "write"
        entries += run(
            f"r{number}", tool_step(f"r{number}", name=tool, hooks=[hook_run("policy", before=payload(path="b"))])
        )
    await record(address, entries, capture=EVERYTHING)
    assert (await _replay(address, _policy("b"), tool="search")).calls == 3
    assert (await _replay(address, _policy("b"), limit=2)).calls == 2
    assert (await _replay(address, _policy("b"), run_id="r4")).calls == 1
    assert (await _replay(address, _policy("b"), event="after_tool")).calls == 0


async def test_a_redacted_shape_is_counted_not_guessed(address: str) -> None:
    entries = run("r1", tool_step("r1", hooks=[hook_run("policy", before=payload(path="b"))]))
    await record(address, entries, capture=EVERYTHING, redact=lambda event, body: ["hidden"])
    result = await _replay(address, _policy("b"))
    assert (result.calls, result.unreadable) == (0, 1)


async def test_a_broken_new_hook_is_a_refusal_and_does_not_end_the_replay(address: str) -> None:
    entries = run("r1", tool_step("r1", hooks=[hook_run("policy", before=payload(path="b"))]))
    await record(address, [*entries, *run("r2", tool_step("r2", hooks=[hook_run("policy", before=payload(path="c"))]))],
                 capture=EVERYTHING)  # fmt: skip
    registry = HookRegistry()

    def broken(event: Any) -> None:
        raise KeyError("x")

    registry.register_function(
        "before_tool", broken, name="policy", inline=True, sequential=True, failure_policy="fail"
    )
    result = await _replay(address, registry)
    assert result.by_hook == {("before_tool", "policy", "allow", "failed"): 2}
    assert result.by_target == {("before_tool", "search", "allow", "deny"): 2}
