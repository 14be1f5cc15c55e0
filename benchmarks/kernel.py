"""What the hook kernel costs, as a ratio to a bare loop over the same callables in the same process.

Each case runs its two sides in turns, many times; the ratio is the median of the rounds. Exit code 1 where one is over
its bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agent_engine.hooks import HookEvent, HookRegistry
from agent_engine.hooks.payloads import UserPromptSubmitInput
from agent_engine.hooks.scope import HookScope
from agent_engine.hooks.site import Site

EVENT = HookEvent.USER_PROMPT_SUBMIT
WALL = time.perf_counter
now: Callable[[], float] = time.process_time
"""Processor time, which other programs do not disturb; where threads or processes take part, the time on the wall."""

SECRET = "sk-live-"
Side = Callable[[int], Awaitable[float]]


@dataclass
class Case:
    """One row: ours and the bare way take a number of repetitions and give seconds; ``bound`` is for their ratio."""

    name: str
    ours: Side
    bare: Side
    bound: float
    times: int
    rounds: int = 31
    clock: Callable[[], float] = time.process_time


def check(payload: UserPromptSubmitInput) -> object:
    """A hook as people write it: one look at the prompt."""
    return False if SECRET in payload.prompt else None


async def acheck(payload: UserPromptSubmitInput) -> object:
    return False if SECRET in payload.prompt else None


def payload() -> UserPromptSubmitInput:
    return UserPromptSubmitInput(prompt="Please summarise the report that I sent yesterday, in three sentences.")


def registry(func: Callable[..., Any], count: int = 5, **keywords: Any) -> HookRegistry:
    made = HookRegistry()
    for number in range(count):
        made.register_function(EVENT, func, name=f"hook{number}", **keywords)
    return made


def plan_of(func: Callable[..., Any], **keywords: Any) -> Any:
    plan = HookScope(registry(func, **keywords), with_default=False).plan(EVENT)
    assert plan is not None
    return plan


def dispatching(func: Callable[..., Any], **keywords: Any) -> Side:
    plan, one, site = plan_of(func, **keywords), payload(), Site()

    async def side(times: int) -> float:
        dispatch = plan.dispatch
        start = now()
        for _ in range(times):
            await dispatch(one, site)
        return now() - start

    return side


def with_rows(func: Callable[..., Any], **keywords: Any) -> Side:
    plan, one, site = plan_of(func, **keywords), payload(), Site()

    async def side(times: int) -> float:
        dispatch = plan.dispatch_rows
        start = now()
        for _ in range(times):
            await dispatch(one, site)
        return now() - start

    return side


def nobody_listens() -> Side:
    scope = HookScope(HookRegistry())

    async def side(times: int) -> float:
        start = now()
        for _ in range(times):
            plan = scope.plan(EVENT)
            if plan is not None:
                raise AssertionError("somebody listens")
        return now() - start

    return side


def bare_loop(callbacks: list[Callable[..., Any]]) -> Side:
    """The loop that a program without a kernel would have where an event happens: look the callbacks up, call them."""
    one, by_event = payload(), {EVENT: callbacks} if callbacks else {}

    async def fire(event: HookEvent, data: UserPromptSubmitInput) -> object:
        for callback in by_event.get(event, ()):
            if callback(data) is False:
                return False
        return None

    async def side(times: int) -> float:
        start = now()
        for _ in range(times):
            await fire(EVENT, one)
        return now() - start

    return side


def bare_awaits(callbacks: list[Callable[..., Any]]) -> Side:
    one, by_event = payload(), {EVENT: callbacks}

    async def fire(event: HookEvent, data: UserPromptSubmitInput) -> object:
        for callback in by_event.get(event, ()):
            if await callback(data) is False:
                return False
        return None

    async def side(times: int) -> float:
        start = now()
        for _ in range(times):
            await fire(EVENT, one)
        return now() - start

    return side


def task_group(func: Callable[..., Any]) -> Side:
    one = payload()

    async def side(times: int) -> float:
        start = now()
        for _ in range(times):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(func(one)) for _ in range(5)]
            assert not any(task.result() for task in tasks)
        return now() - start

    return side


async def pauses(data: UserPromptSubmitInput) -> object:
    await asyncio.sleep(0)
    return False if SECRET in data.prompt else None


class WaitingThread:
    """A thread that waits for work: the least that a hand-off costs."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[tuple[Callable[[], object], asyncio.Future[object]]] = queue.SimpleQueue()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            work, answer = self.inbox.get()
            value = work()
            answer.get_loop().call_soon_threadsafe(answer.set_result, value)

    async def run(self, work: Callable[[], object]) -> object:
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.inbox.put((work, answer))
        return await answer


