"""The pages without scripting: everything is there, everything is escaped, and forms come from this site."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.records.build import AT, hook_run, record, tool_step
from tests.records.build import run as run_entries
from tests.server.kit import call, calls, office_hooks, served
from tests.server.test_api import client, settled

from agent_engine.hooks.registry import HookRegistry
from agent_engine.records.journal import StepOpened
from agent_engine.records.sqlsink import SqlSink
from agent_engine.server import present

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"


class Page(HTMLParser):
    """The tags of a page, and what must not be on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def inline(self) -> list[str]:
        """Scripts and styles that a strict content security policy would stop."""
        found = [tag for tag, attrs in self.tags if tag == "script" and not attrs.get("src")]
        found += [tag for tag, _ in self.tags if tag == "style"]
        found += [
            name
            for _, attrs in self.tags
            for name, value in attrs.items()
            if name.startswith("on") or name == "style" or (value or "").lower().startswith("javascript:")
        ]
        return found

    def from_elsewhere(self) -> list[str]:
        addresses = [attrs.get(name) or "" for _, attrs in self.tags for name in ("src", "href", "action", "hx-get")]
        return [address for address in addresses if re.match(r"(https?:)?//", address)]

    def forms(self) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == "form"]


def finished(http: httpx2.Client, count: int = 1) -> list[dict[str, Any]]:
    """Wait until so many runs have been recorded to their end."""

    def found() -> list[dict[str, Any]]:
        runs = http.get("/runs").json()["runs"]
        return runs if len([run for run in runs if run["status"] != "open"]) >= count else []

    runs: list[dict[str, Any]] = settled(found)
    return runs


def read(http: httpx2.Client, path: str) -> tuple[str, Page]:
    answer = http.get(path)
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    assert page.inline() == []
    assert page.from_elsewhere() == []
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    return answer.text, page


def test_every_page_works_without_scripting(tmp_path: Path) -> None:
    turns = [
        calls(call("search", query="tea"), call("write_file", "c2", path="/a", text="card 4111 1111"),
              call("delete_file", "c3", path="/b")),
        "Done.",
    ]  # fmt: skip
    with served(tmp_path, turns, hooks=office_hooks()) as server, client(server, follow_redirects=True) as http:
        http.post("/invoke", json={"message": "x", "user_id": "ann"})
        (run,) = finished(http)
        text, page = read(http, "/")
        assert run["run_id"][:12] in text
        assert "✗ 1 denied" in text
        text, page = read(http, f"/ui/runs/{run['run_id']}")
        for wanted in (
            "The model asked", "What happened", "never ran: refused by guard: Files are kept for ten years",
            "ran, changed by redact, although flaky broke (warn)", "✗ deny", "✎ modify", "! failed", "✗ shadow deny",
        ):  # fmt: skip
            assert wanted in text
        assert '<span class="d-gone">' in text
        links = [attrs["href"] for tag, attrs in page.tags if tag == "a" and "record=" in (attrs.get("href") or "")]
        text, _ = read(http, str(links[0]).split("#")[0])
        assert "What became of the step" in text
        text, _ = read(http, "/ui/hooks")
        order = [text.index(f"<strong>{name}</strong>") for name in ("redact", "guard", "strict", "flaky")]
        assert order == sorted(order)
        assert "100.0 %" in text or "33.3 %" in text
        assert "kit.py:" in text
        text, _ = read(http, "/ui/coverage")
        assert "no gate saw it" in text
        assert "✓ watched" in text
        text, _ = read(http, "/ui/coverage?kind=agent&name=clerk")
        assert "Latest agent clerk that no gate saw" in text
        text, _ = read(http, "/ui/approvals")
        assert "Nothing waits for an approval." in text


def test_a_folded_line_opens_without_scripting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(present, "MOST_HOOKS", 25)
    pieces = [hook_run("watch", event="on_llm_delta") for _ in range(30)]
    entries = run_entries("r1", tool_step("r1", hooks=[*pieces, hook_run("mask", "modify", event="on_llm_delta")]))
    folder = tmp_path / "x"
    asyncio.run(record(f"sqlite:{folder / 'records.db'}", entries))
    with served(folder, []) as server, client(server) as http:
        text, page = read(http, "/ui/runs/r1")
        assert text.count(">on_llm_delta<") == 2
        assert "30 times" in text
        (link,) = [attrs["href"] for tag, attrs in page.tags if tag == "a" and "?open=" in (attrs.get("href") or "")]
        assert read(http, str(link).split("#")[0])[0].count(">on_llm_delta<") == 25
        (part,) = [attrs["hx-get"] for _, attrs in page.tags if "/ui/parts/hooks/" in (attrs.get("hx-get") or "")]
        each = http.get(str(part)).text
        assert each.count(">on_llm_delta<") == 25
        assert "agentctl records list --each --run r1" in each


