"""What can be declared about a server, and what a declaration shows of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent_engine.mcp.server import DEFAULT_TIMEOUT, McpServer


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "needs a url or a command"),
        ({"url": "http://h/mcp", "command": "x"}, "not both"),
        ({"url": "ftp://h/mcp"}, "http:// or https://"),
        ({"url": "http:///mcp"}, "names a host"),
        ({"url": "https://user:pass@h/mcp"}, "credentials in its url"),
        ({"url": "http://h/mcp", "timeout": 0}, "more than 0 seconds"),
        ({"url": "http://h/mcp", "max_result_bytes": 0}, "at least one byte"),
        ({"url": "http://h/mcp", "tool_tags": ("a,b",)}, "tool tag"),
        ({"url": "http://h/mcp", "tool_tags": ("a\r\n",)}, "tool tag"),
        (
            {"url": "http://h/mcp", "tool_tag_transport": {"type": "header", "header_name": "a b"}},
            "no name of a header",
        ),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_and_names_the_server(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match="'crm'") as caught:
        McpServer(id="crm", **options)
    assert part in str(caught.value)
    assert "pass" not in str(caught.value).split()


def test_an_id_has_letters_digits_and_dashes() -> None:
    for bad in ("", "1a", "a b", "a/b", "ä"):
        with pytest.raises(ValueError, match="MCP server id"):
            McpServer(id=bad, url="http://h/mcp")


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://h/mcp", "https://h/mcp?tags=a%2Cb"),
        ("https://h/mcp?x=1", "https://h/mcp?x=1&tags=a%2Cb"),
        ("https://h/mcp?x=1#f", "https://h/mcp?x=1&tags=a%2Cb"),
    ],
)
def test_tags_in_the_query_are_added_to_the_url(url: str, endpoint: str) -> None:
    transport = {"type": "query_param", "param_name": "tags"}
    server = McpServer(id="crm", url=url, tool_tags=("a", "b"), tool_tag_transport=transport)
    assert (server.endpoint, server.tag_headers) == (endpoint, {})


def test_tags_go_into_a_header_where_nothing_else_is_said() -> None:
    server = McpServer(id="crm", url="https://h/mcp", tool_tags=("a", "b"))
    assert (server.endpoint, server.tag_headers) == ("https://h/mcp", {"X-MCP-Tool-Tag": "a,b"})


def test_a_declaration_shows_its_origin_alone() -> None:
    server = McpServer(id="crm", url="https://[::1]:8443/path-secret?key=secret")
    assert repr(server) == "<McpServer 'crm' https://[::1]:8443>"
    assert McpServer(id="f", command="x", env={"T": "secret"}).where == "stdio:f"
    assert "secret" not in repr(McpServer(id="f", command="x", env={"T": "secret"}))


def test_an_entry_of_agents_yaml_becomes_a_declaration() -> None:
    entry = SimpleNamespace(
        url="https://h/mcp",
        command=None,
        args=[],
        env={},
        pass_env=["A"],
        cwd=None,
        tool_tags=["a"],
        tool_tag_transport=None,
        required=False,
        discover="first_use",
        timeout=None,
    )
    server = McpServer.from_spec("crm", entry)
    assert (server.id, server.required, server.discover, server.seconds) == ("crm", False, "first_use", DEFAULT_TIMEOUT)
    assert (server.tool_tags, server.pass_env) == (("a",), ("A",))
