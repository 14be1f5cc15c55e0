"""agentctl mcp: servers and tools listed, one tool called with every hook on."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.mcp_server import FakeMcpServer

YAML = """\
system: {{name: desk}}
agents:
  clerk: {{description: Looks things up., mcps: [crm{more}]}}
mcps:
  crm: {{url: "{url}"}}
{servers}
hooks:
  before_mcp_request:
    - {{plugin: auth, method: identify}}
  before_tool:
    - {{plugin: auth, method: gate}}
graph: {{clerk: {{}}}}
"""
PLUGIN = """
from agent_engine.hooks import HookResult

class AuthHook:
    async def identify(self, event):
        context = event.run_context
        token = context.auth_context.inbound_access_token
        headers = {"X-User": context.user_id or "nobody"}
        return event.payload.with_headers(headers | ({"Authorization": f"Bearer {token}"} if token else {}))

    async def gate(self, event):
        return HookResult.deny("nobody sleeps here") if event.payload.tool_name == "sleep" else None
"""


@pytest.fixture
def server() -> Iterator[FakeMcpServer]:
    with FakeMcpServer(json_response=True) as running:
        yield running


def system(folder: Path, server: FakeMcpServer, *, more: str = "", servers: str = "") -> Path:
    (folder / "plugins/hooks").mkdir(parents=True)
    (folder / "plugins/hooks/auth.py").write_text(textwrap.dedent(PLUGIN))
    (folder / "plugins/plugins.toml").write_text('[hooks.plugins]\nauth = "plugins.hooks.auth:AuthHook"\n')
    path = folder / "agents.yaml"
    path.write_text(YAML.format(url=server.url, more=more, servers=servers))
    return path


def test_servers_and_their_tools_are_listed(
    agentctl: Callable[..., Any], tmp_path: Path, server: FakeMcpServer
) -> None:
    done = agentctl("mcp", "list", "--config", system(tmp_path, server))
    assert done.code == 0, done.err
    first, *tools = done.out.splitlines()
    assert first == f"crm  http://127.0.0.1:{server.port}"
    assert "  add(a, b)  The sum, as structured content." in tools
    as_json = json.loads(agentctl("mcp", "list", "--config", tmp_path / "agents.yaml", "--json").out)
    assert as_json[0]["server"] == "crm"
    assert {tool["name"] for tool in as_json[0]["tools"]} >= {"echo", "add", "whoami"}


def test_a_server_that_cannot_be_listed_is_said(
    agentctl: Callable[..., Any], tmp_path: Path, server: FakeMcpServer
) -> None:
    declared = '  gone: {url: "http://127.0.0.1:9/mcp", required: false}'
    done = agentctl("mcp", "list", "--config", system(tmp_path, server, more=", gone", servers=declared))
    assert done.code == 1
    assert "gone  http://127.0.0.1:9" in done.out
    assert "cannot be used now" in done.out
    required = agentctl(
        "mcp", "list", "--config", system(tmp_path / "b", server, servers=declared.replace("false", "true"))
    )
    assert required.code == 4
    assert "MCP server 'gone' at http://127.0.0.1:9 cannot be reached" in required.err


def test_a_tool_is_called_with_every_hook_on(
    agentctl: Callable[..., Any], tmp_path: Path, server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "planted-token")
    path = system(tmp_path, server)
    who = ("--user-id", "ann", "--token-env", "MY_TOKEN")
    done = agentctl("mcp", "call", "whoami", "--config", path, "--arguments", '{"note": "hi"}', *who)
    assert (done.code, done.out) == (0, "ann|Bearer planted-token|hi\n"), done.err
    structured = agentctl("mcp", "call", "crm__add", "--config", path, "-a", '{"a": 1, "b": 2}')
    assert json.loads(structured.out) == {"sum": 3}


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("fail",), 4, "no such customer"),
        (("sleep", "-a", '{"seconds": 0}'), 5, "nobody sleeps here"),
        (("add", "-a", '{"a": "x"}'), 4, "Invalid arguments"),
        (("nothing",), 2, "agentctl mcp list"),
        (("echo", "-a", "[1]"), 2, "no JSON object"),
        (("echo", "--token-env", "NOT_SET_7f3a"), 2, "NOT_SET_7f3a is not set"),
    ],
)
def test_how_a_call_can_end(
    agentctl: Callable[..., Any], tmp_path: Path, server: FakeMcpServer, arguments: Any, code: int, part: str
) -> None:
    done = agentctl("mcp", "call", *arguments, "--config", system(tmp_path, server))
    assert done.code == code, done
    assert part in done.err


def test_what_hooks_decide_on_a_call_is_recorded_where_asked_for(
    agentctl: Callable[..., Any], tmp_path: Path, server: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ENGINE_RECORDS", f"jsonl:{tmp_path / 'kept.jsonl'}")
    path = system(tmp_path, server)
    assert agentctl("mcp", "call", "sleep", "--config", path, "--arguments", '{"seconds": 1}').code == 5
    rows = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert any("auth.gate" in str(row) and "deny" in str(row) for row in rows)
