"""Worker threads: work is done elsewhere, limits hold, and what is left behind is counted until it returns."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from tests.fakes.idle_clock import Clock

from agent_engine.hooks import workers
from agent_engine.hooks.workers import Errand, Overran, carry_back, overrun, run_in_worker

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_work_runs_in_another_thread_and_gives_its_value() -> None:
    assert await run_in_worker(lambda a, b: (a + b, threading.current_thread().name), 2, 3) == (
        5,
        "agent-engine-worker",
    )


async def test_what_the_work_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_worker(lambda: 1 // 0)


async def test_an_exit_in_the_work_does_not_end_the_thread_silently() -> None:
    with pytest.raises(SystemExit):
        await run_in_worker(sys.exit, 3)


@pytest.mark.usefixtures("threads_at_rest")
async def test_a_thread_is_used_again() -> None:
    first = await run_in_worker(threading.get_ident)
    assert await run_in_worker(threading.get_ident) == first


@pytest.mark.usefixtures("threads_at_rest")
async def test_a_limit_is_answered_at_once_and_the_thread_is_counted_until_it_returns() -> None:
    release = threading.Event()
    with pytest.raises(Overran, match=r"still running after 0\.02s"):
        await run_in_worker(release.wait, limit=0.02)
    assert overrun() == 1
    release.set()
    await until(lambda: overrun() == 0)


@pytest.mark.usefixtures("threads_at_rest")
async def test_work_without_a_limit_that_was_cancelled_never_counts_as_overrun() -> None:
    release, began = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        release.wait()

    task = asyncio.create_task(run_in_worker(work))
    await until(began.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert overrun() == 0
    release.set()


@pytest.mark.usefixtures("threads_at_rest")
async def test_cancelled_work_counts_from_its_limit_on(clock: Clock) -> None:
    release = threading.Event()
    task = asyncio.create_task(run_in_worker(release.wait, limit=60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert overrun() == 0
    clock.put_forward(60)
    assert overrun() == 1
    release.set()
    await until(lambda: overrun() == 0)


@pytest.mark.parametrize("ends", ["late", "cancelled", "cancelled when it is done"])
async def test_a_coroutine_that_comes_too_late_is_forgotten(
    ends: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, began, reported = threading.Event(), threading.Event(), threading.Event()
    report = Errand.report
    later = asyncio.sleep(0)

    def work() -> object:
        began.set()
        release.wait(60)
        return later

    def reports(errand: Errand[object]) -> None:
        report(errand)
        reported.set()

    monkeypatch.setattr(Errand, "report", reports)
    task = asyncio.create_task(run_in_worker(work, limit=60))
    await until(began.is_set)
    if ends == "cancelled when it is done":
        release.set()
        assert reported.wait(60)  # the loop stands still, and does not know it yet
    if ends == "late":
        clock.put_forward(60)
    else:
        task.cancel()
    with pytest.raises(Overran if ends == "late" else asyncio.CancelledError):
        await task
    release.set()
    await until(lambda: inspect.getcoroutinestate(later) == inspect.CORO_CLOSED)


async def test_the_context_is_copied_in_and_changes_stay_in_it() -> None:
    VARIABLE.set("caller")

    def work() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("worker")
        return seen

    assert await run_in_worker(work) == "caller"
    assert VARIABLE.get() == "caller"
    context = contextvars.copy_context()
    await run_in_worker(work, context=context)
    assert context[VARIABLE] == "worker"


def test_only_changed_variables_are_carried_back() -> None:
    other: contextvars.ContextVar[int] = contextvars.ContextVar("other", default=0)

    def scene() -> None:
        VARIABLE.set("before")
        before = contextvars.copy_context()
        changed = before.copy()
        changed.run(other.set, 7)
        VARIABLE.set("meanwhile")
        carry_back(changed, before)
        assert (VARIABLE.get(), other.get()) == ("meanwhile", 7)

    contextvars.copy_context().run(scene)


async def test_an_errand_can_be_waited_for_again() -> None:
    release = threading.Event()
    errand: Errand[bool] = Errand(release.wait)
    errand.start()
    assert not errand.at_once()
    assert not await errand.wait(0.01)
    assert not await errand.wait(0.0)
    release.set()
    assert await errand.wait(60)
    assert await errand.wait()
    assert errand.value is True
    assert not errand.leave()


async def test_many_at_once_each_have_a_thread() -> None:
    barrier = threading.Barrier(8)
    await asyncio.gather(*(run_in_worker(barrier.wait, 50) for _ in range(8)))


async def test_an_idle_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_IDLE_S", 0.01)
    threads: list[threading.Thread] = []
    await asyncio.gather(*(run_in_worker(lambda: threads.append(threading.current_thread())) for _ in range(3)))
    monkeypatch.setattr(workers, "_idle", [])  # threads of other tests wait with the usual patience
    await run_in_worker(lambda: threads.append(threading.current_thread()))
    await until(lambda: not threads[-1].is_alive())
    threads.clear()
    await run_in_worker(lambda: threads.append(threading.current_thread()))  # another one
    await until(lambda: not threads[-1].is_alive())


def test_the_interpreter_exits_while_a_thread_hangs() -> None:
    script = (
        "import asyncio, threading\n"
        "from agent_engine.hooks.workers import run_in_worker\n"
        "async def main():\n"
        "    try: await run_in_worker(threading.Event().wait, limit=0.05)\n"
        "    except TimeoutError: print('late')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "late", "")


def test_a_fork_starts_with_no_threads_of_its_parent() -> None:
    script = (
        "import asyncio, os, sys, threading\n"
        "from agent_engine.hooks.workers import run_in_worker\n"
        "asyncio.run(run_in_worker(int))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    name = asyncio.run(run_in_worker(lambda: threading.current_thread().name))\n"
        "    os._exit(0 if name == 'agent-engine-worker' else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60).returncode == 0
