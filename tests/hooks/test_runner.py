"""fire_hook and HookRunner: rows for callers, from sync and async code, and never an exception of a hook."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_engine.hooks import registry as registry_module
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import RunContext, ToolRequestContext
from agent_engine.hooks.nesting import outwards
from agent_engine.hooks.payloads import PAYLOADS, AfterToolInput, BeforeToolInput, OnErrorInput
from agent_engine.hooks.registry import HookRegistry, add_hook, set_default_registry
from agent_engine.hooks.result import HookExecutionResult, HookResult
from agent_engine.hooks.runner import MOST_NESTED, HookRunner, _firing, afire_hook, build_payload, fire_hook

E = HookEvent
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture
def registry() -> HookRegistry:
    return HookRegistry()


@pytest.fixture
def default() -> Iterator[HookRegistry]:
    before = registry_module.get_default_registry()
    fresh = HookRegistry()
    set_default_registry(fresh)
    yield fresh
    set_default_registry(before)


def fails(payload: Any) -> None:
    raise KeyError("what went wrong")


# fire_hook


def test_nobody_subscribed_builds_nothing(default: HookRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any) -> None:
        raise AssertionError("nothing is to be built")

    monkeypatch.setattr("agent_engine.hooks.runner.build_payload", build)
    monkeypatch.setattr("agent_engine.hooks.runner.run_sync", build)
    assert fire_hook("before_tool", {"tool_name": "t"}) == []
    assert HookRunner().execute_sync("before_tool") == []
    assert asyncio.run(afire_hook("before_tool", object())) == []


def test_any_name_of_the_event_will_do(default: HookRegistry) -> None:
    seen: list[Any] = []
    add_hook("after_tool", seen.append)
    for name in ("after_tool", "AFTER_TOOL", "tool_result_persist", "TOOL_RESULT_PERSIST", E.AFTER_TOOL):
        assert [row.success for row in fire_hook(name, {"tool_name": "t"})] == [True]
    assert [type(payload) for payload in seen] == [AfterToolInput] * 5
    with pytest.raises(ValueError, match="Unknown hook event: 'after_tol'. Valid events: .* Did you mean 'after_tool'"):
        fire_hook("after_tol")


def test_the_payload_is_the_events_own_and_unknown_keys_are_extra(registry: HookRegistry) -> None:
    seen: list[BeforeToolInput] = []
    registry.register_function(E.BEFORE_TOOL, seen.append)
    given = {"tool_name": "t", "tool_input": {"a": [1]}, "colour": "red", "extra": {"shape": "round"}}
    fire_hook("before_tool", given, registry=registry)
    (payload,) = seen
    assert (payload.tool_name, payload.extra) == ("t", {"colour": "red", "shape": "round"})
    payload.tool_input["a"].append(2)
    assert given["tool_input"] == {"a": [1]}


def test_the_matcher_is_tried_against_the_payload_or_a_given_target(registry: HookRegistry) -> None:
    registry.register_function(E.BEFORE_TOOL, lambda payload: None, matcher="write_*", name="writes")
    assert [row.hook_name for row in fire_hook(E.BEFORE_TOOL, {"tool_name": "write_file"}, registry=registry)] == [
        "writes"
    ]
    assert fire_hook(E.BEFORE_TOOL, {"tool_name": "read_file"}, registry=registry) == []
    assert fire_hook(E.BEFORE_TOOL, {"tool_name": "read_file"}, registry=registry, target="write_x") != []
    assert fire_hook(E.BEFORE_TOOL, {"tool_name": "write_x"}, registry=registry, target="read") == []


def test_hooks_for_an_agent_fire_for_its_payloads(registry: HookRegistry) -> None:
    registry.register_function(E.BEFORE_TOOL, lambda payload: None, agents=("a",))
    assert len(fire_hook(E.BEFORE_TOOL, {"agent_name": "a"}, registry=registry)) == 1
    assert fire_hook(E.BEFORE_TOOL, {"agent_name": "b"}, registry=registry) == []
    assert fire_hook(E.BEFORE_TOOL, registry=registry) == []


@pytest.mark.parametrize("policy", ["deny", "warn", "fail"])
@pytest.mark.parametrize("event", [E.BEFORE_TOOL, E.ON_ERROR, E.ON_RUN_END])
def test_a_subscribers_failure_is_a_row(registry: HookRegistry, policy: str, event: HookEvent) -> None:
    registry.register_function(event, fails, failure_policy=policy, name="broken")
    (row,) = fire_hook(event, registry=registry)
    assert (row.success, row.hook_name, row.event) == (False, "broken", event.value)
    assert row.error == "Hook 'broken' raised: KeyError: 'what went wrong'"


async def test_it_completes_inside_a_running_loop(registry: HookRegistry) -> None:
    ran: list[str] = []

    async def hook(payload: Any) -> None:
        await asyncio.sleep(0.001)
        ran.append("done")

    registry.register_function(E.ON_ERROR, hook)
    assert len(fire_hook(E.ON_ERROR, registry=registry)) == 1
    assert ran == ["done"]
    assert len(await afire_hook(E.ON_ERROR, registry=registry)) == 1
    assert ran == ["done", "done"]


def test_a_hook_may_fire_hooks(registry: HookRegistry) -> None:
    rows: list[Any] = []
    registry.register_function(E.NOTIFICATION, lambda payload: None, name="inner")
    for inline in (True, False):
        registry.register_function(
            E.ON_ERROR, lambda payload: rows.extend(fire_hook(E.NOTIFICATION, registry=registry)), inline=inline
        )
    assert all(row.success for row in fire_hook(E.ON_ERROR, registry=registry))
    assert [row.hook_name for row in rows] == ["inner", "inner"]


def test_the_caller_sees_what_sequential_hooks_set(registry: HookRegistry) -> None:
    def scene() -> None:
        VARIABLE.set("caller")
        registry.register_function(E.AFTER_LLM, lambda payload: VARIABLE.set(VARIABLE.get() + "+sync") and None)

        async def hook(payload: Any) -> None:
            VARIABLE.set(VARIABLE.get() + "+async")

        registry.register_function(E.AFTER_LLM, hook)
        fire_hook(E.AFTER_LLM, registry=registry)
        assert VARIABLE.get() == "caller+sync+async"

    contextvars.copy_context().run(scene)


def test_what_no_payload_can_be_made_of_is_an_error_that_names_the_type(registry: HookRegistry) -> None:
    registry.register_function(E.BEFORE_TOOL, lambda payload: None)
    with pytest.raises(
        TypeError, match="The payload of before_tool is a BeforeToolInput or a dict of its fields, not int"
    ):
        fire_hook(E.BEFORE_TOOL, 5, registry=registry)
    registry.register_function(E.ON_RUN_ERROR, lambda payload: None)
    with pytest.raises(TypeError, match="not dict"):
        fire_hook(E.ON_RUN_ERROR, {}, registry=registry)
    with pytest.raises(TypeError, match="not None"):
        fire_hook(E.ON_RUN_ERROR, registry=registry)
    assert fire_hook(E.ON_RUN_ERROR, ValueError(), registry=registry)[0].success


@pytest.mark.parametrize("event", list(PAYLOADS), ids=str)
def test_every_event_can_be_fired_by_hand(registry: HookRegistry, event: HookEvent) -> None:
    seen: list[Any] = []
    registry.register_function(event, seen.append, inline=True)
    assert fire_hook(event, {"anything": 1}, registry=registry)[0].success
    assert type(seen[0]) is PAYLOADS[event]
    assert seen[0].event_name == event.value


def test_a_context_takes_unknown_keys_as_metadata() -> None:
    built = build_payload(E.BEFORE_TOOL_CALL, {"tool_name": "t", "colour": "red"})
    assert built == ToolRequestContext(tool_name="t", metadata={"colour": "red"})
    assert build_payload(E.ON_RUN_START) == RunContext()
    assert build_payload(E.ON_RUN_START, RunContext(user_id="u")).user_id == "u"


# HookRunner


async def test_execute_gives_a_row_for_each_hook_in_order(registry: HookRegistry, kind: str) -> None:
    async def wait(payload: Any) -> HookResult:
        await asyncio.sleep(0)
        return HookResult.modify(response="b")

    registry.register_function(
        E.AFTER_LLM, lambda payload: HookResult.modify(response="a"), name="one", inline=kind == "inline"
    )
    registry.register_function(E.AFTER_LLM, wait, name="two")
    registry.register_function(E.AFTER_LLM, lambda payload: None, name="three", observe=True)
    registry.register_function(E.AFTER_LLM, lambda payload: "no", name="four")
    registry.register_function(E.AFTER_LLM, lambda payload: None, name="five")
    rows = await HookRunner(registry).execute(E.AFTER_LLM, {"response": "raw"})
    assert [row.hook_name for row in rows] == ["one", "two", "three", "four"]
    assert [row.output and row.output.decision for row in rows] == ["modify", "modify", None, "deny"]
    assert rows[0].output == HookResult.modify(response="a")
    assert all(row.success and row.event == "after_llm" and 0 <= row.duration_ms < 60_000 for row in rows)
    assert HookRunner.is_blocked(rows)
    assert HookRunner.get_blocking_reason(rows) == "no"
    plain = rows[0].to_dict()
    assert plain["output"]["modified_input"] == {"response": "a"}


@pytest.mark.usefixtures("idle_clock")
async def test_plain_hooks_have_plain_rows(registry: HookRegistry, kind: str) -> None:
    async def ahook(payload: Any) -> None:
        if kind == "suspending":
            await asyncio.sleep(0.01)

    for number in range(3):
        if kind in ("async", "suspending"):
            registry.register_function(E.AFTER_LLM, ahook, name=f"h{number}")
        else:
            registry.register_function(E.AFTER_LLM, lambda payload: None, name=f"h{number}", inline=kind == "inline")
    rows = await HookRunner(registry).execute(E.AFTER_LLM)
    assert [(row.hook_name, row.success, row.output, row.error) for row in rows] == [
        (f"h{number}", True, HookResult(), None) for number in range(3)
    ]
    if kind == "suspending":
        assert all(9 < row.duration_ms < 11 for row in rows)


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("inline", [True, False])
async def test_one_that_breaks_among_plain_ones_has_its_row(
    registry: HookRegistry, position: int, inline: bool
) -> None:
    async def plain(payload: Any) -> None:
        return None

    async def broken(payload: Any) -> None:
        await asyncio.sleep(0.01)
        raise KeyError("x")

    for number in range(3):
        name = f"h{number}"
        if inline:
            registry.register_function(
                E.AFTER_LLM, fails if number == position else lambda p: None, name=name, inline=True
            )
        else:
            registry.register_function(E.AFTER_LLM, broken if number == position else plain, name=name)
    rows = await HookRunner(registry).execute(E.AFTER_LLM)
    assert [row.hook_name for row in rows] == [f"h{number}" for number in range(position + 1)]
    assert [row.success for row in rows] == [True] * position + [False]
    assert rows[-1].output == HookResult.deny(f"Hook 'h{position}' raised: KeyError")
    assert 0 <= rows[-1].duration_ms < 60_000
    assert inline or rows[-1].duration_ms > 9
    assert HookRunner.is_blocked(rows)


@pytest.mark.parametrize("policy", ["deny", "fail"])
async def test_a_failure_that_refuses_blocks_and_one_under_warn_does_not(registry: HookRegistry, policy: str) -> None:
    hook_id = registry.register_function(E.BEFORE_TOOL, fails, failure_policy=policy, name="gate")
    runner = HookRunner(registry)
    rows = await runner.execute(E.BEFORE_TOOL)
    assert (rows[0].success, runner.is_blocked(rows)) == (False, True)
    assert runner.get_blocking_reason(rows) == "Hook 'gate' raised: KeyError"
    registry.unregister(hook_id)
    registry.register_function(E.BEFORE_TOOL, fails, failure_policy="warn")
    rows = await runner.execute(E.BEFORE_TOOL)
    assert (rows[0].success, rows[0].output, runner.is_blocked(rows), runner.get_blocking_reason(rows)) == (
        False, None, False, None,
    )  # fmt: skip


def test_execute_sync_never_raises_for_a_hook(registry: HookRegistry) -> None:
    registry.register_function(E.BEFORE_TOOL, fails, failure_policy="fail")
    (row,) = HookRunner(registry).execute_sync(E.BEFORE_TOOL, BeforeToolInput())
    assert not row.success


async def test_execute_sync_works_inside_a_running_loop(registry: HookRegistry) -> None:
    registry.register_function(E.BEFORE_TOOL, lambda payload: "no")
    assert HookRunner.is_blocked(HookRunner(registry).execute_sync(E.BEFORE_TOOL))
    assert HookRunner(registry).execute_async.__func__ is HookRunner.execute  # type: ignore[attr-defined]  # an alias


def test_an_ask_counts_as_blocked_and_a_deny_has_the_word() -> None:
    ask = HookExecutionResult(output=HookResult.ask("sure?"))
    deny = HookExecutionResult(output=HookResult.deny("no"))
    allow = HookExecutionResult(output=HookResult.allow("fine"))
    runner = HookRunner(HookRegistry())
    assert runner.is_blocked([allow, ask])
    assert runner.get_blocking_reason([allow, ask]) == "sure?"
    assert runner.get_blocking_reason([ask, deny]) == "no"
    assert runner.get_blocking_reason([HookExecutionResult(output=HookResult.deny())]) == "Denied by hook"
    assert not runner.is_blocked([allow, HookExecutionResult()])


def test_context_is_aggregated_in_order() -> None:
    texts = ["one", None, "two", ""]
    rows = [HookExecutionResult(output=HookResult(additional_context=text)) for text in texts]
    assert HookRunner.aggregate_context([*rows, HookExecutionResult()]) == "one\ntwo"
    assert HookRunner.aggregate_context([]) == ""


@pytest.mark.parametrize(
    ("hook", "runner", "registered", "limit"),
    [(0.02, 5.0, 5.0, 0.02), (None, 0.03, 5.0, 0.03), (None, None, 0.04, 0.04)],
)
async def test_whose_limit_counts(
    registry: HookRegistry, hook: float | None, runner: float | None, registered: float, limit: float
) -> None:
    registry.set_global_timeout(registered)
    registry.register_function(E.BEFORE_TOOL, lambda payload: asyncio.sleep(30), timeout=hook, name="slow")
    rows = await HookRunner(registry, default_timeout=runner).execute(E.BEFORE_TOOL)
    assert rows[0].error == f"Hook 'slow' timed out after {limit}s"


def test_the_default_registry_is_the_processs(default: HookRegistry) -> None:
    add_hook("before_tool", lambda payload: "no")
    assert HookRunner.is_blocked(HookRunner().execute_sync("before_tool"))


def test_a_command_has_its_output_and_code_in_its_row(registry: HookRegistry, tmp_path: Any) -> None:
    registry.register_command(E.BEFORE_TOOL, "pwd; echo 'not here' >&2; exit 2", name="cmd")
    (row,) = HookRunner(registry, cwd=str(tmp_path)).execute_sync(E.BEFORE_TOOL)
    assert (row.stdout.strip(), row.stderr.strip(), row.exit_code) == (os.path.realpath(tmp_path), "not here", 2)
    assert row.output == HookResult.deny("not here")


def test_the_table_of_exit_codes_is_there_to_be_called() -> None:
    runner = HookRunner(HookRegistry(), cwd="/tmp")
    result = runner._parse_command_output(stdout="", stderr="not found", exit_code=127)
    assert (result.decision, result.reason) == ("deny", "Hook exited with unexpected code 127: not found")


def test_many_threads_fire_at_once(registry: HookRegistry) -> None:
    counted: list[int] = []
    registry.register_function(E.BEFORE_TOOL, lambda payload: counted.append(1))
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                assert fire_hook(E.BEFORE_TOOL, registry=registry)[0].success
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(counted) == 120


def test_on_the_sync_face_a_slow_hook_is_answered_at_once_and_the_process_exits() -> None:
    script = textwrap.dedent("""
        import threading, time
        from agent_engine.hooks import add_hook, fire_hook
        add_hook("before_tool", lambda payload: threading.Event().wait(), timeout=0.05, name="hangs")
        began = time.monotonic()
        (row,) = fire_hook("before_tool")
        assert time.monotonic() - began < 50
        print(row.error)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "Hook 'hangs' timed out after 0.05s"), done.stderr


