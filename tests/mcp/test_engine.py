"""MCP tools in whole runs: identities, errors, hooks' failures, and what a hook has masked, from message to answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.mcp_server import FakeMcpServer
from tests.mcp.kit import identify, on_request, run_of

from agent_engine.hooks.errors import HookExecutionError
from agent_engine.hooks.managed import McpRequestContext
from agent_engine.hooks.registry import HookRegistry
from agent_engine.models.scripted import ScriptedModel
from agent_engine.records.journal import MemoryJournal, StepOpened
from agent_engine.runtime.engine import Engine

YAML = """
system: {{name: desk}}
agents:
  clerk: {{description: Looks things up., mcps: [crm]}}
mcps:
  crm: {{url: "{url}"}}
graph: {{clerk: {{}}}}
"""


def engine_on(folder: Path, server: FakeMcpServer, model: Any, **options: Any) -> Engine:
    (folder / "agents.yaml").write_text(YAML.format(url=server.url))
    return Engine.from_yaml(folder / "agents.yaml", model=model, **options)


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"id": "c1", "name": name, "arguments": arguments}]}


def repeats_the_tool(messages: Any, tools: Any, settings: Any) -> str:
    return str(messages[-1]["content"])


async def test_concurrent_runs_of_an_engine_each_carry_their_own_identity(
    tmp_path: Path, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    model = ScriptedModel([calls("whoami"), repeats_the_tool], by="conversation")
    async with engine_on(tmp_path, server, model, hooks=registry) as engine:
        users = [f"u{number}" for number in range(12)]
        results = await asyncio.gather(*(engine.run("who am I?", context=run_of(user)) for user in users))
    for user, result in zip(users, results, strict=True):
        assert f"{user}|Bearer token-of-{user}|" in str(result.output)
    assert {one.headers["x-run"] for one in server.seen("tools/call")} == {f"run-{user}" for user in users}


async def test_an_mcp_error_is_a_failed_tool_call_and_the_run_goes_on(
    tmp_path: Path, server: FakeMcpServer, registry: HookRegistry
) -> None:
    seen: list[str] = []
    registry.register_function("on_tool_error", lambda call: seen.append(f"error {call.tool_name} {call.error_type}"))
    registry.register_function("after_tool_call", lambda call: seen.append(f"after {call.tool_name}"))
    model = ScriptedModel([calls("fail"), repeats_the_tool])
    async with engine_on(tmp_path, server, model, hooks=registry) as engine:
        result = await engine.run("do it")
    assert seen == ["error fail McpToolError"]
    assert "no such customer" in str(result.output)


async def test_a_hook_that_fails_at_a_request_fails_the_run_with_its_own_error(
    tmp_path: Path, server: FakeMcpServer, registry: HookRegistry
) -> None:
    async def auth(event: Any) -> McpRequestContext:
        request: McpRequestContext = event.payload_as(McpRequestContext)
        if request.tool_name is not None:
            raise PermissionError("no")
        return request

    on_request(registry, auth, name="auth")
    async with engine_on(tmp_path, server, ScriptedModel([calls("echo", text="hi")]), hooks=registry) as engine:
        with pytest.raises(HookExecutionError, match="'auth' failed at before_mcp_request: PermissionError"):
            await engine.run("do it")
    assert server.seen("tools/call") == []


async def test_the_steps_of_requests_belong_to_the_steps_of_their_calls(tmp_path: Path, server: FakeMcpServer) -> None:
    journal = MemoryJournal()
    model = ScriptedModel([calls("echo", text="hi"), "done"])
    async with engine_on(tmp_path, server, model, records=journal) as engine:
        result = await engine.run("do it")
    steps = {entry.step_id: entry for entry in journal.entries if isinstance(entry, StepOpened)}
    [request] = [one for one in steps.values() if one.kind == "mcp" and one.name == "tools/call"]
    assert request.run_id == result.run_id
    assert steps[str(request.parent_id)].kind == "tool"
    assert request.detail["server_id"] == "crm"


async def test_a_token_that_a_server_echoes_and_a_hook_masks_survives_nowhere(
    tmp_path: Path, server: FakeMcpServer, registry: HookRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    identify(registry)
    planted = "token-of-planted-9b41"

    @registry.on("after_tool")
    async def mask(event: Any) -> str:
        return str(event.tool_output).replace(planted, "[masked]")

    journal = MemoryJournal()
    model = ScriptedModel([calls("whoami"), repeats_the_tool])
    events: list[Any] = []
    async with engine_on(tmp_path, server, model, hooks=registry, records=journal) as engine:
        async for event in engine.stream("who am I?", context=run_of("planted-9b41")):
            events.append(event)
    assert f"Bearer {planted}" in {one.headers.get("authorization") for one in server.seen("tools/call")}
    assert "[masked]" in str(events[-1].result.output)
    for place in (model.requests, events, events[-1].result.messages, list(journal.entries), caplog.text):
        assert planted not in repr(place)
