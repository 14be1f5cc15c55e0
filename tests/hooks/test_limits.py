"""One hook on the loop: its limit, its caller's cancellation, and which of the two it was."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from agent_engine.hooks import limits
from agent_engine.hooks.limits import Escaped, TimedOut, being_cancelled, ended, within

pytestmark = pytest.mark.usefixtures("nothing_for_the_loop_to_complain_about", "idle_clock")

VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE", 0.05)


async def stubborn() -> None:
    """Never ends by being cancelled."""
    while True:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            continue


async def test_what_is_returned_and_what_is_raised_are_both_outcomes() -> None:
    async def returns() -> int:
        return 3

    async def suspends() -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return 4

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    assert await within(returns(), 1) == (3, None)
    assert await within(suspends(), 1) == (4, None)
    assert await within(suspends(), None) == (4, None)
    value, error = await within(fails(), 1)
    assert value is None
    assert isinstance(error, KeyError)


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, GeneratorExit, StopAsyncIteration])
@pytest.mark.parametrize("suspended", [False, True])
async def test_a_hook_that_raises_anything_at_all_has_an_outcome(kind: type[BaseException], suspended: bool) -> None:
    async def fails() -> None:
        if suspended:
            await asyncio.sleep(0)
        raise kind

    _, error = await within(fails(), 1)
    assert isinstance(error, kind)


async def test_any_awaitable_will_do() -> None:
    class Awaitable:
        def __await__(self) -> Generator[Any, None, str]:
            yield from asyncio.sleep(0).__await__()
            return "awaited"

    assert await within(Awaitable(), 1) == ("awaited", None)
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 5)
    assert await within(future, 1) == (5, None)


async def test_at_the_limit_the_hook_is_cancelled_and_has_timed_out() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cleaned up")

    value, error = await within(slow(), 0.01)
    assert isinstance(error, TimedOut)
    assert ended == ["cleaned up"]
    assert value is None


async def test_a_hook_that_answers_after_its_limit_is_late_all_the_same() -> None:
    async def late() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
        return "allow"

    assert isinstance((await within(late(), 0.01))[1], TimedOut)


async def test_a_hook_that_never_waits_for_anything_real_is_ended_too() -> None:
    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    assert isinstance((await within(spins(), 0.02))[1], TimedOut)


async def test_a_hook_that_ignores_its_cancellation_is_closed_where_it_stands() -> None:
    closed: list[str] = []

    async def hook() -> None:
        try:
            await stubborn()
        finally:
            closed.append("closed")

    before = asyncio.all_tasks()
    async with asyncio.timeout(5):
        assert isinstance((await within(hook(), 0.01))[1], TimedOut)
    assert closed == ["closed"]
    assert asyncio.all_tasks() == before


async def test_a_hook_that_waits_even_while_it_is_closed_does_not_hold_its_caller() -> None:
    async def hook() -> None:
        while True:
            try:
                await asyncio.sleep(30)
            except BaseException:  # noqa: BLE001 - the worst hook there can be
                continue

    kept = len(limits._undying)
    async with asyncio.timeout(5):
        assert isinstance((await within(hook(), 0.01))[1], TimedOut)
    assert len(limits._undying) == kept + 1


def test_the_interpreter_exits_although_a_hook_cannot_be_ended() -> None:
    script = textwrap.dedent("""
        import asyncio
        from agent_engine.hooks import add_hook, limits
        from agent_engine.hooks.runner import afire_hook
        limits.GRACE = 0.05

        async def hook(payload):
            while True:
                try:
                    await asyncio.sleep(30)
                except BaseException:
                    continue

        add_hook("before_tool", hook, timeout=0.01, name="worst", sequential=True)
        print(asyncio.run(afire_hook("before_tool"))[0].error)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "Hook 'worst' timed out after 0.01s"), done.stderr


