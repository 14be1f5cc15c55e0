"""Many runs, many of them cancelled, leave the process as it was."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

from agent_engine.hooks import HookResult
from agent_engine.models.scripted import Turn

from .run_kit import Made, call, listen, made

RUNS = 600
EVENTS = (
    "on_run_start",
    "before_agent",
    "before_llm",
    "after_llm",
    "before_tool",
    "after_tool",
    "after_agent",
    "on_run_error",
)


class Restless:
    """A model that never runs out, and waits where it is told to."""

    name = provider = "restless"

    def __init__(self) -> None:
        self.waits = False

    async def request(self, messages: Any, tools: Any, settings: Any) -> Any:
        if messages[-1]["role"] == "tool":
            return Turn(text="answer").response()
        if self.waits:
            await asyncio.Event().wait()
        from agent_engine.models.base import ModelResponse, ToolCall

        return ModelResponse("", [ToolCall("c1", "work", {})])

    def stream(self, messages: Any, tools: Any, settings: Any) -> Any:
        raise NotImplementedError


async def work() -> str:
    """Work."""
    return "done"


async def silent(seen: Any) -> Any:
    return seen


async def rounds(one: Made, model: Restless, count: int) -> None:
    for number in range(count):
        model.waits = number % 3 == 0
        if not model.waits:
            await one.run()
            continue
        task = asyncio.create_task(one.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


async def test_memory_threads_and_descriptors_stay_flat() -> None:
    """Fault 35, in small: memory after many runs is what it was after a few."""
    model = Restless()
    one = made(model, [work])
    for event in EVENTS:
        one.registry.register_function(event, silent)
    await rounds(one, model, 200)
    gc.collect()
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    before = len(gc.get_objects())
    await rounds(one, model, RUNS)
    gc.collect()
    grown = len(gc.get_objects()) - before
    assert grown < RUNS / 2, f"{grown} objects more after {RUNS} runs"
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert threading.active_count() <= threads + 2
    assert len(asyncio.all_tasks()) == 1


async def test_waiting_runs_are_forgotten_when_they_went_on() -> None:
    one = made([turn for _ in range(20) for turn in (call("work"), "answer")], [work], approver="later")
    one.registry.register_function("before_tool", lambda seen: HookResult.ask("?"), sequential=True)
    listen(one.registry)
    for _ in range(20):
        waiting = await one.run()
        await one.resume(waiting.run_id, {"c1": "yes"})
    assert one.host.contexts == {}
    assert await one.host.store.list_waiting() == []
