"""Limits, threads, context variables and cancellation, through whole dispatches."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.idle_clock import Clock

from agent_engine.hooks import dispatch, limits, plan, together, workers
from agent_engine.hooks.errors import HookExecutionError
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import RunContext
from agent_engine.hooks.payloads import AfterLLMInput, BeforeToolInput
from agent_engine.hooks.result import HookResult, HookRun
from agent_engine.hooks.site import Site
from agent_engine.hooks.workers import overrun

pytestmark = pytest.mark.usefixtures("nothing_for_the_loop_to_complain_about")

E = HookEvent
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE", 0.05)
    monkeypatch.setattr(together, "GRACE", 0.05)


class Gate:
    """A hook that is held until the test lets it go on."""

    def __init__(self, value: Any = None, edit: str | None = None) -> None:
        self.value = value
        self.edit = edit
        self.began = threading.Event()
        self.release = threading.Event()
        self.returned = 0

    def sync(self, payload: Any) -> Any:
        self.began.set()
        self.release.wait(60)
        if self.edit is not None:
            payload.response = self.edit
        self.returned += 1
        return self.value

    async def later(self, payload: Any) -> Any:
        self.began.set()
        while not self.release.is_set():
            await asyncio.sleep(0.005)
        return self.value


@pytest.fixture
def gate() -> Any:
    made = Gate()
    yield made
    made.release.set()


def nothing(payload: Any) -> None:
    return None


@pytest.mark.parametrize("how", ["sync", "later"])
@pytest.mark.parametrize("neighbours", [0, 2])
async def test_at_the_limit_the_step_is_refused_at_once(
    kernel: Any, gate: Gate, how: str, sequential: bool, neighbours: int
) -> None:
    kind = "worker" if how == "sync" else "async"
    for _ in range(neighbours):
        kernel.add(E.BEFORE_TOOL, nothing, kind, sequential=sequential)
    kernel.registry.register_function(
        E.BEFORE_TOOL, getattr(gate, how), name="slow", timeout=0.05, sequential=sequential
    )
    async with asyncio.timeout(30):
        verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert (verdict.decision, verdict.broke, verdict.hook) == ("deny", True, "slow")
    assert verdict.reason == "Hook 'slow' timed out after 0.05s"


@pytest.mark.parametrize("how", ["sync", "later"])
async def test_the_loop_goes_on_while_a_hook_is_slow(kernel: Any, gate: Gate, how: str, sequential: bool) -> None:
    async def tick() -> None:
        while not gate.began.is_set():
            await asyncio.sleep(0.005)
        for _ in range(5):
            await asyncio.sleep(0.005)
        gate.release.set()

    ticker = asyncio.create_task(tick())
    kernel.registry.register_function(E.BEFORE_TOOL, getattr(gate, how), timeout=120, sequential=sequential)
    assert not (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).denied
    assert ticker.done(), "the hook would have waited for it no longer"


@pytest.mark.usefixtures("threads_at_rest")
@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
async def test_a_hook_that_was_late_works_the_next_time(
    kernel: Any, gate: Gate, sequential: bool, sink: bool, until: Any, clock: Clock
) -> None:
    site = Site(sink=(lambda site, run: None) if sink else None)
    kernel.registry.register_function(E.BEFORE_TOOL, gate.sync, timeout=60, sequential=sequential)
    first = asyncio.create_task(kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site))
    await until(gate.began.is_set)
    clock.put_forward(60)
    assert (await first).denied
    assert overrun() == 1
    gate.release.set()
    assert not (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)).denied
    await until(lambda: overrun() == 0)
    verdicts = await asyncio.gather(*(kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site) for _ in range(50)))
    assert not any(verdict.denied for verdict in verdicts)


@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
@pytest.mark.parametrize("policy", ["deny", "warn"])
async def test_what_a_late_hook_edits_is_never_taken_over(
    kernel: Any, gate: Gate, policy: str, sink: bool, until: Any, clock: Clock
) -> None:
    told: list[HookRun] = []
    gate.edit = "late edit"
    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response="early"), "worker")
    kernel.registry.register_function(E.AFTER_LLM, gate.sync, timeout=60, failure_policy=policy, name="slow")
    kernel.add(E.AFTER_LLM, lambda payload: HookResult.modify(response=payload.response + " last"), "worker")
    payload = AfterLLMInput(response="raw")
    site = Site(sink=(lambda site, run: told.append(run)) if sink else None)
    dispatch = asyncio.create_task(kernel.dispatch(E.AFTER_LLM, payload, site))
    await until(gate.began.is_set)
    clock.put_forward(60)
    verdict = await dispatch
    gate.release.set()
    await until(lambda: gate.returned == 1)
    if policy == "warn":
        assert (verdict.decision, verdict.payload.response) == ("modify", "early last")
    else:
        assert (verdict.decision, verdict.hook) == ("deny", "slow")
    assert "late edit" not in (payload.response, verdict.payload.response)
    if sink:
        assert [run.decision for run in told] == ["modify", "failed", "modify"][: 3 if policy == "warn" else 2]
        assert told[1].failure_type == "timeout"


@pytest.mark.parametrize("ends", ["late", "cancelled"])
@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
async def test_a_coroutine_that_nobody_waits_for_any_more_is_not_complained_about(
    kernel: Any, gate: Gate, sequential: bool, sink: bool, ends: str, until: Any, clock: Clock
) -> None:
    """Python would say that it was never awaited, some time or other."""
    gate.value = asyncio.sleep(0)
    kernel.registry.register_function(E.BEFORE_TOOL, gate.sync, timeout=60, sequential=sequential)
    site = Site(sink=(lambda site, run: None) if sink else None)
    dispatch = asyncio.create_task(kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site))
    await until(gate.began.is_set)
    if ends == "late":
        clock.put_forward(60)
        assert (await dispatch).denied
    else:
        dispatch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dispatch
    gate.release.set()
    await until(lambda: inspect.getcoroutinestate(gate.value) == inspect.CORO_CLOSED)


@pytest.mark.parametrize("how", ["sync", "later"])
async def test_each_hook_of_a_group_has_its_limit_for_itself(kernel: Any, how: str, clock: Clock) -> None:
    def pause(payload: Any) -> None:
        clock.put_forward(20)
        time.sleep(0.01)

    async def apause(payload: Any) -> None:
        clock.put_forward(20)
        await asyncio.sleep(0.01)

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)

    ticker = asyncio.create_task(tick())  # the loop looks at the clock while a thread works
    for _ in range(12):
        kernel.registry.register_function(E.AFTER_LLM, pause if how == "sync" else apause, timeout=60)
    assert not (await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())).denied
    ticker.cancel()


async def test_a_hook_whose_predicate_took_all_of_its_time_is_not_run_any_more(
    kernel: Any, gate: Gate, until: Any
) -> None:
    ran: list[int] = []

    def slow(run: RunContext) -> bool:
        return gate.release.wait(10)

    hook = {"when": slow, "timeout": 0.05, "name": "slow"}
    kernel.registry.register_function(E.AFTER_LLM, lambda payload: ran.append(1), **hook)
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())
    assert verdict.reason == "Hook 'slow' timed out after 0.05s"
    gate.release.set()
    await until(lambda: overrun() == 0)
    assert ran == []


@pytest.mark.parametrize("told", [False, True])
async def test_what_hooks_before_a_late_one_set_is_seen_all_the_same(kernel: Any, gate: Gate, told: bool) -> None:
    kernel.add(E.AFTER_LLM, lambda payload: VARIABLE.set("by the first") and None, "worker")
    kernel.registry.register_function(E.AFTER_LLM, gate.sync, timeout=0.05)
    site = Site(sink=lambda site, run: None) if told else Site()
    assert (await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(), site)).denied
    assert VARIABLE.get() == "by the first"
    gate.release.set()


@pytest.mark.parametrize("told", [False, True], ids=["untold", "told"])
async def test_a_hook_has_its_whole_limit_although_one_behind_it_has_a_shorter_one(kernel: Any, told: bool) -> None:
    def long(payload: Any) -> str:
        time.sleep(0.2)
        return "no"

    kernel.registry.register_function(E.BEFORE_TOOL, long, timeout=30, sequential=True)
    kernel.registry.register_function(E.BEFORE_TOOL, nothing, name="short", timeout=0.05, sequential=True)
    site = Site(sink=(lambda site, run: None) if told else None)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)
    assert (verdict.decision, verdict.reason, verdict.broke) == ("deny", "no", False)


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("how", ["sync", "later"])
async def test_the_one_that_is_late_is_the_one_that_is_named(kernel: Any, gate: Gate, position: int, how: str) -> None:
    kind = "worker" if how == "sync" else "suspending"
    for number in range(3):
        if number == position:
            kernel.registry.register_function(E.AFTER_LLM, getattr(gate, how), timeout=0.05, name="slow")
        else:
            kernel.add(E.AFTER_LLM, nothing, kind, name=f"quick{number}")
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())
    assert (verdict.hook, verdict.reason) == ("slow", "Hook 'slow' timed out after 0.05s")


@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
async def test_where_the_thread_has_not_begun_the_first_hook_is_the_late_one(
    kernel: Any, sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = workers.Errand.start
    held: list[workers.Errand[Any]] = []
    monkeypatch.setattr(workers.Errand, "start", lambda errand: held.append(errand))  # no processor has come to it yet
    for name, limit in (("first", 0.05), ("second", 60), ("third", 60)):
        kernel.registry.register_function(E.AFTER_LLM, nothing, timeout=limit, name=name)
    site = Site(sink=(lambda site, run: None) if sink else None)
    verdict = await kernel.dispatch(E.AFTER_LLM, AfterLLMInput(), site)
    for errand in held:
        start(errand)
    assert (verdict.hook, verdict.reason) == ("first", "Hook 'first' timed out after 0.05s")


async def test_a_late_hook_that_swallows_its_cancellation_starts_no_hook_after_it(kernel: Any) -> None:
    ran: list[str] = []

    async def swallows(payload: Any) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return

    async def after(payload: Any) -> None:
        ran.append("after")

    kernel.registry.register_function(E.AFTER_LLM, swallows, timeout=0.02, name="swallows")
    kernel.registry.register_function(E.AFTER_LLM, after)
    assert (await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())).hook == "swallows"
    assert ran == []


async def test_a_cancelled_dispatch_ends_soon_although_a_hook_goes_on_to_the_next(kernel: Any) -> None:
    """The one behind a hook that swallows the cancellation has what is left of the time to end, not its limit."""
    began = asyncio.Event()

    async def swallows(payload: Any) -> None:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def slow(payload: Any) -> None:
        await asyncio.Event().wait()

    kernel.registry.register_function(E.BEFORE_TOOL, swallows, timeout=600, sequential=True)
    kernel.registry.register_function(E.BEFORE_TOOL, slow, timeout=600, sequential=True)
    task = asyncio.create_task(kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput()))
    await began.wait()
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()


@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
async def test_a_hook_that_ignores_its_end_holds_nobody(kernel: Any, sequential: bool, sink: bool) -> None:
    async def stubborn(payload: Any) -> None:
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                continue

    kernel.registry.register_function(E.BEFORE_TOOL, stubborn, timeout=0.02, name="stubborn", sequential=sequential)
    kernel.add(E.BEFORE_TOOL, nothing, "suspending", sequential=sequential)
    site = Site(sink=(lambda site, run: None) if sink else None)
    async with asyncio.timeout(30):
        verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)
        assert (verdict.hook, verdict.broke) == ("stubborn", True)
        task = asyncio.create_task(kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.005)
    del task
    gc.collect()  # a task that nobody has asked for its exception says so when it is forgotten


async def test_a_hook_in_a_group_that_is_late_and_answers_is_late(kernel: Any) -> None:
    async def late(payload: Any) -> bool:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return True
        return True

    kernel.registry.register_function(E.BEFORE_TOOL, late, timeout=0.02, name="late", sequential=False)
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).reason == "Hook 'late' timed out after 0.02s"


@pytest.mark.usefixtures("idle_clock")
async def test_limits_in_a_group_are_each_hooks_own(kernel: Any) -> None:
    async def waits(payload: Any) -> None:
        await asyncio.sleep(30)

    for number, limit in enumerate([0.2, 0.02, 0.1]):
        kernel.registry.register_function(E.BEFORE_TOOL, waits, timeout=limit, name=f"w{number}", sequential=False)
    told: list[HookRun] = []
    kernel.registry.register_function(E.BEFORE_TOOL, threading.Event().wait, timeout=None, enabled=False)
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).hook == "w0"
    await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), Site(sink=lambda site, run: told.append(run)))
    assert [run.reason for run in told] == [
        f"Hook 'w{number}' timed out after {limit}s" for number, limit in enumerate([0.2, 0.02, 0.1])
    ]
    assert [run.duration_ms for run in told] == pytest.approx([200, 20, 100], abs=1)


@pytest.mark.usefixtures("idle_clock")
async def test_a_hook_that_ended_in_time_is_not_late_when_the_limit_passes_beside_it(kernel: Any) -> None:
    async def long(payload: Any) -> None:
        await asyncio.sleep(0.2)

    async def short(payload: Any) -> None:
        await asyncio.sleep(0)

    kernel.registry.register_function(E.BEFORE_TOOL, short, timeout=0.05)
    kernel.registry.register_function(E.BEFORE_TOOL, long, timeout=30)
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).decision == "allow"


async def test_async_hooks_that_end_before_their_sync_neighbours_leave_nothing_to_complain_about(kernel: Any) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))

    async def quick(payload: Any) -> None:
        await asyncio.sleep(0)

    kernel.registry.register_function(E.BEFORE_TOOL, lambda payload: time.sleep(0.05))
    kernel.registry.register_function(E.BEFORE_TOOL, quick)
    assert (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).decision == "allow"
    gc.collect()
    assert complaints == []


async def test_two_sync_hooks_of_a_group_run_at_the_same_time(kernel: Any) -> None:
    barrier = threading.Barrier(5)
    for _ in range(5):
        kernel.registry.register_function(E.BEFORE_TOOL, lambda payload: barrier.wait(50) < 0 or None, sequential=False)
    assert not (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).denied


async def test_sync_and_async_hooks_of_a_group_run_at_the_same_time(kernel: Any) -> None:
    met = threading.Event()

    def sync(payload: Any) -> bool:
        return met.wait(50)

    async def meets(payload: Any) -> None:
        met.set()

    kernel.registry.register_function(E.BEFORE_TOOL, sync, sequential=False)
    kernel.registry.register_function(E.BEFORE_TOOL, meets, sequential=False)
    assert not (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())).denied


async def test_neighbouring_sync_hooks_share_one_thread(kernel: Any) -> None:
    threads: list[int] = []
    for _ in range(4):
        kernel.add(E.AFTER_LLM, lambda payload: threads.append(threading.get_ident()), "worker")
    await kernel.dispatch(E.AFTER_LLM, AfterLLMInput())
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
async def test_with_too_many_threads_past_their_limit_further_sync_hooks_fail_and_say_so(
    kernel: Any, sequential: bool, sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    kernel.add(E.BEFORE_TOOL, lambda payload: ran.append("sync"), "worker", sequential=sequential, name="one too many")
    site = Site(sink=(lambda site, run: None) if sink else None)
    for module in (dispatch, plan):
        monkeypatch.setattr(module, "overrun", lambda: workers.MOST_OVERRUN)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)
    assert verdict.broke
    assert verdict.reason == (
        "Hook 'one too many' was not run: 64 hooks that overran their limit have not returned yet"
    )
    assert ran == []
    kernel.registry.clear()
    kernel.add(E.BEFORE_TOOL, lambda payload: ran.append("async"), "async", sequential=sequential)
    assert not (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)).denied
    for module in (dispatch, plan):
        monkeypatch.setattr(module, "overrun", lambda: workers.MOST_OVERRUN - 1)
    kernel.registry.clear()
    kernel.add(E.BEFORE_TOOL, lambda payload: ran.append("again"), "worker", sequential=sequential)
    assert not (await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)).denied
    assert ran == ["async", "again"]


@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
async def test_where_no_thread_can_be_had_the_hook_has_failed(
    kernel: Any, sequential: bool, sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoWorker:
        def __init__(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(workers, "_idle", [])
    monkeypatch.setattr(workers, "_Worker", NoWorker)
    for name in ("first", "second"):
        kernel.add(E.BEFORE_TOOL, nothing, "worker", sequential=sequential, name=name)
    site = Site(sink=(lambda site, run: None) if sink else None)
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)
    assert (verdict.hook, verdict.reason) == ("first", "Hook 'first' raised: RuntimeError")


# Context variables


@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
async def test_who_sees_a_context_variable(kernel: Any, kind: str, sink: bool) -> None:
    seen: list[str] = []

    def hook(value: str) -> Callable[[Any], None]:
        def sets(payload: Any) -> None:
            seen.append(VARIABLE.get())
            VARIABLE.set(value)

        return sets

    kernel.add(E.BEFORE_TOOL, hook("one"), kind, sequential=True, priority=1)
    kernel.add(E.BEFORE_TOOL, hook("two"), kind, sequential=True, priority=2)
    kernel.add(E.BEFORE_TOOL, hook("parallel"), kind, sequential=False, priority=3)
    kernel.add(E.BEFORE_TOOL, hook("parallel"), kind, sequential=False, priority=3)
    kernel.add(E.BEFORE_TOOL, hook("three"), kind, sequential=True, priority=4)
    VARIABLE.set("caller")
    await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), Site(sink=(lambda site, run: None) if sink else None))
    assert seen == ["caller", "one", "two", "two", "two"]
    assert VARIABLE.get() == "three"


async def test_a_parallel_hooks_variables_are_seen_by_nobody(kernel: Any, kind: str) -> None:
    VARIABLE.set("caller")
    for _ in range(2):
        kernel.add(E.BEFORE_TOOL, lambda payload: VARIABLE.set("mine") and None, kind, sequential=False)
    await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert VARIABLE.get() == "caller"


async def test_tenants_at_once_never_see_each_others_variables(kernel: Any, kind: str) -> None:
    def sets(payload: BeforeToolInput) -> None:
        VARIABLE.set(payload.tool_name)

    def checks(payload: BeforeToolInput) -> bool:
        return VARIABLE.get() == payload.tool_name

    kernel.add(E.BEFORE_TOOL, sets, kind, sequential=True)
    kernel.add(E.BEFORE_TOOL, checks, kind, sequential=True)

    async def run(tenant: str) -> bool:
        verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(tool_name=tenant))
        return not verdict.denied and VARIABLE.get() == tenant

    assert all(await asyncio.gather(*(run(f"tenant{number}") for number in range(20))))


# Cancellation


@pytest.mark.parametrize("how", ["sync", "later"])
@pytest.mark.parametrize("sink", [False, True], ids=["untold", "told"])
async def test_the_cancellation_of_the_caller_passes_through(
    kernel: Any, gate: Gate, how: str, sequential: bool, sink: bool, until: Any
) -> None:
    ran: list[str] = []
    kernel.registry.register_function(E.BEFORE_TOOL, getattr(gate, how), sequential=sequential, failure_policy="fail")
    kernel.add(E.BEFORE_TOOL, lambda payload: ran.append("after"), "worker", sequential=True, priority=200)
    site = Site(sink=(lambda site, run: None) if sink else None)
    task = asyncio.create_task(kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site))
    await until(gate.began.is_set)
    task.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await task
    gate.release.set()
    if how == "sync":
        await until(lambda: gate.returned == 1)
    await asyncio.sleep(0.01)
    assert ran == []
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancelled_group_ends_every_hook_of_it(kernel: Any) -> None:
    ended: list[int] = []
    began = asyncio.Event()

    def hook(number: int) -> Any:
        async def waits(payload: Any) -> None:
            began.set()
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(0)
                ended.append(number)

        return waits

    for number in range(3):
        kernel.registry.register_function(E.BEFORE_TOOL, hook(number), sequential=False)
    task = asyncio.create_task(kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput()))
    await began.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # impatient callers change nothing
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2]
    assert len(asyncio.all_tasks()) == 1


async def test_a_time_limit_around_a_dispatch_is_the_callers(kernel: Any, gate: Gate, sequential: bool) -> None:
    kernel.registry.register_function(E.BEFORE_TOOL, gate.later, sequential=sequential)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())


async def test_a_hook_that_cancels_itself_has_failed(kernel: Any, sequential: bool) -> None:
    async def cancels(payload: Any) -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    kernel.registry.register_function(E.BEFORE_TOOL, cancels, sequential=sequential, name="odd")
    verdict = await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput())
    assert verdict.reason == "Hook 'odd' raised: CancelledError"


async def test_one_failure_under_fail_does_not_hide_what_the_others_did(kernel: Any) -> None:
    told: list[HookRun] = []

    async def fails(payload: Any) -> None:
        raise KeyError

    kernel.registry.register_function(E.BEFORE_TOOL, fails, sequential=False, failure_policy="fail")
    kernel.add(E.BEFORE_TOOL, lambda payload: "no", "suspending", sequential=False)
    site = Site(run_context=RunContext(run_id="r"), sink=lambda site, run: told.append(run))
    with pytest.raises(HookExecutionError):
        await kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput(), site)
    assert [run.decision for run in told] == ["failed", "deny"]


def test_one_plan_serves_many_loops(kernel: Any, kind: str, sequential: bool) -> None:
    kernel.add(E.BEFORE_TOOL, nothing, kind, sequential=sequential)
    kernel.add(E.BEFORE_TOOL, nothing, kind, sequential=sequential)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                verdict = asyncio.run(kernel.dispatch(E.BEFORE_TOOL, BeforeToolInput()))
                assert not verdict.denied
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
