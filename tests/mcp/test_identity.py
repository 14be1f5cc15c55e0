"""Each request carries the identity of the run that makes it, and of no other; the server's own log shows it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import random
from typing import Any

from tests.fakes.mcp_server import FakeMcpServer, Seen
from tests.mcp.kit import Kit, connected, identify, run_of

from agent_engine.hooks.registry import HookRegistry
from agent_engine.mcp.caller import Caller, Identity
from agent_engine.mcp.client import McpServer

USERS = 50
OPENING = ("initialize", "notifications/initialized", "server/discover")


async def sometimes_slow() -> None:
    """Mixes up the order in which requests leave."""
    await asyncio.sleep(random.choice((0, 0, 0.001, 0.004)))


def test_the_sdk_is_the_one_that_was_asked_for() -> None:
    wanted = os.environ.get("AGENT_ENGINE_TEST_MCP_VERSION")
    assert wanted in (None, importlib.metadata.version("mcp"))


def check_log(server: FakeMcpServer) -> None:
    """Every line of the server's log fits together: user, token and run, and each session is one user's."""
    owner_of_request = {one.message.get("id"): one for one in server.seen("tools/call")}
    users_of_session: dict[str, set[str]] = {}
    for one in server.log:
        user, run, token = (one.headers.get(name) for name in ("x-user", "x-run", "authorization"))
        assert user is not None, f"{one.operation} was not stamped"
        assert "x-agent-engine-call" not in one.headers
        assert token == (None if user == "nobody" else f"Bearer token-of-{user}")
        if one.tool is not None:
            assert one.arguments["note"] == run, "a call went out with another run's headers"
        if one.tool is not None or one.operation in OPENING:
            assert user == "nobody" or run is not None
            assert run == "none" or str(run).startswith(f"run-{user}-")
        elif one.operation == "GET" and "last-event-id" in one.headers and _stream(server, one) in owner_of_request:
            assert run == owner_of_request[_stream(server, one)].headers["x-run"], (
                "a stream was resumed for another run"
            )
        elif one.operation in ("GET", "DELETE"):
            assert run == "none", "what a session sends by itself belongs to no run"
        if session := one.headers.get("mcp-session-id"):
            users_of_session.setdefault(session, set()).add(user)
    assert all(len(users) == 1 for users in users_of_session.values())


def _stream(server: FakeMcpServer, resumed: Seen) -> str:
    event = int(resumed.headers["last-event-id"].removeprefix("e"))
    return server.events.kept[event - 1][0]


async def one_run(kit: Kit, user: str, number: int, barrier: asyncio.Barrier) -> None:
    run_id = f"run-{user}-{number}"
    context = run_of(user, run_id)
    await barrier.wait()
    seen = await kit.call("whoami", context, note=run_id)
    assert seen == f"{user}|Bearer token-of-{user}|{run_id}"
    told: list[Any] = []
    progress = kit.tools["progress"].invoke({"steps": 2, "note": run_id}, kit.invocation(context, progress=told.append))
    resumed = kit.call("broken_stream", context, note=run_id)
    assert await asyncio.gather(progress, resumed) == ["done", f"resumed {run_id}"]
    assert all(part["total"] == 2.0 for part in told)


async def test_fifty_runs_with_fifty_identities_each_carry_their_own(protocol: str, registry: HookRegistry) -> None:
    identify(registry, sometimes_slow)
    with FakeMcpServer(resumable=True) as server:
        async with connected(McpServer(id="crm", url=server.url, protocol=protocol), registry=registry) as kit:
            users = [f"u{number}" for number in range(USERS)]
            # Every fifth identity has two runs at once, which share its session.
            runs = [(user, 0) for user in users] + [(user, 1) for user in users[::5]]
            barrier = asyncio.Barrier(len(runs))
            await asyncio.gather(*(one_run(kit, user, number, barrier) for user, number in runs))
            server.forget_sessions()
            again = (kit.call("whoami", run_of(user, f"run-{user}-2"), note=f"run-{user}-2") for user in users)
            assert len(set(await asyncio.gather(*again))) == len(users)
        calls = server.seen("tools/call")
        assert len([one for one in calls if one.status == 200]) == 3 * len(runs) + len(users)
        assert {one.headers["x-user"] for one in calls} == set(users)
        check_log(server)
        if protocol == "legacy":
            resumed = [one for one in server.seen("GET") if "last-event-id" in one.headers]
            assert len(resumed) >= len(runs)
            # One session for each identity, one for discovery, and as many again after they were forgotten.
            assert len(server.seen("initialize")) == USERS + 1 + USERS
        else:
            assert len(server.seen("server/discover")) == USERS + 1


async def test_three_runs_at_once_see_the_server_echo_their_own_header(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    async with connected(McpServer(id="crm", url=server.url, protocol=protocol), registry=registry) as kit:
        answers = await asyncio.gather(*(kit.call("whoami", run_of(user)) for user in ("ann", "bob", "cid")))
    assert answers == [f"{user}|Bearer token-of-{user}|" for user in ("ann", "bob", "cid")]


async def test_runs_of_one_identity_share_a_session_and_keep_their_own_run(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    async with connected(McpServer(id="crm", url=server.url, protocol=protocol), registry=registry) as kit:
        runs = [f"run-ann-{number}" for number in range(8)]
        await asyncio.gather(*(kit.call("whoami", run_of("ann", run_id), note=run_id) for run_id in runs))
    calls = server.seen("tools/call")
    assert sorted(one.headers["x-run"] for one in calls) == runs
    assert all(one.arguments["note"] == one.headers["x-run"] for one in calls)
    assert len({one.headers.get("mcp-session-id") for one in calls}) == 1
    opened = server.seen("initialize") + server.seen("server/discover")
    assert [one.headers["x-user"] for one in opened] == ["nobody", "ann"]


async def test_a_call_without_an_identity_does_not_get_another_ones(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    async with connected(McpServer(id="crm", url=server.url, protocol=protocol), registry=registry) as kit:
        await kit.call("whoami", run_of("ann"))
        anonymous = kit.clients.caller().run_context.replace(run_id="run-nobody-1")
        assert await kit.call("whoami", anonymous) == "nobody|none|"


async def test_the_same_user_with_another_token_gets_a_session_of_its_own(
    server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    async with connected(McpServer(id="crm", url=server.url, protocol="legacy"), registry=registry) as kit:
        first = run_of("ann")
        second = first.replace(auth_context=first.auth_context.replace(inbound_access_token="token-of-ann-renewed"))
        assert await kit.call("whoami", first) == "ann|Bearer token-of-ann|"
        assert await kit.call("whoami", second) == "ann|Bearer token-of-ann-renewed|"
    sessions = {one.headers["mcp-session-id"] for one in server.seen("tools/call")}
    assert len(sessions) == 2


async def test_the_opening_of_a_session_passes_to_the_next_run_when_its_own_is_cancelled(
    server: FakeMcpServer, registry: HookRegistry
) -> None:
    entered = asyncio.Event()
    first_time = True

    async def hold_the_first() -> None:
        nonlocal first_time
        if first_time:
            first_time = False
            entered.set()
            await asyncio.Event().wait()

    async with connected(McpServer(id="crm", url=server.url, protocol="legacy"), registry=registry) as kit:
        identify(registry, hold_the_first)
        cancelled = asyncio.create_task(kit.call("whoami", run_of("ann", "run-ann-1")))
        await entered.wait()
        waiting = asyncio.create_task(kit.call("whoami", run_of("ann", "run-ann-2")))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await waiting == "ann|Bearer token-of-ann|"
        assert (await asyncio.gather(cancelled, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    mine = [one for one in server.log if one.headers.get("x-user") == "ann"]
    assert {one.headers["x-run"] for one in mine if one.operation in (*OPENING, "tools/call")} == {"run-ann-2"}


def test_an_identity_does_not_show_its_token_and_a_caller_neither() -> None:
    kit = Kit(HookRegistry())
    caller = Caller(run_of("ann"), kit.scope)
    assert "token-of-ann" not in repr(caller) + repr(caller.identity) + str(tuple(caller.identity))
    assert caller.identity == Identity.of(run_of("ann", "another-run"))
    assert caller.identity != Identity.of(run_of("bob"))
