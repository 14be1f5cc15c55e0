"""The order of one run through a built engine, at the root and three levels down."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.engine_kit import call, engine, project

from agent_engine.hooks.errors import HookExecutionError, RunBlocked
from agent_engine.hooks.events import HookEvent

QUIET = {HookEvent.ON_CONFIG, HookEvent.ON_LLM_DELTA, HookEvent.PROMPT_PREFIX_INVALIDATED, HookEvent.ON_PERMISSION_ASK}
EVENTS = [event.value for event in HookEvent if event not in QUIET]

RECORDER = """
import engine_trace

class Recorder:
    def record(self, event):
        payload = event.payload
        who = getattr(payload, "agent_name", None) or getattr(payload, "agent_id", None) or ""
        status = getattr(payload, "status", "")
        engine_trace.rows.append((str(event.hook_point), who, status))
        return payload if str(event.hook_point) == "transform_tool_result" else None
"""
WORK = """
import asyncio
import engine_trace

async def work(kind: str) -> str:
    engine_trace.rows.append(("body", "", ""))
    if kind == "fail":
        raise ValueError("no")
    if kind == "hang":
        engine_trace.reached.set()
        await asyncio.sleep(60)
    return "done"
"""
ROOT = "graph: {leaf: }"
DEEP = "graph: {top: {mid: {low: {leaf: }}}}"


@pytest.fixture
def trace() -> Iterator[Any]:
    module = types.ModuleType("engine_trace")
    module.rows = []  # type: ignore[attr-defined]  # a module made for these tests
    module.reached = asyncio.Event()  # type: ignore[attr-defined]
    sys.modules["engine_trace"] = module
    yield module
    del sys.modules["engine_trace"]


def system(folder: Path, graph: str, hooks: str | None = None) -> Path:
    every = "".join(f"  {event}: [{{plugin: trace, method: record}}]\n" for event in EVENTS)
    return project(
        folder,
        "system: {name: demo}\n"
        "agents:\n  leaf: {description: Works., tools: [work]}\n"
        "orchestrators:\n"
        + "".join(f"  {name}: {{description: R., prompts: {{orchestrator: r.md}}}}\n" for name in ("top", "mid", "low"))
        + f"tools: {{work: Works.}}\n{graph}\nhooks:\n{hooks if hooks is not None else every}",
        {
            "r.md": "Route.",
            "plugins/plugins.toml": '[hooks.plugins]\ntrace = "plugins.hooks.trace:Recorder"\n',
            "plugins/hooks/trace.py": RECORDER,
            "plugins/tools/work.py": WORK,
        },
    )


def script(graph: str, kind: str, answers: bool = True) -> list[Any]:
    """The turns of one run: down the graph, one tool call, and up again."""
    down = [call(name, {"message": "go"}) for name in ("mid", "low", "leaf")] if graph is DEEP else []
    up = ["answer"] * (len(down) + 1)
    return [*down, call("work", {"kind": kind}), *(up if answers else [])]


LLM = ["before_tool_definitions", "before_llm", "after_llm"]
BEFORE = ["before_tool", "before_tool_call"]
DONE = ["transform_tool_result", "after_tool", "after_tool_call"]
START = ["on_init", "setup", "on_engine_start"]
STOP = ["on_engine_stop", "on_shutdown"]


def leaf_turn(result: list[str], last: list[str]) -> list[str]:
    return ["before_agent", *LLM, *BEFORE, "body", *result, *last, "after_agent"]


def whole(graph: str, inner: list[str]) -> list[str]:
    """The leaf's turn with the turns of the routers around it."""
    for _ in range(3 if graph is DEEP else 0):
        inner = ["before_agent", *LLM, *BEFORE, *inner, "subagent_stop", *DONE, *LLM, "after_agent"]
    return inner


def names(trace: Any) -> list[str]:
    return [row[0] for row in trace.rows]


@pytest.mark.parametrize("graph", [ROOT, DEEP], ids=["root", "deep"])
@pytest.mark.parametrize("face", ["run", "stream"])
async def test_success(tmp_path: Path, trace: Any, graph: str, face: str) -> None:
    built, _ = engine(system(tmp_path, graph), script(graph, "ok"))
    async with built:
        if face == "run":
            assert (await built.run("hello")).output == "answer"
        else:
            events = [event async for event in built.stream("hello")]
            assert events[-1].type == "final"
            assert "".join(event.data["text"] for event in events if event.type == "text") == "answer"
    run = ["session_start", "on_run_start", "user_prompt_submit", *whole(graph, leaf_turn(DONE, LLM)), "on_run_end"]
    assert names(trace) == [*START, *run, "session_end", *STOP]


