"""Cancellation: at any point, with every pair closed, and with nothing left behind."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import Any

import pytest

from agent_engine import hooks
from agent_engine.hooks import HookResult
from agent_engine.hooks.errors import HookExecutionError, LimitReached, RunBlocked
from agent_engine.hooks.middleware import MiddlewareChain
from agent_engine.models.scripted import ScriptedModel, Turn
from agent_engine.runtime.limits import Limits

from .run_kit import RUN_EVENTS, Made, Trace, call, calls, listen, made, no_task_left, node_of, unbalanced


class Stage:
    """A place where a run can be caught."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def stay(self, *_: Any) -> None:
        self.reached.set()
        await asyncio.Event().wait()

    async def stay_in_a_tool(self) -> None:
        """Stay."""
        await self.stay()


async def cancelled_at(stage: Stage, one: Made, **options: Any) -> None:
    """Start a run, wait until it is caught, cancel it."""
    async with no_task_left():
        task = asyncio.create_task(one.run(**options))
        await stage.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def work() -> str:
    """Work."""
    return "done"


HOOKS = [
    "on_run_start",
    "user_prompt_submit",
    "before_agent",
    "before_tool_definitions",
    "before_llm",
    "after_llm",
    "before_tool",
    "before_tool_call",
    "transform_tool_result",
    "after_tool",
    "after_tool_call",
    "after_agent",
    "on_run_end",
]


@pytest.mark.parametrize("event", HOOKS)
@pytest.mark.parametrize("behind", [False, True], ids=["listener first", "listener behind"])
async def test_cancelled_in_a_hook(event: str, behind: bool) -> None:
    stage = Stage()
    one = made([call("work"), "answer"], [work])
    if behind:
        one.registry.register_function(event, stage.stay, sequential=True)
    trace = listen(one.registry)
    if not behind:
        one.registry.register_function(event, stage.stay, sequential=True, priority=20_000)
    await cancelled_at(stage, one)
    opened = trace.names.count(event) if event.startswith("before") else 0
    balance = Trace([row for row in trace.rows if row[0] != event or not opened])
    # The hook that is caught in a before_* has not let its step through: nothing is to be closed there.
    problems = [line for line in unbalanced(balance.names) if not (opened and not behind and line.startswith(event))]
    assert problems == []
    assert len(trace.of("on_run_error")) == 1
    assert type(trace.one("on_run_error")).__name__ == "RunCancelled"


async def test_cancelled_in_the_model() -> None:
    stage = Stage()
    one = made([Turn(wait=stage.stay)], [work])
    trace = listen(one.registry)
    await cancelled_at(stage, one)
    assert trace.statuses("after_llm") == trace.statuses("after_agent") == ["cancelled"]
    assert trace.one("after_agent").error_type == "RunCancelled"
    assert unbalanced(trace.names) == []


async def test_cancelled_in_the_tool_and_in_its_siblings() -> None:
    stage = Stage()

    async def slow(n: int) -> None:
        """Slow."""
        await stage.stay()

    one = made([calls(("slow", {"n": 1}), ("slow", {"n": 2}), ("work", {}))], [slow, work])
    trace = listen(one.registry)
    await cancelled_at(stage, one)
    assert sorted(trace.statuses("after_tool")) == ["cancelled", "cancelled", "ok"]
    assert unbalanced(trace.names) == []


async def test_cancelled_deep_in_a_child() -> None:
    stage = Stage()

    async def slow() -> None:
        """Slow."""
        await stage.stay()

    child = node_of([call("slow")], [slow], name="child")
    one = made([call("child", {"message": "go"})], children=(child,))
    trace = listen(one.registry)
    await cancelled_at(stage, one)
    assert trace.statuses("after_agent") == ["cancelled", "cancelled"]
    assert trace.one("subagent_stop").success is False
    assert unbalanced(trace.names) == []


