"""Faults that users of such systems met, through a declared system: no path around a hook, no child that escapes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.engine_kit import call, engine, project

from agent_engine.hooks.errors import HookExecutionError
from agent_engine.hooks.managed import RunContext
from agent_engine.runtime.engine import Engine

YAML = """
system: {name: demo}
agents:
  worker: {description: Works., tools: [danger, safe]}
  solo: {description: Alone., tools: [danger]}
orchestrators:
  top: {prompts: {orchestrator: r.md}}
  mid: {description: M., prompts: {orchestrator: r.md}}
tools: {danger: Deletes., safe: Reads.}
graph: {top: {mid: {worker: }, solo: }}
hooks:
  before_tool: [{plugin: gate, method: deny, matcher: danger}]
  after_tool: [{plugin: gate, method: see}]
"""
FILES = {
    "r.md": "Route.",
    "plugins/plugins.toml": '[hooks.plugins]\ngate = "plugins.hooks.gate:GateHook"\n',
    "plugins/hooks/gate.py": """
    seen = []

    class GateHook:
        def deny(self, event):
            return "never"

        def see(self, event):
            seen.append((event.payload.agent_name, event.payload.tool_name, event.payload.status))
    """,
    "plugins/tools/danger.py": "ran = []\n\ndef danger(what: str) -> str:\n    ran.append(what)\n    return 'gone'\n",
    "plugins/tools/safe.py": "def safe(what: str) -> str:\n    return what\n",
}
REFUSED = "Execution of danger was blocked by security policy. Reason: never"


def ran(built: Engine) -> list[str]:
    return list(built.built.space.load("plugins.tools.danger:ran"))


def worker_turns() -> list[Any]:
    return [call("mid", {"message": "go"}), call("worker", {"message": "go"})]


async def test_a_denied_tool_never_runs_on_any_path(tmp_path: Path) -> None:
    path = project(tmp_path, YAML, FILES)
    down, up = worker_turns(), ["a", "b", "c"]
    danger = call("danger", {"what": "all"})
    built, model = engine(path, [*down, danger, *up] * 2 + [call("solo", {"message": "go"}), danger, "x", "y"])
    async with built:
        await built.run("run")
        async for _ in built.stream("stream"):
            pass
        await built.run("another child")
        assert await built.call_tool("danger", {"what": "all"}) == REFUSED
        results = await asyncio.gather(*(built.call_tool("danger", {"what": str(n)}) for n in range(20)))
        assert set(results) == {REFUSED}
        assert ran(built) == []
    told = [
        message["content"] for request in model.requests for message in request.messages if message["role"] == "tool"
    ]
    assert told.count(REFUSED) == 3


async def test_a_denied_tool_never_runs_when_a_waiting_run_goes_on(tmp_path: Path) -> None:
    yaml = YAML.replace("tools: [danger, safe]", "tools: [danger, safe], auto: false")
    gate = FILES["plugins/hooks/gate.py"].replace(
        'return "never"', 'return "never" if event.payload.tool_input["what"] == "all" else None'
    )
    path = project(tmp_path, yaml, {**FILES, "plugins/hooks/gate.py": gate})
    calls = {"tool_calls": [
        {"id": "1", "name": "danger", "arguments": {"what": "all"}},
        {"id": "2", "name": "danger", "arguments": {"what": "one"}},
    ]}  # fmt: skip
    store = f"sqlite:{tmp_path / 'store.db'}"
    built, _ = engine(path, [*worker_turns(), calls], approver="later", store=store)
    async with built:
        waiting = await built.run("hello", RunContext(user_id="u"))
        assert [ask.call_id for ask in waiting.pending] == ["2"]
        assert ran(built) == []
    again, model = engine(path, ["a", "b", "c"], approver="later", store=store)
    async with again:
        done = await again.resume(waiting.run_id, {"2": "yes"}, RunContext(user_id="u"))
        assert done.status == "completed"
        assert ran(again) == ["one"]
    assert [m["content"] for m in model.requests[0].messages if m["role"] == "tool"] == [REFUSED, "gone"]


async def test_an_approval_for_one_call_runs_no_other(tmp_path: Path) -> None:
    yaml = YAML.replace("tools: [danger, safe]", "tools: [danger, safe], auto: false")
    path = project(
        tmp_path, yaml.replace("  before_tool: [{plugin: gate, method: deny, matcher: danger}]\n", ""), FILES
    )
    turns = [*worker_turns(), call("safe", {"what": "a"}, "1"), call("danger", {"what": "b"}, "2"), "x", "y", "z"]
    built, _ = engine(path, turns, approver="later")
    async with built:
        waiting = await built.run("hello")
        second = await built.resume(waiting.run_id, {"1": "yes"})
        assert (second.status, [ask.call_id for ask in second.pending]) == ("waiting", ["2"])
        assert ran(built) == []
        third = await built.resume(second.run_id, {"2": "no"})
        assert third.status == "completed"
        assert ran(built) == []


async def test_an_audit_hook_sees_every_call_of_every_child(tmp_path: Path) -> None:
    built, _ = engine(project(tmp_path, YAML, FILES), [*worker_turns(), call("safe", {"what": "x"}), "a", "b", "c"])
    async with built:
        await built.run("hello")
        seen = built.built.space.load("plugins.hooks.gate:seen")
    assert seen == [("worker", "safe", "ok"), ("mid", "worker", "ok"), ("top", "mid", "ok")]


async def test_a_denied_delegate_leaves_no_child_run(tmp_path: Path) -> None:
    yaml = YAML.replace("matcher: danger", "matcher: worker")
    built, model = engine(project(tmp_path, yaml, FILES), [*worker_turns(), "b", "c"])
    async with built:
        result = await built.run("hello")
        assert result.visited == ("top", "mid")
        assert result.output == "c"
    assert len(model.requests) == 4
    assert model.requests[2].messages[-1]["content"].startswith("Execution of worker was blocked by security policy.")


@pytest.mark.parametrize(
    "error", ["PermissionError()", "KeyError('x')", "AssertionError()", "Own()", "RecursionError()"]
)
async def test_whatever_a_gate_raises_the_tool_does_not_run(tmp_path: Path, error: str) -> None:
    gate = f"""
    class Own(Exception):
        pass

    class GateHook:
        def deny(self, event):
            raise {error}

        def see(self, event):
            pass
    """
    path = project(tmp_path, YAML, {**FILES, "plugins/hooks/gate.py": gate})
    built, _ = engine(path, [*worker_turns(), call("danger", {"what": "all"})] * 2)
    async with built:
        with pytest.raises(HookExecutionError):
            await built.run("hello")
        with pytest.raises(HookExecutionError):
            async for _ in built.stream("hello"):
                pass
        with pytest.raises(HookExecutionError):
            await built.call_tool("danger", {"what": "all"})
        assert ran(built) == []


async def test_hooks_limited_to_an_agent_leave_the_others_alone(tmp_path: Path) -> None:
    yaml = YAML.replace("matcher: danger}", "matcher: danger, agents: [solo]}")
    turns = [call("solo", {"message": "go"}), call("danger", {"what": "s"}), "x",
             *worker_turns(), call("danger", {"what": "w"}), "a", "b", "c"]  # fmt: skip
    built, _ = engine(project(tmp_path, yaml, FILES), turns)
    async with built:
        await built.run("hello")
        assert ran(built) == ["w"]


async def test_two_callers_at_once_keep_their_identities_in_every_hook(tmp_path: Path) -> None:
    gate = """
    import asyncio
    seen = []

    class GateHook:
        async def deny(self, event):
            before = event.run_context.user_id
            await asyncio.sleep(0)
            seen.append((before, event.run_context.user_id, event.payload.tool_input["what"]))
            return "never"

        def see(self, event):
            pass
    """
    path = project(tmp_path, YAML, {**FILES, "plugins/hooks/gate.py": gate})
    built, _ = engine(path, [])
    async with built:
        users = [f"user{n}" for n in range(25)]
        await asyncio.gather(*(built.call_tool("danger", {"what": user}, RunContext(user_id=user)) for user in users))
        seen = built.built.space.load("plugins.hooks.gate:seen")
    assert sorted(seen) == sorted((user, user, user) for user in users)
