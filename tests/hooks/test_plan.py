"""Plans: what is worked out once about each hook, and how hooks come into groups."""

from __future__ import annotations

from typing import Any

import pytest

from agent_engine.hooks.definition import CommandHook, FunctionHook, HookDefinition, WebhookHook
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import AfterLLMInput, BeforeToolInput, OnErrorInput
from agent_engine.hooks.plan import Plan, compile_plan
from agent_engine.hooks.site import Site

E = HookEvent


def nothing(payload: object) -> None:
    return None


async def anothing(payload: object) -> None:
    return None


def plan_of(event: HookEvent, *hooks: HookDefinition) -> Plan:
    return compile_plan(event, [(hook, 60.0) for hook in hooks])


def function(event: HookEvent = E.AFTER_LLM, func: Any = nothing, **keywords: Any) -> FunctionHook:
    return FunctionHook(event=event, func=func, **keywords)


def test_the_kind_of_a_hook_is_worked_out() -> None:
    hooks = [
        function(),
        function(func=anothing),
        function(inline=True),
        FunctionHook(event=E.AFTER_LLM, func=None),
        CommandHook(event=E.AFTER_LLM, command="true"),
        WebhookHook(event=E.AFTER_LLM, url="http://127.0.0.1:1/"),
    ]
    kinds = [entry.kind for entry in plan_of(E.AFTER_LLM, *hooks).entries]
    assert kinds == ["worker", "async", "inline", "missing", "command", "webhook"]


@pytest.mark.parametrize(
    ("event", "policy", "wanted"),
    [
        (E.BEFORE_TOOL, "deny", "refuse"),
        (E.BEFORE_TOOL, "fail", "raise"),
        (E.BEFORE_TOOL, "warn", "log"),
        (E.ON_ERROR, "deny", "log"),
        (E.ON_ERROR, "fail", "raise"),
        (E.ON_RUN_END, "fail", "raise"),
        (E.ON_RUN_ERROR, "fail", "log"),
        (E.ON_ENGINE_STOP, "fail", "log"),
        (E.ON_PERMISSION_ASK, "warn", "refuse"),
        (E.ON_PERMISSION_ASK, "deny", "refuse"),
        (E.ON_PERMISSION_ASK, "fail", "raise"),
    ],
)
def test_what_a_failure_means_is_worked_out(event: HookEvent, policy: str, wanted: str) -> None:
    (entry,) = plan_of(event, function(event, failure_policy=policy)).entries
    assert (entry.on_failure, entry.counts, entry.live) == (wanted, True, wanted != "log")
    for flag in ("observe", "shadow"):
        (entry,) = plan_of(event, function(event, failure_policy=policy, **{flag: True})).entries
        assert (entry.on_failure, entry.counts, entry.live) == ("log", False, False)


def test_hooks_are_grouped_by_mode_and_within_a_group_by_where_they_run() -> None:
    hooks = [
        function(name="s1"),
        function(name="s2"),
        function(name="a1", func=anothing),
        function(name="i1", inline=True),
        function(name="s3"),
        function(name="p1", sequential=False),
        function(name="p2", sequential=False, func=anothing),
        function(name="s4"),
    ]
    groups = plan_of(E.AFTER_LLM, *hooks).groups
    assert [group.sequential for group in groups] == [True, False, True]
    assert [[[entry.name for entry in run] for run in group.runs] for group in groups] == [
        [["s1", "s2"], ["a1", "i1"], ["s3"]],
        [["p1"], ["p2"]],
        [["s4"]],
    ]
    (rest,) = groups[0].after(1)
    assert [entry.name for entry in rest.entries] == ["a1", "i1", "s3"]
    assert groups[2].after(0) == []


@pytest.mark.parametrize(
    ("hooks", "way"),
    [
        ([{"inline": True}, {"inline": True}], "inline"),
        ([{"func": anothing}], "walk"),
        ([{}, {}], "relay"),
        ([{"sequential": False}, {"sequential": False, "func": anothing}], "together"),
        ([{"sequential": False, "inline": True}], ""),
        ([{}, {"inline": True}], ""),
        ([{}, {"sequential": False}], ""),
        ([{"when": bool}], ""),
        ([{"observe": True}], ""),
        ([{"shadow": True}], ""),
        ([{"failure_policy": "warn"}], ""),
        ([{"failure_policy": "fail"}], "relay"),
        ([{"managed_call": True}], ""),
    ],
)
def test_only_plain_hooks_of_one_kind_go_a_quick_way(hooks: list[dict[str, Any]], way: str) -> None:
    assert plan_of(E.AFTER_LLM, *(function(**keywords) for keywords in hooks))._way == way


@pytest.mark.parametrize("event", [E.ON_PERMISSION_ASK, E.BEFORE_TOOL_CALL, E.ON_RUN_ERROR])
def test_where_an_answer_means_something_else_there_is_no_quick_way(event: HookEvent) -> None:
    assert plan_of(event, function(event, inline=True))._way == ""


def test_a_command_goes_no_quick_way() -> None:
    assert plan_of(E.BEFORE_TOOL, CommandHook(event=E.BEFORE_TOOL, command="true"))._way == ""


@pytest.mark.parametrize(
    ("keywords", "ref"),
    [
        ({"plugin": "p", "method": "m", "name": "n"}, "p.m"),
        ({"ref": "module:func", "name": "n"}, "module:func"),
        ({"name": "n"}, "n"),
    ],
)
def test_a_hook_is_known_by_how_it_was_declared(keywords: dict[str, Any], ref: str) -> None:
    assert plan_of(E.AFTER_LLM, function(**keywords)).entries[0].ref == ref


async def test_a_payload_of_another_type_is_dispatched_all_the_same() -> None:
    """A door may have a payload type of its own; what may change is told by the event."""
    seen: list[Any] = []
    plan = plan_of(E.AFTER_LLM, function(func=seen.append, inline=True))

    class Wider(AfterLLMInput):
        __slots__ = ()

    payload = Wider(response="x")
    verdict = await plan.dispatch(payload, Site())
    assert (verdict.decision, verdict.payload) == ("allow", payload)
    assert seen == [payload]


async def test_a_plan_is_used_again_and_again() -> None:
    plan = plan_of(E.BEFORE_TOOL, function(E.BEFORE_TOOL), function(E.BEFORE_TOOL, func=anothing))
    for _ in range(5):
        assert (await plan.dispatch(BeforeToolInput(), Site())).decision == "allow"
    plan = plan_of(E.ON_ERROR, function(E.ON_ERROR))
    assert (await plan.dispatch(OnErrorInput(), Site())).decision == "allow"