def test_a_run_of_many_steps_is_shown_in_parts_that_hold_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(present, "MOST_STEPS", 4)
    steps = [tool_step("r1", f"t{number}", name=f"tool{number:02}", hooks=[hook_run()]) for number in range(10)]
    folder = tmp_path / "x"
    asyncio.run(record(f"sqlite:{folder / 'records.db'}", run_entries("r1", *steps)))
    with served(folder, []) as server, client(server) as http:
        address: str | None = "/ui/runs/r1"
        found, seen = [], []
        while address is not None:
            text, page = read(http, address)
            found.append(re.findall(r'title="(tool\d\d)"', text))
            assert text.count('class="step ') == len(found[-1]) + 1  # the turn that they stand in is always there
            assert text.count(">before_tool<") == len(found[-1])
            seen.append(address)
            links = {attrs.get("href") or "" for tag, attrs in page.tags if tag == "a"}
            address = next((link for link in links if re.search(r"r1\?before=\d+$", link) and link not in seen), None)
        assert [name for part in reversed(found) for name in part] == [f"tool{number:02}" for number in range(10)]
        assert "/ui/runs/r1" in links
        (first, *_) = [link for link in links if "record=" in link]
        assert read(http, first.split("#")[0])[0].count('class="step ') == len(found[-1]) + 1


def test_filters_narrow_the_list(tmp_path: Path) -> None:
    turns = [calls(call("delete_file", path="/b")), "refused", "plain"]
    with served(tmp_path, turns, hooks=office_hooks()) as server, client(server) as http:
        refused = http.post("/invoke", json={"message": "x"}).json()["run_id"]
        plain = http.post("/invoke", json={"message": "x"}).json()["run_id"]
        finished(http, 2)
        for query, wanted in (
            ("", {refused, plain}),
            ("?decision=deny", {refused}),
            ("?tool=delete_file&agent=clerk&status=completed&age=1h", {refused}),
            ("?tool=search", set()),
            ("?status=failed", set()),
        ):
            text, _ = read(http, f"/ui/runs{query}")
            assert {run for run in (refused, plain) if run[:12] in text} == wanted
        assert "No run matches." in read(http, "/ui/runs?tool=search")[0]
        assert http.get("/ui/runs?age=soon", headers={"Accept": "text/html"}).status_code == 422


def test_names_reasons_arguments_and_results_full_of_markup_are_only_text(tmp_path: Path) -> None:
    hooks = HookRegistry()
    hooks.register_function("before_tool", lambda event: EVIL, name=EVIL, matcher="delete_file", sequential=True)
    hooks.register_function("after_tool", lambda event: EVIL, name="rewrite", matcher="search")
    turns = [
        calls(
            call("search", "c1", query=EVIL),
            call("delete_file", "c2", path=EVIL),
            call("send_mail", "c3", to=EVIL, text=EVIL),
        )
    ]
    with served(tmp_path, turns, hooks=hooks) as server, client(server, follow_redirects=True) as http:
        body = {"message": EVIL, "session_id": EVIL, "user_id": EVIL, "organization_id": EVIL}
        http.post("/invoke", json=body)
        (run,) = finished(http)
        records = http.get(f"/runs/{run['run_id']}").json()["steps_detail"]
        pages = ["/ui/runs", f"/ui/runs/{run['run_id']}", "/ui/hooks", "/ui/coverage", "/ui/approvals"]
        found = [one for step in records[0]["steps"] for one in step["records"]]
        pages += [f"/ui/runs/{run['run_id']}?record={one['record_id']}" for one in found]
        pages += [f"/ui/records/{one['record_id']}" for one in found]
        for path in pages:
            text, _ = read(http, path)
            assert "<script>alert" not in text
            assert "<img" not in text
            assert "49" not in re.findall(r"'&amp;(.{2})", text)
        assert "&lt;script&gt;" in read(http, pages[1])[0]
        missing = http.get("/ui/runs/<script>alert(1)</script>", headers={"Accept": "text/html"})
        assert missing.status_code == 404
        assert "<script>alert" not in missing.text


