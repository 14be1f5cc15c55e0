"""The inspector: pages rendered here, which work without scripting; with it, they follow what happens."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from agent_engine.records.settings import RecordsError, seconds
from agent_engine.records.views import Record, RunDetail, RunFilter
from agent_engine.server import present
from agent_engine.server.api import own, services
from agent_engine.server.errors import ApiError, Problem, request_id_of
from agent_engine.server.events import EventStream, sse
from agent_engine.server.identity import Unauthenticated
from agent_engine.server.paths import RECORD, RUN
from agent_engine.server.sessions import COOKIE, LIFETIME_S, Session, same_token
from agent_engine.server.templates import render

if TYPE_CHECKING:
    from agent_engine.records.query import RecordReader
    from agent_engine.server.app import Services

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

PAGE = 50
FOLLOWED = ("open", "waiting")
"""Statuses of a run that may still move."""
_LOOKS = 250
"""So often is it looked whether the records have a run that was answered; they make the page that follows."""
DECISIONS = ("deny", "failed", "ask", "modify", "shadow")
STATUSES = ("open", "completed", "blocked", "failed", "waiting", "cancelled", "interrupted")
AGES = (("15m", "15 minutes"), ("1h", "hour"), ("24h", "day"), ("7d", "week"))


class NoSession(Exception):
    """A page was asked for by somebody who has to log in first."""


async def to_login(request: Request, _error: Exception) -> Response:
    """Where somebody without a session goes: to the login page, and from there back."""
    if "hx-request" in request.headers or request.url.path.startswith(("/ui/events", "/ui/parts/")):
        return Response(status_code=401, headers={"HX-Redirect": "/ui/login"})
    to = _address(request) if request.method == "GET" else "/ui/runs"
    return RedirectResponse(f"/ui/login?to={quote(to)}", 303)


async def problem_page(request: Request, problem: Problem) -> Response:
    """An error on a page, as a page."""
    browser = await services(request).access.browser(request)
    values = {"message": problem.message, "request_id": request_id_of(request)}
    response = page(request, browser, "problem.html", **values)
    response.status_code = problem.status
    return response


async def session(request: Request) -> Session:
    """The browser's session; where no token is set, one is begun for anybody at this machine."""
    access = services(request).access
    found = await access.browser(request)
    if found is None and access.is_open:
        cookie = await access.open_session(request)
        request.state.new_cookie = cookie
        found = access.sessions.find({COOKIE: cookie})
    if found is None:
        raise NoSession
    return found


Browser = Annotated[Session, Depends(session)]


def page(request: Request, browser: Session | None, template: str, /, **values: Any) -> HTMLResponse:
    """A rendered page or part of one, with the cookie of a session that has just begun."""
    here = services(request)
    common = {
        "csrf": browser.csrf if browser is not None else "",
        "who": _who(browser),
        "can_log_out": browser is not None and not here.access.is_open,
        "is_admin": browser is not None and browser.identity.trusted,
        "path": request.url.path,
        "has_engine": here.engine is not None,
        "now": time.time(),
        "trouble": here.trouble if browser is not None and browser.identity.trusted else None,
    }
    body = render(template, {**common, **values}).encode("utf-8", "replace")
    response = HTMLResponse(body, headers={"Cache-Control": "no-store"})
    _keep(request, response)
    return response


# -- runs -------------------------------------------------------------------------------------------------------------


@router.get("/")
@router.get("/ui")
async def home() -> Response:
    return RedirectResponse("/ui/runs", 303)


@router.get("/ui/runs")
@router.get("/ui/parts/runs")
async def runs(
    request: Request,
    browser: Browser,
    status: str = "",
    agent: str = "",
    tool: str = "",
    decision: str = "",
    age: str = "",
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
) -> Response:
    """The runs, the newest first; ``/ui/parts/runs`` is the part of the page that follows the store."""
    chosen = {"status": status, "agent": agent, "tool": tool, "decision": decision, "age": age}
    reader = _reader(request)
    wanted = RunFilter(
        status=status or None, agent=agent or None, tool=tool or None, decision=decision or None, since=_since(age)
    )
    found = await asyncio.to_thread(_runs_and_values, reader, own(browser.identity, wanted), before)
    rows, agents, tools, totals = found
    query = urlencode({name: value for name, value in chosen.items() if value})
    older = f"/ui/runs?{urlencode({**dict(_pairs(query)), 'before': rows[-1].key})}" if len(rows) == PAGE else None
    return page(
        request, browser, "runs_table.html" if _is_part(request) else "runs.html",
        rows=rows, agents=agents, tools=tools, chosen=chosen, query=query, older=older, totals=totals, before=before,
        statuses=STATUSES, decisions=DECISIONS, ages=AGES,
    )  # fmt: skip