async def test_cancelled_while_an_approver_thinks() -> None:
    from agent_engine.hooks import HookResult

    stage = Stage()
    one = made([call("work")], [work], approver=stage.stay)
    one.registry.register_function("before_tool", lambda seen: HookResult.ask("?"), sequential=True)
    trace = listen(one.registry)
    await cancelled_at(stage, one)
    assert "after_tool" not in trace.names
    assert unbalanced([name for name in trace.names if name != "before_tool"]) == []


async def test_cancelled_between_steps() -> None:
    """A cancellation that meets no await of its own is seen at the next one."""
    one = made([call("work"), "answer"], [work])
    trace = listen(one.registry)

    async def cancel_me(seen: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    one.registry.register_function("after_tool_call", cancel_me, sequential=True)
    task = asyncio.create_task(one.run())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert unbalanced(trace.names) == []
    assert trace.statuses("after_agent") == ["cancelled"]


async def test_a_second_cancellation_does_not_cut_the_closing_events_short() -> None:
    stage = Stage()
    closing = Stage()
    released = asyncio.Event()
    one = made([Turn(wait=stage.stay)])

    async def slow_close(seen: Any) -> None:
        closing.reached.set()
        await released.wait()

    one.registry.register_function("after_agent", slow_close, sequential=True)
    trace = listen(one.registry)
    task = asyncio.create_task(one.run())
    await stage.reached.wait()
    task.cancel()
    await closing.reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trace.statuses("after_agent") == ["cancelled"]
    assert len(trace.of("on_run_error")) == 1


@pytest.mark.usefixtures("idle_clock")
async def test_closing_events_have_a_time_limit_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.runtime.state.CLOSING_SECONDS", 0.05)
    stage = Stage()
    one = made([Turn(wait=stage.stay)])
    one.registry.register_function("after_llm", lambda seen: asyncio.Event().wait(), sequential=True)
    async with no_task_left():
        task = asyncio.create_task(one.run())
        await stage.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)


@pytest.mark.usefixtures("idle_clock")
async def test_closing_events_are_heard_even_where_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.runtime.state.CLOSING_SECONDS", 0.0)
    stage = Stage()
    one = made([call("stay_in_a_tool")], [stage.stay_in_a_tool])
    trace = listen(one.registry)
    await cancelled_at(stage, one)
    assert unbalanced(trace.names) == []
    assert len(trace.of("on_run_error")) == 1


# Code that does not listen


