"""run_sync: coroutines for callers that cannot await, from any thread, with their context variables."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent_engine.hooks import portal
from agent_engine.hooks.portal import run_sync
from agent_engine.hooks.workers import run_in_worker

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_the_value_comes_back_from_the_loop_of_the_kernel() -> None:
    assert run_sync(thread_name) == "agent-engine-portal"


def test_what_is_raised_is_raised_here() -> None:
    async def fails() -> None:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        run_sync(fails)


def test_an_exit_is_raised_here_and_the_loop_goes_on() -> None:
    async def exits() -> None:
        raise SystemExit(4)

    with pytest.raises(SystemExit):
        run_sync(exits)
    assert run_sync(thread_name) == "agent-engine-portal"


def test_making_the_coroutine_may_fail_too() -> None:
    with pytest.raises(ZeroDivisionError):
        run_sync(lambda: 1 // 0)  # type: ignore[arg-type,return-value]  # it never returns


async def test_it_works_inside_a_running_loop() -> None:
    assert run_sync(thread_name) == "agent-engine-portal"


def test_it_works_on_the_portal_itself() -> None:
    async def inner() -> str:
        return run_sync(thread_name)

    async def innermost() -> str:
        return run_sync(inner)

    assert run_sync(innermost) == "agent-engine-portal"


def test_it_works_in_a_worker_thread_that_the_portal_waits_for() -> None:
    async def outer() -> str:
        return await run_in_worker(run_sync, thread_name)

    assert run_sync(outer) == "agent-engine-portal"


def test_a_nested_portal_leaves_no_thread_behind() -> None:
    async def leaves_a_task() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        assert not task.done()

    async def outer() -> set[threading.Thread]:
        before = set(threading.enumerate())
        run_sync(leaves_a_task)
        return set(threading.enumerate()) - before

    assert run_sync(outer) == set()


def test_context_variables_go_in_and_come_out() -> None:
    async def looks_and_sets() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("inside")
        return seen

    def scene() -> None:
        VARIABLE.set("caller")
        assert run_sync(looks_and_sets) == "caller"
        assert VARIABLE.get() == "inside"

    contextvars.copy_context().run(scene)
    assert VARIABLE.get() == "unset"


def test_many_threads_share_it_and_keep_their_variables_apart() -> None:
    async def echo() -> str:
        mine = VARIABLE.get()
        await asyncio.sleep(0.001)
        return mine + VARIABLE.get()

    def call(number: int) -> bool:
        VARIABLE.set(f"<{number}>")
        return run_sync(echo) == f"<{number}><{number}>"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(200)))


def test_an_interrupt_cancels_and_waits_for_the_end() -> None:
    script = textwrap.dedent("""
        import asyncio, signal, threading
        from agent_engine.hooks.portal import run_sync

        async def work():
            try:
                # The main thread is the one that is interrupted.
                threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                print("cleaned up", flush=True)

        try:
            run_sync(work)
        except KeyboardInterrupt:
            print("interrupted", flush=True)

        async def after():
            return "works"
        print(run_sync(after))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:3] == ["cleaned up", "interrupted", "works"], done.stderr


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_while_the_work_is_handed_over_cancels_it_too(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """The work may be under way before its caller has come back from handing it over."""
    told: list[str] = []
    under_way = threading.Event()

    async def work() -> None:
        under_way.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            told.append("cleaned up")

    def interrupted(callback: Any, *given: Any) -> None:
        monkeypatch.undo()
        if begun:
            loop.call_soon_threadsafe(callback, *given)
            assert under_way.wait(60)
        raise KeyboardInterrupt

    assert run_sync(thread_name) == "agent-engine-portal"
    loop = portal._shared()._loop
    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sync(work)
    assert told == (["cleaned up"] if begun else [])
    assert under_way.is_set() is begun
    assert run_sync(thread_name) == "agent-engine-portal"


def test_a_child_process_gets_a_loop_of_its_own() -> None:
    script = textwrap.dedent("""
        import os, sys
        from agent_engine.hooks.portal import run_sync
        async def work(): return 7
        assert run_sync(work) == 7
        pid = os.fork()
        if pid == 0:
            os._exit(run_sync(work))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60).returncode == 7


def test_the_interpreter_exits_with_work_on_the_loop() -> None:
    script = textwrap.dedent("""
        import asyncio, threading
        from agent_engine.hooks.portal import run_sync
        async def starts():
            global task
            task = asyncio.create_task(asyncio.sleep(60))
        run_sync(starts)
        threading.Thread(target=lambda: run_sync(lambda: asyncio.sleep(60)), daemon=True).start()
    """)
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60).returncode == 0


def test_where_no_thread_can_be_had_it_runs_on_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")

    def no_more(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    async def work() -> str:
        await asyncio.sleep(0)
        variable.set("set")
        return "done"

    monkeypatch.setattr(portal, "_portal", None)
    monkeypatch.setattr(threading.Thread, "start", no_more)

    assert run_sync(work) == "done"
    assert variable.get() == "set"


def test_a_handler_of_signals_may_want_the_portal_while_it_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(portal._Portal):
        """Interrupted, in the thread that makes it, by somebody who wants a portal, too."""

        busy = False

        def __init__(self) -> None:
            super().__init__()
            if not Interrupted.busy:
                Interrupted.busy = True
                inside.append(run_sync(thread_name))

    inside: list[str] = []
    monkeypatch.setattr(portal, "_portal", None)
    monkeypatch.setattr(portal, "_Portal", Interrupted)
    before = set(threading.enumerate())
    assert [run_sync(thread_name), *inside] == ["agent-engine-portal"] * 2
    assert len(set(threading.enumerate()) - before) == 1
    assert portal._portal is not None
    portal._portal.stop()


@pytest.mark.parametrize("hook", ["lambda payload: None", "ahook"])
def test_a_finalizer_at_the_end_of_the_interpreter_may_fire_hooks(hook: str) -> None:
    """No other thread runs then: whoever waited for one would wait for ever."""
    script = textwrap.dedent(f"""
        import sys
        from agent_engine.hooks import add_hook, fire_hook

        async def ahook(payload):
            pass

        class Session:
            def __del__(self, fire=fire_hook):
                (row,) = fire("session_end", {{}})
                print(row.success, row.error)

        add_hook("session_end", {hook}, name="tell")
        fire_hook("session_end", {{}})
        sys.modules["the last to go"] = Session()
    """)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, text=True)
    told = {
        "ahook": "True None\n",
        "lambda payload: None": (
            "False Hook 'tell' raised: RuntimeError: no thread runs any more: the interpreter is at its end\n"
        ),
    }
    assert (ended.returncode, ended.stdout) == (0, told[hook])