@router.get(f"/ui/parts/hooks/{{step}}/{RUN}")
async def step_hooks(
    request: Request, browser: Browser, run_id: str, step: Annotated[int, Path(ge=0, le=2**62)]
) -> Response:
    """All hook runs of one step, in the place of a folded line."""
    reader = _reader(request)
    detail = await asyncio.to_thread(reader.run, run_id, payloads=False, fold_from=0)
    if detail is None or not browser.identity.owns(detail.run.user_id, detail.run.organization_id):
        raise ApiError(404, "not_found", "There is no such run.")
    most = present.MOST_HOOKS
    records = await asyncio.to_thread(reader.records_of_step, run_id, step, limit=most + 1)
    hooks = present.hook_rows(detail, records[:most])
    return await asyncio.to_thread(
        page, request, browser, "step_hooks.html",
        run=detail.run, hooks=hooks, key=step, width=present.WIDTH, cut=len(records) > most, before=None,
    )  # fmt: skip


@router.get(f"/ui/records/{RECORD}")
async def record(request: Request, browser: Browser, record_id: str) -> Response:
    """One decision record, to stand beside the run."""
    shown = await _record(request, browser, record_id)
    part = "hx-request" in request.headers
    return page(request, browser, "record_part.html" if part else "record_alone.html", shown=shown)


# -- hooks, coverage --------------------------------------------------------------------------------------------------


@router.get("/ui/hooks")
async def hooks(request: Request, browser: Browser, age: str = "7d") -> Response:
    """Every hook, in effective order, with how it did."""
    _admin(browser)
    engine = services(request).engine
    stats = await asyncio.to_thread(_reader(request).hook_stats, _since(age))
    registered = engine.scope.hooks() if engine is not None else []
    lines = present.hook_lines(registered, stats)
    return page(request, browser, "hooks.html", lines=lines, age=age, ages=AGES, marks=present.MARKS)


@router.get("/ui/coverage")
async def coverage(request: Request, browser: Browser, age: str = "7d", kind: str = "", name: str = "") -> Response:
    """Which steps no gate saw, and which events nobody listens to."""
    _admin(browser)
    reader = _reader(request)
    covered = await asyncio.to_thread(reader.coverage, _since(age))
    examples = await asyncio.to_thread(reader.ungated_steps, kind, name or None) if kind else []
    return page(
        request, browser, "coverage.html", covered=covered, examples=examples, kind=kind, name=name, age=age, ages=AGES,
    )  # fmt: skip


# -- approvals --------------------------------------------------------------------------------------------------------


@router.get("/ui/approvals")
@router.get("/ui/parts/approvals")
async def approvals(request: Request, browser: Browser) -> Response:
    """What waits for a person."""
    waiting = await services(request).waiting(browser.identity)
    name = "approvals_list.html" if _is_part(request) else "approvals.html"
    return page(request, browser, name, waiting=waiting)


@router.post(f"/ui/approvals/{RUN}")
async def decide(
    request: Request,
    browser: Browser,
    run_id: str,
    csrf: Annotated[str, Form()],
    decision: Annotated[str, Form(pattern="^(yes|session|no)$")],
    call_id: Annotated[list[str], Form(min_length=1)],
) -> Response:
    """Answer what a run asks; it goes on aside, and its page shows how."""
    _check_form(request, browser, csrf)
    here = services(request)
    asks = {one.run_id: {ask.call_id for ask in one.asks} for one in await here.waiting(browser.identity)}
    if run_id not in asks:
        raise ApiError(404, "not_found", "No run of that id waits for an approval; perhaps somebody was faster.")
    if not asks[run_id].issuperset(call_id):
        raise ApiError(409, "conflict", "This call waits no more; perhaps somebody was faster.")
    await here.runs.resume_aside(run_id, dict.fromkeys(call_id, decision), browser.identity)  # type: ignore[arg-type]  # the pattern
    if here.reader is not None:
        await _recorded(here.reader, run_id)
    return RedirectResponse(f"/ui/runs/{quote(run_id, safe='')}", 303)


async def _recorded(reader: RecordReader, run_id: str) -> None:
    with contextlib.suppress(RecordsError):  # the page that follows says so
        for _ in range(_LOOKS):
            if await asyncio.to_thread(reader.run_row, run_id) is not None:
                return
            await asyncio.sleep(0.02)


# -- following --------------------------------------------------------------------------------------------------------


@router.get("/ui/events")
async def follow_store(request: Request, browser: Browser) -> Response:
    """``changed`` each time the store has grown."""
    live = services(request).live

    async def events() -> AsyncGenerator[bytes, None]:
        yield sse("hello", "")
        async for _ in live.grown():
            yield sse("changed", "")

    return _followed(request, browser, events())


