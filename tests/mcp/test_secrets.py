"""A token that is planted in the run and on every request is nowhere to be found afterwards but at its server."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import mcp.shared._otel
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.fakes.clock import put_forward
from tests.fakes.mcp_server import FakeMcpServer
from tests.mcp.kit import connected, on_request, run_of

from agent_engine.hooks.managed import Context, HookInvocation, McpRequestContext
from agent_engine.hooks.registry import HookRegistry
from agent_engine.mcp.client import McpServer, McpToolError
from agent_engine.records.journal import HookRan, MemoryJournal, StepClosed, StepOpened

USER = "planted-9b41"
PLANTED = (f"token-of-{USER}", "sig-planted-77c2", "cookie-planted-51aa", "query-planted-3e08")


def planting(registry: HookRegistry) -> None:
    """A hook that puts secrets on every request, and breaks at one tool."""

    async def auth(event: HookInvocation) -> McpRequestContext:
        request = event.payload_as(McpRequestContext)
        token = event.run_context.auth_context.inbound_access_token if event.run_context else None
        if request.tool_name == "crash":
            raise ValueError("cannot sign")
        headers = {"Authorization": f"Bearer {token}", "X-Signature": PLANTED[1], "Cookie": f"sid={PLANTED[2]}"}
        return request.with_headers(headers)

    on_request(registry, auth, name="auth")
    registry.register_function("after_mcp_response", lambda response: None, name="after")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(mcp.shared._otel, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def everything_said(error: BaseException) -> Iterator[str]:
    """The text of an error, of all that hangs on it, and what its traceback shows, also of the engine's own frames."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield f"{one} {one!r}"
        own = [] if type(one).__module__ == "builtins" else [one.__cause__, one.__context__]
        left += own
        yield "".join(traceback.format_tb(one.__traceback__))
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if "/agent_engine/mcp/" in frame.f_code.co_filename or "/site-packages/" in frame.f_code.co_filename:
                yield repr(frame.f_locals)