async def deaf() -> None:
    """Takes no cancellation for its end."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


class Deaf:
    """Code of a user that a run waits for, at one place, and which does not end when the run does."""

    def __init__(self, place: str, **options: Any) -> None:
        self.reached = asyncio.Event()
        self.place = place
        layers: list[Any] = []

        @hooks.wrap_tool_call
        async def around_tool(request: Any, call_next: Any) -> Any:
            await self.stay()

        @hooks.wrap_tool_call
        async def behind_tool(request: Any, call_next: Any) -> Any:
            try:
                return await call_next(request)
            except asyncio.CancelledError:
                await self.stay()

        @hooks.wrap_model_call
        async def around_model(request: Any, call_next: Any) -> Any:
            await self.stay()

        model: Any = [call("tool"), "answer"]
        if place == "model":
            model = self
        elif place == "tools":
            model = [calls(("tool", {}), ("other", {})), "answer"]
        elif place == "child":
            child = node_of([call("tool"), "answer"], [self.tool], name="child")
            model, options["children"] = [call("child", {"message": "go"}), "answer"], (child,)
        elif place in ("around_tool", "behind_tool", "around_model"):
            layers = [{"around_tool": around_tool, "behind_tool": behind_tool, "around_model": around_model}[place]]
        elif place == "approver":
            options.update(approver=self.stay, needs_approval=True)
        elif place == "observer":
            options.update(on_tool_call=self.stay)
        self.one = made(
            model, [self.tool, self.other], middleware=MiddlewareChain(layers) if layers else None, **options
        )
        self.trace = listen(self.one.registry)

    async def stay(self, *_: Any) -> Any:
        self.reached.set()
        await deaf()

    async def tool(self) -> str:
        """A tool."""
        if self.place == "returns":
            self.reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "as if nothing had been"
        if self.place == "generator":
            async for _ in self.items():
                pass
        if self.place in ("tool", "tools", "child"):
            await self.stay()
        if self.place == "behind_tool":
            self.reached.set()
            await asyncio.Event().wait()
        return "done"

    async def items(self) -> Any:
        try:
            yield 1
            self.reached.set()
            await asyncio.Event().wait()
        finally:
            await deaf()

    async def other(self) -> str:
        """Another tool."""
        await asyncio.Event().wait()
        return "done"

    name = provider = "deaf"

    async def request(self, *_: Any) -> Any:
        await self.stay()

    async def stream(self, *_: Any) -> Any:
        yield "a"
        async for _ in self.items():
            yield "b"


PLACES = [
    "tool", "tools", "returns", "generator", "child", "model", "around_tool", "behind_tool", "around_model",
    "approver", "observer",
]  # fmt: skip


@pytest.fixture
def short_graces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("GRACE", 0.05), ("BODY_GRACE", 0.05), ("AROUND_GRACE", 0.2)):
        monkeypatch.setattr(f"agent_engine.hooks.limits.{name}", seconds)


@pytest.mark.usefixtures("short_graces", "idle_clock")
@pytest.mark.parametrize("face", ["run", "stream"])
@pytest.mark.parametrize("place", PLACES)
async def test_code_that_does_not_listen_cannot_hold_a_cancelled_run(place: str, face: str) -> None:
    it = Deaf(place)
    task = asyncio.create_task(it.one.run() if face == "run" else it.one.events())
    await it.reached.wait()
    task.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert it.trace.statuses("after_agent") in (["cancelled"], ["cancelled", "cancelled"])
    assert [type(error).__name__ for error in it.trace.of("on_run_error")] == ["RunCancelled"]
    if place != "approver":  # there before_tool had not let it through
        assert unbalanced(it.trace.names) == []


@pytest.mark.usefixtures("short_graces", "idle_clock")
@pytest.mark.parametrize("place", PLACES)
async def test_code_that_does_not_listen_cannot_hold_a_run_beyond_its_time(place: str) -> None:
    it = Deaf(place, limits=Limits(timeout_s=0.1))
    async with asyncio.timeout(10):
        with pytest.raises(LimitReached):
            await it.one.run()
    assert set(it.trace.statuses("after_agent")) == {"timed_out"}
    assert len(it.trace.of("on_run_error")) == 1
    if place != "approver":
        assert unbalanced(it.trace.names) == []


@pytest.mark.usefixtures("short_graces", "idle_clock")
@pytest.mark.parametrize("place", ["tool", "returns"])
async def test_code_that_does_not_listen_cannot_hold_a_child_beyond_its_time(place: str) -> None:
    it = Deaf(place)
    parent = made(
        [call("root", {"message": "go"}), "answer"],
        children=(node_of([call("tool"), "never"], [it.tool], limits=Limits(timeout_s=0.05)),),
        name="parent",
    )
    async with asyncio.timeout(10):
        assert (await parent.run()).output == "answer"
    assert "LimitReached" in parent.tool_text()


@pytest.mark.usefixtures("idle_clock")
async def test_a_task_group_that_fails_in_a_tool_changes_nothing_for_the_rest_of_the_run() -> None:
    """Before Python 3.13 such a group leaves its task cancelled for good, in the eyes of whoever asks."""

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("child")

    async def group() -> str:
        """Runs a task group that fails."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fails())
        except ExceptionGroup:
            return "a child failed"
        return "never"

    async def breaks_off() -> str:
        """Waits for something that is cancelled."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    async def stays() -> None:
        """Stays."""
        await asyncio.Event().wait()

    one = made([call("group"), call("breaks_off"), "answer"], [group, breaks_off])
    assert (await one.run()).output == "answer"
    assert "cancelled from inside" in one.tool_text()
    one = made([call("group"), call("stays"), "never"], [group, stays], limits=Limits(timeout_s=0.1))
    with pytest.raises(LimitReached):
        await one.run()


async def test_what_a_tool_still_has_to_close_it_may_close() -> None:
    closed: list[str] = []
    stage = Stage()

    async def careful() -> str:
        """Closes what it has opened."""
        try:
            await stage.stay()
        finally:
            await asyncio.sleep(0.01)
            closed.append("careful")
        return "never"

    await cancelled_at(stage, made([call("careful")], [careful]))
    assert closed == ["careful"]


@pytest.mark.usefixtures("short_graces", "idle_clock")
async def test_a_wrapper_that_does_not_listen_gets_nothing_run_any_more() -> None:
    ran: list[str] = []
    stage = Stage()

    async def body() -> str:
        """A tool."""
        ran.append("body")
        await stage.stay()
        return "never"

    @hooks.wrap_tool_call
    async def again(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except asyncio.CancelledError:
            return await call_next(request)

    one = made([call("body")], [body], middleware=MiddlewareChain([again]))
    trace = listen(one.registry)
    await cancelled_at(stage, one)
    assert ran == ["body"]
    assert unbalanced(trace.names) == []


async def test_how_a_stream_of_a_model_takes_being_left_is_not_why_it_was_left() -> None:
    class Sulks:
        name = provider = "sulks"

        async def stream(self, *_: Any) -> Any:
            try:
                yield "secret"
                yield "more"
            finally:
                raise ValueError("left alone")

        async def request(self, *_: Any) -> Any:
            raise NotImplementedError

    one = made(Sulks())  # type: ignore[arg-type]  # a model by its methods
    one.registry.register_function("on_llm_delta", lambda seen: "no secrets")
    with pytest.raises(RunBlocked, match="no secrets"):
        await one.events()


@pytest.mark.parametrize(
    ("turns", "event"),
    [
        ([{"error": {"category": "auth"}}], "on_error"),
        ([{"error": {"category": "auth"}}], "after_llm"),
        ([{"error": {"category": "auth"}}], "after_agent"),
        ([{"error": {"category": "auth"}}], "notification"),
        ([call("breaks"), "answer"], "after_tool"),
        ([call("breaks"), "answer"], "on_tool_error"),
        ([call("breaks"), "answer"], "on_error"),
    ],
)
async def test_cancelled_while_an_error_is_closing_its_steps(turns: list[Any], event: str) -> None:
    async def breaks() -> str:
        """Breaks."""
        raise ValueError("broken")

    stage = Stage()
    one = made(turns, [breaks])
    trace = listen(one.registry)
    one.registry.register_function(event, stage.stay, sequential=True, priority=20_000)
    await cancelled_at(stage, one)
    assert unbalanced(trace.names) == []
    assert len(trace.of("on_run_error")) == 1


async def test_a_closing_hook_that_fails_never_takes_the_place_of_the_cancellation() -> None:
    stage = Stage()
    one = made([Turn(wait=stage.stay)])
    for event in ("after_llm", "after_agent", "on_run_error"):
        one.registry.register_function(event, lambda seen: 1 / 0, failure_policy="fail")
    await cancelled_at(stage, one)


async def test_a_closing_hook_that_fails_has_the_error_on_its_way_as_context() -> None:
    one = made([ValueError("the first")])
    one.registry.register_function("after_agent", lambda seen: 1 / 0, failure_policy="fail")
    trace = listen(one.registry)
    with pytest.raises(HookExecutionError) as caught:
        await one.run()
    contexts = []
    error: BaseException | None = caught.value
    while error is not None:
        contexts.append(error)
        error = error.__context__
    assert any(isinstance(one, ValueError) and str(one) == "the first" for one in contexts)
    assert trace.one("on_run_error") is caught.value


async def test_a_run_that_is_cancelled_leaves_no_thread_and_no_descriptor() -> None:
    async def once() -> None:
        stage = Stage()
        one = made([call("work"), Turn(wait=stage.stay)], [work])
        listen(one.registry)
        await cancelled_at(stage, one)

    await once()
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(20):
        await once()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert threading.active_count() <= threads


async def test_pairs_balance_over_many_concurrent_runs() -> None:
    """200 runs that end in every way there is: every step that began has ended once, with the right status."""
    chance = random.Random(7)
    made_runs: list[tuple[str, Trace, Any]] = []

    async def body(kind: str) -> str:
        """Work."""
        await asyncio.sleep(chance.random() / 500)
        if kind == "raise":
            raise ValueError("no")
        if kind == "time out":
            raise TimeoutError
        if kind in ("cancel", "abandon"):
            await asyncio.Event().wait()
        return "done"

    async def gate(seen: Any) -> Any:
        await asyncio.sleep(0)
        return "no" if seen.tool_input["kind"] == "deny" else None

    async def run(kind: str) -> None:
        turns = [calls(("body", {"kind": kind}), ("body", {"kind": "ok"})), "answer"]
        one = made(turns, [body])
        trace = Trace()
        one.registry.register_function("before_tool", gate, sequential=True)
        listen(one.registry, trace=trace)
        made_runs.append((kind, trace, one))
        if kind == "abandon":
            stream = one.stream()
            async for event in stream:
                if event.type == "tool_started":
                    break
            await stream.aclose()  # type: ignore[attr-defined]
            return
        task = asyncio.create_task(one.run())
        if kind == "cancel":
            while "before_tool_call" not in trace.names:
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() is (kind == "cancel")

    kinds = ["ok", "raise", "deny", "time out", "cancel", "abandon"]
    async with no_task_left():
        await asyncio.gather(*(run(chance.choice(kinds)) for _ in range(200)))
    expected = {
        "ok": ["ok", "ok"],
        "raise": ["error", "ok"],
        "deny": ["ok"],
        "time out": ["ok", "timed_out"],
    }
    for kind, trace, _ in made_runs:
        # Where a run is cancelled, its listener may have been waiting for the gate before it: it did not see that step.
        assert unbalanced(trace.names) == [], (kind, trace.names)
        assert len(trace.of("after_agent")) == 1
        if kind in expected:
            assert sorted(trace.statuses("after_tool")) == expected[kind]
            assert trace.one("after_agent").status == "ok"
        else:
            assert trace.one("after_agent").status == "cancelled"
            assert set(trace.statuses("after_tool")) <= {"ok", "cancelled"}
        assert len(trace.of("on_run_end")) + len(trace.of("on_run_error")) == 1


async def slow_work(n: int) -> int:
    """Work that takes some turns of the loop, and fails for 13."""
    await asyncio.sleep(0)
    if n == 13:
        raise ValueError("unlucky")
    return n


def winding() -> tuple[Made, Trace]:
    """A run with a child, calls beside one another, a failure and a wrapper; every hook of it suspends."""

    @hooks.wrap_tool_call
    async def around(request: Any, call_next: Any) -> Any:
        await asyncio.sleep(0)
        return await call_next(request)

    async def suspends(seen: Any) -> Any:
        await asyncio.sleep(0)
        return seen

    child = node_of([call("slow_work", {"n": 1}), "from the child"], [slow_work], name="child")
    beside = calls(("child", {"message": "go"}), ("slow_work", {"n": 13}), ("slow_work", {"n": 2}))
    one = made([beside, "answer"], [slow_work], children=(child,), middleware=MiddlewareChain([around]))
    for event in RUN_EVENTS:
        if event != "on_permission_ask":  # there it would be an answer
            one.registry.register_function(event, suspends, sequential=True, priority=1)
    return one, listen(one.registry)


@pytest.mark.parametrize("face", ["run", "stream"])
async def test_pairs_balance_wherever_a_run_is_cancelled(face: str) -> None:
    """Cancelled after one turn of the loop, after two, and so on until it is done before."""
    for turns in range(1, 1000):
        one, trace = winding()
        async with no_task_left():
            task: asyncio.Task[Any] = asyncio.create_task(one.run() if face == "run" else one.events())
            for _ in range(turns):
                await asyncio.sleep(0)
            done = not task.cancel()
            await asyncio.wait({task})
        where = (turns, trace.names)
        assert unbalanced(trace.names) == [], where
        assert len(trace.of("on_run_error")) <= 1, where
        if done:
            break
        assert task.cancelled(), where
        ends = trace.names.count("on_run_end") + trace.names.count("on_run_error")
        assert ends or trace.names == [], where
        for status in ("error", "timed_out", "denied"):
            assert status not in trace.statuses("after_agent") + trace.statuses("after_llm"), where
    assert turns > 30
    assert trace.statuses("after_agent") == ["ok", "ok"]
    assert sorted(trace.statuses("after_tool")) == ["error", "ok", "ok", "ok"]


@pytest.mark.parametrize("face", ["run", "stream"])
async def test_pairs_balance_where_everything_is_cancelled_while_a_run_closes(face: str) -> None:
    """As asyncio.run does with whatever is left at its end."""
    for turns in range(30):
        stage = Stage()
        one = made([call("work"), Turn(wait=stage.stay)], [work])
        trace = listen(one.registry)
        task: asyncio.Task[Any] = asyncio.create_task(one.run() if face == "run" else one.events())
        await stage.reached.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()
        await asyncio.wait(others)
        assert unbalanced(trace.names) == [], (turns, trace.names)
        assert len(trace.of("on_run_error")) == 1


# A cancellation that nobody asked for


@pytest.mark.parametrize("where", ["before_tool", "after_model", "wrap_tool_call"])
async def test_middleware_that_was_cancelled_from_inside_has_failed(where: str) -> None:
    async def broken(*given: Any) -> Any:
        raise asyncio.CancelledError

    ran: list[int] = []

    async def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    decorated = getattr(hooks, where)(broken)
    one = made([call("work"), "answer"], [work], middleware=MiddlewareChain([decorated]))
    with pytest.raises(HookExecutionError):
        await one.run()
    assert ran == []


async def test_an_approver_that_was_cancelled_from_inside_has_not_said_yes() -> None:
    async def broken(ask: Any) -> bool:
        raise asyncio.CancelledError

    ran: list[int] = []

    async def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    one = made([call("work"), "answer"], [work], approver=broken)
    one.registry.register_function("before_tool", lambda seen: HookResult.ask("sure?"))
    assert (await one.run()).output == "answer"
    assert ran == []


async def test_an_observer_that_was_cancelled_from_inside_changes_nothing() -> None:
    async def broken(seen: Any) -> None:
        raise asyncio.CancelledError

    assert (await made(["answer"], on_step=broken).run()).output == "answer"


@pytest.mark.parametrize("face", ["run", "stream"])
async def test_a_model_that_was_cancelled_from_inside_has_failed(face: str) -> None:
    class Broken:
        name = provider = "broken"

        async def request(self, *given: Any) -> Any:
            raise asyncio.CancelledError

        async def stream(self, *given: Any) -> Any:
            raise asyncio.CancelledError
            yield

    one = made(Broken(), fallback=[ScriptedModel(["answer"])])
    trace = listen(one.registry)
    if face == "run":
        assert (await one.run()).output == "answer"
    else:
        assert (await one.events())[-1].data["output"] == "answer"
    assert [seen.status for seen in trace.of("after_llm")] == ["error", "ok"]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
@pytest.mark.parametrize("face", ["run", "stream"])
async def test_a_model_that_raises_what_ends_more_than_itself_has_failed(face: str, error: type[BaseException]) -> None:
    class Broken:
        name = provider = "broken"

        async def request(self, *given: Any) -> Any:
            raise error

        async def stream(self, *given: Any) -> Any:
            await asyncio.sleep(0)
            raise error
            yield

    one = made(Broken(), fallback=[ScriptedModel(["answer"])])
    trace = listen(one.registry)
    result = await one.run() if face == "run" else (await one.events())[-1].result
    assert result is not None
    assert result.output == "answer"
    assert [seen.status for seen in trace.of("after_llm")] == ["error", "ok"]
