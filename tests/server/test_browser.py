"""The inspector in a real browser: what a person at it sees and does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.server.kit import Served, call, calls, office_hooks, served
from tests.server.test_api import client, settled
from tests.server.test_pages import EVIL, finished

from agent_engine.hooks.registry import HookRegistry
from agent_engine.server.settings import ServerSettings

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# What a page is to show may take its time on a busy machine; a limit only ends a wait for what never comes.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
# Screenshots are looked at while the pages are worked on; they are no part of the repository.
SCREENSHOTS = os.environ.get("INSPECTOR_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise RuntimeError("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page whose console stays silent to the end of the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    yield opened
    if SCREENSHOTS:
        opened.screenshot(path=f"{SCREENSHOTS}/{request.node.name}.png", full_page=True)
    context.close()
    assert said == []


@contextlib.contextmanager
def visited(page: Page, folder: Path, turns: Any, **options: Any) -> Iterator[Served]:
    """A server that the page has left before it stops: a stream that breaks off is an error to any browser."""
    with served(folder, turns, **options) as server:
        yield server
        page.goto("about:blank")


def ask(server: Served, message: str = "x", path: str = "/invoke", **body: Any) -> threading.Thread:
    """Ask the server something from another thread."""

    def send() -> None:
        with client(server) as http:
            http.post(path, json={"message": message, **body})

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def asked(server: Served, **body: Any) -> None:
    """Ask, and wait until the records have what became of it: they make its page."""
    ask(server, **body).join(60)
    with client(server) as http:
        assert finished(http)


def test_a_live_run_shows_a_denial_as_it_happens_and_its_answer_as_it_streams(page: Page, tmp_path: Path) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    turns = [
        {**calls(call("delete_file", path="/etc/passwd")), "wait": first.wait},
        {"stream": ["It was ", "not allowed."], "wait": second.wait},
    ]
    with visited(page, tmp_path, turns, hooks=office_hooks()) as server:
        page.goto(f"{server.url}/ui/runs")
        expect(page.get_by_text("Nothing has run yet")).to_be_visible()
        asking = ask(server, path="/stream")
        page.get_by_role("link", name="office").or_(page.locator("a.rowlink")).first.click()
        expect(page.locator(".badge.s-open")).to_be_visible()
        expect(page.get_by_text("still going").first).to_be_visible()
        server.call(first.set)
        denial = page.locator(".hook a", has_text="guard")
        expect(denial).to_contain_text("✗ deny")
        expect(denial).to_contain_text("Files are kept for ten years")
        expect(page.locator(".happened")).to_contain_text("never ran: refused by guard")
        denial.click()
        expect(page.locator("#record")).to_contain_text("refused by guard")
        expect(page.locator("#record")).to_contain_text("/etc/passwd")
        server.call(second.set)
        expect(page.locator("#answer")).to_have_text("It was not allowed.")
        expect(page.locator(".badge.s-completed")).to_be_visible()
        # The record that was opened stays, and its row is marked, after the timeline was drawn again.
        expect(page.locator("#record")).to_contain_text("refused by guard")
        expect(page.locator(".hook a[aria-current]")).to_contain_text("guard")
        asking.join(60)


def test_a_waiting_call_is_approved_on_the_page_and_the_run_goes_on(page: Page, tmp_path: Path) -> None:
    gate = asyncio.Event()
    turns = [calls(call("send_mail", to="ann@example.com", text="hello")), {"text": "Sent it.", "wait": gate.wait}]
    with visited(page, tmp_path, turns, hooks=office_hooks()) as server:
        page.goto(f"{server.url}/ui/approvals")
        expect(page.get_by_text("Nothing waits for an approval.")).to_be_visible()
        asked(server, user_id="ann")
        expect(page.get_by_text("wants to call")).to_be_visible()
        expect(page.locator(".askform pre")).to_contain_text("ann@example.com")
        page.get_by_role("button", name="Approve once").click()
        expect(page.locator(".step", has_text="send_mail").last).to_contain_text("Sent to ann@example.com")
        server.call(gate.set)
        expect(page.locator(".badge.s-completed")).to_be_visible()
        expect(page.locator("#answer")).to_have_text("Sent it.")
        expect(page.locator(".outcome", has_text="said loopback")).to_have_text("yes to c1, said loopback")
        expect(page.locator(".card.ask")).to_have_count(0)
        page.goto(f"{server.url}/ui/approvals")
        expect(page.get_by_text("Nothing waits for an approval.")).to_be_visible()


def test_a_part_that_is_drawn_again_keeps_the_focus_and_what_was_open(page: Page, tmp_path: Path) -> None:
    gate = asyncio.Event()
    mail = calls(call("send_mail", to="ann@example.com", text="hello"))
    slow = {**calls(call("search", "c2", query="tea")), "wait": gate.wait}
    turns = [mail, calls(call("search", query="tea")), slow, "done", "sent"]
    with visited(page, tmp_path, turns, hooks=office_hooks()) as server, client(server) as http:
        asked(server, user_id="ann")
        page.goto(f"{server.url}/ui/approvals")
        expect(page.locator(".askform")).to_have_count(1)
        page.get_by_role("button", name="Deny").focus()
        old = page.locator(".askform").element_handle()
        asking = ask(server)
        page.wait_for_function("old => !old.isConnected", arg=old)
        expect(page.get_by_role("button", name="Deny")).to_be_focused()
        settled(lambda: len(http.get("/runs").json()["runs"]) == 2)
        page.goto(f"{server.url}/ui/runs/{http.get('/runs').json()['runs'][0]['run_id']}")
        step = page.locator(".step", has=page.locator(":scope > .two")).first
        step.locator(":scope > .more summary").click()
        step.locator(".happened summary").click()
        old = step.element_handle()
        server.call(gate.set)
        page.wait_for_function("old => !old.isConnected", arg=old)
        expect(page.locator(".badge.s-completed")).to_be_visible()
        expect(step.locator("details[open]")).to_have_count(2)
        asking.join(60)


def test_a_denied_ask_shows_that_the_call_never_ran(page: Page, tmp_path: Path) -> None:
    turns = [calls(call("send_mail", to="ann@example.com", text="hello")), "All right, not sent."]
    with visited(page, tmp_path, turns) as server:
        asked(server)
        page.goto(f"{server.url}/ui/approvals")
        page.get_by_role("button", name="Deny").click()
        expect(page.locator(".badge.s-completed")).to_be_visible()
        expect(page.locator(".happened").last).to_contain_text("never ran")


def test_filtering_and_going_back(page: Page, tmp_path: Path) -> None:
    turns = [calls(call("delete_file", path="/b")), "refused", "plain"]
    with visited(page, tmp_path, turns, hooks=office_hooks()) as server, client(server) as http:
        for _ in range(2):
            http.post("/invoke", json={"message": "x"})
        finished(http, 2)
        page.goto(f"{server.url}/ui/runs")
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_label("Decision").select_option("deny")
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody")).to_contain_text("✗ 1 denied")
        page.locator("a.rowlink").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Run")
        page.go_back()
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="Clear").click()
        expect(page.locator("tbody tr")).to_have_count(2)


def test_everything_can_be_reached_with_the_keyboard(page: Page, tmp_path: Path) -> None:
    turns = [calls(call("search", query="tea"), call("delete_file", "c2", path="/b")), "done"]
    with visited(page, tmp_path, turns, hooks=office_hooks()) as server, client(server) as http:
        http.post("/invoke", json={"message": "x"})
        finished(http)
        page.goto(f"{server.url}/ui/runs")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("/")
        expect(page.get_by_label("Status")).to_be_focused()
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        expect(page.locator("a.rowlink").first).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".hook").first).to_be_visible()
        page.wait_for_load_state()  # a key goes nowhere before the page's script is there
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        focused = page.locator("[data-row]:focus")
        expect(focused).to_have_count(1)
        name = focused.locator(".name").inner_text()
        page.keyboard.press("Enter")
        expect(page.locator("#record h2")).to_contain_text(name)
        expect(page.locator("#record")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        expect(page.locator("[data-row][aria-current]")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("j")
        expect(focused).to_have_count(1)
        expect(focused).not_to_have_attribute("aria-current", "true")


def test_a_stream_is_a_line_a_hook_and_each_piece_can_be_seen(page: Page, tmp_path: Path) -> None:
    hooks = HookRegistry()
    hooks.register_function("on_llm_delta", lambda seen: None, name="watch", inline=True)
    hooks.register_function("on_llm_delta", lambda seen: seen.text.upper(), name="loud", observe=True, inline=True)
    hooks.register_function("before_tool", lambda seen: "not here", name="guard", inline=True, sequential=True)
    turns = [calls(call("search", query="x")), {"stream": ["piece "] * 20}]
    with visited(page, tmp_path, turns, hooks=hooks) as server, client(server) as http:
        http.post("/stream", json={"message": "x"})
        (run,) = finished(http)
        page.goto(f"{server.url}/ui/runs/{run['run_id']}")
        model = page.locator(".step", has=page.locator(".line .kind", has_text="model")).last
        expect(model.locator(".hook")).to_have_count(2)
        line = model.locator(".hook", has_text="watch")
        expect(line).to_contain_text("✓ allow")
        expect(line).to_contain_text("21 times")
        page.get_by_role("link", name="1 denied").click()
        expect(page.locator(".hook:target")).to_contain_text("not here")
        page.wait_for_load_state()
        line.get_by_role("link").focus()
        page.keyboard.press("Enter")
        expect(model.locator(".hook", has_text="watch")).to_have_count(21)
        expect(model.locator("[data-row]").first).to_be_focused()
        model.locator("[data-row]").last.click()
        expect(page.locator("#record .record")).to_be_visible()


def test_markup_in_names_reasons_and_results_does_nothing_in_a_real_browser(page: Page, tmp_path: Path) -> None:
    hooks = office_hooks()
    hooks.register_function("before_tool", lambda event: EVIL, name=EVIL, matcher="delete_file", sequential=True)
    hooks.register_function("after_tool", lambda event: EVIL, name="rewrite", matcher="search")
    turns = [calls(call("search", query=EVIL), call("delete_file", "c2", path=EVIL)), {"stream": [EVIL, EVIL]}]
    with visited(page, tmp_path, turns, hooks=hooks) as server, client(server) as http:
        http.post("/stream", json={"message": EVIL, "user_id": EVIL, "session_id": EVIL})
        (run,) = finished(http)
        for path in ("runs", f"runs/{run['run_id']}", "hooks", "coverage", "approvals"):
            page.goto(f"{server.url}/ui/{path}")
            assert page.locator("img").count() == 0
        page.goto(f"{server.url}/ui/runs/{run['run_id']}")
        expect(page.locator("#answer")).to_have_text(EVIL + EVIL)
        for row in range(page.locator("[data-row]").count()):
            page.locator("[data-row]").nth(row).click()
            expect(page.locator("#record .record")).to_be_visible()
            assert page.locator("img").count() == 0


def test_the_pages_work_with_scripting_off(browser: Browser, tmp_path: Path) -> None:
    turns = [calls(call("delete_file", path="/b"), call("send_mail", "c2", to="a", text="b")), "done"]
    with served(tmp_path, turns, hooks=office_hooks()) as server, client(server) as http:
        http.post("/invoke", json={"message": "x"})
        (run,) = finished(http)
        context = browser.new_context(java_script_enabled=False)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(f"{server.url}/ui/runs")
        page.locator("a.rowlink").click()
        page.locator(".hook a", has_text="guard").last.click()
        expect(page.locator("#record")).to_contain_text("What became of the step")
        page.get_by_role("button", name="Approve once").click()
        expect(page).to_have_url(f"{server.url}/ui/runs/{run['run_id']}")
        assert settled(lambda: http.get("/runs").json()["runs"][0]["status"] == "completed")
        page.reload()
        expect(page.locator("#answer")).to_contain_text("done")
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_nothing_sticks_out_on_wide_or_narrow_screens(
    browser: Browser, tmp_path: Path, width: int, scheme: Any
) -> None:
    long = "a_very_long_name_without_a_single_blank_" * 4
    turns = [calls(call("search", query=long), call("write_file", "c2", path=long, text=f"4111 1111 {long}")), long]
    hooks = office_hooks()
    hooks.register_function("before_tool", lambda event: long, name=long, matcher="write_file")
    with served(tmp_path, turns, hooks=hooks) as server, client(server) as http:
        http.post("/invoke", json={"message": "x", "user_id": long, "session_id": long})
        (run,) = finished(http)
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        for name in ("runs", f"runs/{run['run_id']}", "hooks", "coverage", "approvals"):
            page.goto(f"{server.url}/ui/{name}")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} wide on a screen of {width}"
            if SCREENSHOTS:
                page.screenshot(path=f"{SCREENSHOTS}/{name[:6].strip('/')}-{scheme}-{width}.png", full_page=True)
        context.close()


def test_logging_in_with_a_token_and_out_again(page: Page, tmp_path: Path) -> None:
    settings = ServerSettings(port=0, token="static-token-of-sixteen-plus", drain_s=5)
    with visited(page, tmp_path, [], settings=settings) as server:
        page.goto(f"{server.url}/ui/hooks")
        page.get_by_label("Token").fill(settings.token or "")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Hooks")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        page.goto(f"{server.url}/ui/hooks")
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