def test_a_payload_of_its_own_may_be_given(registry: HookRegistry) -> None:
    seen: list[Any] = []
    registry.register_function(E.ON_ERROR, seen.append)
    payload = OnErrorInput(error_type="KeyError")
    HookRunner(registry).execute_sync(E.ON_ERROR, payload)
    assert seen[0] == payload


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("suspends", [None, False, True])
def test_a_hook_that_raises_keyboard_interrupt_itself_has_failed(sequential: bool, suspends: bool | None) -> None:
    def in_thread(payload: Any) -> None:
        raise KeyboardInterrupt

    async def on_loop(payload: Any) -> None:
        if suspends:
            await asyncio.sleep(0)
        raise KeyboardInterrupt

    registry = HookRegistry()
    registry.register_function(
        E.BEFORE_TOOL, in_thread if suspends is None else on_loop, name="pressed", sequential=sequential
    )

    rows = fire_hook(E.BEFORE_TOOL, {"tool_name": "x"}, registry=registry)

    assert [row.success for row in rows] == [False]
    assert HookRunner.get_blocking_reason(rows) == "Hook 'pressed' raised: KeyboardInterrupt"


def test_what_an_observer_returns_is_ignored() -> None:
    registry = HookRegistry()
    registry.register_function(E.BEFORE_TOOL, lambda payload: 5, observe=True)
    registry.register_function(E.BEFORE_TOOL, lambda payload: "no", observe=True, sequential=True)

    rows = fire_hook(E.BEFORE_TOOL, {"tool_name": "x"}, registry=registry)

    assert [(row.success, row.error, row.output) for row in rows] == [(True, None, None)] * 2