def test_a_waiting_call_is_approved_by_a_form_and_the_run_goes_on(tmp_path: Path) -> None:
    turns = [calls(call("send_mail", to="a@b.c", text="hello")), "Sent it."]
    with served(tmp_path, turns) as server, client(server, follow_redirects=True) as http:
        run_id = http.post("/invoke", json={"message": "x"}).json()["run_id"]
        text, page = read(http, "/ui/approvals")
        assert "wants to call" in text
        assert "a@b.c" in text
        (form,) = page.forms()
        values = {attrs["name"]: attrs["value"] for tag, attrs in page.tags if tag == "input" and attrs.get("name")}
        shown = http.post(str(form["action"]), data={**values, "decision": "yes"})
        assert shown.url.path == f"/ui/runs/{run_id}"
        done = settled(lambda: [run for run in http.get("/runs").json()["runs"] if run["status"] == "completed"])
        assert [run["run_id"] for run in done] == [run_id]
        assert "Sent it." in read(http, f"/ui/runs/{run_id}")[0]


@pytest.mark.parametrize(
    ("change", "headers"),
    [
        ({"csrf": "wrong"}, {}),
        ({"csrf": ""}, {}),
        ({}, {"Sec-Fetch-Site": "cross-site"}),
        ({}, {"Sec-Fetch-Site": "same-site"}),
        ({}, {"Origin": "https://evil.example"}),
        ({}, {"Cookie": ""}),
    ],
)
def test_a_form_of_another_site_approves_nothing(
    tmp_path: Path, change: dict[str, str], headers: dict[str, str]
) -> None:
    with served(tmp_path, [calls(call("send_mail", to="a", text="b")), "never"]) as server, client(server) as http:
        run_id = http.post("/invoke", json={"message": "x"}).json()["run_id"]
        _, page = read(http, "/ui/approvals")
        values = {attrs["name"]: attrs["value"] for tag, attrs in page.tags if tag == "input" and attrs.get("name")}
        if "Cookie" in headers:
            http.cookies.clear()
            headers = {}
        answer = http.post(f"/ui/approvals/{run_id}", data={**values, "decision": "yes", **change}, headers=headers)
        assert answer.status_code in (403, 422)
        assert [one["run_id"] for one in http.get("/approvals").json()["runs"]] == [run_id]


TURNED = "\u202ecod.exe\u202c \u200bx\u200d\xad\u200f\U000e0041\x07"


@pytest.mark.parametrize(
    "run_id",
    [
        "orders/17 a?b#c%2Fd",
        "of two\nlines\n",
        "a/timeline",
        "a/events",
        "a/hooks/1",
        "a/resume",
        "table",
        "list",
        "../x",
        "\u202eabc",
    ],
)
def test_a_run_of_any_id_has_its_page_and_its_parts(tmp_path: Path, run_id: str) -> None:
    folder = tmp_path / "x"
    entries = run_entries(run_id, tool_step(run_id, hooks=[hook_run()]))
    asyncio.run(record(f"sqlite:{folder / 'records.db'}", entries))
    with served(folder, []) as server, client(server) as http:
        _, page = read(http, "/ui/runs")
        (link,) = [attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs.get("class") == "rowlink"]
        (shown,) = [attrs["title"] for tag, attrs in page.tags if tag == "a" and attrs.get("class") == "rowlink"]
        assert shown == present.visible(run_id)
        whole = read(http, str(link))[0]
        assert "search" in whole
        assert "<h1>" in whole
        assert f'href="{link}?record=' in whole
        part = http.get(str(link).replace("/ui/runs/", "/ui/parts/timeline/")).text
        assert "search" in part
        assert "<html" not in part
        (step,) = re.findall(r'id="hooks-(\d+)"', part)
        assert "guard" in http.get(str(link).replace("/ui/runs/", f"/ui/parts/hooks/{step}/")).text
        with http.stream("GET", str(link).replace("/ui/runs/", "/ui/events/")) as events:
            assert events.status_code == 200
        detail = http.get(str(link).removeprefix("/ui")).json()
        assert detail["run_id"] == run_id


