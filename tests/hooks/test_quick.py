"""The quick ways come to what the dispatcher proper comes to: same verdict, same edits, same rows."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.idle_clock import Clock

from agent_engine.hooks.dispatch import Dispatch
from agent_engine.hooks.errors import GuardrailBlocked
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.plan import Plan
from agent_engine.hooks.quick import Position
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookExecutionResult, HookResult, Verdict
from agent_engine.hooks.scope import HookScope
from agent_engine.hooks.site import Site

Hook = Callable[[BeforeToolInput], Any]


def silent(_: BeforeToolInput) -> None:
    return None


def says_true(_: BeforeToolInput) -> bool:
    return True


def says_false(_: BeforeToolInput) -> bool:
    return False


def says_allow(_: BeforeToolInput) -> str:
    return "allow"


def gives_it_back(event: BeforeToolInput) -> BeforeToolInput:
    return event


def edits(event: BeforeToolInput) -> None:
    event.tool_input["n"] = event.tool_input.get("n", 0) + 1


def undoes(event: BeforeToolInput) -> None:
    event.tool_input = {"n": 1, "deep": {"list": [1]}}


def returns_a_change(_: BeforeToolInput) -> HookResult:
    return HookResult.modify(returned=1)


def asks(_: BeforeToolInput) -> HookResult:
    return HookResult.ask("really?")


def edits_and_refuses(event: BeforeToolInput) -> HookResult:
    event.tool_input["late"] = 1
    return HookResult.deny("no")


def blocks(_: BeforeToolInput) -> None:
    raise GuardrailBlocked("blocked")


def breaks(event: BeforeToolInput) -> None:
    event.tool_input["half"] = 1
    raise RuntimeError("broken")


def says_nonsense(_: BeforeToolInput) -> int:
    return 7


HOOKS: list[Hook] = [
    silent, says_true, says_false, says_allow, gives_it_back, edits, undoes, returns_a_change, asks,
    edits_and_refuses, blocks, breaks, says_nonsense,
]  # fmt: skip


def _plan(kind: str, funcs: list[Hook]) -> Plan:
    registry = HookRegistry()
    for number, func in enumerate(funcs):
        made = func if kind in ("inline", "worker") else _awaited(func, kind == "suspending")
        registry.register_function(
            "before_tool", made, name=f"{func.__name__}{number}", inline=kind == "inline", sequential=True
        )
    plan = HookScope(registry, with_default=False).plan(HookEvent.BEFORE_TOOL, "t")
    assert plan is not None
    return plan


def _awaited(func: Hook, suspends: bool) -> Callable[[BeforeToolInput], Any]:
    async def hook(event: BeforeToolInput) -> Any:
        if suspends:
            await asyncio.sleep(0)
        return func(event)

    return hook


def _payload() -> BeforeToolInput:
    return BeforeToolInput(tool_name="t", tool_input={"n": 1, "deep": {"list": [1]}})


def _said(verdict: Verdict) -> tuple[Any, ...]:
    """What counts of a verdict: nobody uses the payload of one that refuses."""
    edits = None if verdict.denied else verdict.payload.tool_input
    return (verdict.decision, verdict.reason, verdict.hook, verdict.broke, edits)


def _shown(row: HookExecutionResult) -> tuple[Any, ...]:
    output = row.output
    return (row.hook_name, row.event, row.success, row.error, output and (output.decision, output.reason))


@given(st.lists(st.sampled_from(HOOKS), min_size=1, max_size=5))
@pytest.mark.parametrize("kind", ["inline", "async", "suspending", "worker"])
def test_the_quick_way_comes_to_the_same_verdict_and_edits(kind: str, funcs: list[Hook]) -> None:
    async def both() -> tuple[Verdict, Verdict]:
        plan = _plan(kind, funcs)
        return await plan.dispatch(_payload(), Site()), await Dispatch(plan, _payload(), Site()).run()

    quick, wanted = asyncio.run(both())
    assert _said(quick) == _said(wanted)


@given(st.lists(st.sampled_from(HOOKS), min_size=1, max_size=5))
@pytest.mark.parametrize("kind", ["inline", "async", "suspending", "worker"])
def test_the_quick_way_gives_the_same_rows(kind: str, funcs: list[Hook]) -> None:
    async def both() -> tuple[tuple[Verdict, list[HookExecutionResult]], Dispatch, Verdict]:
        plan = _plan(kind, funcs)
        slow = Dispatch(plan, _payload(), Site(), rows=[])
        return await plan.dispatch_rows(_payload(), Site()), slow, await slow.run()

    (quick, rows), slow, wanted = asyncio.run(both())
    assert _said(quick) == _said(wanted)
    assert slow.rows is not None
    assert [_shown(row) for row in rows] == [_shown(row) for row in slow.rows]


async def test_rows_are_given_and_the_sink_is_told() -> None:
    told: list[str] = []
    plan = _plan("inline", [silent, edits])
    _, rows = await plan.dispatch_rows(_payload(), Site(sink=lambda _, run: told.append(run.hook.name)))
    assert [row.hook_name for row in rows] == told == ["silent0", "edits1"]


async def test_a_change_that_is_taken_back_is_no_change_to_whoever_is_told_either() -> None:
    for site in (Site(), Site(sink=lambda _, run: None)):
        verdict = await _plan("inline", [edits, undoes]).dispatch(_payload(), site)
        assert verdict.decision == "allow"
        assert (await _plan("inline", [edits]).dispatch(_payload(), site)).decision == "modify"


async def test_a_payload_of_another_type_passes_every_hook() -> None:
    seen: list[object] = []

    class Own:
        tool_input: ClassVar[dict[str, Any]] = {}

    plan = _plan("inline", [lambda event: seen.append(event), lambda event: "no"])
    given = Own()
    verdict, rows = await plan.dispatch_rows(given, Site())
    assert verdict.denied
    assert len(rows) == 2
    assert seen == [given]


async def test_nobody_goes_on_before_a_sync_hook_has_spoken_however_slow_the_ones_before_were() -> None:
    """After a slow one the loop does not stand still for sync hooks for a while; it waits for them all the same."""

    def slow(_: BeforeToolInput) -> None:
        time.sleep(0.05)

    def denies(event: BeforeToolInput) -> HookResult:
        time.sleep(0.001)
        return HookResult.deny(str(event.tool_input["n"]))

    plan = _plan("worker", [slow, denies])
    for _ in range(3):
        assert (await plan.dispatch(_payload(), Site())).reason == "1"


async def test_a_hook_is_not_late_for_the_time_of_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, until: Any
) -> None:
    """The thread goes on to the next hook in the very moment in which the loop looks how long one has been on."""
    began, ends = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    watch, overtaken = Position.watch, False

    def hook(number: int) -> Callable[[BeforeToolInput], None]:
        def held(_: BeforeToolInput) -> None:
            began[number].set()
            ends[number].wait(60)

        return held

    def watch_late(on: Position) -> tuple[int, float]:
        if overtaken:
            ends[0].set()
            began[1].wait(60)
        return watch(on)

    monkeypatch.setattr(Position, "watch", watch_late)
    registry = HookRegistry()
    for number, limit in enumerate([600, 60]):
        registry.register_function("before_tool", hook(number), sequential=True, timeout=limit)
    plan = HookScope(registry, with_default=False).plan(HookEvent.BEFORE_TOOL, "t")
    assert plan is not None
    dispatch = asyncio.create_task(_dispatched(plan))
    await until(began[0].is_set)
    overtaken = True
    clock.put_forward(60)
    await until(began[1].is_set)
    ends[1].set()
    assert (await dispatch).decision == "allow"


async def _dispatched(plan: Plan) -> Verdict:
    return await plan.dispatch(_payload(), Site())