def test_after_a_fork_no_registry_is_locked() -> None:
    script = """
        import os, threading
        from agent_engine.hooks import add_hook, fire_hook, get_default_registry

        registry = get_default_registry()
        add_hook("before_tool", lambda payload: "no")
        taken, enough = threading.Event(), threading.Event()

        def hold():
            with registry._lock:
                taken.set()
                enough.wait()

        threading.Thread(target=hold, daemon=True).start()
        taken.wait()
        child = os.fork()
        if child == 0:
            add_hook("before_tool", lambda payload: None)
            os._exit(len(fire_hook("before_tool", {})))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_predicate_whose_answer_is_neither_true_nor_false_has_failed() -> None:
    class Neither:
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    registry = HookRegistry()
    registry.register_function(E.BEFORE_TOOL, lambda payload: None, name="h", when=lambda context: Neither())

    rows = fire_hook(E.BEFORE_TOOL, {"tool_name": "x"}, registry=registry)

    assert HookRunner.get_blocking_reason(rows) == "Hook 'h' raised: ValueError"


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_default_limit_is_a_number_of_seconds(limit: Any) -> None:
    with pytest.raises(ValueError, match="number of seconds above 0"):
        HookRunner(HookRegistry(), default_timeout=limit)


@pytest.mark.parametrize("name", [5, ["x"], b"x"])
def test_what_matchers_are_tried_against_is_text(name: Any) -> None:
    registry = HookRegistry()
    registry.register_function(E.BEFORE_TOOL, lambda payload: None, matcher="x")

    with pytest.raises(TypeError, match="tool_name at before_tool is text"):
        fire_hook(E.BEFORE_TOOL, {"tool_name": name}, registry=registry)


def test_what_is_no_registry_is_told() -> None:
    for call in (lambda: fire_hook("before_tool", registry="mine"), lambda: HookRunner({})):  # type: ignore[arg-type]  # on purpose
        with pytest.raises(TypeError, match="registry is a HookRegistry, not "):
            call()


def test_a_target_is_a_name_or_several_names_of_one_thing() -> None:
    registry = HookRegistry()
    registry.register_function("before_tool", lambda payload: None, matcher="mcp__files__read")
    for target, rows in (("mcp__files__read", 1), (["read", "mcp__files__read"], 1), (("read",), 0)):
        assert len(fire_hook("before_tool", target=target, registry=registry)) == rows  # type: ignore[arg-type]  # a list
    for wrong in (5, {"read"}, ["read", 5]):
        with pytest.raises(TypeError, match="target is a name, or several names of one thing, not "):
            fire_hook("before_tool", target=wrong, registry=registry)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("event", "field", "value", "problem"),
    [
        ("before_tool", "tool_input", 5, "tool_input at before_tool is a dict, not int"),
        ("user_prompt_submit", "prompt", None, "prompt at user_prompt_submit is text, not None"),
        ("before_llm", "messages", ({"role": "user"},), "messages at before_llm is a list, not tuple"),
    ],
)
def test_a_field_of_the_wrong_kind_is_told_to_whoever_fires_and_blamed_on_no_hook(
    event: str, field: str, value: Any, problem: str
) -> None:
    registry = HookRegistry()
    registry.register_function(event, lambda payload: None)
    with pytest.raises(TypeError, match=problem):
        fire_hook(event, {field: value}, registry=registry)


def _fires_itself(kind: str, registry: HookRegistry, seen: list[BaseException]) -> Callable[[Any], Any]:
    def fires(payload: Any) -> None:
        try:
            fire_hook("before_tool", {"tool_name": "search"}, registry=registry)
        except RecursionError as error:
            seen.append(error)
            raise

    async def afires(payload: Any) -> None:
        try:
            await afire_hook("before_tool", {"tool_name": "search"}, registry=registry)
        except RecursionError as error:
            seen.append(error)
            raise

    async def fires_on_the_loop(payload: Any) -> None:
        fires(payload)

    return {"sync": fires, "async": afires, "sync on the loop": fires_on_the_loop}[kind]


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("kind", ["sync", "async", "sync on the loop"])
def test_a_hook_that_fires_what_it_listens_to_comes_to_an_end(kind: str, sequential: bool) -> None:
    registry, seen = HookRegistry(), list[BaseException]()
    registry.register_function("before_tool", _fires_itself(kind, registry, seen), sequential=sequential)
    (row,) = fire_hook("before_tool", {"tool_name": "search"}, registry=registry)
    assert row.success  # the rows of what it fired are its own business
    assert [str(error) for error in seen] == [
        f"before_tool was not fired: {MOST_NESTED} events are being fired inside one another already; a hook that fires"
        " the event it listens to never ends"
    ]


@pytest.mark.parametrize("inside_another", [True, False])
async def test_an_event_that_leads_to_another_in_the_background_is_not_around_it(inside_another: bool) -> None:
    registry, jobs = HookRegistry(), list[asyncio.Task[Any]]()
    remembered: list[int] = []

    async def next_job(payload: Any) -> None:
        remembered.append(len(list(outwards(_firing.get()))))
        number = int(payload.job_id) + 1
        if number < 3 * MOST_NESTED:
            jobs.append(asyncio.create_task(afire_hook("job_completed", {"job_id": str(number)}, registry=registry)))

    async def all_jobs(payload: Any = None) -> None:
        await afire_hook("job_completed", {"job_id": "0"}, registry=registry)
        for job in jobs:
            (row,) = await job
            assert row.error is None

    registry.register_function("job_completed", next_job)
    registry.register_function("gateway_stop", all_jobs)
    if inside_another:
        (row,) = await afire_hook("gateway_stop", registry=registry)
        assert row.error is None
    else:
        await all_jobs()
    assert len(jobs) == 3 * MOST_NESTED - 1
    assert max(remembered) <= 3
    assert _firing.get() is None
