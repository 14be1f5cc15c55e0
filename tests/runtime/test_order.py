"""The order of one run, as the lifecycle lists it."""

from __future__ import annotations

from typing import Any

import pytest

from agent_engine.hooks import after_model, after_tool, before_model, before_tool, wrap_model_call, wrap_tool_call
from agent_engine.hooks.middleware import MiddlewareChain
from agent_engine.hooks.registry import HookRegistry
from agent_engine.models.errors import ModelError

from .run_kit import Trace, call, listen, made, node_of


async def work(kind: str = "ok") -> str:
    """Work."""
    if kind == "fail":
        raise ValueError("no")
    return "done"


LLM = ["before_tool_definitions", "before_llm", "on_llm_delta", "after_llm"]
SILENT_LLM = ["before_tool_definitions", "before_llm", "after_llm"]
DONE = ["before_tool", "before_tool_call", "transform_tool_result", "after_tool", "after_tool_call"]
FAILED = ["before_tool", "before_tool_call", "after_tool", "on_tool_error", "on_error"]
START = ["session_start", "on_run_start", "user_prompt_submit", "before_agent"]


async def test_a_run_with_one_tool_call() -> None:
    one = made([call("work"), "answer"], [work])
    trace = listen(one.registry)
    result = await one.run()
    assert result.output == "answer"
    assert trace.names == [*START, *SILENT_LLM, *DONE, *LLM, "after_agent", "on_run_end", "session_end"]


async def test_a_body_that_raises_closes_with_on_tool_error() -> None:
    one = made([call("work", {"kind": "fail"}), "answer"], [work])
    trace = listen(one.registry)
    await one.run()
    assert trace.names == [*START, *SILENT_LLM, *FAILED, *LLM, "after_agent", "on_run_end", "session_end"]
    after = trace.one("after_tool")
    assert (after.tool_error, after.status, after.error_type) == ("ValueError: no", "error", "ValueError")
    assert after.tool_output == one.tool_text() == '{"error": "ValueError: no"}'
    failed = trace.one("on_tool_error")
    assert (failed.status, failed.error_type) == ("failed", "ValueError")
    assert "no" not in (failed.error or "").split()


async def test_a_run_that_fails_ends_with_on_error_after_agent_on_run_error() -> None:
    one = made([ModelError("down", category="auth")], [work])
    trace = listen(one.registry)
    with pytest.raises(ModelError):
        await one.run()
    assert trace.names == [
        *START,
        "before_tool_definitions",
        "before_llm",
        "after_llm",
        "on_error",
        "after_agent",
        "notification",
        "on_run_error",
        "session_end",
    ]
    assert (trace.one("after_agent").status, trace.one("after_agent").response) == ("error", "")
    assert isinstance(trace.one("on_run_error"), ModelError)


async def test_a_child_runs_before_agent_to_after_agent_under_the_same_run() -> None:
    child = node_of([call("work"), "from the child"], [work], name="child")
    one = made([call("child", {"message": "do it"}), "answer"], children=(child,))
    trace = listen(one.registry)
    result = await one.run()
    inner = ["before_agent", *SILENT_LLM, *DONE, *LLM, "after_agent", "subagent_stop"]
    outer = ["before_tool", "before_tool_call", *inner, "transform_tool_result", "after_tool", "after_tool_call"]
    assert trace.names == [*START, *SILENT_LLM, *outer, *LLM, "after_agent", "on_run_end", "session_end"]
    assert {payload.run_id for name, payload in trace.rows if name.startswith("before_llm")} == {result.run_id}
    assert result.visited == ("root", "child")
    assert one.tool_text() == "from the child"
    stop = trace.one("subagent_stop")
    assert (stop.task, stop.success, stop.output, stop.depth) == ("do it", True, "from the child", 1)


async def test_middleware_and_observers_stand_where_the_order_says() -> None:
    trace = Trace()

    def note(name: str) -> Any:
        def noted(item: Any) -> Any:
            trace.rows.append((name, item))
            return item

        return noted

    def around(name: str) -> Any:
        async def wrapper(request: Any, call_next: Any) -> Any:
            trace.rows.append((f"{name} in", request))
            response = await call_next(request)
            trace.rows.append((f"{name} out", response))
            return response

        return wrapper

    chain = MiddlewareChain(
        [
            before_model(note("before_model 1")),
            before_model(note("before_model 2")),
            wrap_model_call(around("wrap_model 1")),
            wrap_model_call(around("wrap_model 2")),
            after_model(note("after_model 1")),
            after_model(note("after_model 2")),
            before_tool(note("before_tool 1")),
            before_tool(note("before_tool 2")),
            wrap_tool_call(around("wrap_tool 1")),
            wrap_tool_call(around("wrap_tool 2")),
            after_tool(note("after_tool 1")),
            after_tool(note("after_tool 2")),
        ]
    )

    async def body() -> str:
        """Work."""
        trace.rows.append(("body", None))
        return "done"

    one = made(
        [call("body"), "answer"],
        [body],
        middleware=chain,
        on_step=note("on_step"),
        on_tool_call=note("on_tool_call"),
    )
    listen(
        one.registry,
        ["before_llm", "after_llm", "before_tool", "before_tool_call", "transform_tool_result", "after_tool"],
        trace,
    )
    await one.run()
    model = [
        "before_model 1",
        "before_model 2",
        "before_llm",
        "wrap_model 1 in",
        "wrap_model 2 in",
        "wrap_model 2 out",
        "wrap_model 1 out",
        "after_model 2",
        "after_model 1",
        "after_llm",
        "on_step",
    ]
    tool = [
        "before_tool 1",
        "before_tool 2",
        "before_tool",
        "before_tool_call",
        "on_tool_call",
        "wrap_tool 1 in",
        "wrap_tool 2 in",
        "body",
        "wrap_tool 2 out",
        "wrap_tool 1 out",
        "after_tool 2",
        "after_tool 1",
        "transform_tool_result",
        "after_tool",
    ]
    assert trace.names == [*model, *tool, *model]


async def test_an_ask_stands_between_before_tool_and_before_tool_call() -> None:
    from agent_engine.hooks import HookResult

    asked: list[Any] = []

    def approver(ask: Any) -> bool:
        asked.append(ask)
        trace.rows.append(("approver", ask))
        return True

    registry = HookRegistry()
    registry.register_function("before_tool", lambda payload: HookResult.ask("careful"), name="asks")
    one = made([call("work"), "answer"], [work], registry=registry, approver=approver)
    trace = listen(one.registry, ["before_tool", "on_permission_ask", "before_tool_call", "after_tool"])
    await one.run()
    assert trace.names == ["before_tool", "on_permission_ask", "approver", "before_tool_call", "after_tool"]
    assert (asked[0].tool_name, asked[0].reason, asked[0].hook, asked[0].agent) == ("work", "careful", "asks", "root")