def shown(value: Any) -> str:
    """An entry of the journal, as anything that writes it down would show it."""
    if isinstance(value, Context):
        return f"{value!r} {json.dumps(value.to_dict(), default=str)} {asdict(value)!r}"  # type: ignore[call-overload]
    if is_dataclass(value) and not isinstance(value, type):
        return repr(value) + " ".join(shown(getattr(value, str(one.name))) for one in fields(value))
    if isinstance(value, dict):
        return " ".join(shown(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set):
        return " ".join(shown(item) for item in value)
    return f"{value} {value!r}"


def find_planted(text: str, where: str, secrets: tuple[str, ...] = PLANTED) -> None:
    for secret in secrets:
        assert secret not in text, f"{secret} is in {where}"


async def provoke(server: FakeMcpServer, protocol: str, registry: HookRegistry, journal: MemoryJournal) -> list[Any]:
    """Every way in which a call can end; the errors."""
    errors: list[BaseException] = []
    declared = McpServer(
        id="crm",
        url=f"{server.url}?key={PLANTED[3]}",
        protocol=protocol,  # type: ignore[arg-type]
        timeout=60.0,
        max_result_bytes=50_000,
    )
    async with connected(declared, registry=registry, journal=journal) as kit:

        async def attempt(name: str, **arguments: Any) -> None:
            try:
                await kit.call(name, run_of(USER), **arguments)
            except Exception as error:  # noqa: BLE001 - each is looked at below
                errors.append(error)

        await attempt("echo", text="fine")
        await attempt("fail")
        await attempt("crash")
        server.arrived.clear()
        late = asyncio.create_task(attempt("sleep", seconds=600))
        assert await asyncio.to_thread(server.arrived.wait, 30)
        put_forward(60)
        await late
        await attempt("huge", size=60_000)
        server.unauthorized = -1
        await attempt("echo", text="401")
        server.unauthorized = 0
        server.redirect = f"http://127.0.0.1:1/{PLANTED[3]}?{PLANTED[3]}"
        await attempt("echo", text="307")
        server.redirect = None
        server.cut.add("echo")
        await attempt("echo", text="cut")
        server.cut.clear()
        server.bare["tools/call"] = (200, b"application/json", b"{broken")
        await attempt("echo", text="broken")
        server.bare.clear()
        server.statuses["tools/call"] = [503]
        await attempt("echo", text="503")
        server.arrived.clear()
        cancelled = asyncio.create_task(kit.call("sleep", run_of(USER), seconds=600))
        assert await asyncio.to_thread(server.arrived.wait, 30)
        cancelled.cancel()
        errors += [one for one in await asyncio.gather(cancelled, return_exceptions=True) if isinstance(one, Exception)]
        for thing in gc.get_objects():
            if str(type(thing).__module__).startswith("agent_engine.mcp"):
                find_planted(repr(thing), f"the repr of a {type(thing).__name__}")
        await asyncio.to_thread(server.stop)
        await attempt("echo", text="down")
    return errors


async def test_planted_secrets_are_found_nowhere(
    protocol: str, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter, registry: HookRegistry
) -> None:
    caplog.set_level(logging.DEBUG)
    planting(registry)
    journal = MemoryJournal(wants_payloads=True)
    with FakeMcpServer(json_response=protocol == "modern") as server:
        errors = await provoke(server, protocol, registry, journal)
        assert len(errors) == 10
        assert len([one for one in errors if isinstance(one, McpToolError)]) == 9
        assert {one.headers["authorization"] for one in server.seen("tools/call")} == {f"Bearer {PLANTED[0]}"}
    for error in errors:
        for text in everything_said(error):
            find_planted(text, f"the error {type(error).__name__}: {error}")
    for record in caplog.records:
        find_planted(f"{record.getMessage()} {record.exc_text or ''} {record.args!r}", f"the log of {record.name}")
    entries = list(journal.entries)
    assert {type(entry) for entry in entries} == {HookRan, StepOpened, StepClosed}
    for entry in entries:
        # Payloads are kept on an explicit wish alone, and the url is one: exactly as requested, with its query.
        find_planted(shown(entry), f"a record: {type(entry).__name__}", PLANTED[:3])
    finished = spans.get_finished_spans()
    assert any("tools/call" in span.name for span in finished)
    for span in finished:
        find_planted(span.to_json(), f"the span {span.name}")


async def test_every_step_of_the_record_is_closed(protocol: str, registry: HookRegistry) -> None:
    planting(registry)
    journal = MemoryJournal()
    with FakeMcpServer(json_response=protocol == "modern") as server:
        await provoke(server, protocol, registry, journal)
    opened = [entry.step_id for entry in journal.entries if isinstance(entry, StepOpened)]
    closed = [entry.step_id for entry in journal.entries if isinstance(entry, StepClosed)]
    assert sorted(opened) == sorted(closed)
    assert len(set(opened)) == len(opened)
    steps = {entry.step_id: entry for entry in journal.entries if isinstance(entry, StepOpened)}
    ran = [entry for entry in journal.entries if isinstance(entry, HookRan)]
    assert {entry.step_id for entry in ran} <= set(opened)
    assert {entry.run_id for entry in ran} == {f"run-{USER}", None}
    assert all(steps[str(entry.step_id)].run_id == (entry.run_id or "") for entry in ran)
    outcomes = {entry.outcome for entry in journal.entries if isinstance(entry, StepClosed)}
    assert outcomes == {"ran", "failed", "cancelled"}
    crash = next(entry for entry in ran if entry.run.broke)
    ending = next(e for e in journal.entries if isinstance(e, StepClosed) and e.step_id == crash.step_id)
    assert (ending.outcome, ending.error_type) == ("failed", "HookExecutionError")


def test_what_holds_a_credential_is_not_pickled_and_shows_it_to_nobody() -> None:
    server = McpServer(id="crm", url=f"https://example.com/{PLANTED[0]}?key={PLANTED[3]}", timeout=1.0)
    request = McpRequestContext(server_id="crm").with_headers({"Authorization": PLANTED[0]})
    for thing in (run_of(USER), request):
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        find_planted(f"{thing!r} {thing} {json.dumps(thing.to_dict(), default=str)}", "a context")
    find_planted(f"{server!r} {server.where}", "a declaration")