def test_what_nobody_would_see_is_shown_as_an_escape_and_comes_back_from_a_form_as_it_was(tmp_path: Path) -> None:
    mail = call("send_mail", TURNED, to=f"ann@example.com{TURNED}", text="b" * 9000 + "the end")
    with served(tmp_path, [calls(mail), "sent"]) as server, client(server, follow_redirects=True) as http:
        run_id = http.post("/invoke", json={"message": "x"}).json()["run_id"]
        finished(http)
        for path in (f"/ui/runs/{run_id}", "/ui/approvals"):
            text, page = read(http, path)
            shown = re.sub(r'<input type="hidden"[^>]*>', "", text)
            assert not set(shown) & set(TURNED) - set("cod.exe x")
            assert r"\u202ecod.exe\u202c \u200bx\u200d\xad\u200f\U000e0041" in shown
        assert "the end" in text
        values = {attrs["name"]: attrs["value"] for tag, attrs in page.tags if tag == "input" and attrs.get("name")}
        assert values["call_id"] == TURNED
        http.post(f"/ui/approvals/{run_id}", data={**values, "decision": "yes"})
        assert settled(lambda: http.get("/runs").json()["runs"][0]["status"] == "completed")


def test_text_that_no_page_can_hold_is_shown_as_an_escape(tmp_path: Path) -> None:
    mail = call("send_mail", to="ann@example.com", text="half \ud83d of it")
    with served(tmp_path, [calls(mail), "an answer \udc00 too"]) as server, client(server) as http:
        waiting = http.post("/invoke", json={"message": "x"}).json()
        run_id, asked = waiting["run_id"], waiting["pending"][0]["arguments"]
        assert asked["text"] == "half \ud83d of it"
        assert http.get("/approvals").json()["runs"][0]["asks"][0]["arguments"] == asked
        finished(http)
        assert http.get(f"/runs/{run_id}").json()["pending"][0]["arguments"] == asked
        text, page = read(http, "/ui/approvals")
        assert r"half \ud83d of it" in text
        values = {attrs["name"]: attrs["value"] for tag, attrs in page.tags if tag == "input" and attrs.get("name")}
        http.post(f"/ui/approvals/{run_id}", data={**values, "decision": "yes"})
        assert settled(lambda: r"an answer \udc00 too" in read(http, f"/ui/runs/{run_id}")[0])


@pytest.mark.parametrize("text", ["👩\u200d🚀 ❤\ufe0f", "می\u200cخواهم", "a\tb\nc", "日本語 ж é"])
def test_text_of_any_language_is_shown_as_it_is(text: str) -> None:
    assert present.visible(text) == text


def test_an_answer_leads_to_the_page_of_its_run_although_its_records_are_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, write = threading.Event(), SqlSink.write

    def late(sink: SqlSink, facts: Any) -> int:
        looked.wait(60)
        return write(sink, facts)

    monkeypatch.setattr(SqlSink, "write", late)
    turns = [calls(call("send_mail", to="a", text="b")), "done"]
    with served(tmp_path, turns) as server, client(server, follow_redirects=True) as http:
        reader = server.app.state.services.reader
        run_row = reader.run_row

        def looks(run_id: str) -> Any:
            found = run_row(run_id)
            looked.set()
            return found

        monkeypatch.setattr(reader, "run_row", looks)
        try:
            run_id = http.post("/invoke", json={"message": "x"}).json()["run_id"]
            _, page = read(http, "/ui/approvals")
            values = {attrs["name"]: attrs["value"] for tag, attrs in page.tags if tag == "input" and attrs.get("name")}
            assert http.post(f"/ui/approvals/{run_id}", data={**values, "decision": "yes"}).status_code == 200
        finally:
            looked.set()


def test_an_answer_that_comes_too_late_is_not_taken_for_one_that_counted(tmp_path: Path) -> None:
    turns = [calls(call("send_mail", to="a", text="b"), call("send_mail", "c2", to="b", text="b")), "done"]
    with served(tmp_path, turns) as server, client(server, follow_redirects=True) as http:
        run_id = http.post("/invoke", json={"message": "x"}).json()["run_id"]
        finished(http)  # an answer leads to the page of the run, which its records make
        _, page = read(http, "/ui/approvals")
        csrf = next(attrs["value"] for tag, attrs in page.tags if attrs.get("name") == "csrf")

        def answer(call_id: str, run: str = run_id) -> int:
            form = {"csrf": csrf, "call_id": call_id, "decision": "no"}
            return http.post(f"/ui/approvals/{run}", data=form).status_code

        assert (answer("nothing"), answer("c1", "nothing")) == (409, 404)
        assert answer("c1") == 200
        assert settled(lambda: [one["call_id"] for one in http.get("/approvals").json()["runs"][0]["asks"]] == ["c2"])
        assert answer("c1") == 409
        assert answer("c2") == 200
        assert settled(lambda: http.get("/runs").json()["runs"][0]["status"] == "completed")
        assert answer("c2") == 404


