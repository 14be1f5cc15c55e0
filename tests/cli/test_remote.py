"""chat and approvals against a server at a URL, over a real socket.

The server here speaks the HTTP API's shapes and nothing more, so that each answer can be chosen.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.cli.office import agentctl

ASK = {"call_id": "c1", "tool_name": "cancel_order", "arguments": {"number": "A-17"}, "agent": "clerk", "reason": None}


class Api:
    """What the server was asked, and what it says."""

    def __init__(self) -> None:
        self.token: str | None = None
        self.asked: list[tuple[str, dict]] = []
        self.decided: list[dict] = []
        self.url = ""

    def refused(self, request: Request) -> Response | None:
        if self.token is None or request.headers.get("authorization") == f"Bearer {self.token}":
            return None
        error = {"code": "unauthorized", "message": "A token is needed.", "request_id": "r-1"}
        return JSONResponse({"error": error}, status_code=401)

    async def health(self, request: Request) -> Response:
        return self.refused(request) or JSONResponse({"status": "ok"})

    async def stream(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append((body["session_id"], body))
        events = [
            ("tool_started", {"call_id": "c1", "tool_name": "order_status", "agent": "clerk"}),
            ("hook", {"event": "before_tool", "hook": "rules", "decision": "deny", "reason": "closed"}),
            ("text", {"text": "You said "}),
            ("text", {"text": body["message"]}),
            ("final", {"output": f"You said {body['message']}", "status": "completed", "pending": []}),
        ]
        if "cancel" in body["message"]:
            events = [("final", {"output": "", "status": "waiting", "pending": [ASK]})]
        if "refuse" in body["message"]:
            events = [("error", {"code": "blocked", "message": "Blocked by policy", "request_id": "r-2"})]
        whole = [
            (kind, data if kind == "error" else {"type": kind, "run_id": "run-1", "data": data})
            for kind, data in events
        ]
        lines = [f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in whole]
        return StreamingResponse(iter(lines), media_type="text/event-stream")

    async def approvals(self, request: Request) -> Response:
        runs = [] if self.decided else [{"run_id": "run-1", "saved_at": None, "expired": False, "asks": [ASK]}]
        return self.refused(request) or JSONResponse({"runs": runs})

    async def resume(self, request: Request) -> Response:
        self.decided.append((await request.json())["decisions"])
        return JSONResponse(
            {"run_id": "run-1", "status": "completed", "output": "Order A-17 is cancelled.", "pending": []}
        )


@pytest.fixture
def api() -> Iterator[Api]:
    served = Api()
    app = Starlette(
        routes=[
            Route("/health", served.health),
            Route("/stream", served.stream, methods=["POST"]),
            Route("/approvals", served.approvals),
            Route("/runs/run-1/resume", served.resume, methods=["POST"]),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    ready = threading.Event()
    startup = server.startup

    async def started(*arguments: object, **options: object) -> None:
        await startup(*arguments, **options)
        ready.set()

    server.startup = started  # type: ignore[method-assign]  # the only place that knows when the port is open
    thread = threading.Thread(target=server.run)
    thread.start()
    assert ready.wait(30)
    served.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield served
    server.should_exit = True
    thread.join(30)


def test_a_chat_with_a_server_streams_its_answer_and_shows_its_hooks(api):
    done = agentctl("chat", "--url", api.url, "--session-id", "s1", "--user-id", "ada", stdin="hello\nagain\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "You said hello\nYou said again\n"
    assert "  hook before_tool · rules: deny: closed" in done.stderr
    assert [(session, body["user_id"]) for session, body in api.asked] == [("s1", "ada"), ("s1", "ada")]


def test_an_ask_of_the_server_is_answered_here(api):
    done = agentctl("chat", "--url", api.url, stdin="cancel it\no\n")
    assert 'clerk wants to call cancel_order(number="A-17")' in done.stderr
    assert done.stdout == "Order A-17 is cancelled.\n"
    assert api.decided == [{"c1": "yes"}]


def test_a_refused_turn_is_said_and_the_conversation_goes_on(api):
    done = agentctl("chat", "--url", api.url, stdin="refuse me\nhello\n")
    assert "Blocked by policy." in done.stderr
    assert done.stdout == "You said hello\n"


def test_waiting_runs_of_a_server_are_listed_and_decided(api):
    listed = agentctl("approvals", "list", "--url", api.url)
    assert 'run-1:c1  clerk wants to call cancel_order(number="A-17")' in listed.stdout
    done = agentctl("approvals", "approve", "run-1", "--session", "--url", api.url)
    assert (done.returncode, done.stdout) == (0, "Order A-17 is cancelled.\n")
    assert api.decided == [{"c1": "session"}]
    assert agentctl("approvals", "deny", "run-1", "--url", api.url).returncode == 2


def test_a_token_comes_from_the_environment(api):
    api.token = "t-4711"
    refused = agentctl("approvals", "list", "--url", api.url)
    assert refused.returncode == 4
    said = "answered 401: A token is needed. (request r-1). Set AGENT_ENGINE_TOKEN to a token for it."
    assert refused.stderr == f"The server at {api.url} {said}\n"
    assert agentctl("approvals", "list", "--url", api.url, AGENT_ENGINE_TOKEN="t-4711").returncode == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "not-a-url", "ftp://127.0.0.1"])
def test_an_address_where_nothing_answers_is_one_sentence(url):
    for command in (["chat"], ["approvals", "list"]):
        done = agentctl(*command, "--url", url)
        assert done.returncode == 4
        assert len(done.stderr.splitlines()) == 1
        assert url in done.stderr
