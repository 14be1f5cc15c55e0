"""Sessions: opened when needed, reused, replaced when broken, closed when idle, and never more than allowed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.clock import put_forward
from tests.fakes.mcp_server import FakeMcpServer
from tests.mcp.kit import Pairs, connected, identify, raises_text, run_of

from agent_engine.hooks.registry import HookRegistry
from agent_engine.mcp.client import McpServer, McpToolError
from agent_engine.mcp.pool import IDLE_SECONDS, MAX_SESSIONS


def declared(server: FakeMcpServer, protocol: str = "legacy", **options: Any) -> McpServer:
    return McpServer(id="crm", url=server.url, protocol=protocol, **options)  # type: ignore[arg-type]


def test_the_declared_bounds_are_five_minutes_and_a_hundred_sessions() -> None:
    assert (IDLE_SECONDS, MAX_SESSIONS) == (300.0, 100)


async def test_a_call_on_an_open_session_costs_one_request(protocol: str, server: FakeMcpServer) -> None:
    async with connected(declared(server, protocol)) as kit:
        await kit.call("echo", text="first")
        before = len(server.log)
        for number in range(5):
            await kit.call("add", a=number, b=1)
        assert [one.operation for one in server.log[before:]] == ["tools/call"] * 5


async def test_nothing_is_opened_before_it_is_needed(server: FakeMcpServer) -> None:
    async with connected(declared(server), discover=False):
        pass
    assert server.log == []


async def test_one_session_is_opened_however_many_calls_need_it_at_once(protocol: str, server: FakeMcpServer) -> None:
    async with connected(declared(server, protocol)) as kit:
        await asyncio.gather(*(kit.call("echo", run_of("ann"), text=str(number)) for number in range(10)))
    opened = server.seen("initialize") + server.seen("server/discover")
    assert len(opened) == 2, "one for discovery and one for the caller"


async def test_a_session_that_the_server_has_forgotten_is_opened_anew(
    server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    pairs = Pairs(registry)
    async with connected(declared(server), registry=registry) as kit:
        await kit.call("whoami", run_of("ann"))
        server.forget_sessions()
        answers = await asyncio.gather(
            *(kit.call("whoami", run_of("ann", f"run-{n}"), note=f"run-{n}") for n in range(4))
        )
        assert answers == [f"ann|Bearer token-of-ann|run-{n}" for n in range(4)]
    assert pairs.balance()
    assert len([one for one in server.seen("initialize") if one.headers["x-user"] == "ann"]) == 2
    assert all(one.headers["x-run"] == one.arguments["note"] for one in server.seen("tools/call") if one.arguments)


async def test_an_idle_session_is_closed_and_the_next_call_opens_another(
    server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    async with connected(declared(server), registry=registry, idle_seconds=0.05) as kit:
        pool = kit.clients._remotes["crm"].pool
        await kit.call("echo", run_of("ann"), text="hi")
        while len(pool) or not {"nobody", "ann"} <= {one.headers["x-user"] for one in server.seen("DELETE")}:
            await asyncio.sleep(0.01)
        assert await kit.call("echo", run_of("ann"), text="hi") == "hi"
    sessions = [one.headers["mcp-session-id"] for one in server.seen("tools/call")]
    assert len(set(sessions)) == 2
    assert {one.headers["mcp-session-id"] for one in server.seen("DELETE")} >= set(sessions)


async def test_a_session_in_use_is_not_idle(server: FakeMcpServer) -> None:
    async with connected(declared(server), idle_seconds=0.02) as kit:
        assert await kit.call("sleep", seconds=0.2) == "slept"


async def test_the_session_unused_for_longest_makes_room(server: FakeMcpServer, registry: HookRegistry) -> None:
    identify(registry)
    async with connected(declared(server), registry=registry, discover=False, max_sessions=2) as kit:
        kit.tools = {tool.name: tool for tool in await kit.clients.discover()}
        for user in ("ann", "bob", "ann", "cid"):
            await kit.call("echo", run_of(user), text="hi")
            assert len(kit.clients._remotes["crm"].pool) <= 2
        await kit.call("echo", run_of("ann"), text="hi")
    openings = [one.headers["x-user"] for one in server.seen("initialize")]
    assert openings == ["nobody", "ann", "bob", "cid"], "ann was used last but one, so bob had to go"


async def test_where_all_sessions_are_in_use_the_next_caller_waits(server: FakeMcpServer) -> None:
    async with connected(declared(server), max_sessions=2) as kit:
        users = [f"u{number}" for number in range(6)]
        results = await asyncio.gather(*(kit.call("sleep", run_of(user), seconds=0.05) for user in users))
        assert results == ["slept"] * 6
        assert len(kit.clients._remotes["crm"].pool) <= 2


async def test_a_caller_that_waits_for_a_session_in_vain_is_told(server: FakeMcpServer) -> None:
    async with connected(declared(server, timeout=60), max_sessions=1) as kit:
        pool = kit.clients._remotes["crm"].pool
        async with pool.session(kit.clients.caller(run_of("ann"))):
            waiting = asyncio.create_task(kit.call("echo", run_of("bob"), text="hi"))
            while not pool._waiting:
                await asyncio.sleep(0)
            put_forward(60)
            with raises_text(McpToolError, "'crm'", "All 1 sessions"):
                await waiting
        assert await kit.call("echo", run_of("bob"), text="hi") == "hi"


async def test_closing_ends_every_session_and_leaves_no_task(protocol: str, streaming: FakeMcpServer) -> None:
    before = asyncio.all_tasks()
    async with connected(declared(streaming, protocol)) as kit:
        await asyncio.gather(*(kit.call("echo", run_of(f"u{number}"), text="hi") for number in range(5)))
        await kit.clients.aclose()
        await kit.clients.aclose()
        with raises_text(McpToolError, "'crm'", "closed"):
            await kit.call("echo", run_of("ann"), text="hi")
    if protocol == "legacy":
        assert len(streaming.seen("DELETE")) == 6
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_closing_cuts_a_call_that_is_under_way_with_an_error(protocol: str, streaming: FakeMcpServer) -> None:
    async with connected(declared(streaming, protocol)) as kit:
        streaming.arrived.clear()
        call = asyncio.create_task(kit.call("sleep", seconds=600))
        assert await asyncio.to_thread(streaming.arrived.wait, 30)
        await kit.clients.aclose()
        with pytest.raises(McpToolError):
            await call


async def test_a_server_that_does_not_answer_the_goodbye_holds_nothing_up(server: FakeMcpServer) -> None:
    async with connected(declared(server)) as kit:
        await kit.call("echo", text="hi")
        await asyncio.to_thread(server.stop)


async def test_the_older_generation_is_asked_for_once(server: FakeMcpServer) -> None:
    server.statuses["server/discover"] = [404] * 10
    async with connected(declared(server, "auto")) as kit:
        await asyncio.gather(*(kit.call("echo", run_of(f"u{number}"), text="hi") for number in range(4)))
    assert len(server.seen("server/discover")) == 1
    assert len(server.seen("initialize")) == 5


async def test_the_newer_generation_alone_is_an_error_where_it_is_not_spoken(server: FakeMcpServer) -> None:
    server.statuses["server/discover"] = [404]
    with pytest.raises(Exception, match="crm"):
        async with connected(declared(server, "modern")):
            pass
    assert server.seen("initialize") == []


async def test_a_client_is_used_in_the_loop_that_entered_it(server: FakeMcpServer) -> None:
    async with connected(declared(server)) as kit:

        def elsewhere() -> None:
            asyncio.run(kit.call("echo", text="hi"))

        with pytest.raises(RuntimeError, match="event loop"):
            await asyncio.to_thread(elsewhere)
