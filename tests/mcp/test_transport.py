"""The door by itself: what belongs to no call is not sent, and what a server says cannot make one call another's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from tests.fakes.clock import put_forward
from tests.fakes.mcp_server import FakeMcpServer
from tests.mcp.kit import Pairs, connected, identify, run_of

from agent_engine.hooks.managed import McpRequestContext, McpResponseContext
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.scope import HookScope
from agent_engine.mcp.call import CALL_HEADER, MAX_FOLLOWING, Call, Calls
from agent_engine.mcp.caller import Caller
from agent_engine.mcp.client import McpServer
from agent_engine.mcp.http_client import DoorClient
from agent_engine.mcp.transport import HttpDoor

URL = "http://h.example/mcp"


class Sent(httpx2.AsyncBaseTransport):
    """Keeps what would have gone out."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        self.headers: list[dict[str, str]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.headers.append(dict(request.headers))
        message = json.loads(request.content or b"{}")
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": {}}
        return httpx2.Response(200, json=answer) if "id" in message else httpx2.Response(202)


class Desk:
    """A door with its calls, and the client that the SDK would use."""

    def __init__(self, registry: HookRegistry) -> None:
        self.scope = HookScope(registry, with_default=False)
        self.caller = Caller(run_of("ann"), self.scope)
        self.calls = Calls(self.caller.identity_alone(self.scope, None))
        self.sent = Sent()
        self.door = HttpDoor(McpServer(id="crm", url=URL), self.sent, self.calls)
        self.client = DoorClient(self.door, URL, httpx2.Timeout(5))

    def call(self, user: str = "ann", operation: str = "tools/call") -> Call:
        call = Call(Caller(run_of(user), self.scope), operation)
        call.awaited = True
        self.calls.add(call)
        return call

    async def post(self, message: dict[str, Any], call_id: str | None = None, url: str = URL) -> httpx2.Response:
        headers = {} if call_id is None else {CALL_HEADER: call_id}
        return await self.client.send(self.client.build_request("POST", url, json=message, headers=headers))


@pytest.fixture
def desk(registry: HookRegistry) -> Desk:
    identify(registry)
    return Desk(registry)


def request(call_id: str, method: str = "tools/call") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method}


async def test_a_request_goes_out_for_the_call_that_it_names(desk: Desk) -> None:
    ann, bob = desk.call("ann"), desk.call("bob")
    for call in (bob, ann):
        answer = await desk.post(request(call.id), call.id)
        assert answer.json()["id"] == call.id
    assert [headers["x-user"] for headers in desk.sent.headers] == ["bob", "ann"]
    assert not any(CALL_HEADER in headers for headers in desk.sent.headers)
    assert "x-user" not in desk.sent.requests[0].headers, "what hooks set is gone from what the SDK holds"


async def test_a_request_that_belongs_to_no_call_is_not_sent(desk: Desk) -> None:
    ended = desk.call()
    desk.calls.discard(ended)
    for call_id in (None, ended.id, "c-nobody"):
        answer = await desk.post(request("c-5"), call_id)
        assert (answer.status_code, answer.json()["id"]) == (200, "c-5")
        assert "belongs to no call" in answer.json()["error"]["message"]
    assert desk.sent.requests == []


async def test_a_request_to_any_other_address_is_not_sent(desk: Desk) -> None:
    for url in (
        URL + "/",
        URL + "?a=1",
        "https://h.example/mcp",
        "http://h.example:81/mcp",
        "http://other.example/mcp",
    ):
        call = desk.call()
        answer = await desk.post(request(call.id), call.id, url)
        assert "error" in answer.json()
    assert desk.sent.requests == []


async def test_what_a_session_sends_by_itself_goes_out_for_its_identity_and_no_run(desk: Desk) -> None:
    await desk.client.request("GET", URL)
    await desk.client.request("DELETE", URL)
    await desk.post({"jsonrpc": "2.0", "id": 7, "result": {}})
    await desk.post({"jsonrpc": "2.0", "method": "notifications/progress"})
    assert [headers["x-user"] for headers in desk.sent.headers] == ["ann"] * 4
    assert [headers["x-run"] for headers in desk.sent.headers] == ["none"] * 4


