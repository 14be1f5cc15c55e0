"""The door: every request passes it, hooks decide about each one, and no failure reaches past its own call."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from tests.fakes.clock import put_forward
from tests.fakes.mcp_server import FakeMcpServer
from tests.mcp.kit import Pairs, connected, identify, on_request, raises_text, run_of

from agent_engine.hooks.errors import GuardrailBlocked, HookExecutionError
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import HookInvocation, McpRequestContext, McpResponseContext
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookResult
from agent_engine.mcp.client import McpServer, McpToolError
from agent_engine.mcp.errors import McpServerError


def declared(server: FakeMcpServer, protocol: str = "modern", **options: Any) -> McpServer:
    return McpServer(id="crm", url=server.url, protocol=protocol, **options)  # type: ignore[arg-type]


async def test_each_request_has_a_pair_with_operation_tool_and_digest_of_what_was_sent(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    pairs = Pairs(registry)
    async with connected(declared(server, protocol), registry=registry) as kit:
        await kit.call("echo", text="hi")
    call = next(one for one in pairs.before if one.operation == "tools/call")
    sent = server.seen("tools/call")[0]
    assert (call.server_id, call.url, call.tool_name, call.method, call.attempt) == (
        "crm",
        server.url,
        "echo",
        "POST",
        1,
    )
    assert call.body_sha256 == hashlib.sha256(sent.body).hexdigest()
    closing = next(one for one in pairs.after if one.operation == "tools/call")
    assert (closing.status_code, closing.status, closing.tool_name, closing.error_type) == (200, "ok", "echo", None)
    assert closing.latency_ms is not None
    assert closing.latency_ms > 0
    expected = {
        "legacy": {"initialize", "notifications/initialized", "stream", "tools/list", "tools/call", "close"},
        "modern": {"server/discover", "subscriptions/listen", "tools/list", "tools/call"},
    }
    assert {one.operation for one in pairs.before} == expected[protocol]
    assert pairs.balance()
    assert len(pairs.before) == len(server.log)


async def test_after_mcp_response_fires_alone(protocol: str, server: FakeMcpServer, registry: HookRegistry) -> None:
    seen: list[McpResponseContext] = []

    @registry.on("after_mcp_response")
    async def after(response: McpResponseContext) -> None:
        seen.append(response)

    async with connected(declared(server, protocol), registry=registry) as kit:
        await kit.call("echo", text="hi")
    assert [one.status_code for one in seen if one.operation == "tools/call"] == [200]
    assert len(seen) == len(server.log)


async def test_the_url_is_the_requested_one_with_its_query_and_the_tool_tags(
    server: FakeMcpServer, registry: HookRegistry
) -> None:
    pairs = Pairs(registry)
    place = McpServer(
        id="crm",
        url=server.url + "?tenant=a%20b",
        protocol="modern",
        tool_tags=("read", "crm"),
        tool_tag_transport={"type": "query_param", "param_name": "tags"},
    )
    async with connected(place, registry=registry) as kit:
        await kit.call("echo", text="hi")
    sent = server.seen("tools/call")[0]
    assert pairs.before[-1].url == f"http://127.0.0.1:{server.port}{sent.path}?{sent.query}"
    assert sent.query == "tenant=a%20b&tags=read%2Ccrm"


async def test_tool_tags_travel_in_the_header_that_was_declared(server: FakeMcpServer) -> None:
    async with connected(declared(server, tool_tags=("read", "crm"))):
        pass
    other = {"type": "header", "header_name": "X-Tags"}
    async with connected(declared(server, tool_tags=("read",), tool_tag_transport=other)):
        pass
    lists = server.seen("tools/list")
    assert lists[0].headers["x-mcp-tool-tag"] == "read,crm"
    assert (lists[1].headers["x-tags"], "x-mcp-tool-tag" in lists[1].headers) == ("read", False)


async def test_headers_of_hooks_are_applied_last_and_those_of_the_protocol_cannot_be_set(
    server: FakeMcpServer, registry: HookRegistry
) -> None:
    wanted: dict[str, str] = {"User-Agent": "mine", "Accept-Language": "de"}

    async def some(event: HookInvocation) -> McpRequestContext:
        return event.payload_as(McpRequestContext).with_headers(wanted)

    async with connected(declared(server), registry=registry) as kit:
        on_request(registry, some)
        await kit.call("echo", text="hi")
        assert server.log[-1].headers["user-agent"] == "mine"
        for name in (
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "Mcp-Session-Id",
            "MCP-Protocol-Version",
            "Mcp-Name",
            "Connection",
        ):
            wanted = {name: "other.example"}
            with raises_text(McpToolError, "crm", repr(name)):
                await kit.call("echo", text="hi")
        before = len(server.log)
        for value in ("line\r\nInjected: yes", "Bearer tök", " padded ", 7, "nul\x00"):
            wanted = {"Authorization": value}  # type: ignore[dict-item]
            with raises_text(McpToolError, "'Authorization'") as caught:
                await kit.call("echo", text="hi")
            assert str(value).strip() not in str(caught.value)
        assert len(server.log) == before


async def test_two_hooks_that_disagree_on_a_header_send_neither_in_whatever_case_they_write_it(
    server: FakeMcpServer, registry: HookRegistry
) -> None:
    second = "Bearer of-bob"

    async def one(event: HookInvocation) -> McpRequestContext:
        return event.payload_as(McpRequestContext).with_headers({"Authorization": "Bearer of-ann"})

    async def other(event: HookInvocation) -> McpRequestContext:
        request = event.payload_as(McpRequestContext)
        request.headers["authorization"] = second
        return request

    async with connected(declared(server), registry=registry) as kit:
        on_request(registry, one)
        on_request(registry, other)
        before = len(server.log)
        with raises_text(McpToolError, "'authorization'", "two different texts") as caught:
            await kit.call("echo", text="hi")
        assert "Bearer" not in str(caught.value)
        assert len(server.log) == before
        second = "Bearer of-ann"
        assert await kit.call("whoami") == "nobody|Bearer of-ann|"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_error_and_nothing_a_hook_set_arrives_there(
    status: int, protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)

    async def more(event: HookInvocation) -> McpRequestContext:
        return event.payload_as(McpRequestContext).with_headers({"Cookie": "sid=planted", "X-Signature": "planted"})

    on_request(registry, more)
    with FakeMcpServer(json_response=True) as other:
        async with connected(declared(server, protocol), registry=registry) as kit:
            server.redirect_status = status
            places = [other.url, f"http://localhost:{other.port}/mcp", f"https://127.0.0.1:{server.port}/mcp", "/mcp/"]
            # Servers send people to a login, and repeat there what they were sent.
            places += ["/login/s3cret", f"{other.url}/token-of-ann"]
            for place in places:
                server.redirect = place + "?secret=s3cret"
                with raises_text(McpToolError, "'crm'", str(status), "not followed") as caught:
                    await kit.call("echo", run_of("ann"), text="hi")
                assert "s3cret" not in str(caught.value)
                assert "token-of" not in str(caught.value)
            server.redirect = None
            assert await kit.call("echo", run_of("ann"), text="hi") == "hi"
        assert other.log == []


async def test_cookies_that_a_server_sets_are_not_kept(protocol: str, server: FakeMcpServer) -> None:
    server.set_cookie = "sid=of-ann; Path=/"
    async with connected(declared(server, protocol)) as kit:
        await kit.call("echo", run_of("ann"), text="hi")
        await kit.call("echo", run_of("ann"), text="hi")
    assert not any("cookie" in one.headers for one in server.log)


async def test_after_a_401_the_hooks_are_asked_once_more(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    pairs = Pairs(registry)

    async def renewed(event: HookInvocation) -> McpRequestContext:
        request = event.payload_as(McpRequestContext)
        return request.with_headers({"Authorization": f"Bearer attempt-{request.attempt}"})

    on_request(registry, renewed)
    async with connected(declared(server, protocol), registry=registry) as kit:
        server.unauthorized = 1
        assert await kit.call("whoami") == "nobody|Bearer attempt-2|"
    calls = server.seen("tools/call")
    assert [one.headers["authorization"] for one in calls] == ["Bearer attempt-1", "Bearer attempt-2"]
    assert [one.attempt for one in pairs.before if one.operation == "tools/call"] == [1, 2]
    assert pairs.of("tools/call") == [(401, "error", "Unauthorized"), (200, "ok", None)]


async def test_a_second_401_is_a_clear_error_and_no_loop(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    identify(registry)
    async with connected(declared(server, protocol), registry=registry) as kit:
        await kit.call("echo", run_of("ann"), text="hi")
        server.unauthorized = -1
        with raises_text(McpToolError, "'crm'", "401", "asked once more"):
            await kit.call("echo", run_of("ann"), text="hi")
        assert len(server.seen("tools/call")) == 3
        server.unauthorized = 0
        assert await kit.call("echo", run_of("ann"), text="hi") == "hi"


async def test_a_401_where_no_hook_could_help_is_final_at_once(server: FakeMcpServer) -> None:
    async with connected(declared(server)) as kit:
        await kit.call("echo", text="hi")
        server.unauthorized = -1
        with raises_text(McpToolError, "'crm'", "401", "no before_mcp_request hook"):
            await kit.call("echo", text="hi")
    assert len(server.seen("tools/call")) == 2


async def beside(kit: Any, server: FakeMcpServer) -> asyncio.Task[Any]:
    """A call of the same identity that is under way, on the same session."""
    server.arrived.clear()
    task = asyncio.create_task(kit.call("sleep", run_of("ann", "run-beside"), seconds=0.3))
    assert await asyncio.to_thread(server.arrived.wait, 30)
    return task


async def test_a_hook_that_refuses_ends_its_own_call_and_nothing_else(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    refusing: set[str] = set()

    @registry.on("before_mcp_request", matcher="crm")
    async def policy(request: McpRequestContext) -> HookResult | None:
        return HookResult.deny("after hours") if request.tool_name in refusing else None

    pairs = Pairs(registry)
    async with connected(declared(server, protocol), registry=registry) as kit:
        other = await beside(kit, server)
        refusing.add("echo")
        with raises_text(McpToolError, "'crm'", "blocked by security policy", "after hours"):
            await kit.call("echo", run_of("ann"), text="hi")
        assert await other == "slept"
        sessions = kit.clients._remotes["crm"].pool
        assert len(sessions) == 2
        assert await kit.call("add", run_of("ann"), a=1, b=1) == {"sum": 2}
    assert [one.tool for one in server.seen("tools/call")] == ["sleep", "add"]
    assert not any(one.tool_name == "echo" for one in pairs.after), "a request that was not sent has no closing event"


async def test_a_hook_that_fails_raises_its_own_error_and_ends_nothing_else(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    broken: list[str] = []

    async def auth(event: HookInvocation) -> McpRequestContext:
        request = event.payload_as(McpRequestContext)
        if request.tool_name in broken:
            raise KeyError("the secret s3cret is missing")
        return request

    on_request(registry, auth, name="auth")
    async with connected(declared(server, protocol), registry=registry) as kit:
        other = await beside(kit, server)
        broken.append("echo")
        with raises_text(HookExecutionError, "'auth'", "before_mcp_request", "KeyError") as caught:
            await kit.call("echo", run_of("ann"), text="hi")
        assert isinstance(caught.value.cause, KeyError)
        assert "s3cret" not in str(caught.value)
        assert await other == "slept"
        broken.clear()
        assert await kit.call("echo", run_of("ann"), text="hi") == "hi"
    assert len(server.seen("tools/call")) == 2


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [("fail", HookExecutionError), ("deny", McpToolError), ("warn", None)],
    ids=["fail", "deny", "warn"],
)
async def test_the_failure_policy_of_a_hook_decides_what_its_failure_means(
    policy: str, outcome: type[Exception] | None, server: FakeMcpServer, registry: HookRegistry
) -> None:
    async with connected(declared(server), registry=registry) as kit:

        async def broken(event: HookInvocation) -> McpRequestContext:
            raise ValueError("no")

        on_request(registry, broken, failure_policy=policy)
        if outcome is None:
            assert await kit.call("echo", text="hi") == "hi"
        else:
            with pytest.raises(outcome) as caught:
                await kit.call("echo", text="hi")
            assert "no" not in str(caught.value).split()


async def test_guardrail_blocked_is_a_refusal_with_its_reason(server: FakeMcpServer, registry: HookRegistry) -> None:
    async with connected(declared(server), registry=registry) as kit:

        async def guard(event: HookInvocation) -> None:
            raise GuardrailBlocked("not today")

        on_request(registry, guard)
        with raises_text(McpToolError, "not today"):
            await kit.call("echo", text="hi")


async def test_a_hook_that_fails_after_the_response_fails_that_call(
    protocol: str, streaming: FakeMcpServer, registry: HookRegistry
) -> None:
    failing: list[str] = []

    async def after(response: McpResponseContext) -> None:
        if response.tool_name in failing:
            raise RuntimeError("audit is down")

    registry.register_function(HookEvent.AFTER_MCP_RESPONSE, after, failure_policy="fail", name="audit")
    async with connected(declared(streaming, protocol), registry=registry) as kit:
        failing.append("progress")
        with raises_text(HookExecutionError, "'audit'", "after_mcp_response"):
            await kit.call("progress", steps=1)
        assert await kit.call("echo", text="hi") == "hi"


async def test_at_discovery_a_refusal_fails_the_build_and_so_does_a_failing_hook(server: FakeMcpServer) -> None:
    refusing = HookRegistry()

    @refusing.on("before_mcp_request")
    async def no(request: McpRequestContext) -> HookResult:
        return HookResult.deny("not from here")

    with raises_text(McpServerError, "'crm'", "not from here"):
        async with connected(declared(server, required=False), registry=refusing):
            pass
    failing = HookRegistry()

    async def broken(event: HookInvocation) -> McpRequestContext:
        raise ValueError("no")

    on_request(failing, broken, name="auth")
    with raises_text(HookExecutionError, "'auth'"):
        async with connected(declared(server, required=False), registry=failing):
            pass
    assert server.log == []


async def test_hooks_can_be_limited_to_servers_and_agents(server: FakeMcpServer, registry: HookRegistry) -> None:
    seen: list[str] = []
    registry.register_function("before_mcp_request", lambda r: seen.append("crm"), servers=("crm",))
    registry.register_function("before_mcp_request", lambda r: seen.append("other"), servers=("other",))
    registry.register_function("before_mcp_request", lambda r: seen.append("sales"), agents=("sales",))
    async with connected(declared(server), registry=registry) as kit:
        await kit.call("echo", text="hi")
        seen.clear()
        await kit.tools["echo"].invoke({"text": "hi"}, kit.invocation(run_of("joe"), agent="sales"))
    assert seen == ["crm", "sales"]


async def test_a_call_that_is_cancelled_reaches_the_server_and_closes_its_pair(
    protocol: str, streaming: FakeMcpServer, registry: HookRegistry
) -> None:
    pairs = Pairs(registry)
    async with connected(declared(streaming, protocol), registry=registry) as kit:
        streaming.arrived.clear()
        task = asyncio.create_task(kit.call("sleep", run_of("ann"), seconds=600))
        assert await asyncio.to_thread(streaming.arrived.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pairs.of("tools/call") == [pairs.of("tools/call")[0]]
        assert pairs.of("tools/call")[0][1] == "cancelled"
        assert await kit.call("echo", run_of("ann"), text="hi") == "hi"
    assert pairs.balance()
    cancels = streaming.seen("notifications/cancelled")
    assert len(cancels) == (1 if protocol == "legacy" else 0), "the newer generation cancels by closing the request"


async def test_a_server_that_takes_too_long_is_one_clear_error(
    protocol: str, streaming: FakeMcpServer, registry: HookRegistry
) -> None:
    pairs = Pairs(registry)
    async with connected(declared(streaming, protocol, timeout=60.0), registry=registry) as kit:
        await kit.call("echo", text="hi")
        streaming.arrived.clear()
        late = asyncio.create_task(kit.call("sleep", seconds=600))
        assert await asyncio.to_thread(streaming.arrived.wait, 30)
        put_forward(60)
        with raises_text(McpToolError, "'crm'", "tools/call", "60 s"):
            await late
        assert await kit.call("echo", text="hi") == "hi"
    assert pairs.balance()
    assert [status for _, status, _ in pairs.of("tools/call")] == ["ok", "timed_out", "ok"]


async def test_killing_the_server_in_the_middle_of_a_call_is_one_error_and_the_next_call_works(
    protocol: str, registry: HookRegistry
) -> None:
    pairs = Pairs(registry)
    with FakeMcpServer(resumable=True) as server:
        async with connected(declared(server, protocol), registry=registry) as kit:
            assert await kit.call("echo", text="hi") == "hi"
            under_way = [asyncio.create_task(kit.call("sleep", run_of("joe"), seconds=600)) for _ in range(2)]
            while len(server.seen("tools/call", "sleep")) < 2:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(server.restart)
            for outcome in await asyncio.gather(*under_way, return_exceptions=True):
                assert isinstance(outcome, McpToolError), outcome
                assert "'crm'" in str(outcome)
            assert await kit.call("echo", text="hi") == "hi"
    assert pairs.balance()


async def test_a_server_that_is_down_is_a_tool_error_and_comes_back(
    protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    pairs = Pairs(registry)
    async with connected(declared(server, protocol), registry=registry) as kit:
        await asyncio.to_thread(server.stop)
        with raises_text(McpToolError, "'crm'", f"http://127.0.0.1:{server.port}"):
            await kit.call("echo", text="hi")
        assert (None, "error", "ConnectError") in [(a.status_code, a.status, a.error_type) for a in pairs.after]
        await asyncio.to_thread(server.start)
        assert await kit.call("echo", text="hi") == "hi"
    assert pairs.balance()


async def test_an_answer_that_is_cut_off_is_one_error(protocol: str, registry: HookRegistry) -> None:
    pairs = Pairs(registry)
    for json_response in (True, False):
        with FakeMcpServer(json_response=json_response) as server:
            async with connected(declared(server, protocol), registry=registry) as kit:
                server.cut.add("echo")
                with raises_text(McpToolError, "'crm'"):
                    await kit.call("echo", text="hi")
                server.cut.clear()
                assert await kit.call("echo", text="hi") == "hi"
    assert pairs.balance()


@pytest.mark.parametrize("status", [400, 403, 404, 413, 429, 500, 502, 503])
async def test_an_error_status_is_a_tool_error_that_names_it(
    status: int, protocol: str, server: FakeMcpServer, registry: HookRegistry
) -> None:
    pairs = Pairs(registry)
    async with connected(declared(server, protocol), registry=registry) as kit:
        await kit.call("echo", text="hi")
        server.statuses["tools/call"] = [status]
        if status == 404 and protocol == "legacy":
            assert await kit.call("echo", text="hi") == "hi", "a forgotten session is opened anew"
        else:
            with raises_text(McpToolError, "'crm'", str(status)):
                await kit.call("echo", text="hi")
        assert (status, "error", f"HTTP {status}") in pairs.of("tools/call")
        assert await kit.call("echo", text="hi") == "hi"


@pytest.mark.parametrize(
    "bare",
    [(200, b"text/html", b"<html>login</html>"), (200, b"application/json", b"{not json"), (202, b"text/plain", b"")],
    ids=["html", "no json", "202"],
)
async def test_an_answer_that_is_no_mcp_is_a_tool_error(
    bare: tuple[int, bytes, bytes], protocol: str, server: FakeMcpServer
) -> None:
    async with connected(declared(server, protocol)) as kit:
        server.bare["tools/call"] = bare
        with raises_text(McpToolError, "'crm'"):
            await kit.call("echo", text="hi")
        server.bare.clear()
        assert await kit.call("echo", text="hi") == "hi"