@pytest.mark.parametrize("graph", [ROOT, DEEP], ids=["root", "deep"])
async def test_a_tool_that_fails(tmp_path: Path, trace: Any, graph: str) -> None:
    built, model = engine(system(tmp_path, graph), script(graph, "fail"))
    async with built:
        assert (await built.run("hello")).output == "answer"
    failed = ["on_error", "after_tool", "on_tool_error"]
    run = ["session_start", "on_run_start", "user_prompt_submit", *whole(graph, leaf_turn(failed, LLM)), "on_run_end"]
    seen = [name for name in names(trace) if name not in (*START, *STOP, "session_end")]
    assert [name for name in seen if name != "on_error"] == [name for name in run if name != "on_error"]
    assert any("error" in str(message["content"]) for message in model.requests[-1].messages) is (graph is ROOT)


@pytest.mark.parametrize("graph", [ROOT, DEEP], ids=["root", "deep"])
@pytest.mark.parametrize("face", ["run", "stream"])
async def test_cancellation_closes_every_pair(
    tmp_path: Path, trace: Any, graph: str, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_engine.runtime.state.CLOSING_SECONDS", 60.0)  # a busy machine may need more than usual
    built, _ = engine(system(tmp_path, graph), script(graph, "hang"))
    async with built:

        async def go() -> None:
            if face == "run":
                await built.run("hello")
            else:
                async for _ in built.stream("hello"):
                    pass

        task = asyncio.create_task(go())
        await trace.reached.wait()
        trace.rows.append(("cancel", "", ""))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = names(trace)[names(trace).index("cancel") + 1 :]
        depth = 3 if graph is DEEP else 0
        for name, count in {
            "after_tool": 1 + depth,
            "on_tool_error": 1 + depth,
            "after_agent": 1 + depth,
            "on_run_error": 1,
            "on_run_end": 0,
            "after_tool_call": 0,
            "transform_tool_result": 0,
        }.items():
            assert after.count(name) == count, (name, after)
        assert all(row[2] in ("cancelled", "") for row in trace.rows if row[0] in ("after_tool", "after_agent"))
    assert names(trace)[-2:] == STOP


POINTS = [
    "session_start",
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
BREAKER = """
class Breaker:
    def break_it(self, event):
        raise KeyError("a text that must not show")
"""


def breaking(folder: Path, graph: str, point: str, policy: str | None) -> Path:
    entry = "{plugin: breaker, method: break_it" + (f", failure_policy: {policy}" if policy else "") + "}"
    hooks = "".join(
        f"  {event}: [{'{plugin: trace, method: record}'}{', ' + entry if event == point else ''}]\n"
        for event in EVENTS
    )
    path = system(folder, graph, hooks)
    (folder / "plugins/hooks/breaker.py").write_text(BREAKER)
    with (folder / "plugins/plugins.toml").open("a") as manifest:
        manifest.write('breaker = "plugins.hooks.breaker:Breaker"\n')
    return path


@pytest.mark.parametrize("graph", [ROOT, DEEP], ids=["root", "deep"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_that_fails_fails_the_request_by_default(
    tmp_path: Path, trace: Any, graph: str, point: str
) -> None:
    built, _ = engine(breaking(tmp_path, graph, point, None), script(graph, "ok"))
    async with built:
        with pytest.raises(HookExecutionError) as caught:
            await built.run("hello")
        assert caught.value.point == point
        assert caught.value.ref == "breaker.break_it"
        assert "must not show" not in str(caught.value)
        assert isinstance(caught.value.cause, KeyError)
    seen = names(trace)
    assert seen.count("on_run_error") == 1
    assert seen.count("on_run_end") == (1 if point == "on_run_end" else 0)
    assert seen.count("before_agent") == seen.count("after_agent") + (1 if point == "before_agent" else 0)
    assert seen[-3:] == [*STOP, "on_shutdown"]


@pytest.mark.parametrize("graph", [ROOT, DEEP], ids=["root", "deep"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_that_fails_under_warn_changes_nothing(tmp_path: Path, trace: Any, graph: str, point: str) -> None:
    built, _ = engine(breaking(tmp_path, graph, point, "warn"), script(graph, "ok"))
    async with built:
        assert (await built.run("hello")).output == "answer"
    run = ["session_start", "on_run_start", "user_prompt_submit", *whole(graph, leaf_turn(DONE, LLM)), "on_run_end"]
    assert names(trace) == ["on_init", *START, *run, "session_end", *STOP, "on_shutdown"]


RUN_ENDS = {"on_run_start", "user_prompt_submit", "before_agent", "before_llm", "after_llm", "after_agent"}
NO_BODY = {"before_tool", "before_tool_call"}
WITHHELD = {"transform_tool_result", "after_tool", "after_tool_call"}


@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_that_fails_under_deny_refuses_its_step(tmp_path: Path, trace: Any, point: str) -> None:
    built, model = engine(breaking(tmp_path, ROOT, point, "deny"), script(ROOT, "ok"))
    async with built:
        if point in RUN_ENDS:
            with pytest.raises(RunBlocked) as caught:
                await built.run("hello")
            assert (caught.value.event, caught.value.hook, caught.value.reason) == (point, "breaker.break_it", None)
            assert names(trace).count("on_run_error") == 1
            return
        result = await built.run("hello")
    assert result.output == "answer"
    told = str(model.requests[-1].messages[-1]["content"])
    if point in NO_BODY:
        assert "body" not in names(trace)
        assert told == "Execution of work was blocked by security policy."
    elif point in WITHHELD:
        assert "body" in names(trace)
        assert told == "Result of work was blocked by security policy."
    elif point == "before_tool_definitions":
        assert model.requests[0].tools == []
    else:
        assert told == "done"
    assert names(trace).count("on_run_end") == 1


async def test_a_failing_start_fails_the_build_and_a_failing_stop_is_only_logged(tmp_path: Path, trace: Any) -> None:
    built, _ = engine(breaking(tmp_path / "start", ROOT, "on_engine_start", None), [])
    with pytest.raises(HookExecutionError, match=r"breaker.break_it.*on_engine_start"):
        await built.build()
    assert names(trace) == ["on_init", "on_init", "setup", "on_engine_start", "on_shutdown", "on_shutdown"]
    trace.rows.clear()
    built, _ = engine(breaking(tmp_path / "stop", ROOT, "on_engine_stop", "fail"), ["answer"])
    async with built:
        await built.run("hello")
    assert names(trace)[-3:] == ["on_engine_stop", "on_shutdown", "on_shutdown"]


async def test_on_run_error_gets_the_exception_and_its_own_failure_masks_nothing(tmp_path: Path, trace: Any) -> None:
    path = breaking(tmp_path, DEEP, "on_run_error", "fail")
    text = path.read_text().replace(
        "before_tool_call: [", "before_tool_call: [{ref: 'plugins.hooks.stop:stop', agents: [leaf]}, "
    )
    path.write_text(text)
    (tmp_path / "plugins/hooks/stop.py").write_text(
        "import engine_trace\n\ndef stop(event):\n    raise PermissionError('secret words')\n"
    )
    built, _ = engine(path, script(DEEP, "ok"))
    async with built:
        with pytest.raises(HookExecutionError) as caught:
            await built.run("hello")
    assert (caught.value.point, caught.value.ref) == ("before_tool_call", "plugins.hooks.stop:stop")
    assert "body" not in names(trace)
    assert names(trace).count("on_run_error") == 1
    assert names(trace).count("after_agent") == 4
    assert names(trace).count("subagent_stop") == 3


async def test_open_conversations_end_before_the_engine_stops(tmp_path: Path, trace: Any) -> None:
    from agent_engine.hooks.managed import RunContext

    built, _ = engine(system(tmp_path, ROOT), ["one", "two"])
    async with built:
        await built.run("hello", RunContext(conversation_id="c"))
        await built.run("again", RunContext(conversation_id="c"))
        assert "session_end" not in names(trace)
    assert names(trace).count("session_start") == 1
    assert names(trace)[-3:] == ["session_end", *STOP]
