"""Results: text as text, structured content as JSON, everything else as parts, errors as errors, all of it bounded."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents
from tests.fakes.mcp_server import PIXEL, FakeMcpServer
from tests.mcp.kit import Pairs, connected, raises_text

from agent_engine.hooks.registry import HookRegistry
from agent_engine.mcp.client import McpServer, McpToolError
from agent_engine.mcp.results import value_of
from agent_engine.mcp.stream import EventScanner


def declared(server: FakeMcpServer, protocol: str, **options: Any) -> McpServer:
    return McpServer(id="crm", url=server.url, protocol=protocol, **options)  # type: ignore[arg-type]


async def test_each_kind_of_content_arrives_as_what_it_is(protocol: str, streaming: FakeMcpServer) -> None:
    async with connected(declared(streaming, protocol)) as kit:
        assert await kit.call("echo", text="grüß dich") == "grüß dich"
        assert await kit.call("add", a=1, b=2) == {"sum": 3}
        assert await kit.call("numbers", count=2) == {"result": [0, 1]}
        text, image, resource = await kit.call("picture")
        assert text == {"type": "text", "text": "a pixel"}
        assert (image["type"], image["mime_type"], base64.b64decode(image["data"])) == ("image", "image/png", PIXEL)
        assert resource == {"type": "resource", "uri": "memo://1", "mime_type": "text/plain", "text": "a memo"}


async def test_a_result_that_is_marked_as_an_error_is_an_error(protocol: str, streaming: FakeMcpServer) -> None:
    async with connected(declared(streaming, protocol)) as kit:
        with pytest.raises(McpToolError, match="^no such customer$") as caught:
            await kit.call("fail")
        assert (caught.value.server_id, caught.value.kind) == ("crm", "tool")
        with pytest.raises(McpToolError, match="crash"):
            await kit.call("crash")


async def test_an_error_of_the_protocol_says_what_the_server_said(protocol: str, server: FakeMcpServer) -> None:
    async with connected(declared(server, protocol)) as kit:
        await kit.call("echo", text="hi")
        server.bare["tools/call"] = (
            200,
            b"application/json",
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no such tool"}}',
        )
        with pytest.raises(McpToolError, match="MCP server 'crm' answered tools/call with an error: no such tool"):
            await kit.call("echo", text="hi")


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":"c-1","result":{"content":[],"resultType":"complete"}}',
        b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"x"}}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}',
        b"[1, 2]",
        b"{not json",
        b"",
    ],
    ids=["another call's", "nobody's", "a notification", "a list", "no json", "nothing"],
)
@pytest.mark.parametrize("status", [200, 201])
async def test_an_answer_to_something_else_is_the_error_of_this_call_alone(
    status: int, body: bytes, protocol: str, server: FakeMcpServer
) -> None:
    async with connected(declared(server, protocol)) as kit:
        server.arrived.clear()
        other = asyncio.create_task(kit.call("sleep", seconds=0.2))
        assert await asyncio.to_thread(server.arrived.wait, 30)
        server.bare["tools/call"] = (status, b"application/json", body)
        with raises_text(McpToolError, "'crm'", "tools/call", "not its answer"):
            await kit.call("echo", text="hi")
        assert await other == "slept"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (b"application/json", b'{"jsonrpc": "2.0", "id": null, "error": {"code": "pl4nted"}}'),
        (b"text/event-stream", b'data: {"jsonrpc": "2.0", "result": "pl4nted"}\n\n'),
        (b"text/event-stream", b"data: pl4nted\n\n"),
    ],
    ids=["json", "event", "no json"],
)
async def test_what_cannot_be_read_is_quoted_nowhere(
    kind: bytes, body: bytes, protocol: str, server: FakeMcpServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with connected(declared(server, protocol)) as kit:
        server.bare["tools/call"] = (200, kind, body)
        with raises_text(McpToolError, "'crm'", "not MCP") as caught:
            await kit.call("echo", text="hi")
        server.bare.clear()
        assert await kit.call("echo", text="hi") == "hi"
    assert "pl4nted" not in str(caught.value) + caplog.text


async def test_large_results_arrive_and_larger_ones_are_one_error(protocol: str, registry: HookRegistry) -> None:
    pairs = Pairs(registry)
    for json_response in (True, False):
        with FakeMcpServer(json_response=json_response) as server:
            place = declared(server, protocol, max_result_bytes=900_000)
            async with connected(place, registry=registry) as kit:
                assert len(await kit.call("huge", size=800_000)) == 800_000
                with raises_text(McpToolError, "'crm'", "900,000 bytes"):
                    await kit.call("huge", size=1_000_000)
            place = declared(server, protocol, max_result_bytes=20_000)
            async with connected(place, registry=registry) as kit:
                with raises_text(McpToolError, "'crm'", "20,000 bytes"):
                    await kit.call("huge", size=21_000)
                assert await kit.call("echo", text="hi") == "hi"
    assert ("error", "TooLarge") in {(status, kind) for _, status, kind in pairs.of("tools/call")}
    assert pairs.balance()


async def test_progress_is_passed_on(protocol: str, streaming: FakeMcpServer) -> None:
    told: list[Any] = []

    async def tell(part: object) -> None:
        told.append(part)

    async with connected(declared(streaming, protocol)) as kit:
        for listener in (told.append, tell):
            told.clear()
            invocation = kit.invocation(kit.clients.caller().run_context, progress=listener)
            assert await kit.tools["progress"].invoke({"steps": 3}, invocation) == "done"
            assert told == [{"progress": float(n), "total": 3.0, "message": f"step {n}"} for n in (1, 2, 3)]


def result(*content: Any, **options: Any) -> CallToolResult:
    return CallToolResult(content=list(content), **options)


TEXT = TextContent(type="text", text="one")


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (result(), ""),
        (result(TEXT), "one"),
        (result(TEXT, TextContent(type="text", text="two")), "one\ntwo"),
        (result(TEXT, structured_content={"result": "one"}), "one"),
        (result(TEXT, structured_content={"result": "other"}), {"result": "other"}),
        (result(structured_content={"a": 1}), {"a": 1}),
        (
            result(ResourceLink(type="resource_link", uri="memo://1", name="memo"), structured_content={"a": 1}),
            [{"type": "link", "uri": "memo://1", "name": "memo"}, {"type": "json", "value": {"a": 1}}],
        ),
        (
            result(EmbeddedResource(type="resource", resource=TextResourceContents(uri="memo://1", text="x"))),
            [{"type": "resource", "uri": "memo://1", "text": "x"}],
        ),
    ],
)
def test_the_value_of_a_result(given: CallToolResult, value: Any) -> None:
    assert value_of("crm", given) == value


def test_an_error_without_a_text_says_so_and_a_long_one_is_cut() -> None:
    with pytest.raises(McpToolError, match="did not say"):
        value_of("crm", result(is_error=True))
    with pytest.raises(McpToolError) as caught:
        value_of("crm", result(TextContent(type="text", text="x" * 10_000), is_error=True))
    assert len(str(caught.value)) == 4000


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_stream_of_events_is_followed_however_it_is_cut(size: int) -> None:
    stream = b"id: e1\r\ndata: {}\r\n\r\nevent: message\nid:e2\ndata: " + b"x" * 5000 + b"\n\nid: e3\ndata: abc"
    scanner = EventScanner()
    ids: list[str] = []
    for start in range(0, len(stream), size):
        scanner.feed(stream[start : start + size])
        if scanner.last_id is not None and [scanner.last_id] != ids[-1:]:
            ids.append(scanner.last_id)
    assert ids[-1] == "e3"
    assert set(ids) <= {"e1", "e2", "e3"}
    assert scanner.size == len(b"id: e3\ndata: abc")
    assert scanner.largest == len(b"event: message\nid:e2\ndata: " + b"x" * 5000 + b"\n")
