"""A tool of a server: its arguments are checked before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types import Tool as Listed
from tests.fakes.mcp_server import FakeMcpServer
from tests.mcp.kit import connected, raises_text

from agent_engine.mcp.client import McpServer, McpTool, McpToolError
from agent_engine.tools.base import ArgumentsInvalid, ToolError


def tool(schema: dict[str, Any], **options: Any) -> McpTool:
    listed = Listed(name="find", input_schema={"type": "object", **schema}, **options)
    return McpTool(None, "crm", listed, "find")  # type: ignore[arg-type]  # it is not called here


SCHEMA = {
    "properties": {"id": {"type": "integer"}, "tag": {"enum": ["a", "b"]}, "deep": {"$ref": "#/$defs/deep"}},
    "required": ["id"],
    "$defs": {"deep": {"type": "object", "properties": {"x": {"type": "number"}}}},
}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({}, ("'id' is a required property",)),
        ({"id": "seven"}, ("id: 'seven' is not of type 'integer'",)),
        ({"id": 1, "tag": "c"}, ("tag: 'c' is not one of",)),
        ({"id": 1, "deep": {"x": "y"}}, ("deep.x: 'y' is not of type 'number'",)),
        ({"id": 1, "other": 2}, ("other: unknown argument", "It takes: id, tag, deep.")),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_text(ArgumentsInvalid, "Invalid arguments for tool 'find'", *parts):
        tool(SCHEMA).validate(arguments)


def test_arguments_that_fit_pass_as_they_are() -> None:
    given = {"id": 2**70, "tag": "a", "deep": {"x": 1.5}}
    assert tool(SCHEMA).validate(given) == given


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"anyOf": [{"properties": {"x": {}}}, {"properties": {"y": {}}}]},
        {"properties": {"x": {"$ref": "https://elsewhere.example/schema"}}},
        {"properties": {"x": {"type": "no such type"}}},
        {"properties": {"x": {"type": "string", "pattern": "(a+)+$"}}},
    ],
)
def test_what_a_schema_leaves_open_or_cannot_say_is_the_servers_to_check(schema: dict[str, Any]) -> None:
    arguments = {"x": "a" * 50 + "!"} if schema else {}
    assert tool(schema).validate(arguments) == arguments


def test_an_mcp_failure_is_a_tool_error() -> None:
    assert issubclass(McpToolError, ToolError)


async def test_a_result_that_does_not_fit_the_servers_own_schema_is_an_error(server: FakeMcpServer) -> None:
    async with connected(McpServer(id="crm", url=server.url, protocol="modern")) as kit:
        kit.tools["add"].output_schema = {"type": "object", "properties": {"sum": {"type": "string"}}}
        with raises_text(McpToolError, "'add'", "does not fit its own schema", "sum: 3 is not of type 'string'"):
            await kit.call("add", a=1, b=2)


async def test_arguments_that_a_server_wants_in_headers_are_repeated_there(server: FakeMcpServer) -> None:
    from mcp.server.mcpserver.tools import Tool as ServerTool

    def route(region: str) -> str:
        """Routed by a header."""
        return region

    made = ServerTool.from_function(route)
    made.parameters["properties"]["region"]["x-mcp-header"] = "Region"
    server.tools._tool_manager._tools["route"] = made
    async with connected(McpServer(id="crm", url=server.url, protocol="modern")) as kit:
        assert await kit.call("route", region="eu-1") == "eu-1"
        assert server.seen("tools/call")[-1].headers["mcp-param-region"] == "eu-1"
        made.parameters["properties"]["region"]["x-mcp-header"] = "Area"
        assert await kit.call("route", region="eu-2") == "eu-2", "a stale list is asked for again"
        assert server.seen("tools/call")[-1].headers["mcp-param-area"] == "eu-2"
