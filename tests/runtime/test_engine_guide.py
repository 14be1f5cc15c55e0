"""Every snippet of the first guide runs in a built engine, against a real MCP server, and does what the guide says."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.mcp_server import FakeMcpServer
from tests.runtime.engine_kit import call, engine, project

from agent_engine.hooks.errors import HookExecutionError
from agent_engine.runtime.hooks import HOOK_POINTS, AuthContext, RunContext

DECLARED = """
hooks:
  on_engine_start:
    - plugin: research_hooks
      method: validate_environment

  before_mcp_request:
    - plugin: research_hooks
      method: inject_context7_auth

  after_tool_call:
    - plugin: research_hooks
      method: audit_tool_call
      failure_policy: warn
"""
MANIFEST = """
[hooks.plugins]
research_hooks = "plugins.hooks.research_hooks:ResearchHooksHook"
"""
RESEARCH_HOOKS = '''
"""The worked example: five hooks of one plugin."""
import logging
import os

from agent_engine.runtime.hooks import (
    HookInvocation, McpRequestContext, ToolCallContext, ToolResultContext,
)

logger = logging.getLogger("research")


class ResearchHooksHook:
    def __init__(self) -> None:
        self.calls = 0

    async def validate_environment(self, event: HookInvocation) -> None:
        for name in ("ANTHROPIC_API_KEY", "CONTEXT7_API_KEY"):
            if name not in os.environ:
                raise RuntimeError(f"{name} is missing")

    async def inject_context7_auth(self, event: HookInvocation) -> McpRequestContext:
        request = event.payload_as(McpRequestContext)
        if request.server_id != "context7":
            return request
        return request.with_headers({"X-Context7-Key": os.environ["CONTEXT7_API_KEY"]})

    async def audit_tool_call(self, event: HookInvocation) -> None:
        call = event.payload_as(ToolCallContext)
        self.calls += 1
        logger.info("tool=%s provider=%s status=%s n=%s", call.tool_name, call.provider, call.status, self.calls)
        if call.tool_name == "add":
            raise OSError("the audit log is full")

    async def trim_result(self, event: HookInvocation) -> ToolResultContext:
        result = event.payload_as(ToolResultContext)
        if len(result.result) > 8000:
            return result.with_result(result.result[:8000] + "\\n… [truncated]")
        return result

    async def record_failure(self, event: HookInvocation) -> None:
        logger.info("run failed type=%s", type(event.payload).__name__)
'''


@pytest.fixture
def servers() -> Iterator[tuple[FakeMcpServer, FakeMcpServer]]:
    with FakeMcpServer(json_response=True) as public, FakeMcpServer(json_response=True) as private:
        yield public, private


@pytest.fixture
def server() -> Iterator[FakeMcpServer]:
    with FakeMcpServer(json_response=True) as running:
        yield running


def yaml(servers: dict[str, FakeMcpServer], hooks: str) -> str:
    mcps = "".join(f"  {name}: {{url: '{server.url}'}}\n" for name, server in servers.items())
    return (
        "system: {name: knowledge}\n"
        f"agents:\n  a: {{mcps: [{', '.join(servers)}], tools: [local]}}\n"
        f"tools: {{local: Local.}}\nmcps:\n{mcps}"
        "execution: {max_tool_calls_per_agent: 10, max_tool_calls: 20}\ngraph: {a: }\n" + hooks
    )


LOCAL = {"plugins/tools/local.py": "def local(text: str) -> str:\n    return text\n"}
FIVE = (
    DECLARED
    + """
  transform_tool_result:
    - plugin: research_hooks
      method: trim_result
  on_run_error:
    - plugin: research_hooks
      method: record_failure
