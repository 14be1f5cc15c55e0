"""What a sink is told on the quick way is what the dispatcher proper tells, hook by hook."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.hooks.dispatch import Dispatch
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookResult, HookRun, Verdict
from agent_engine.hooks.scope import HookScope
from agent_engine.hooks.site import Site


def silent(_: BeforeToolInput) -> None:
    return None


def says_true(_: BeforeToolInput) -> bool:
    return True


def gives_it_back(event: BeforeToolInput) -> BeforeToolInput:
    return event


def edits_in_place(event: BeforeToolInput) -> None:
    event.tool_input["n"] = event.tool_input.get("n", 0) + 1


def assigns(event: BeforeToolInput) -> None:
    event.tool_input = {**event.tool_input, "assigned": True}


def undoes(event: BeforeToolInput) -> None:
    event.tool_input.pop("n", None)


def returns_a_change(_: BeforeToolInput) -> HookResult:
    return HookResult.modify(returned=1)


def asks(_: BeforeToolInput) -> HookResult:
    return HookResult.ask("really?")


def edits_and_refuses(event: BeforeToolInput) -> str:
    event.tool_input["late"] = 1
    return "no"


def breaks(event: BeforeToolInput) -> None:
    event.tool_input["half"] = 1
    raise RuntimeError("broken")


HOOKS = [
    silent, says_true, gives_it_back, edits_in_place, assigns, undoes, returns_a_change, asks, edits_and_refuses,
    breaks,
]  # fmt: skip


def _awaited(func: Callable[[Any], Any], suspends: bool) -> Callable[[Any], Any]:
    async def hook(event: BeforeToolInput) -> Any:
        if suspends:
            await asyncio.sleep(0)
        return func(event)

    return hook


def _plan(funcs: list[Callable[[Any], Any]], kind: str) -> Any:
    registry = HookRegistry()
    for number, func in enumerate(funcs):
        name = f"{func.__name__}{number}"
        if kind == "inline":
            registry.register_function("before_tool", func, name=name, inline=True, sequential=True)
        else:
            made = _awaited(func, suspends=kind == "suspending")
            registry.register_function("before_tool", made, name=name, sequential=True)
    return HookScope(registry, with_default=False).plan(HookEvent.BEFORE_TOOL, "t")


async def _told(plan: Any, quick: bool, wants_payloads: bool) -> tuple[Verdict, list[HookRun], dict[str, Any]]:
    runs: list[HookRun] = []
    site = Site(sink=lambda _, run: runs.append(run), wants_payloads=wants_payloads)
    payload = BeforeToolInput(tool_name="t", tool_input={"n": 1, "deep": {"list": [1]}}, call_id="c")
    verdict = await (plan.dispatch(payload, site) if quick else Dispatch(plan, payload, site).run())
    return verdict, runs, dict(verdict.payload.tool_input)


def _plain(run: HookRun) -> dict[str, Any]:
    shown = {
        name: getattr(run, name)
        for name in ("event", "mode", "group", "decision", "reason", "broke", "failure_type", "changed", "policy")
    }
    for name in ("before", "after"):
        payload = getattr(run, name)
        shown[name] = payload if payload is None else (payload.tool_input, payload.tool_name, payload.call_id)
    return {**shown, "hook": run.hook.name}


@given(st.lists(st.sampled_from(HOOKS), min_size=1, max_size=5), st.booleans())
@pytest.mark.parametrize("kind", ["inline", "async", "suspending"])
def test_the_quick_way_tells_what_the_dispatcher_tells(
    kind: str, funcs: list[Callable[[Any], Any]], wants_payloads: bool
) -> None:
    plan = _plan(funcs, kind)
    verdict, runs, arguments = asyncio.run(_told(plan, True, wants_payloads))
    wanted, wanted_runs, wanted_arguments = asyncio.run(_told(plan, False, wants_payloads))
    assert [_plain(run) for run in runs] == [_plain(run) for run in wanted_runs]
    assert (verdict.decision, verdict.reason, verdict.hook) == (wanted.decision, wanted.reason, wanted.hook)
    assert arguments == wanted_arguments


async def test_what_is_kept_of_a_payload_is_not_what_a_later_hook_edits() -> None:
    _, runs, _ = await _told(_plan([silent, edits_in_place, edits_in_place], "inline"), True, True)
    assert [(run.before.tool_input["n"], run.after.tool_input["n"]) for run in runs] == [(1, 1), (1, 2), (2, 3)]
    assert runs[0].before is runs[0].after
    assert [run.changed for run in runs] == [(), ("tool_input",), ("tool_input",)]


async def test_the_hooks_that_have_run_are_told_of_when_a_later_one_is_cancelled() -> None:
    started = asyncio.Event()
    runs: list[HookRun] = []

    async def waits(_: BeforeToolInput) -> None:
        started.set()
        await asyncio.Event().wait()

    registry = HookRegistry()
    registry.register_function("before_tool", _awaited(silent, True), name="first", sequential=True)
    registry.register_function("before_tool", waits, name="second", sequential=True)
    registry.register_function("before_tool", _awaited(silent, True), name="third", sequential=True)
    plan = HookScope(registry, with_default=False).plan(HookEvent.BEFORE_TOOL, "t")
    assert plan is not None
    site = Site(sink=lambda _, run: runs.append(run))
    task = asyncio.ensure_future(plan.dispatch(BeforeToolInput(tool_name="t"), site))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [run.hook.name for run in runs] == ["first"]
    assert runs[0].duration_ms > 0
