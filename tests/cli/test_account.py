from __future__ import annotations

import io
import json
import logging
from types import SimpleNamespace

import pytest
from rich.console import Console

from agent_engine.cli.account import Account, JsonLines, Silent
from agent_engine.cli.account_view import PlainLines, TreeView, duration, style_for
from agent_engine.hooks.definition import FunctionHook
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import RUN_CONTEXT, McpRequestContext, RunContext, ToolResultContext
from agent_engine.hooks.result import HookRun
from agent_engine.records.journal import HookRan, RunClosed, RunOpened, StepClosed, StepOpened

RUN = "4f2a9c1e"
SECRET = "sk-a-secret-that-is-never-shown"


def hook_run(event, name, decision="allow", **fields):
    hook = FunctionHook(event=event, name=name, func=lambda payload: None)
    return HookRun(hook=hook, event=HookEvent(event), decision=decision, duration_ms=0.25, **fields)


def step(step_id, parent, kind, name, agent, **detail):
    return StepOpened(RUN, step_id, parent, kind, name, agent, 0.0, detail)


def closed(step_id, outcome="ran", status="ok", **fields):
    given = {"error_type": None, "refused_by": None, "reason": None, "duration_ms": 12.4, **fields}
    return StepClosed(RUN, step_id, status, outcome=outcome, **given)


def entries():
    """A request to an assistant that passes it on: one private MCP call, capped, and one refused call."""
    request = McpRequestContext(server_id="private", url="http://127.0.0.1/mcp", operation="tools/call")
    long = ToolResultContext(agent_id="packages", tool_name="read", provider="mcp", result=SECRET * 400)
    yield RunOpened(RUN, "knowledge", None, None, None, 0.0)
    yield step("1", None, "agent", "assistant", "assistant")
    yield step("2", "1", "model", "offline", "assistant")
    yield closed("2")
    yield step("3", "1", "tool", "packages", "assistant", payload={"asked": {"message": "which version?"}})
    yield step("4", "3", "agent", "packages", "packages")
    yield step("5", "4", "tool", "read", "packages", server_id="private", payload={"asked": {"name": "pydantic"}})
    yield step("6", "5", "mcp", "tools/call", "packages", server_id="private", tool_name="read")
    yield HookRan(
        RUN,
        "6",
        "packages",
        hook_run(
            "before_mcp_request",
            "inject_key",
            "modify",
            changed=("headers",),
            before=request,
            after=request.with_headers({"X-API-Key": SECRET}),
        ),
    )
    yield closed("6", detail={"status_code": 200})
    yield HookRan(
        RUN,
        "5",
        "packages",
        hook_run(
            "transform_tool_result", "cap", "modify", changed=("result",), before=long, after=long.with_result("cut")
        ),
    )
    yield closed("5")
    yield step("7", "4", "tool", "delete", "packages")
    yield HookRan(RUN, "7", "packages", hook_run("before_tool", "keep", "deny", reason="notes are kept"))
    yield closed("7", "refused", "denied", refused_by="keep", reason="notes are kept")
    yield closed("4")
    yield closed("3")
    yield closed("1")
    yield RunClosed(RUN, "completed", None, 0.0, 31.0, {"input_tokens": 1200, "output_tokens": 34})


def play(style):
    account = Account(style)
    for entry in entries():
        account.write(entry)
    return account


def tree(width=140):
    out = io.StringIO()
    play(TreeView(out, Console(file=out, width=width, highlight=False)))
    return out.getvalue()


def plain():
    out = io.StringIO()
    play(PlainLines(out))
    return out.getvalue()


def test_plain_lines_tell_each_step_with_its_hooks_indented_by_depth():
    assert plain().splitlines() == [
        "run 4f2a9c1e knowledge",
        "  agent assistant …",
        "    model offline 12 ms",
        "    tool packages …",
        "      agent packages …",
        "        tool read (mcp private) …",
        "          mcp private: tools/call read …",
        "            hook before_mcp_request · inject_key: modify (headers +X-API-Key) 0.2 ms",
        "          mcp private: tools/call read: 200, header X-API-Key 12 ms",
        "          hook transform_tool_result · cap: modify (result 12,400 → 3 characters) 0.2 ms",
        "        tool read (mcp private) 12 ms",
        "        tool delete …",
        "          hook before_tool · keep: deny (notes are kept) 0.2 ms",
        "        tool delete: refused by keep 12 ms",
        "      agent packages 12 ms",
        "    tool packages 12 ms",
        "  agent assistant 12 ms",
        "run 4f2a9c1e completed in 31 ms, 1,234 tokens",
    ]


def test_the_tree_shows_an_agent_called_as_a_tool_once_and_a_calls_arguments():
    lines = [line.rstrip() for line in tree().splitlines()]
    assert lines[0] == "knowledge  run 4f2a9c1e  completed  31 ms, 1,234 tokens"
    assert lines[3].endswith("agent packages  message='which version?'  12 ms")
    assert lines[4].endswith("tool read (mcp private)  name='pydantic'  12 ms")
    assert lines[5].endswith("mcp private: tools/call read  200  header X-API-Key  12 ms")
    assert sum("agent packages" in line for line in lines) == 1
    assert any(line.endswith("tool delete  refused by keep  12 ms") for line in lines)


