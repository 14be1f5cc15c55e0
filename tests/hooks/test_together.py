"""Jobs at once: each has its limit and its context, and what is late does not hold the others."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.idle_clock import Clock

from agent_engine.hooks import together
from agent_engine.hooks.alarm import Alarms, alarms
from agent_engine.hooks.limits import TimedOut
from agent_engine.hooks.together import Job, is_awaitable, run_together
from agent_engine.hooks.workers import overrun

pytestmark = pytest.mark.usefixtures("nothing_for_the_loop_to_complain_about")

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "GRACE", 0.05)


def job(call: Callable[[], Any], limit: float = 60.0, ended: Callable[[], None] = lambda: None) -> Job:
    return Job(call, limit, not asyncio.iscoroutinefunction(call), ended)


def test_what_cannot_say_what_it_is_is_not_awaited() -> None:
    class Mute:
        @property
        def __class__(self) -> Any:
            raise ValueError("no")

    assert not is_awaitable(Mute())
    assert not is_awaitable(None)


async def test_values_and_errors_of_both_kinds_are_outcomes() -> None:
    async def value() -> int:
        await asyncio.sleep(0)
        return 1

    async def error() -> None:
        raise KeyError

    ended: list[int] = []
    jobs = [job(call, ended=lambda: ended.append(1)) for call in (value, error, lambda: 2, lambda: 1 // 0)]
    await run_together(jobs)
    assert [one.value for one in jobs] == [1, None, 2, None]
    assert [type(one.error) for one in jobs] == [type(None), KeyError, type(None), ZeroDivisionError]
    assert len(ended) == 4
    assert all(one.settled for one in jobs)


async def test_nothing_to_do_is_done() -> None:
    await run_together([])


@pytest.mark.usefixtures("threads_at_rest")
async def test_what_is_late_fails_alone(until: Any, clock: Clock) -> None:
    began, release = threading.Event(), threading.Event()

    async def waits() -> None:
        await asyncio.Event().wait()

    def holds() -> None:
        began.set()
        release.wait(60)

    async def quick() -> str:
        await asyncio.sleep(0.001)
        return "quick"

    jobs = [job(waits, 60), job(quick, 600), job(holds, 60), job(lambda: "quick", 600)]
    group = asyncio.create_task(_together(jobs))
    await until(lambda: jobs[1].settled and jobs[3].settled and began.is_set())
    clock.put_forward(60)
    await group
    assert [type(one.error) for one in jobs] == [TimedOut, type(None), TimedOut, type(None)]
    assert (jobs[1].value, jobs[3].value) == ("quick", "quick")
    assert overrun() == 1
    release.set()
    await until(lambda: overrun() == 0)
    assert jobs[2].value is None, "what a late job returns is not listened to"


async def _together(jobs: list[Job]) -> None:
    await run_together(jobs)


async def test_sync_jobs_that_wait_for_each_other_meet() -> None:
    barrier = threading.Barrier(6)
    jobs = [job(lambda: barrier.wait(50)) for _ in range(6)]
    await run_together(jobs)
    assert sorted(one.value for one in jobs) == list(range(6))


@pytest.mark.usefixtures("threads_at_rest")
async def test_quick_sync_jobs_share_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.hooks.workers.MOMENT_S", 60.0)
    threads: list[int] = []
    await run_together([job(lambda: threads.append(threading.get_ident())) for _ in range(5)])
    assert len(set(threads)) == 1


async def test_a_sync_job_may_give_back_something_to_await() -> None:
    ended: list[str] = []

    async def later() -> str:
        await asyncio.sleep(0.001)
        VARIABLE.set("mine")
        return "awaited"

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError

    jobs = [
        job(lambda: later(), ended=lambda: ended.append("ended")),
        job(lambda: fails()),
        job(lambda: asyncio.sleep(30), 0.02),
    ]
    await run_together(jobs)
    assert jobs[0].value == "awaited"
    assert [type(one.error) for one in jobs[1:]] == [KeyError, TimedOut]
    assert ended == ["ended", "ended"], "once for the call, once for what it gave back"
    assert VARIABLE.get() == "unset"


async def test_each_job_has_a_context_of_its_own() -> None:
    VARIABLE.set("caller")
    seen: list[str] = []

    def sync() -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("sync")

    async def later() -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("async")
        await asyncio.sleep(0)

    await run_together([job(call) for call in (sync, sync, later, later)])
    assert seen == ["caller"] * 4
    assert VARIABLE.get() == "caller"


async def test_a_cancelled_caller_begins_nothing_more() -> None:
    began, release, ran = threading.Event(), threading.Event(), []

    def first() -> None:
        began.set()
        release.wait(60)

    async def waits() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ran.append("cleaned up")

    task = asyncio.create_task(run_together([job(first), job(waits)]))
    while not began.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == ["cleaned up"]
    release.set()


async def test_a_job_that_does_not_end_is_given_up() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                continue

    one = job(stubborn, 0.02)
    async with asyncio.timeout(30):
        await run_together([one])
        assert isinstance(one.error, TimedOut)
        task = asyncio.create_task(run_together([job(stubborn)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.005)


async def test_a_job_that_answers_after_its_limit_is_late() -> None:
    async def late() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "allow"
        return "never"

    async def changes_its_mind() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise KeyError from None

    jobs = [job(late, 0.02), job(changes_its_mind, 0.02)]
    await run_together(jobs)
    assert all(isinstance(one.error, TimedOut) and one.value is None for one in jobs)


async def test_a_job_that_cancels_its_own_task_has_failed() -> None:
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    one = job(cancels)
    await run_together([one])
    assert isinstance(one.error, asyncio.CancelledError)


class Sleeper:
    def __init__(self, due: float) -> None:
        self.due = due
        self.rung = 0

    def ring(self) -> None:
        self.rung += 1


@pytest.mark.usefixtures("idle_clock")
async def test_sleepers_ring_once_at_their_time_and_not_if_they_left() -> None:
    import time

    clock, now = alarms(), time.monotonic()
    early, late, gone = Sleeper(now + 0.02), Sleeper(now + 0.06), Sleeper(now + 0.02)
    for sleeper in (late, early, gone):
        clock.add(sleeper)
    clock.remove(gone)
    while not early.rung:
        await asyncio.sleep(0.002)
    assert (early.rung, late.rung) == (1, 0)
    while not late.rung:
        await asyncio.sleep(0.002)
    assert (early.rung, late.rung, gone.rung) == (1, 1, 0)
    assert time.monotonic() >= late.due - 0.001
    past = Sleeper(now)
    clock.add(past)
    while not past.rung:
        await asyncio.sleep(0)


async def test_each_loop_has_its_own_alarms() -> None:
    here = alarms()
    assert alarms() is here
    assert here.serves(asyncio.get_running_loop())

    async def there() -> Alarms:
        return alarms()

    def run() -> Alarms:
        return asyncio.run(there())

    other = await asyncio.to_thread(run)
    assert other is not here
    assert alarms() is here


async def test_tasks_that_begin_at_once_are_jobs_like_any_other() -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", None))  # from Python 3.12 on

    async def quick() -> int:
        return 1

    async def waits() -> int:
        await asyncio.sleep(0.001)
        return 2

    try:
        jobs = [job(quick), job(waits)]
        await run_together(jobs)
        await run_together([job(quick)])
    finally:
        loop.set_task_factory(None)
    assert [one.value for one in jobs] == [1, 2]


async def test_a_group_that_is_closed_where_it_waits_leaves_no_task() -> None:
    async def waits() -> None:
        await asyncio.sleep(30)

    before = asyncio.all_tasks()
    group = run_together([job(waits), job(waits)])
    group.send(None)
    assert len(asyncio.all_tasks() - before) == 2
    group.close()
    left = asyncio.all_tasks() - before
    await asyncio.wait(left, timeout=60)
    assert all(task.cancelled() for task in left)
