"""Ten thousand dispatches, a third of them late or cancelled, leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from typing import Any

import pytest

from agent_engine.hooks import limits
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.scope import HookScope
from agent_engine.hooks.site import Site
from agent_engine.hooks.workers import overrun

E = HookEvent


class Trouble:
    """Whether the hooks of a dispatch are quick or wait too long is told by the tool's name."""

    def sync(self, payload: BeforeToolInput) -> None:
        if payload.tool_name == "late":
            time.sleep(0.004)

    async def later(self, payload: BeforeToolInput) -> None:
        if payload.tool_name != "quick":
            await asyncio.sleep(10)


def plan_of(sequential: bool, *hooks: Any) -> Any:
    registry = HookRegistry()
    for hook in hooks:
        registry.register_function(E.BEFORE_TOOL, hook, sequential=sequential, timeout=0.002)
    return HookScope(registry, with_default=False).plan(E.BEFORE_TOOL)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def worker_threads() -> int:
    return sum(one.name == "agent-engine-worker" for one in threading.enumerate())


async def storm(plans: list[Any], dispatches: int) -> tuple[int, int, int]:
    """So many dispatches, forty at a time; how many let through, were refused, were cancelled."""
    counts = {"allow": 0, "deny": 0, "cancelled": 0}

    async def one(number: int) -> None:
        trouble = ("quick", "quick", "late", "quick", "quick", "cancelled")[number % 6]
        payload = BeforeToolInput(tool_name=trouble, tool_input={"blob": "x" * 1000})
        task = asyncio.create_task(plans[number % len(plans)].dispatch(payload, Site()))
        if trouble == "cancelled":
            await asyncio.sleep(0)
            task.cancel()
        try:
            counts[(await task).decision] += 1
        except asyncio.CancelledError:
            counts["cancelled"] += 1

    for start in range(0, dispatches, 40):
        await asyncio.gather(*(one(number) for number in range(start, min(start + 40, dispatches))))
    return counts["allow"], counts["deny"], counts["cancelled"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("agent_engine.hooks"), "disabled", True)


async def test_nothing_is_left_behind(until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.hooks.workers._IDLE_S", 0.05)
    trouble = Trouble()
    plans = [plan_of(mode, hook, hook) for mode in (True, False) for hook in (trouble.sync, trouble.later)]
    plans.append(plan_of(False, trouble.sync, trouble.later))
    await storm(plans, 600)
    await until(lambda: worker_threads() == 0)  # each counts for some objects, and how many there are is chance
    gc.collect()
    before_descriptors, undying = descriptors(), len(limits._undying)
    before = len(gc.get_objects())
    allowed, refused, cancelled = await storm(plans, 10_000)
    await until(lambda: overrun() == worker_threads() == 0)
    gc.collect()
    await asyncio.sleep(0)
    assert allowed + refused + cancelled == 10_000
    assert allowed > 2_000
    assert refused > 1_000
    assert cancelled > 500
    assert len(asyncio.all_tasks()) == 1
    assert descriptors() <= before_descriptors
    assert len(limits._undying) == undying
    gc.collect()
    assert len(gc.get_objects()) - before < 1_000, "one object in ten dispatches would be a leak"


async def test_threads_end_once_their_hooks_have_returned(until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.hooks.workers._IDLE_S", 0.01)
    monkeypatch.setattr("agent_engine.hooks.workers._idle", [])
    before = set(threading.enumerate())
    release = threading.Event()
    plan = plan_of(False, *[lambda payload: release.wait(60) and None for _ in range(10)])
    assert (await plan.dispatch(BeforeToolInput(), Site())).denied
    assert overrun() >= 1
    release.set()
    await until(lambda: overrun() == 0)
    await until(lambda: set(threading.enumerate()) <= before)


async def test_a_late_hook_keeps_nothing_of_the_dispatch_alive_once_it_has_returned(until: Any) -> None:
    import weakref

    release = threading.Event()
    plan = plan_of(True, lambda payload: release.wait(60) and None)

    class Marker:
        pass

    marker = Marker()
    seen = weakref.ref(marker)
    verdict = await plan.dispatch(BeforeToolInput(tool_input={"marker": marker}), Site())
    assert verdict.denied
    del marker, verdict
    release.set()
    await until(lambda: overrun() == 0)
    await until(lambda: gc.collect() >= 0 and seen() is None)
