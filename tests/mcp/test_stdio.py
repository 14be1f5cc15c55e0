"""Servers over stdio: the same two events, credentials through the environment alone, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.clock import put_forward
from tests.fakes.processes import none_left, processes_of
from tests.mcp.kit import Kit, Pairs, connected, on_request, raises_text, run_of

from agent_engine.hooks.errors import HookExecutionError
from agent_engine.hooks.managed import HookInvocation, McpRequestContext
from agent_engine.hooks.process import SAFE_ENVIRONMENT
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookResult
from agent_engine.mcp.client import McpServer, McpServerError, McpToolError

FAKES = Path(__file__).parent.parent / "fakes"


def declared(*arguments: str, **options: Any) -> McpServer:
    options.setdefault("args", (str(FAKES / "stdio_server.py"), *arguments))
    return McpServer(id="files", command=sys.executable, **options)


@pytest.fixture
def marked() -> dict[str, str]:
    """A variable by which the processes of one test are known."""
    return {"MARKER": f"test-{os.urandom(8).hex()}"}


async def test_a_server_on_the_sdk_is_listed_called_and_told_of_progress() -> None:
    server = declared(args=(str(FAKES / "mcp_server.py"),))
    async with connected(server) as kit:
        assert await kit.call("echo", text="grüß dich") == "grüß dich"
        assert await kit.call("add", a=1, b=2) == {"sum": 3}
        with pytest.raises(McpToolError, match="no such customer"):
            await kit.call("fail")
        told: list[Any] = []
        invocation = kit.invocation(run_of("joe"), progress=told.append)
        assert await kit.tools["progress"].invoke({"steps": 2}, invocation) == "done"
        assert [part["progress"] for part in told] == [1.0, 2.0]
        assert [one["uri"] for one in await kit.clients.resources("files")] == ["memo://today"]


async def test_each_request_has_a_pair_with_no_status(registry: HookRegistry) -> None:
    pairs = Pairs(registry)
    async with connected(declared(), registry=registry) as kit:
        await kit.call("echo", text="hi")
    call = next(one for one in pairs.before if one.operation == "tools/call")
    assert (call.url, call.tool_name, call.server_id, call.attempt) == ("stdio:files", "echo", "files", 1)
    assert pairs.of("tools/call") == [(None, "ok", None)]
    assert pairs.balance()


async def test_headers_are_a_failure_of_the_hook_that_sets_them(registry: HookRegistry) -> None:
    async def auth(event: HookInvocation) -> McpRequestContext:
        return event.payload_as(McpRequestContext).with_headers({"Authorization": "Bearer planted"})

    async with connected(declared(), registry=registry) as kit:
        on_request(registry, auth, name="auth")
        with raises_text(HookExecutionError, "'auth'", "before_mcp_request") as caught:
            await kit.call("echo", text="hi")
        assert "pass_env" in str(caught.value.cause)
        registry.clear()
        registry.register_function(
            "before_mcp_request", lambda request: McpRequestContext(headers={"Authorization": "Bearer planted"})
        )
        with raises_text(McpToolError, "'files'") as refused:
            await kit.call("echo", text="hi")
        assert "planted" not in str(refused.value)


async def test_a_hook_that_refuses_ends_its_own_call(registry: HookRegistry) -> None:
    refuse = HookResult.deny("no")
    registry.register_function("before_mcp_request", lambda r: refuse if r.tool_name == "die" else None)
    async with connected(declared(), registry=registry) as kit:
        with raises_text(McpToolError, "'files'", "Reason: no"):
            await kit.call("die")
        assert await kit.call("echo", text="hi") == "hi"


async def test_a_process_inherits_what_was_declared_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILES_TOKEN", "passed")
    monkeypatch.setenv("OTHER_TOKEN", "planted")
    async with connected(declared(env={"MODE": "test"}, pass_env=("FILES_TOKEN", "NOT_SET"))) as kit:
        inherited = json.loads(await kit.call("environment"))
    assert (inherited["FILES_TOKEN"], inherited["MODE"]) == ("passed", "test")
    allowed = {*SAFE_ENVIRONMENT, "FILES_TOKEN", "MODE", "__CF_USER_TEXT_ENCODING"}
    assert set(inherited) <= allowed


async def test_each_identity_has_a_process_of_its_own(marked: dict[str, str]) -> None:
    async with connected(declared(env=marked)) as kit:
        await asyncio.gather(*(kit.call("echo", run_of(user), text=user) for user in ("ann", "bob")))
        assert len(processes_of(marked["MARKER"])) == 3
    await none_left(marked["MARKER"])


async def die(kit: Kit) -> None:
    with raises_text(McpToolError, "'files'", "ended before it answered"):
        await kit.call("die")


async def hang(kit: Kit) -> None:
    await kit.call("echo", text="its process has begun")
    call = asyncio.create_task(kit.call("hang"))
    while not call.done():
        put_forward(60)
        await asyncio.sleep(0.01)
    with raises_text(McpToolError, "'files'", "did not answer tools/call within"):
        await call


async def flood(kit: Kit) -> None:
    with raises_text(McpToolError, "'files'"):
        await kit.call("flood")


async def flood_with_lines(kit: Kit) -> None:
    with raises_text(McpToolError, "'files'"):
        await kit.call("flood", lines=True)


async def spawn(kit: Kit) -> None:
    assert int(await kit.call("spawn")) > 0


async def huge(kit: Kit) -> None:
    with raises_text(McpToolError, "'files'", "100,000 bytes"):
        await kit.call("huge", size=200_000)
    assert await kit.call("echo", text="still there") == "still there"


@pytest.mark.parametrize("mischief", [die, hang, flood, flood_with_lines, spawn, huge], ids=lambda one: one.__name__)
async def test_a_broken_server_takes_nothing_down_and_leaves_no_process(
    mischief: Callable[[Kit], Any], marked: dict[str, str], registry: HookRegistry
) -> None:
    pairs = Pairs(registry)
    server = declared(env=marked, timeout=60.0, max_result_bytes=100_000)
    async with connected(server, registry=registry) as kit:
        await mischief(kit)
        assert await kit.call("echo", run_of("another"), text="hi") == "hi"
        assert await kit.call("echo", text="hi") == "hi"
    await none_left(marked["MARKER"])
    assert pairs.balance()


async def test_a_careless_print_is_no_message(marked: dict[str, str]) -> None:
    async with connected(declared(env=marked)) as kit:
        assert await kit.call("noise") == "noisy"
        assert await kit.call("echo", text="hi") == "hi"


async def test_a_server_that_does_not_end_by_itself_is_ended(marked: dict[str, str]) -> None:
    async with connected(declared("--stay", env=marked)) as kit:
        await kit.call("echo", text="hi")
    await none_left(marked["MARKER"])


async def test_a_cancelled_call_leaves_the_session_in_use(marked: dict[str, str], registry: HookRegistry) -> None:
    pairs = Pairs(registry)
    async with connected(declared(env=marked), registry=registry) as kit:
        await kit.call("echo", text="hi")
        task = asyncio.create_task(kit.call("hang"))
        while not any(one.tool_name == "hang" for one in pairs.before):
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert pairs.of("tools/call")[-1] == (None, "cancelled", "CancelledError")
    await none_left(marked["MARKER"])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"command": "no-such-program-7f3a"}, ("no-such-program-7f3a", "No such file")),
        ({"command": sys.executable, "cwd": "/no/such/folder"}, ("/no/such/folder", "does not exist")),
        ({"command": "/dev/null"}, ("/dev/null", "Permission denied")),
        ({"command": sys.executable, "args": ("-c", "raise SystemExit(3)")}, ("ended before it answered",)),
    ],
    ids=["no program", "no folder", "not executable", "ends at once"],
)
async def test_a_server_that_cannot_be_started_stops_the_build_with_one_sentence(
    options: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with raises_text(McpServerError, "'files'", "correct its command", "required: false", *parts) as caught:
        async with connected(McpServer(id="files", **options)):
            pass
    assert "\n" not in str(caught.value)


async def test_a_server_that_never_says_a_word_stops_the_build_in_time(marked: dict[str, str]) -> None:
    with raises_text(McpServerError, "'files'", "did not answer"):
        async with connected(declared("--deaf", env=marked, timeout=0.5)):
            pass
    await none_left(marked["MARKER"])


PROGRAM = """
import asyncio, sys
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.scope import HookScope
from agent_engine.mcp.client import McpClients, McpServer

server = McpServer(id="files", command=sys.executable, args=(sys.argv[1], "--stay"), env={"MARK": sys.argv[2]})
clients = McpClients([server], HookScope(HookRegistry()))
asyncio.new_event_loop().run_until_complete(clients.discover())
"""


async def test_a_program_that_ends_without_closing_its_engine_leaves_no_server_behind() -> None:
    marker = f"left-behind-{os.getpid()}"
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(FAKES / "stdio_server.py"), marker, stderr=asyncio.subprocess.DEVNULL
    )
    assert await asyncio.wait_for(program.wait(), 300) == 0
    await none_left(marker)