async def test_what_the_hook_waits_for_cannot_hold_its_caller_either() -> None:
    inner: list[asyncio.Task[None]] = []

    async def hook() -> None:
        inner.append(asyncio.create_task(stubborn()))
        await inner[0]

    async with asyncio.timeout(5):
        assert isinstance((await within(hook(), 0.01))[1], TimedOut)
    coroutine = inner[0].get_coro()
    assert coroutine is not None
    coroutine.close()
    inner[0].cancel()
    await asyncio.wait(inner)
    assert isinstance(inner[0].exception(), RuntimeError)  # it was closed by hand


async def test_the_cancellation_of_the_caller_passes_through() -> None:
    ended: list[str] = []
    began = asyncio.Event()

    async def hook() -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    task = asyncio.create_task(_awaiting(lambda: within(hook(), 30)))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert ended == ["cleaned up"]


async def test_a_hook_cannot_swallow_the_cancellation_of_its_caller() -> None:
    began = asyncio.Event()

    async def hook() -> str:
        began.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "allow"

    task = asyncio.create_task(_awaiting(lambda: within(hook(), 30)))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_hook_that_ignores_the_cancellation_of_its_caller_is_closed() -> None:
    task = asyncio.create_task(_awaiting(lambda: within(stubborn(), 30)))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancellation_that_was_asked_for_before_the_hook_began_counts() -> None:
    async def hook() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "allow"
        return "never"

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await within(hook(), 30)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(caller())


@pytest.mark.parametrize("around", [False, True])
async def test_what_has_no_limit_of_its_own_is_ended_with_its_caller(
    around: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_GRACE", 0.05)
    monkeypatch.setattr(limits, "AROUND_GRACE", 0.05)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("its own")

    assert await ended(asyncio.sleep(0, "value"), around=around) == "value"
    with pytest.raises(KeyError, match="its own"):
        await ended(fails(), around=around)
    task = asyncio.create_task(_awaiting(lambda: ended(stubborn(), around=around)))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_time_limit_around_the_dispatch_is_not_taken_for_the_hooks() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            await within(asyncio.sleep(30), 30)
    assert not isinstance(caught.value, TimedOut)


async def test_the_limit_of_the_hook_leaves_a_longer_one_around_it_alone() -> None:
    async with asyncio.timeout(10):
        assert isinstance((await within(asyncio.sleep(30), 0.01))[1], TimedOut)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)


async def test_a_time_limit_inside_the_hook_works_and_it_may_go_on() -> None:
    async def hook() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            await asyncio.sleep(limits.GRACE * 2)  # longer than a cancelled hook would have
            return "fell back"
        return "never"

    assert await within(hook(), 10) == ("fell back", None)


async def test_a_hook_given_up_while_it_cleans_up_after_its_own_time_limit_has_not_answered() -> None:
    """Closing it takes its own cancellation back, and then nobody has cancelled it: it must not look like a None."""

    async def hook() -> str:
        async with asyncio.timeout(0.01):
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(30)
        return "never"

    async with asyncio.timeout(5):
        value, error = await within(hook(), 10)
    assert (value, type(error)) == (None, TimedOut)


async def test_the_limit_counts_on_after_a_time_limit_inside_the_hook() -> None:
    async def hook() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            await asyncio.sleep(30)

    async with asyncio.timeout(5):
        assert isinstance((await within(hook(), 0.05))[1], TimedOut)


async def test_a_task_group_inside_the_hook_works() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("child")

    async def hook() -> str:
        said = "never"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(asyncio.sleep(30))
        except* KeyError:
            said = "one child failed"
        return said

    task = asyncio.current_task()
    assert task is not None
    assert await within(hook(), 10) == ("one child failed", None)
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):  # it would be a CancelledError, had the group's cancellation been left standing
        async with asyncio.timeout(0.05):
            assert await within(hook(), 10) == ("one child failed", None)
            await asyncio.sleep(30)


