"""The HTTP API over real sockets: answers, streams, approvals, limits, errors, and a stop that drains."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fakes.clock import put_forward
from tests.server.kit import Served, call, calls, office_hooks, served

from agent_engine.hooks.registry import HookRegistry
from agent_engine.server.events import EventStream
from agent_engine.server.settings import ServerSettings


def client(server: Served, **options: Any) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, timeout=60, **options)


def events(answer: httpx2.Response) -> Iterator[tuple[str, Any]]:
    """The server-sent events of an answer."""
    name, data = "", []
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data.append(line[6:])
        elif not line and data:
            yield name, json.loads("\n".join(data))
            data = []


def settled(check: Any, seconds: float = 60.0) -> Any:
    """Wait until ``check()`` gives something true; for what another thread is about to do."""
    until = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def test_invoke_answers_and_the_run_can_be_looked_at(tmp_path: Path) -> None:
    turns = [calls(call("search", query="tea")), "There is no tea."]
    with served(tmp_path, turns, hooks=office_hooks()) as server, client(server) as http:
        answer = http.post("/invoke", json={"message": "tea?", "session_id": "s1", "user_id": "ann"})
        assert answer.status_code == 200
        body = answer.json()
        assert (body["status"], body["output"], body["session_id"]) == ("completed", "There is no tea.", "s1")
        assert answer.headers["x-run-id"] == body["run_id"]
        assert settled(lambda: [run for run in http.get("/runs").json()["runs"] if run["status"] == "completed"])
        shown = http.get(f"/runs/{body['run_id']}").json()
        assert (shown["user_id"], shown["steps"]) == ("ann", 4)
        (tool,) = [step for step in shown["steps_detail"][0]["steps"] if step["kind"] == "tool"]
        assert {record["hook_name"] for record in tool["records"]} >= {"guard", "redact", "flaky"}
        assert http.get("/runs/unknown").status_code == 404
        assert http.get("/openapi.json").json()["info"]["title"] == "Agent Engine"


def test_a_stream_tells_what_happens_in_order_and_ends_with_final(tmp_path: Path) -> None:
    turns = [calls(call("delete_file", path="/x")), {"stream": ["It was ", "refused."]}]
    with (
        served(tmp_path, turns, hooks=office_hooks()) as server,
        client(server) as http,
        http.stream("POST", "/stream", json={"message": "delete"}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = list(events(answer))
    kinds = [kind for kind, _ in found if kind != "hook"]
    assert kinds[:2] == ["tool_started", "tool_finished"]
    assert kinds[-1] == "final"
    assert "".join(data["data"]["text"] for kind, data in found if kind == "text") == "It was refused."
    finished = next(data for kind, data in found if kind == "tool_finished")
    assert finished["data"]["status"] == "denied"
    assert found[-1][1]["data"]["output"] == "It was refused."


def test_a_waiting_run_goes_on_with_a_yes_and_the_log_says_who_gave_it(tmp_path: Path) -> None:
    turns = [calls(call("send_mail", to="a@b.c", text="hi")), "Sent."]
    with served(tmp_path, turns) as server, client(server) as http:
        waiting = http.post("/invoke", json={"message": "mail", "user_id": "ann"}).json()
        assert waiting["status"] == "waiting"
        (ask,) = waiting["pending"]
        assert (ask["tool_name"], ask["arguments"]) == ("send_mail", {"to": "a@b.c", "text": "hi"})
        (listed,) = http.get("/approvals").json()["runs"]
        assert (listed["run_id"], listed["user_id"]) == (waiting["run_id"], "ann")
        path = f"/runs/{waiting['run_id']}/resume"
        assert http.post(path, json={"decisions": {"nobody": "yes"}}).status_code == 422
        assert http.post(path, json={"decisions": {"c1": "maybe"}}).status_code == 422
        done = http.post(path, json={"decisions": {"c1": "yes"}}).json()
        assert (done["status"], done["output"]) == ("completed", "Sent.")
        assert http.post(path, json={"decisions": {"c1": "yes"}}).status_code == 404
        assert http.get("/approvals").json()["runs"] == []

        def approval() -> Any:
            steps = http.get(f"/runs/{waiting['run_id']}").json()["steps_detail"]
            return [step for step in steps if step["name"] == "approval"]

        assert settled(approval)[-1]["detail"] == {"by": "loopback", "decisions": {"c1": "yes"}}


def approvals_of(http: httpx2.Client, run_id: str) -> list[Any]:
    """What the log says was decided about a run."""
    steps = http.get(f"/runs/{run_id}").json().get("steps_detail", ())
    return [step["detail"] for step in steps if step["name"] == "approval"]


def test_a_decision_that_did_not_count_is_not_in_the_log(tmp_path: Path) -> None:
    turns = [calls(call("send_mail", to="a@b.c", text="hi")), "Sent."]
    with served(tmp_path, turns) as server, client(server) as http:
        run_id = http.post("/invoke", json={"message": "mail"}).json()["run_id"]
        path = f"/runs/{run_id}/resume"
        assert http.post(path, json={"decisions": {"nobody": "yes"}}).status_code == 422
        assert http.post(path, json={"decisions": {"c1": "no"}}).json()["status"] == "completed"
        found = settled(lambda: approvals_of(http, run_id))
        assert [one["decisions"] for one in found] == [{"c1": "no"}]


def test_of_two_who_answer_at_once_one_counts_and_pages_follow_that_one(tmp_path: Path) -> None:
    gate = asyncio.Event()
    turns = [calls(call("send_mail", to="a@b.c", text="hi")), {"stream": ["Se", "nt."], "wait": gate.wait}]
    answers: list[int] = []
    with served(tmp_path, turns) as server, client(server) as http:
        assert server.engine is not None
        run_id = http.post("/invoke", json={"message": "mail"}).json()["run_id"]
        listed, both = server.engine.waiting, threading.Barrier(2, timeout=60)

        async def together() -> Any:
            """Both have seen that the run waits before either goes on."""
            found = await listed()
            await asyncio.to_thread(both.wait)
            return found

        def answer() -> None:
            with client(server) as other:
                answers.append(other.post(f"/runs/{run_id}/resume", json={"decisions": {"c1": "yes"}}).status_code)

        server.engine.waiting = together  # type: ignore[method-assign]
        threads = [threading.Thread(target=answer) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert settled(lambda: answers) == [404]
        server.engine.waiting = listed  # type: ignore[method-assign]
        live = server.app.state.services.live
        assert not live.answer(run_id).ended
        server.call(gate.set)
        for thread in threads:
            thread.join(60)
        assert sorted(answers) == [200, 404]
        assert live.answer(run_id).text == "Sent."
        assert [one["decisions"] for one in settled(lambda: approvals_of(http, run_id))] == [{"c1": "yes"}]


def page_events(page: httpx2.Client, run_id: str) -> Iterator[tuple[str, str]]:
    """What a page that follows a run is told, until that ends."""
    page.get("/ui/runs")
    with page.stream("GET", f"/ui/events/{run_id}") as answer:
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                yield name, line[6:]


def test_a_page_gets_the_answer_of_a_run_that_ended_while_a_hook_still_held_it(tmp_path: Path) -> None:
    let_out = asyncio.Event()
    hooks = HookRegistry()

    async def holds(event: Any) -> None:
        await let_out.wait()

    hooks.register_function("message_sending", holds, timeout=600)
    with served(tmp_path, ["the answer"], hooks=hooks) as server, client(server) as http, client(server) as page:
        asking = threading.Thread(target=lambda: http.post("/invoke", json={"message": "x"}))
        asking.start()
        (run,) = settled(lambda: [one for one in page.get("/runs").json()["runs"] if one["status"] == "completed"])
        told = []
        for event in page_events(page, run["run_id"]):
            told.append(event)
            server.call(let_out.set)
        asking.join(60)
    assert told == [("changed", ""), ("answer", "the answer"), ("ended", "completed")]


def test_a_page_of_a_waiting_run_follows_its_answer_when_it_goes_on(tmp_path: Path) -> None:
    shown = asyncio.Event()
    hooks = HookRegistry()

    async def holds(event: Any) -> None:
        await shown.wait()

    hooks.register_function("on_run_end", holds, timeout=600)
    turns = [calls(call("send_mail", to="a@b.c", text="hi")), {"stream": ["Sent."]}]
    with served(tmp_path, turns, hooks=hooks) as server, client(server) as http, client(server) as page:
        run_id = http.post("/invoke", json={"message": "mail"}).json()["run_id"]
        assert settled(lambda: [one["status"] for one in http.get("/runs").json()["runs"]] == ["waiting"])
        path, yes = f"/runs/{run_id}/resume", {"decisions": {"c1": "yes"}}
        going_on = threading.Thread(target=lambda: http.post(path, json=yes))
        told = []
        for event in page_events(page, run_id):
            if not told:
                going_on.start()
            told.append(event)
            if event == ("answer", "Sent."):
                server.call(shown.set)
        going_on.join(60)
    assert told[0] == ("changed", "")
    assert told[-1] == ("ended", "completed")


def test_a_run_that_went_on_and_failed_is_no_bad_request_and_its_text_stays_inside(tmp_path: Path) -> None:
    for number, error in enumerate((ValueError("planted-secret"), LookupError("planted-secret"))):
        turns = [calls(call("send_mail", to="a@b.c", text="hi")), error]
        with served(tmp_path / str(number), turns) as server, client(server) as http:
            run_id = http.post("/invoke", json={"message": "mail"}).json()["run_id"]
            answer = http.post(f"/runs/{run_id}/resume", json={"decisions": {"c1": "yes"}})
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
            assert "planted-secret" not in answer.text


async def one_piece_and_another() -> AsyncGenerator[bytes, None]:
    yield b"1"
    yield b"2"


async def one_piece_and_an_error() -> AsyncGenerator[bytes, None]:
    yield b"1"
    raise OSError


@pytest.mark.parametrize(
    ("source", "leaves_at", "complete"),
    [
        (one_piece_and_another, None, True),
        (one_piece_and_an_error, None, False),
        (one_piece_and_another, 0, False),
        (one_piece_and_another, 1, False),
    ],
)
async def test_a_stream_of_events_says_once_that_it_is_over_however_it_ends(
    source: Callable[[], AsyncGenerator[bytes, None]], leaves_at: int | None, complete: bool
) -> None:
    told: list[object] = []
    sent: list[Any] = []
    leaves = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("more_body") is False:
            assert told == ["over"]
        if len(sent) == leaves_at:
            leaves.set()
            await asyncio.Event().wait()
        sent.append(message)

    async def receive() -> Any:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def done(complete: bool) -> None:
        told.append(complete)

    response = EventStream(source(), lambda: told.append("over"), done)
    with contextlib.suppress(OSError):
        await response({"type": "http"}, receive, send)
    assert told == ["over", complete]


@pytest.mark.parametrize(
    ("turn", "status", "code"),
    [
        (RuntimeError("planted-secret"), 500, "internal"),
        (calls(*[call("delete_file", f"c{n}", path="/x") for n in range(3)]), 403, "blocked"),
    ],
)
def test_errors_carry_a_code_a_safe_message_and_the_request_id(
    tmp_path: Path, turn: Any, status: int, code: str
) -> None:
    with served(tmp_path, [turn, "end"], hooks=office_hooks()) as server, client(server) as http:
        answer = http.post("/invoke", json={"message": "x"}, headers={"X-Request-Id": "mine-1"})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "request_id"}
    assert (error["code"], error["request_id"]) == (code, "mine-1")
    assert "planted-secret" not in answer.text
    assert answer.headers["x-request-id"] == "mine-1"


def test_an_error_in_a_stream_is_its_last_event(tmp_path: Path) -> None:
    with (
        served(tmp_path, [RuntimeError("planted-secret")]) as server,
        client(server) as http,
        http.stream("POST", "/stream", json={"message": "x"}) as answer,
    ):
        found = list(events(answer))
    assert found[-1][0] == "error"
    assert found[-1][1]["code"] == "internal"
    assert "planted-secret" not in str(found)


@pytest.mark.parametrize(
    "request_",
    [
        {"content": b"{not json", "headers": {"content-type": "application/json"}},
        {"json": {}},
        {"json": {"message": ""}},
        {"json": {"message": 7}},
        {"json": {"message": "x", "sesion_id": "typo"}},
        {"json": {"message": "x", "session_id": "a\u0000b"}},
        {"json": ["message"]},
        {"content": b'{"message": "x"}', "headers": {"content-type": "text/plain"}},
        {"data": {"message": "x"}},
    ],
)
def test_a_body_of_another_shape_is_refused_by_name(tmp_path: Path, request_: dict[str, Any]) -> None:
    with served(tmp_path, []) as server, client(server) as http:
        answer = http.post("/invoke", **request_)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "invalid_request"


def test_a_body_that_is_no_json_object_is_told_what_it_must_be(tmp_path: Path) -> None:
    with served(tmp_path, []) as server, client(server) as http:
        form = http.post("/invoke", data={"message": "x"}).json()["error"]["message"]
        broken = http.post("/invoke", content=b"{message}", headers={"content-type": "application/json"})
    assert form == "The body must be a JSON object, sent with the header Content-Type: application/json."
    assert broken.json()["error"]["message"] == "The body is not valid JSON; see character 1."


def test_a_body_over_the_limit_is_refused_also_when_it_comes_in_pieces(tmp_path: Path) -> None:
    with served(tmp_path, [], settings=ServerSettings(port=0, max_body=1000)) as server, client(server) as http:
        assert http.post("/invoke", json={"message": "x" * 2000}).status_code == 413

        def pieces() -> Iterator[bytes]:
            yield b'{"message": "'
            for _ in range(50):
                yield b"x" * 100
            yield b'"}'

        answer = http.post("/invoke", content=pieces(), headers={"content-type": "application/json"})
        assert answer.status_code == 413


def test_more_runs_than_the_limit_are_told_to_come_back(tmp_path: Path) -> None:
    gate = asyncio.Event()
    settings = ServerSettings(port=0, max_runs=1, drain_s=5)
    with served(tmp_path, [{"text": "one", "wait": gate.wait}, "two"], settings=settings) as server:
        first: list[httpx2.Response] = []
        with client(server) as http:
            thread = threading.Thread(target=lambda: first.append(http.post("/invoke", json={"message": "x"})))
            thread.start()
            with client(server) as other:
                assert settled(lambda: other.get("/health").json()["runs"] == 1)
                busy = other.post("/invoke", json={"message": "y"})
                assert (busy.status_code, busy.json()["error"]["code"]) == (503, "busy")
                assert busy.headers["retry-after"] == "1"
                stream = other.post("/stream", json={"message": "y"})
                assert stream.status_code == 503
                server.call(gate.set)
                thread.join(60)
                assert first[0].json()["output"] == "one"
                assert other.post("/invoke", json={"message": "z"}).json()["output"] == "two"


def test_the_place_of_a_run_is_free_before_its_stream_is_seen_to_end(tmp_path: Path) -> None:
    body = json.dumps({"message": "x"}).encode()
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/stream", "raw_path": b"/stream",
        "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1), "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
    }  # fmt: skip
    taken: list[int] = []

    async def ask(app: Any) -> None:
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            return next(requests, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and not message["more_body"]:
                taken.append(app.state.services.runs.under_way)

        await app(scope, receive, send)

    with served(tmp_path, ["answer"]) as server:
        asyncio.run_coroutine_threadsafe(ask(server.app), server.loop).result(60)
    assert taken == [0]


async def until_too_late() -> None:
    """As a model that does not answer in time: it has been asked, and the limit of a minute is over."""
    put_forward(60)
    await asyncio.Event().wait()


def test_a_stream_over_its_time_ends_with_an_error_and_its_run_is_cancelled(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, run_s=60, drain_s=5)
    turns = [calls(call("search", query="x")), {"stream": ["never"], "wait": until_too_late}]
    with served(tmp_path, turns, settings=settings) as server, client(server) as http:
        with http.stream("POST", "/stream", json={"message": "x"}) as answer:
            found = list(events(answer))
        assert (found[-1][0], found[-1][1]["code"]) == ("error", "timed_out")
        assert settled(lambda: [run["status"] for run in http.get("/runs").json()["runs"]] == ["cancelled"])


def test_a_run_over_its_time_is_cancelled(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, run_s=60, drain_s=5)
    turn = {"text": "late", "wait": until_too_late}
    with served(tmp_path, [turn], settings=settings) as server, client(server) as http:
        answer = http.post("/invoke", json={"message": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timed_out")
        assert settled(lambda: [run["status"] for run in http.get("/runs").json()["runs"]] == ["cancelled"])


@pytest.mark.parametrize("path", ["/invoke", "/stream"])
def test_a_client_that_goes_away_cancels_its_run(tmp_path: Path, path: str) -> None:
    undelivered: list[str] = []
    hooks = HookRegistry()
    hooks.register_function("message_undelivered", lambda event: undelivered.append(event.error), inline=True)
    asked = threading.Event()

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    with served(tmp_path, [{"text": "late", "wait": never}], hooks=hooks) as server, client(server) as http:
        body = b'{"message": "x"}'
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", http.base_url.port)) as leaving:
            leaving.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert asked.wait(60)
            assert http.get("/health").json()["runs"] == 1
        assert settled(lambda: http.get("/health").json()["runs"] == 0)
        assert settled(lambda: [run["status"] for run in http.get("/runs").json()["runs"]] == ["cancelled"])
        assert settled(lambda: undelivered) == ["the client went away"]


def test_a_stop_lets_runs_end_takes_no_new_ones_and_lets_pages_go(tmp_path: Path) -> None:
    gate = asyncio.Event()
    order: list[str] = []
    hooks = HookRegistry()
    for event in ("gateway_start", "on_run_end", "message_sent", "gateway_stop", "on_engine_stop"):
        hooks.register_function(event, lambda payload, event=event: order.append(event), inline=True)
    answers: list[Any] = []
    followed: list[int] = []
    refused: list[bool] = []
    following = threading.Event()
    with served(tmp_path, [{"text": "done", "wait": gate.wait}], hooks=hooks) as server:
        http, follower = client(server), client(server)

        def ask() -> None:
            answers.append(http.post("/invoke", json={"message": "x"}).json())

        def late() -> None:
            try:
                assert settled(lambda: not _listens(server))
                with client(server) as another, pytest.raises(httpx2.TransportError):
                    another.post("/invoke", json={"message": "late"})
                refused.append(True)
            finally:
                server.call(gate.set)

        def follow() -> None:
            follower.get("/ui/runs")
            with follower.stream("GET", "/ui/events") as stream:
                following.set()
                followed.append(len(list(stream.iter_lines())))

        threads = [threading.Thread(target=one) for one in (ask, follow, late)]
        for thread in threads:
            thread.start()
        assert following.wait(60)
        with client(server) as other:
            assert settled(lambda: other.get("/health").json()["runs"] == 1)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    http.close()
    follower.close()
    assert len(followed) == 1
    assert refused == [True]
    assert [answer["output"] for answer in answers] == ["done"]
    assert order == ["gateway_start", "on_run_end", "message_sent", "gateway_stop", "on_engine_stop"]


def _listens(server: Served) -> bool:
    try:
        socket.create_connection(("127.0.0.1", httpx2.URL(server.url).port)).close()
    except ConnectionError:
        return False
    return True


def test_what_comes_in_and_goes_out_passes_the_hooks_at_the_edge(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    hooks = HookRegistry()

    def received(event: Any) -> None:
        seen.append((event.platform, event.content))
        event.content = event.content.replace("4111", "[card]")

    def sending(event: Any) -> None:
        event.content = event.content.upper()

    hooks.register_function("message_received", received)
    hooks.register_function("message_sending", sending)
    hooks.register_function("message_sent", lambda event: seen.append(("sent", event.content)), inline=True)
    with served(tmp_path, ["fine", {"stream": ["al", "so fine"]}], hooks=hooks) as server, client(server) as http:
        assert http.post("/invoke", json={"message": "card 4111"}).json()["output"] == "FINE"
        with http.stream("POST", "/stream", json={"message": "again"}) as answer:
            found = list(events(answer))
        assert settled(lambda: len([one for one in seen if one[0] == "sent"]) == 2)
        assert server.engine is not None
    assert [data["data"]["text"] for kind, data in found if kind == "text"] == ["ALSO FINE"]
    assert found[-1][1]["data"]["output"] == "ALSO FINE"
    assert seen[0] == ("http", "card 4111")
    assert ("sent", "FINE") in seen


@pytest.mark.parametrize("path", ["/invoke", "/stream"])
def test_a_refused_answer_is_never_sent(tmp_path: Path, path: str) -> None:
    undelivered: list[Any] = []
    hooks = HookRegistry()
    hooks.register_function("message_sending", lambda event: "not today" if "secret" in event.content else None)
    hooks.register_function("message_undelivered", lambda event: undelivered.append(event.content), inline=True)
    with served(tmp_path, [{"stream": ["the ", "secret"]}], hooks=hooks) as server, client(server) as http:
        answer = http.post(path, json={"message": "x"})
        assert "the secret" not in answer.text
        assert "Blocked by policy: not today" in answer.text
        assert answer.status_code == (403 if path == "/invoke" else 200)
    assert undelivered == [""]


def test_a_refused_message_starts_no_run_and_the_log_shows_it_blocked(tmp_path: Path) -> None:
    hooks = HookRegistry()
    hooks.register_function("message_received", lambda event: "closed")
    with served(tmp_path, ["never"], hooks=hooks) as server, client(server) as http:
        answer = http.post("/invoke", json={"message": "x"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (403, "Blocked by policy: closed")
        assert settled(lambda: [run["status"] for run in http.get("/runs").json()["runs"]] == ["blocked"])


def test_filters_and_pages_of_runs(tmp_path: Path) -> None:
    turns = [calls(call("delete_file", path="/x")), "no", "a", "b", "c"]
    with served(tmp_path, turns, hooks=office_hooks()) as server, client(server) as http:
        for number in range(4):
            http.post("/invoke", json={"message": "x", "session_id": f"s{number}"})
        assert settled(lambda: len(http.get("/runs", params={"status": "completed"}).json()["runs"]) == 4)
        assert len(http.get("/runs", params={"decision": "deny", "tool": "delete_file"}).json()["runs"]) == 1
        first = http.get("/runs", params={"limit": 3}).json()
        second = http.get("/runs", params={"limit": 3, "before": first["next"]}).json()
        assert [run["session_id"] for run in first["runs"] + second["runs"]] == ["s3", "s2", "s1", "s0"]
        assert second["next"] is None
        assert http.get("/runs", params={"limit": 0}).status_code == 422


def test_without_records_the_api_works_and_says_that_there_are_none(tmp_path: Path) -> None:
    with served(tmp_path, ["hello"], records=None) as server, client(server) as http:
        assert http.post("/invoke", json={"message": "x"}).json()["output"] == "hello"
        assert http.get("/runs").json()["error"]["code"] == "no_records"


def test_many_streams_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    from agent_engine.models.offline import OfflineModel

    settings = ServerSettings(port=0, max_runs=100, drain_s=5)
    with served(tmp_path, OfflineModel(), settings=settings, capture="") as server:

        async def one(http: httpx2.AsyncClient, number: int) -> bool:
            body = {"message": f"search for invoice{number}", "session_id": f"s{number}"}
            async with http.stream("POST", "/stream", json=body) as answer:
                text = "".join([line async for line in answer.aiter_lines()])
            return f"invoice{number}" in text and "event: final" in text

        async def everybody() -> list[bool]:
            limits = httpx2.Limits(max_connections=60)
            async with httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
                return await asyncio.gather(*(one(http, number) for number in range(60)))

        assert all(asyncio.run(everybody()))