@router.get(f"/ui/events/{RUN}")
async def follow_run(request: Request, browser: Browser, run_id: str) -> Response:
    """``changed`` when a run has moved on, ``answer`` with its text so far, ``ended`` at its end."""
    detail = await asyncio.to_thread(_reader(request).run_row, run_id)
    if detail is None or not browser.identity.owns(detail.user_id, detail.organization_id):
        raise ApiError(404, "not_found", "There is no such run.")
    return _followed(request, browser, _run_events(services(request), _reader(request), run_id))


def _followed(request: Request, browser: Session, events: AsyncGenerator[bytes, None]) -> EventStream:
    """Events for as long as the session lasts that asked for them."""
    sessions = services(request).access.sessions

    async def allowed() -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(events):
            async for event in events:
                if not sessions.lasts(browser):
                    return
                yield event

    return EventStream(allowed())


@router.get(f"/ui/runs/{RUN}")
@router.get(f"/ui/parts/timeline/{RUN}")
async def run(
    request: Request,
    browser: Browser,
    run_id: str,
    record: str = "",
    unfolded: Annotated[int | None, Query(alias="open", ge=0, le=2**62)] = None,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
) -> Response:
    """One run; ``/ui/parts/timeline`` is the part of the page that follows it."""
    detail, rows, loose = await asyncio.to_thread(_timeline, _reader(request), run_id, unfolded, before)
    if not browser.identity.owns(detail.run.user_id, detail.run.organization_id):
        raise ApiError(404, "not_found", "There is no such run.")
    here = services(request)
    shown = None
    if record:
        shown = await _record(request, browser, record)
    answer = here.live.answer(run_id)
    part = _is_part(request)
    asks = await here.asks_of(run_id) if detail.run.status == "waiting" else []
    # In a thread: a page of a thousand steps takes a while, and others must not wait for it.
    return await asyncio.to_thread(
        page, request, browser, "timeline.html" if part else "run.html",
        detail=detail, run=detail.run, rows=rows, loose=loose, shown=shown, answer=answer, asks=asks,
        live=detail.run.status in FOLLOWED and before is None, width=present.WIDTH, part=part, before=before,
    )  # fmt: skip


async def _run_events(here: Services, reader: RecordReader, run_id: str) -> AsyncGenerator[bytes, None]:
    seen: Any = None
    changes: asyncio.Queue[str] = asyncio.Queue()

    async def look() -> None:
        async for _ in here.live.grown():
            changes.put_nowait("store")
        changes.put_nowait("stop")

    async def listen() -> None:
        told = ""
        while (answer := here.live.answer(run_id)) is not None and not here.live.closing:
            changed = answer.changed
            if answer.text != told:
                told = answer.text
                changes.put_nowait("answer")
            await changed.wait()  # also once it has ended: a run that waited may go on with another
            await asyncio.sleep(0.05)

    changes.put_nowait("store")
    tasks = [asyncio.create_task(look()), asyncio.create_task(listen())]
    try:
        while (change := await changes.get()) != "stop":
            if change == "answer":
                yield _answer_event(here, run_id)
                continue
            row = await asyncio.to_thread(reader.run_row, run_id)
            if row is not None and row != seen:
                seen = row
                yield sse("changed", "")
                if row.status not in FOLLOWED:
                    await here.live.whole(run_id)
                    yield _answer_event(here, run_id)
                    yield sse("ended", row.status)
                    return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _answer_event(here: Services, run_id: str) -> bytes:
    answer = here.live.answer(run_id)
    return sse("answer", render("answer_text.html", {"text": answer.text if answer is not None else ""}))


# -- logging in -------------------------------------------------------------------------------------------------------


@router.get("/ui/login")
async def login_page(request: Request, to: str = "/ui/runs") -> Response:
    return page(request, None, "login.html", to=_inside(to), problem="")


@router.post("/ui/login")
async def log_in(request: Request, token: Annotated[str, Form()], to: Annotated[str, Form()] = "/ui/runs") -> Response:
    """A token for a cookie. There is no session yet whose token the form could carry."""
    _check_site(request)
    try:
        cookie = await services(request).access.log_in(token, request)
    except (Unauthenticated, ApiError) as error:
        problem = str(error) if isinstance(error, ApiError) else "This token is not valid."
        response = page(request, None, "login.html", to=_inside(to), problem=problem)
        response.status_code = 403
        return response
    request.state.new_cookie = cookie
    redirect = RedirectResponse(_inside(to), 303)
    _keep(request, redirect)
    return redirect