"""
)


async def test_the_worked_example(
    tmp_path: Path,
    servers: tuple[FakeMcpServer, FakeMcpServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    public, private = servers
    files = {**LOCAL, "plugins/plugins.toml": MANIFEST, "plugins/hooks/research_hooks.py": RESEARCH_HOOKS}
    path = project(tmp_path, yaml({"deepwiki": public, "context7": private}, FIVE), files)
    monkeypatch.delenv("CONTEXT7_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    built, _ = engine(path, [])
    with pytest.raises(HookExecutionError, match=r"on_engine_start") as caught:
        await built.build()
    assert caught.value.ref == "research_hooks.validate_environment"

    monkeypatch.setenv("CONTEXT7_API_KEY", "s3cret-key")
    turns = [
        call("deepwiki__echo", {"text": "x"}, "1"),
        call("context7__echo", {"text": "y"}, "2"),
        call("deepwiki__huge", {"size": 9000}, "3"),
        call("context7__add", {"a": 1, "b": 2}, "4"),
        "done",
        RuntimeError("model broke with private words"),
    ]
    built, model = engine(path, turns)
    with caplog.at_level(logging.INFO):
        async with built:
            assert (await built.run("hello")).output == "done"
            with pytest.raises(Exception, match="model broke"):
                await built.run("again")
    assert all("x-context7-key" not in one.headers for one in public.log)
    assert private.log
    assert all(one.headers.get("x-context7-key") == "s3cret-key" for one in private.log)
    capped = model.requests[3].messages[-1]["content"]
    assert len(capped) < 8100
    assert capped.endswith("… [truncated]")
    audit = [record.getMessage() for record in caplog.records if record.name == "research"]
    assert audit == [
        "tool=deepwiki__echo provider=mcp status=succeeded n=1",
        "tool=context7__echo provider=mcp status=succeeded n=2",
        "tool=deepwiki__huge provider=mcp status=succeeded n=3",
        "tool=context7__add provider=mcp status=succeeded n=4",
        "run failed type=RuntimeError",
    ]
    assert "s3cret-key" not in caplog.text


SNIPPETS = {
    "mcp_auth": """
    import os
    from agent_engine.runtime.hooks import HookInvocation, McpRequestContext

    class McpAuthHook:
        async def inject_auth(self, event: HookInvocation) -> McpRequestContext:
            request = event.payload_as(McpRequestContext)
            if request.server_id != "internal_api":
                return request  # only authenticate the private server
            token = os.environ["INTERNAL_MCP_TOKEN"]
            return request.with_headers({"Authorization": f"Bearer {token}"})
    """,
    "exchange": """
    from agent_engine.runtime.hooks import HookInvocation, McpRequestContext

    async def exchange_token(inbound, audience):
        return f"{audience}-for-{inbound}"

    class McpAuthHook:
        async def inject_auth(self, event: HookInvocation) -> McpRequestContext:
            request = event.payload_as(McpRequestContext)
            inbound_token = event.run_context.auth_context.inbound_access_token
            mcp_token = await exchange_token(inbound_token, audience="mcp-service")
            return request.with_headers({"Authorization": f"Bearer {mcp_token}"})
    """,
    "hmac": """
    import hashlib, hmac, os, time
    from agent_engine.runtime.hooks import HookInvocation, McpRequestContext

    class McpAuthHook:
        async def inject_auth(self, event: HookInvocation) -> McpRequestContext:
            request = event.payload_as(McpRequestContext)
            secret = os.environ["HMAC_SECRET"].encode()
            ts = str(int(time.time()))
            sig = hmac.new(secret, f"{ts}:{request.url}".encode(), hashlib.sha256).hexdigest()
            return request.with_headers({"X-Timestamp": ts, "X-Signature": sig})
    """,
}
AUTH = "hooks: {before_mcp_request: [{plugin: auth, method: inject_auth}]}\n"
AUTH_MANIFEST = '[hooks.plugins]\nauth = "plugins.hooks.auth:McpAuthHook"\n'


def auth_project(folder: Path, server: FakeMcpServer, snippet: str) -> Path:
    files = {**LOCAL, "plugins/plugins.toml": AUTH_MANIFEST, "plugins/hooks/auth.py": SNIPPETS[snippet]}
    return project(folder, yaml({"internal_api": server}, AUTH), files)


async def test_mcp_auth_reads_its_token_at_request_time(
    tmp_path: Path, server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERNAL_MCP_TOKEN", "first")
    built, model = engine(auth_project(tmp_path, server, "mcp_auth"), [call("whoami"), "done"])
    async with built:
        monkeypatch.setenv("INTERNAL_MCP_TOKEN", "second")
        await built.run("hello")
    assert model.requests[1].messages[-1]["content"] == "nobody|Bearer second|"
    assert {one.headers["authorization"] for one in server.log} == {"Bearer first", "Bearer second"}


async def test_token_exchange_uses_the_callers_token(tmp_path: Path, server: FakeMcpServer) -> None:
    built, model = engine(auth_project(tmp_path, server, "exchange"), [call("whoami"), "done"])
    context = RunContext(
        user_id="user-123",
        organization_id="org-7",
        auth_context=AuthContext(inbound_access_token="inbound", scopes=("support:read",)),
    )
    async with built:
        await built.run("hello", context=context)
    assert model.requests[1].messages[-1]["content"] == "nobody|Bearer mcp-service-for-inbound|"


async def test_hmac_signing_signs_the_url_that_is_requested(
    tmp_path: Path, server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HMAC_SECRET", "shared")
    built, _ = engine(auth_project(tmp_path, server, "hmac"), [call("echo", {"text": "x"}), "done"])
    async with built:
        await built.run("hello")
    assert server.log
    for one in server.log:
        signed = f"{one.headers['x-timestamp']}:{server.url}".encode()
        assert one.headers["x-signature"] == hmac.new(b"shared", signed, hashlib.sha256).hexdigest()


AUDIT = """
import logging
from agent_engine.runtime.hooks import HookInvocation, ToolCallContext

logger = logging.getLogger("audit")

