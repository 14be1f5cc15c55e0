"""Discovery: at build, at first use for each caller, after a change, and when an optional server comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.mcp_server import FakeMcpServer
from tests.mcp.kit import Kit, connected, identify, on_request, raises_text, run_of

from agent_engine.hooks.errors import HookExecutionError
from agent_engine.hooks.managed import HookInvocation, McpRequestContext
from agent_engine.hooks.registry import HookRegistry
from agent_engine.mcp.client import McpServer, McpServerError, McpToolError
from agent_engine.mcp.tools import Names, model_name


def declared(server: FakeMcpServer, protocol: str = "modern", id: str = "crm", **options: Any) -> McpServer:
    return McpServer(id=id, url=server.url, protocol=protocol, **options)  # type: ignore[arg-type]


async def names_for(kit: Kit, user: str, server_id: str = "crm") -> set[str]:
    caller = kit.clients.caller(run_of(user))
    return {tool.remote_name for tool in await kit.clients.tools_for(caller, server_id)}


async def test_tools_are_listed_once_at_build_without_any_identity(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    async with connected(declared(server, protocol), registry=registry) as kit:
        tool = kit.tools["add"]
        assert (tool.provider, tool.server_id, tool.remote_name) == ("mcp", "crm", "add")
        assert tool.description == "The sum, as structured content."
        assert set(tool.parameters["properties"]) == {"a", "b"}
        assert await names_for(kit, "ann") == set(kit.tools)
    assert [one.headers["x-user"] for one in server.seen("tools/list")] == ["nobody"]


async def test_a_required_server_that_is_down_stops_the_build_with_one_sentence() -> None:
    with FakeMcpServer() as gone:
        pass
    with pytest.raises(McpServerError) as caught:
        async with connected(declared(gone)):
            pass
    text = str(caught.value)
    assert text == (
        f"MCP server 'crm' at http://127.0.0.1:{gone.port} cannot be reached (ConnectError): "
        "start it, correct its url, or declare it with `required: false`."
    )


@pytest.mark.parametrize(
    ("status", "advice"),
    [(404, "look at the path of its url"), (501, "look at the path of its url"), (403, "is not enough for it")],
)
async def test_an_address_that_is_no_mcp_servers_or_refuses_says_what_to_look_at(
    server: FakeMcpServer, status: int, advice: str
) -> None:
    server.statuses.update({"server/discover": [status] * 9, "initialize": [status] * 9})
    with raises_text(McpServerError, f"answered {status}: ", advice):
        async with connected(declared(server, "auto")):
            pass


async def test_all_required_servers_that_are_down_are_named(server: FakeMcpServer) -> None:
    with FakeMcpServer() as gone:
        pass
    with raises_text(McpServerError, "'one'", "'two'") as caught:
        async with connected(declared(gone, id="one"), declared(server), declared(gone, id="two")):
            pass
    assert "'crm'" not in str(caught.value)


async def test_an_optional_server_is_absent_with_a_warning_and_comes_back_by_itself(protocol: str) -> None:
    with FakeMcpServer() as server:
        pass
    back = asyncio.Event()
    options = {"retry_seconds": (0.02,), "on_change": lambda server_id: back.set()}
    async with connected(declared(server, protocol, required=False), **options) as kit:
        assert kit.tools == {}
        assert kit.clients.absent("crm")
        assert [f"MCP server 'crm' at http://127.0.0.1:{server.port}" in text for text in kit.clients.warnings] == [
            True
        ]
        assert await names_for(kit, "ann") == set()
        await asyncio.to_thread(server.start)
        try:
            await asyncio.wait_for(back.wait(), 120)
            assert not kit.clients.absent("crm")
            assert "echo" in await names_for(kit, "ann")
        finally:
            await asyncio.to_thread(server.stop)


async def test_first_use_lists_with_the_callers_identity_and_keeps_the_list_for_it_alone(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    server.require = lambda seen: seen.headers.get("x-user") != "nobody"
    async with connected(declared(server, protocol, discover="first_use"), registry=registry) as kit:
        assert kit.tools == {}
        assert server.log == []
        for user in ("ann", "bob", "ann", "bob"):
            assert "echo" in await names_for(kit, user)
        server.require = lambda seen: False
        with raises_text(McpServerError, "'crm'", "401"):
            await names_for(kit, "eve")
        assert "echo" in await names_for(kit, "ann")
    assert [one.headers["x-user"] for one in server.seen("tools/list")] == ["ann", "bob"]


async def test_a_hooks_failure_while_a_run_lists_is_its_own_error(
    server: FakeMcpServer, registry: HookRegistry
) -> None:

    async def broken(event: HookInvocation) -> McpRequestContext:
        raise LookupError("no")

    on_request(registry, broken, name="auth")
    async with connected(declared(server, discover="first_use"), registry=registry) as kit:
        with raises_text(HookExecutionError, "'auth'"):
            await names_for(kit, "ann")
    assert server.log == []


async def test_an_optional_first_use_server_that_is_down_has_no_tools_for_now() -> None:
    with FakeMcpServer() as server:
        pass
    async with connected(declared(server, discover="first_use", required=False)) as kit:
        assert await names_for(kit, "ann") == set()
        assert kit.clients.absent("crm")
        (warning,) = kit.clients.warnings
        assert "correct its url" in warning
        assert "required: false" not in warning
        await asyncio.to_thread(server.start)
        try:
            assert "echo" in await names_for(kit, "ann")
            assert not kit.clients.absent("crm")
        finally:
            await asyncio.to_thread(server.stop)


async def test_a_changed_list_is_asked_for_again(
    protocol: str, streaming: FakeMcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_engine.mcp.session.WATCH_SECONDS", 60.0)
    async with connected(declared(streaming, protocol)) as kit:
        assert "later" not in await names_for(kit, "ann")
        listing = kit.clients._remotes["crm"].listed(kit.clients.caller().identity)
        assert listing is not None
        assert listing.session is not None
        while not listing.session.watched:  # its own stream is opened while the tools are listed
            await asyncio.sleep(0.005)
        if protocol == "legacy":
            # This server tells a session of the older generation over that session alone.
            await kit.call("grow", kit.clients.caller().run_context, tool="later")
        else:
            await kit.call("grow", run_of("ann"), tool="later")
        while not listing.changed:
            await asyncio.sleep(0.005)
        tools = {tool.name: tool for tool in await kit.clients.tools_for(kit.clients.caller(run_of("ann")), "crm")}
        kit.tools = tools
        assert await kit.call("later") == "later"
    assert len(streaming.seen("tools/list")) == 2


async def test_a_list_that_cannot_be_asked_for_again_is_used_as_it_was(
    server: FakeMcpServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(declared(server)) as kit:
        listing = kit.clients._remotes["crm"].listed(kit.clients.caller().identity)
        assert listing is not None
        listing.changed = True
        await asyncio.to_thread(server.stop)
        assert "echo" in await names_for(kit, "ann")
        assert "'crm'" in caplog.text


async def test_names_that_collide_are_told_apart_and_reported(server: FakeMcpServer) -> None:
    with FakeMcpServer(json_response=True) as other:
        async with connected(declared(server), declared(other, id="erp"), taken_names=("picture",)) as kit:
            assert {"crm__echo", "erp__echo"} <= set(kit.tools)
            assert "echo" not in kit.tools
            assert await kit.call("erp__echo", text="hi") == "hi"
            assert len(other.seen("tools/call")) == 1
            assert server.seen("tools/call") == []
            assert kit.tools["erp__echo"].aliases == ("echo", "mcp__erp__echo")
            assert any("'erp__echo'" in text for text in kit.clients.warnings)


def test_a_name_once_given_stays_and_a_later_one_gives_way() -> None:
    names = Names()
    assert names.give([("a", "find"), ("a", "read")]) == []
    assert [names.of("a", "find"), names.of("a", "read")] == ["find", "read"]
    reports = names.give([("b", "find"), ("a", "find")])
    assert (names.of("a", "find"), names.of("b", "find")) == ("find", "b__find")
    assert reports == ["Tool 'find' of MCP server 'b' is named 'b__find': there is another tool of its own name."]


def test_names_that_models_do_not_accept_are_changed_and_stay_apart() -> None:
    names = Names()
    long = "tool_" * 30
    reports = names.give(
        [("s", "files/read.text"), ("s", "files_read_text"), ("s", long), ("s", long + "x"), ("s", "ü")]
    )
    given = [names.of("s", plain) for plain in ("files/read.text", "files_read_text", long, long + "x", "ü")]
    assert len(set(given)) == 5
    assert all(len(name) <= 64 and name.isascii() for name in given)
    assert len(reports) == 5
    assert model_name("echo-2") == "echo-2"


async def test_matchers_see_every_name_of_a_tool(server: FakeMcpServer) -> None:
    async with connected(declared(server)) as kit:
        assert kit.tools["echo"].aliases == ("crm__echo", "mcp__crm__echo")


async def test_resources_and_prompts_are_readable_by_the_application(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    async with connected(declared(server, protocol), registry=registry) as kit:
        clients, caller = kit.clients, kit.clients.caller(run_of("ann"))
        assert [one["uri"] for one in await clients.resources("crm", caller)] == ["memo://today"]
        assert [one["uri_template"] for one in await clients.resource_templates("crm", caller)] == ["memo://{day}"]
        assert await clients.read_resource("crm", "memo://monday", caller) == [
            {"uri": "memo://monday", "mime_type": "text/plain", "text": "memo of monday"}
        ]
        assert [one["name"] for one in await clients.prompts("crm", caller)] == ["greeting"]
        [message] = await clients.get_prompt("crm", "greeting", {"name": "Ann"}, caller)
        assert (message["role"], message["content"]["text"]) == ("user", "Say hello to Ann.")
        with pytest.raises(McpToolError, match="crm"):
            await clients.read_resource("crm", "nowhere://1", caller)
        with pytest.raises(KeyError, match="declared are: crm"):
            await clients.resources("other", caller)
    asked = server.seen("resources/list") + server.seen("resources/read") + server.seen("prompts/get")
    assert {one.headers["x-user"] for one in asked} == {"ann"}