async def test_a_task_group_that_fails_while_its_caller_is_cancelled_hides_nothing() -> None:
    leaving = asyncio.Event()

    async def fails() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            raise KeyError("child")

    async def hook() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            leaving.set()

    task = asyncio.create_task(_awaiting(lambda: within(hook(), 10)))
    await leaving.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("listens", [True, False])
async def test_a_task_group_that_ends_its_children_means_the_hook_of_a_child_too(
    monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    monkeypatch.setattr(limits, "GRACE", 0.01)
    began = asyncio.Event()
    outcomes: list[Any] = []

    async def hook() -> None:
        began.set()
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if listens:
                    raise

    async def child() -> None:
        outcomes.append(await within(hook(), 10))

    async def fails() -> None:
        await began.wait()
        raise KeyError("sibling")

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            cancelled = group.create_task(child())
            group.create_task(fails())
    assert [type(one) for one in raised.value.exceptions] == [KeyError]
    assert cancelled.cancelled()
    assert outcomes == []


async def test_something_the_hook_waits_for_is_cancelled_by_somebody_else() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def hook() -> None:
        await future

    asyncio.get_running_loop().call_soon(future.cancel)
    _, error = await within(hook(), 10)
    assert isinstance(error, asyncio.CancelledError)


async def test_a_future_of_another_loop_is_a_failure_and_not_a_hang() -> None:
    other = asyncio.new_event_loop()
    try:
        future = other.create_future()

        async def hook() -> None:
            await future

        _, error = await within(hook(), 10)
        assert isinstance(error, RuntimeError)
    finally:
        other.close()


async def test_a_hook_that_waits_for_its_own_task_has_failed() -> None:
    async def hook() -> None:
        task = asyncio.current_task()
        assert task is not None
        await task

    _, error = await within(hook(), 10)
    assert isinstance(error, RuntimeError)


async def test_what_the_hook_sets_is_seen_by_its_caller() -> None:
    async def hook() -> None:
        VARIABLE.set(1)
        await asyncio.sleep(0.001)
        VARIABLE.set(VARIABLE.get() + 1)

    await within(hook(), 10)
    assert VARIABLE.get() == 2


async def test_the_hook_runs_in_the_task_of_its_caller() -> None:
    async def hook() -> object:
        await asyncio.sleep(0.001)
        return asyncio.current_task()

    assert (await within(hook(), 10))[0] is asyncio.current_task()


async def test_an_interrupt_of_the_program_is_no_outcome() -> None:
    async def at_once() -> None:
        raise KeyboardInterrupt

    async def later() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        within(at_once(), 1).send(None)  # driven by hand: a loop would end
    driven: Any = within(_after_a_yield(later), 1)
    driven.send(None)
    with pytest.raises(KeyboardInterrupt):
        driven.send(None)


async def test_closing_the_caller_closes_the_hook() -> None:
    closed: list[str] = []

    async def hook() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            closed.append("closed")

    for work in (hook, lambda: _after_a_yield(hook)):
        driven: Any = within(work(), 10)
        driven.send(None)
        driven.close()
    assert closed == ["closed"]


async def test_limits_of_many_hooks_ring_at_their_own_times() -> None:
    began = time.monotonic()

    async def one(limit: float) -> float:
        await within(asyncio.sleep(30), limit)
        return time.monotonic() - began

    wanted = [0.2, 0.05, 0.1, 0.15]
    got = await asyncio.gather(*map(one, wanted))
    assert [limit for _, limit in sorted(zip(got, wanted, strict=True))] == sorted(wanted)
    assert got == pytest.approx(wanted, abs=0.001)


async def _awaiting(make: Callable[[], Any]) -> Any:
    return await make()


async def _after_a_yield(work: Callable[[], Any]) -> Any:
    await asyncio.sleep(0)
    return await work()


async def test_a_hook_in_the_clean_up_of_a_cancelled_caller_may_have_a_time_limit_of_its_own() -> None:
    async def hook() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            return "fell back"
        return "never"

    async def caller() -> Any:
        try:
            await asyncio.sleep(30)
        finally:
            outcomes.append(await within(hook(), 10))

    outcomes: list[Any] = []
    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outcomes == [("fell back", None)]


async def test_what_a_late_hook_waits_for_may_still_give_it_its_value() -> None:
    """As asyncio has it: a cancellation that what is awaited takes upon itself does not reach the one that waits."""

    async def saves() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "saved"
        return "never"

    async def hook() -> None:
        seen.append(await inner)

    seen: list[str] = []
    inner = asyncio.ensure_future(saves())
    value, error = await within(hook(), 0.02)
    assert value is None
    assert isinstance(error, TimedOut)
    assert seen == ["saved"]


async def test_a_hook_that_was_given_up_is_forgotten_by_what_it_waited_for() -> None:
    class Deaf(asyncio.Future[None]):
        def cancel(self, msg: Any = None) -> bool:
            return True

        def add_done_callback(self, fn: Any, /, *, context: Any = None) -> None:
            waiting.append(fn)

        def remove_done_callback(self, fn: Any, /) -> int:
            waiting.remove(fn)
            return 1

    async def hook() -> None:
        await shared

    waiting: list[Any] = []
    shared = Deaf()
    _, error = await within(hook(), 0.02)
    assert isinstance(error, TimedOut)
    assert waiting == []


async def test_a_hook_that_yields_by_itself_and_does_not_end_is_given_up() -> None:
    class Bare:
        def __await__(self) -> Generator[Any, Any, None]:
            while True:
                try:
                    yield
                except asyncio.CancelledError:
                    continue

    _, error = await within(Bare(), 0.02)
    assert isinstance(error, TimedOut)


async def test_a_cancellation_in_the_very_moment_in_which_the_hook_might_go_on_reaches_it() -> None:
    async def hook() -> None:
        try:
            await future
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    seen: list[str] = []
    future = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(_within(hook()))
    await asyncio.sleep(0)
    future.set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def _within(awaitable: Any) -> Any:
    return await within(awaitable, 10)


@pytest.mark.parametrize("around", [False, True])
async def test_a_body_and_what_stands_around_it_have_each_their_own_time_to_end(
    around: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AROUND_GRACE", 0.02 if around else 60)
    monkeypatch.setattr(limits, "BODY_GRACE", 60 if around else 0.02)
    task = asyncio.ensure_future(_ended(stubborn(), around))
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=10)
    assert done
    assert task.cancelled()


async def _ended(awaitable: Any, around: bool) -> Any:
    return await ended(awaitable, around=around)


async def test_only_a_task_that_somebody_cancels_is_being_cancelled() -> None:
    loop = asyncio.get_running_loop()
    outside: asyncio.Future[bool] = loop.create_future()
    loop.call_soon(lambda: outside.set_result(being_cancelled()))
    assert await outside is False  # no task at all
    assert not being_cancelled()

    async def waits() -> bool:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return being_cancelled()
        return False

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    assert await task


class Unheard(BaseException):
    """No Exception, and nothing that anybody knows."""


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError, Unheard])
@pytest.mark.parametrize("waits", [False, True])
async def test_what_a_body_raises_to_end_more_than_itself_is_a_failure_of_its_own(
    waits: bool, error: type[BaseException]
) -> None:
    async def body() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    with pytest.raises(Escaped) as caught:
        await ended(body())
    assert type(caught.value.by) is error
    inside = error is asyncio.CancelledError
    assert str(caught.value) == ("was cancelled from inside" if inside else f"ended with {error.__name__}")


async def test_a_cancellation_from_outside_is_one_and_so_is_the_end_of_a_coroutine() -> None:
    async def body() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(_awaited(body()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    coroutine = _awaited(body())
    coroutine.send(None)
    coroutine.close()  # raises RuntimeError where it goes on all the same


async def _awaited(body: Any) -> None:
    await ended(body)