class AuditHook:
    async def record_tool_call(self, event: HookInvocation) -> None:
        call = event.payload_as(ToolCallContext)
        logger.info(
            "tool_call run_id=%s tool=%s provider=%s status=%s elapsed_ms=%s",
            event.run_context.run_id if event.run_context else None,
            call.tool_name,
            call.provider,
            call.status,
            call.latency_ms,
        )
"""
LOCAL_ONLY = "system: {name: x}\nagents: {a: {tools: [local]}}\ntools: {local: Local.}\ngraph: {a: }\n"


async def test_auditing_tool_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hooks = "hooks: {after_tool_call: [{plugin: audit, method: record_tool_call, failure_policy: warn}]}\n"
    manifest = '[hooks.plugins]\naudit = "plugins.hooks.audit:AuditHook"\n'
    files = {**LOCAL, "plugins/plugins.toml": manifest, "plugins/hooks/audit.py": AUDIT}
    built, _ = engine(project(tmp_path, LOCAL_ONLY + hooks, files), [call("local", {"text": "private"}), "done"])
    with caplog.at_level(logging.INFO, "audit"):
        async with built:
            result = await built.run("hello")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "audit"]
    assert line.startswith(f"tool_call run_id={result.run_id} tool=local provider=local status=succeeded elapsed_ms=")
    assert "None" not in line
    assert "private" not in line


async def test_identity_reaches_hooks_by_the_event_and_frozen_contexts_show_no_secret(tmp_path: Path) -> None:
    hook = """
    from agent_engine.runtime.hooks import RunContext, current_run_context
    seen = []

    def identify(event):
        user_id = event.run_context.user_id
        token = event.run_context.auth_context.inbound_access_token
        seen.append((user_id, token, repr(event.run_context), current_run_context() == event.run_context))

    def enrich(event):
        context = event.payload_as(RunContext)
        return context.replace(metadata={**context.metadata, "plan": "gold"})

    def check(event):
        seen.append(event.run_context.metadata["plan"])
        try:
            event.run_context.user_id = "other"
        except AttributeError:
            seen.append("frozen")
    """
    hooks = "hooks:\n  on_run_start: [{ref: 'plugins.id:enrich'}]\n  before_agent: [{ref: 'plugins.id:identify'}]\n"
    hooks += "  before_tool_call: [{ref: 'plugins.id:check'}]\n"
    path = project(tmp_path, LOCAL_ONLY + hooks, {**LOCAL, "plugins/id.py": hook})
    built, _ = engine(path, [call("local", {"text": "x"}), "done"])
    async with built:
        context = RunContext(user_id="u", auth_context=AuthContext(inbound_access_token="t0ken"))
        await built.run("hello", context)
        seen = built.built.space.load("plugins.id:seen")
    assert seen[0][:2] == ("u", "t0ken")
    assert "t0ken" not in seen[0][2]
    assert seen[0][3] is True
    assert seen[1:] == ["gold", "frozen"]


async def test_transform_tool_result_must_return_its_context(tmp_path: Path) -> None:
    for answer in ("None", "'text'", "True", "event.payload.result"):
        hook = f"def trim(event):\n    return {answer}\n"
        hooks = "hooks: {transform_tool_result: [{ref: 'plugins.trim:trim'}]}\n"
        path = project(tmp_path / str(abs(hash(answer))), LOCAL_ONLY + hooks, {**LOCAL, "plugins/trim.py": hook})
        built, _ = engine(path, [call("local", {"text": "x"}), "done"])
        async with built:
            with pytest.raises(HookExecutionError) as caught:
                await built.run("hello")
        assert caught.value.point == "transform_tool_result"


async def test_payload_as_names_both_types_and_that_is_the_hooks_failure(tmp_path: Path) -> None:
    hook = """
    from agent_engine.runtime.hooks import McpRequestContext

    def wrong(event):
        event.payload_as(McpRequestContext)
    """
    hooks = "hooks: {before_tool_call: [{ref: 'plugins.x:wrong'}]}\n"
    path = project(tmp_path, LOCAL_ONLY + hooks, {**LOCAL, "plugins/x.py": hook})
    built, _ = engine(path, [call("local", {"text": "x"}), "done"])
    async with built:
        with pytest.raises(HookExecutionError) as caught:
            await built.run("hello")
    assert "McpRequestContext" in str(caught.value.cause)
    assert "ToolRequestContext" in str(caught.value.cause)


def test_the_eleven_points_are_those_of_the_guide_in_its_order() -> None:
    assert [str(point) for point in HOOK_POINTS] == [
        "on_engine_start",
        "on_engine_stop",
        "on_run_start",
        "on_run_end",
        "on_run_error",
        "before_tool_call",
        "after_tool_call",
        "transform_tool_result",
        "on_tool_error",
        "before_mcp_request",
        "after_mcp_response",
    ]