def hand_off(callbacks: list[Callable[..., Any]]) -> Side:
    thread, one = WaitingThread(), payload()

    def work() -> object:
        return [callback(one) for callback in callbacks]

    async def side(times: int) -> float:
        start = now()
        for _ in range(times):
            await thread.run(work)
        return now() - start

    return side


def one_sleep(seconds: float) -> Side:
    async def side(times: int) -> float:
        start = now()
        for _ in range(times):
            await asyncio.to_thread(time.sleep, seconds)
        return now() - start

    return side


def command_hook() -> Side:
    made = HookRegistry()
    made.register_command(EVENT, args=["/bin/sh", "-c", "exec cat >/dev/null"])
    plan, site = HookScope(made, with_default=False).plan(EVENT), Site()
    assert plan is not None

    async def side(times: int) -> float:
        start = now()
        for _ in range(times):
            await plan.dispatch(payload(), site)
        return now() - start

    return side


def bare_process() -> Side:
    """The same process, fed and read by the standard library."""
    from agent_engine.hooks.jsonform import to_json

    async def side(times: int) -> float:
        start = now()
        for _ in range(times):
            process = await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                "exec cat >/dev/null",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            await process.communicate(to_json(payload()))
        return now() - start

    return side


def slow(_: object) -> None:
    time.sleep(0.02)


CASES = [
    Case("no hook registered", nobody_listens(), bare_loop([]), 1.5, 2000),
    Case("five inline sequential hooks", dispatching(check, inline=True), bare_loop([check] * 5), 2.0, 1000),
    Case("five async hooks that do not suspend", dispatching(acheck), bare_awaits([acheck] * 5), 2.9, 1000),
    Case("... with result rows", with_rows(acheck), bare_awaits([acheck] * 5), 9.0, 500),
    Case("five async hooks in a parallel group", dispatching(acheck, sequential=False), task_group(acheck), 1.3, 100),
    Case("... that suspend once", dispatching(pauses, sequential=False), task_group(pauses), 1.3, 100),
    Case("five sync hooks, sequential", dispatching(check), hand_off([check] * 5), 1.5, 100, clock=WALL),
    Case(
        "five sync hooks, parallel", dispatching(check, sequential=False), hand_off([check] * 5), 2.5, 100, clock=WALL
    ),
    Case(
        "two parallel hooks that sleep overlap",
        dispatching(slow, count=2, sequential=False),
        one_sleep(0.02),
        1.5,
        1,
        rounds=11,
        clock=WALL,
    ),
    Case("a command hook", command_hook(), bare_process(), 1.2, 3, rounds=21, clock=WALL),
]


async def measure(case: Case) -> tuple[float, float, float]:
    """The medians of one dispatch, of the bare way (seconds) and of their ratio, round by round."""
    global now
    now = case.clock
    ours, bare = [], []
    await case.ours(case.times)
    await case.bare(case.times)
    for _ in range(case.rounds):
        ours.append(await case.ours(case.times) / case.times)
        bare.append(await case.bare(case.times) / case.times)
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    return statistics.median(ours), statistics.median(bare), statistics.median(ratios)


def main() -> int:
    words = sys.argv[1:]
    print(f"{'':42}{'kernel':>12}{'bare':>12}{'ratio':>8}{'bound':>8}")
    over = 0
    for case in CASES:
        if words and not any(word in case.name for word in words):
            continue
        with no_collector():
            ours, bare, ratio = asyncio.run(measure(case))
        over += ratio > case.bound
        mark = "  over its bound" if ratio > case.bound else ""
        print(
            f"{case.name:42}{ours * 1e6:>9.2f} µs{bare * 1e6:>9.2f} µs{ratio:>8.2f}{case.bound:>8.2f}{mark}", flush=True
        )
    return 1 if over else 0


@contextlib.contextmanager
def no_collector() -> Any:
    """A collection in the middle of one side would be charged to that side."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


if __name__ == "__main__":
    raise SystemExit(main())