async def test_a_stream_is_taken_up_for_its_call_and_for_none_where_a_server_repeats_an_id(desk: Desk) -> None:
    ann, bob = desk.call("ann"), desk.call("bob")
    desk.calls.received(ann, "e1")
    desk.calls.received(bob, "e2")
    assert (desk.calls.resuming("e1"), desk.calls.resuming("e2")) == (ann, bob)
    desk.calls.received(bob, "e1")
    assert desk.calls.resuming("e1") is None
    assert desk.calls.resuming("e2") is None
    desk.calls.received(ann, "e3")
    assert desk.calls.resuming("e3") is ann
    desk.calls.discard(ann)
    assert desk.calls.resuming("e3") is None


async def test_notifications_that_never_arrive_are_forgotten(desk: Desk) -> None:
    call = desk.call()
    made = [desk.calls.follow_up(call, "notifications/cancelled") for _ in range(MAX_FOLLOWING + 10)]
    assert desk.calls.find(made[0].id) is None
    assert desk.calls.find(made[-1].id) is made[-1]
    await desk.post({"jsonrpc": "2.0", "method": "notifications/cancelled"}, made[-1].id)
    assert desk.calls.find(made[-1].id) is None
    assert desk.sent.headers[-1]["x-run"] == "run-ann"


async def test_an_exception_of_any_kind_stays_out_of_the_sdk(desk: Desk) -> None:
    async def broken(request: httpx2.Request) -> httpx2.Response:
        raise ZeroDivisionError("planted")

    desk.sent.handle_async_request = broken  # type: ignore[method-assign]
    call = desk.call()
    answer = await desk.post(request(call.id), call.id)
    assert answer.json()["error"]["message"] == "The request was not answered"
    assert "planted" not in str(call.failure)
    assert "ZeroDivisionError" in str(call.failure)


async def test_the_time_of_hooks_is_not_the_servers(server: FakeMcpServer, registry: HookRegistry) -> None:
    @registry.on("before_mcp_request")
    async def slow(request: McpRequestContext) -> None:
        if request.tool_name:
            put_forward(61)

    declared = McpServer(id="crm", url=server.url, protocol="modern", timeout=60.0)
    async with connected(declared, registry=registry) as kit:
        assert await kit.call("echo", text="hi") == "hi"


async def test_a_hook_that_hears_of_the_end_may_take_its_time(
    protocol: Any, streaming: FakeMcpServer, registry: HookRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_engine.mcp.call.SETTLE_SECONDS", 0.02)
    heard: list[str] = []

    @registry.on("after_mcp_response")
    async def slow(response: McpResponseContext) -> None:
        if response.tool_name:
            await asyncio.sleep(0.2)
            heard.append(response.status)

    async with connected(McpServer(id="crm", url=streaming.url, protocol=protocol), registry=registry) as kit:
        assert await kit.call("progress", steps=1) == "done"
        assert heard == ["ok"]


async def test_a_server_that_accepts_a_subscription_and_says_nothing_holds_nothing_up(
    server: FakeMcpServer, registry: HookRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_engine.mcp.session.WATCH_SECONDS", 0.05)
    server.bare["subscriptions/listen"] = (200, b"text/event-stream", b": nothing\n\n")
    pairs = Pairs(registry)
    async with connected(McpServer(id="crm", url=server.url, protocol="modern"), registry=registry) as kit:
        assert await kit.call("echo", text="hi") == "hi"
    assert pairs.balance()


@pytest.mark.parametrize("kind", [RuntimeError, TimeoutError, ValueError])
async def test_a_strict_hooks_own_exception_reaches_the_caller_as_it_is(
    kind: type[Exception], protocol: Any, server: FakeMcpServer, registry: HookRegistry
) -> None:
    own = kind("mine")

    @registry.on("before_mcp_request")
    async def broken(request: McpRequestContext) -> None:
        raise own

    async with connected(McpServer(id="crm", url=server.url, protocol=protocol), discover=False) as kit:
        strict = Caller(run_of("ann"), HookScope(registry), strict=True)
        for _ in range(2):
            with pytest.raises(kind) as caught:
                await kit.clients.prompts("crm", strict)
            assert caught.value is own
    assert server.log == []