def test_a_run_whose_process_was_killed_is_not_said_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    address = f"sqlite:{folder / 'records.db'}"
    begun = [StepOpened("cut", "t1", "turn", "tool", "search", "main", AT), *run_entries("cut", closed=False)]
    asyncio.run(record(address, begun))
    with contextlib.closing(sqlite3.connect(folder / "records.db")) as database, database:
        database.execute("UPDATE record_writers SET stopped_at = NULL, born = '0'")  # as if killed before it could stop
    with served(folder, []) as server, client(server) as http:
        text, _ = read(http, "/ui/runs/cut")
        assert "still going" not in text
        assert "unknown: its process ended first" in text
        assert "began, and no end of it is recorded" in text
        assert "interrupted" in read(http, "/ui/runs?status=interrupted")[0]


def test_a_filter_in_force_is_shown_whatever_it_is(tmp_path: Path) -> None:
    with served(tmp_path, []) as server, client(server) as http:
        _, page = read(http, "/ui/runs?agent=nobody&age=3h")
        chosen = [attrs["value"] for tag, attrs in page.tags if tag == "option" and "selected" in attrs]
        assert chosen == ["nobody", "3h"]
        _, page = read(http, "/ui/hooks?age=3h")
        assert [attrs["value"] for tag, attrs in page.tags if tag == "option" and "selected" in attrs] == ["3h"]
        assert "No step tool free has passed without a gate." in read(http, "/ui/coverage?kind=tool&name=free")[0]
        for path in ("/ui/runs", "/ui/hooks", "/ui/coverage"):
            assert http.get(f"{path}?age={'9' * 400}").status_code == 422


def test_while_records_are_not_written_every_page_says_so(tmp_path: Path) -> None:
    with served(tmp_path, ["one", "two"]) as server, client(server) as http:
        http.post("/invoke", json={"message": "x"})
        finished(http)
        assert "Records are not written" not in read(http, "/ui/approvals")[0]
        store = tmp_path / "records.db"
        store.rename(tmp_path / "moved.db")
        store.mkdir()
        http.post("/invoke", json={"message": "x"})
        assert settled(lambda: "Records are not written now" in read(http, "/ui/approvals")[0])
        gone = http.get("/ui/runs", headers={"Accept": "text/html"})
        assert gone.status_code == 503
        assert "The records cannot be read now." in gone.text
        assert "Records are not written now" in gone.text
        store.rmdir()
        assert settled(lambda: "Records are not written" not in read(http, "/ui/approvals")[0])
        assert len(finished(http)) == 1


def test_a_problem_on_a_page_is_a_page_and_on_the_api_json(tmp_path: Path) -> None:
    with served(tmp_path, []) as server, client(server) as http:
        page = http.get("/ui/runs/none", headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "There is no such run." in page.text
        assert http.get("/runs/none").json()["error"]["code"] == "not_found"
        assert http.get("/nowhere").json()["error"]["code"] == "not_found"
        assert http.put("/invoke").json()["error"]["code"] == "method_not_allowed"


def test_static_files_are_the_unmodified_releases_with_their_licences(tmp_path: Path) -> None:
    with served(tmp_path, []) as server, client(server) as http:
        assert "htmx" in http.get("/ui/static/htmx.min.js").text[:200]
        assert "Zero-Clause BSD" in http.get("/ui/static/htmx.LICENSE.txt").text
        assert "defineExtension" in http.get("/ui/static/htmx-ext-sse.min.js").text
        assert "Zero Clause" in http.get("/ui/static/htmx-ext-sse.LICENSE.txt").text
        assert http.get("/ui/static/../templates/base.html").status_code == 404


def test_the_pages_alone_show_a_store_that_others_write(tmp_path: Path) -> None:
    with served(tmp_path, ["hello"]) as server, client(server) as http:
        http.post("/invoke", json={"message": "x"})
        (run,) = finished(http)
    from starlette.testclient import TestClient

    from agent_engine.server.app import create_app

    app = create_app(None, records=f"sqlite:{tmp_path / 'records.db'}")
    with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as http2:
        assert run["run_id"][:12] in http2.get("/ui/runs").text
        assert http2.get("/ui/hooks").status_code == 200
        assert http2.get("/health").json() == {"status": "ok", "runs": 0}
        assert http2.post("/invoke", json={"message": "x"}).status_code == 404