@router.post("/ui/logout")
async def log_out(request: Request, browser: Browser, csrf: Annotated[str, Form()]) -> Response:
    _check_form(request, browser, csrf)
    services(request).access.sessions.end(request.cookies)
    response = RedirectResponse("/ui/login", 303)
    response.delete_cookie(COOKIE, path="/ui")
    return response


# -- helpers ----------------------------------------------------------------------------------------------------------


def _address(request: Request) -> str:
    """The path and the query as they were asked for; a decoded path is no address any more."""
    path = (request.scope.get("raw_path") or quote(request.scope["path"]).encode()).decode("ascii", "replace")
    query = request.scope["query_string"].decode("ascii", "replace")
    return f"{path}?{query}" if query else path


def _is_part(request: Request) -> bool:
    """Whether what the address names is to stand in a page that is there already."""
    return request.url.path.startswith("/ui/parts/")


def _keep(request: Request, response: Response) -> None:
    cookie = getattr(request.state, "new_cookie", None)
    if cookie is not None:
        response.set_cookie(
            COOKIE, cookie, max_age=LIFETIME_S, path="/ui", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip


def _check_form(request: Request, browser: Session, csrf: str) -> None:
    """A form must come from a page of this site, of this session."""
    _check_site(request)
    if not same_token(browser, csrf):
        raise ApiError(403, "forbidden", "This form is not from this page any more; load it again.")


def _check_site(request: Request) -> None:
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise ApiError(403, "forbidden", "A page of another site cannot use this server.")


def _admin(browser: Session) -> None:
    if not browser.identity.trusted:
        raise ApiError(403, "forbidden", "This page shows the runs of everybody; your token does not allow that.")


def _reader(request: Request) -> RecordReader:
    reader = services(request).reader
    if reader is None:
        raise ApiError(404, "no_records", "This server keeps no records, so there is nothing to show.")
    return reader


def _runs_and_values(reader: RecordReader, wanted: RunFilter, before: int | None) -> tuple[Any, Any, Any, Any]:
    rows = reader.runs(wanted, before=before, limit=PAGE)
    return rows, reader.values_of("agent"), reader.values_of("tool"), reader.counts()


def _timeline(
    reader: RecordReader, run_id: str, unfolded: int | None, before: int | None
) -> tuple[RunDetail, list[present.StepRow], list[present.HookRow]]:
    detail = reader.run(run_id, fold_from=present.FOLD_FROM, most_steps=present.MOST_STEPS, before=before)
    if detail is None:
        raise ApiError(404, "not_found", "There is no such run.")
    for step in detail.steps if unfolded is not None else ():
        if step.key == unfolded:
            detail.quiet.pop(step.key, None)
            step.records[:] = reader.records_of_step(run_id, step.key, limit=present.MOST_HOOKS)
    at_tools = [
        record.seq for step in detail.steps for record in step.records if record.event in ("before_tool", "after_tool")
    ]
    rows, loose = present.timeline(detail, reader.payloads_of_all(at_tools[:2000]), unfolded)
    return detail, rows, loose


async def _record(request: Request, browser: Session, record_id: str) -> dict[str, Any]:
    reader = _reader(request)

    def read() -> tuple[Record, dict[str, Any]]:
        found = reader.record(record_id)
        if found is None:
            raise ApiError(404, "not_found", "There is no such record.")
        if not browser.identity.trusted:
            row = reader.run_row(found.run_id) if found.run_id is not None else None
            if row is None or not browser.identity.owns(row.user_id, row.organization_id):
                raise ApiError(404, "not_found", "There is no such record.")
        return found, reader.payloads_of(found.seq)

    found, payloads = await asyncio.to_thread(read)
    return {
        "record": found,
        "payloads": payloads,
        "diff": present.record_diff(payloads, found.changed),
        "kind": present.decision_kind(found),
        "word": present.decision_word(found),
        "mark": present.MARKS.get(found.decision, "·"),
    }


def _since(age: str) -> float | None:
    if not age or age == "all":
        return None
    try:
        return time.time() - seconds(age)
    except ValueError:
        raise ApiError(422, "invalid_request", "This age is no duration, such as 7d.") from None


def _inside(to: str) -> str:
    """Only ever back to a page of this server."""
    return to if to.startswith("/ui/") and "\\" not in to and "//" not in to else "/ui/runs"


def _pairs(query: str) -> list[tuple[str, str]]:
    from urllib.parse import parse_qsl

    return parse_qsl(query)


def _who(browser: Session | None) -> str:
    if browser is None:
        return ""
    identity = browser.identity
    return identity.user_id or {"loopback": "this machine", "token": "token"}.get(identity.scheme, identity.scheme)