def test_json_lines_are_one_object_a_line_and_hold_no_payload():
    out = io.StringIO()
    play(JsonLines(out))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0]["type"] == "run_started"
    assert lines[-1] == {
        "type": "run_ended",
        "run_id": RUN,
        "status": "completed",
        "error_type": None,
        "at": 0.0,
        "duration_ms": 31.0,
        "usage": {"input_tokens": 1200, "output_tokens": 34},
    }
    hooks = [line for line in lines if line["type"] == "hook"]
    assert [(line["event"], line["hook"], line["decision"]) for line in hooks] == [
        ("before_mcp_request", "inject_key", "modify"),
        ("transform_tool_result", "cap", "modify"),
        ("before_tool", "keep", "deny"),
    ]
    assert "pydantic" not in out.getvalue()


@pytest.mark.parametrize("show", [plain, tree])
def test_no_value_of_a_header_or_a_result_is_shown(show):
    assert SECRET not in show()


def test_json_shows_no_value_either():
    out = io.StringIO()
    play(JsonLines(out))
    assert SECRET not in out.getvalue()


def test_the_style_follows_the_output_and_the_options():
    piped = io.StringIO()
    terminal = SimpleNamespace(isatty=lambda: True, write=piped.write, flush=lambda: None)
    assert isinstance(style_for(piped), PlainLines)
    assert isinstance(style_for(terminal), TreeView)
    assert isinstance(style_for(terminal, as_json=True), JsonLines)
    assert isinstance(style_for(terminal, as_json=True, quiet=True), Silent)


async def test_a_line_that_a_hook_logs_stands_with_that_hook():
    out = io.StringIO()
    account = Account(TreeView(out, Console(file=out, width=140, highlight=False)))
    await account.start()
    try:
        opened, *rest = entries()
        account.write(opened)
        for entry in rest:
            if isinstance(entry, HookRan) and entry.run.hook.name == "cap":
                record = logging.LogRecord("audit", logging.INFO, "/srv/plugins/audit.py", 1, "call ended", (), None)
                token = RUN_CONTEXT.set(RunContext(run_id=RUN))
                account._log.handle(record)
                RUN_CONTEXT.reset(token)
            account.write(entry)
    finally:
        await account.stop()
    lines = out.getvalue().splitlines()
    cap = next(number for number, line in enumerate(lines) if "cap" in line)
    assert lines[cap + 1].endswith("audit  call ended")


async def test_what_happens_outside_any_run_is_shown_too():
    out = io.StringIO()
    account = Account(TreeView(out, Console(file=out, width=100, highlight=False)))
    await account.start()
    account.write(HookRan(None, None, None, hook_run("on_engine_start", "validate_environment")))
    account.settle()
    assert "on_engine_start · validate_environment  allow" in out.getvalue()
    await account.stop()


async def test_logs_of_libraries_are_shown_from_warnings_on_and_those_of_the_system_from_info(tmp_path):
    out = io.StringIO()
    account = Account(PlainLines(out))
    await account.start()
    try:
        code = compile("import logging; logging.getLogger('audit').info('own line')", tmp_path / "hook.py", "exec")
        exec(code)
        logging.getLogger("somewhere").info("from the standard library's point of view")  # this test is no library
        asyncio_log = logging.getLogger("asyncio")
        asyncio_log.handle(asyncio_log.makeRecord("asyncio", logging.INFO, logging.__file__, 1, "quiet", (), None))
        asyncio_log.handle(asyncio_log.makeRecord("asyncio", logging.WARNING, logging.__file__, 1, "loud", (), None))
    finally:
        await account.stop()
    assert "log audit: own line" in out.getvalue()
    assert "quiet" not in out.getvalue()
    assert "loud" in out.getvalue()
    assert account._log not in logging.getLogger().handlers


def test_two_runs_at_once_keep_their_own_trees():
    out = io.StringIO()
    account = Account(TreeView(out, Console(file=out, width=100, highlight=False)))
    for run_id in ("a", "b"):
        account.write(RunOpened(run_id, f"system {run_id}", None, None, None, 0.0))
        account.write(StepOpened(run_id, "1", None, "agent", f"agent-{run_id}", None, 0.0))
    for run_id in ("a", "b"):
        account.write(StepClosed(run_id, "1", "ok", None, "ran", None, None, 1.0))
        account.write(RunClosed(run_id, "completed", None, 0.0, 1.0))
    first, second = out.getvalue().split("system b")
    assert "agent-a" in first
    assert "agent-b" not in first
    assert "agent-b" in second


def test_a_style_that_breaks_does_not_break_the_run():
    class Broken(Silent):
        def happened(self, thing, run, depth):
            raise RuntimeError("no screen")

    play(Broken())


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0.04, "0.0 ms"), (9.94, "9.9 ms"), (12.4, "12 ms"), (999, "999 ms"), (1234, "1.23 s")]
)
def test_a_time_is_written_as_people_read_it(milliseconds, text):
    assert duration(milliseconds) == text
