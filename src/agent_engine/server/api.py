"""The routes of the HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi import Path as PathParam
from starlette.background import BackgroundTask
from starlette.responses import Response

from agent_engine.records.views import RunFilter, iso
from agent_engine.server import shapes
from agent_engine.server.errors import ApiError, request_id_of
from agent_engine.server.events import EventStream, sse
from agent_engine.server.identity import Identity
from agent_engine.server.paths import RUN
from agent_engine.server.runs import ClientGone, error_event, while_connected

if TYPE_CHECKING:
    from agent_engine.records.query import RecordReader
    from agent_engine.records.views import RunRow, Step
    from agent_engine.runtime.result import RunResult
    from agent_engine.server.app import Services

router = APIRouter(default_response_class=shapes.Json)

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": shapes.Error, "description": text}
    for status, text in {
        400: "The request cannot be understood.",
        401: "No valid token.",
        403: "Not allowed, or refused by a hook.",
        413: "The body is too large.",
        422: "The body has another shape, or a limit of the run was reached.",
        500: "Something went wrong.",
        502: "The model did not answer.",
        503: "Too many runs, or the server is stopping.",
        504: "The run took too long.",
    }.items()
}
_STREAM_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": found["description"],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for status, found in _ERRORS.items()
}
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON"}},
    "required": ["event", "data"],
}
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": shapes.Error, "description": "There is none."}}


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


async def caller(request: Request) -> Identity:
    return await services(request).access.caller(request)


Caller = Annotated[Identity, Depends(caller)]
RunId = Annotated[str, PathParam(min_length=1, max_length=200)]


@router.get("/health", responses={503: _ERRORS[503]}, summary="Whether the server takes requests")
async def health(request: Request) -> shapes.Health:
    here = services(request)
    return shapes.Health(status="stopping" if here.stopping else "ok", runs=here.under_way)


@router.post("/invoke", response_model=shapes.RunAnswer, responses=_ERRORS, summary="One message, one answer")
async def invoke(request: Request, body: shapes.MessageRequest, identity: Caller) -> Response:
    runs = services(request).runs
    context = runs.context(identity, body)
    slot = runs.slot()
    try:
        result = await while_connected(request.receive, runs.invoke(body.message, context))
    except ClientGone:
        await runs.gateway.undelivered("", context, "the client went away")
        return Response(status_code=499)
    finally:
        slot.release()
    answer = _answer(result)
    sent = BackgroundTask(runs.gateway.sent, str(result.output), context) if result.status == "completed" else None
    return shapes.Json(answer, headers={"X-Run-Id": context.run_id}, background=sent)


@router.post(
    "/stream",
    response_class=EventStream,
    status_code=200,
    responses={**_STREAM_ERRORS, 200: {"description": "Events", "content": {"text/event-stream": {"schema": _EVENT}}}},
    summary="One message, and what happens as server-sent events",
)
async def stream(request: Request, body: shapes.MessageRequest, identity: Caller) -> Response:
    """Events are ``text``, ``tool_started``, ``tool_finished``, ``hook``, ``approval`` and ``final``, each with
    ``type``, ``run_id`` and ``data``; where the run fails, ``error`` with ``code``, ``message`` and ``request_id``."""
    runs = services(request).runs
    context = runs.context(identity, body)
    slot = runs.slot()
    outcome: dict[str, str] = {}

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            async with contextlib.aclosing(runs.stream(body.message, context)) as told:
                async for event in told:
                    if event.type == "final" and event.result is not None and event.result.status == "completed":
                        outcome["answer"] = str(event.result.output)
                    yield sse(event.type, event.to_dict())
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the response has begun; the error is its last event
            outcome["error"] = type(error).__name__
            yield sse("error", error_event(error, request_id_of(request)))

    async def done(complete: bool) -> None:
        if complete and "answer" in outcome:
            await runs.gateway.sent(outcome["answer"], context)
        elif not complete:
            await runs.gateway.undelivered(outcome.get("answer", ""), context, "the client went away")

    return EventStream(events(), slot.release, done, {"X-Run-Id": context.run_id})


@router.get("/runs", responses=_ERRORS, summary="Runs, the newest first")
async def list_runs(
    request: Request,
    identity: Caller,
    status: Annotated[shapes.Word | None, Query()] = None,
    agent: Annotated[shapes.Word | None, Query()] = None,
    tool: Annotated[shapes.Word | None, Query()] = None,
    decision: Annotated[shapes.Word | None, Query()] = None,
    session_id: Annotated[shapes.Word | None, Query()] = None,
    since: Annotated[float | None, Query(description="Seconds since the epoch.", ge=0, le=1e11)] = None,
    before: Annotated[int | None, Query(description="``next`` of the page before.", ge=0, le=2**62)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> shapes.RunList:
    wanted = own(
        identity,
        RunFilter(status=status, agent=agent, tool=tool, decision=decision, session_id=session_id, since=since),
    )
    rows = await asyncio.to_thread(reader_of(request).runs, wanted, before=before, limit=limit)
    following = str(rows[-1].key) if len(rows) == limit else None
    return shapes.RunList(runs=[shapes.RunSummary(**_summary(row)) for row in rows], next=following)


@router.get(f"/runs/{RUN}", responses={**_ERRORS, **_NOT_FOUND}, summary="One run with its steps and decisions")
async def show_run(request: Request, run_id: RunId, identity: Caller) -> shapes.RunDetail:
    detail = await asyncio.to_thread(reader_of(request).run, run_id)
    if detail is None or not identity.owns(detail.run.user_id, detail.run.organization_id):
        raise ApiError(404, "not_found", "There is no such run.")
    asks = await services(request).asks_of(run_id)
    return shapes.RunDetail(
        **_summary(detail.run),
        steps_detail=[_step(step) for step in detail.roots],
        records=[record.to_dict() for record in detail.records],
        pending=[shapes.Ask(**ask) for ask in asks],
    )


@router.get("/approvals", responses=_ERRORS, summary="Runs that wait for an approval, oldest first")
async def approvals(request: Request, identity: Caller) -> shapes.WaitingRuns:
    found = await services(request).waiting(identity)
    return shapes.WaitingRuns(runs=found)


@router.post(
    f"/runs/{RUN}/resume",
    response_model=shapes.RunAnswer,
    responses={**_ERRORS, **_NOT_FOUND},
    summary="Answer what a run asks, and go on with it",
)
async def resume(request: Request, run_id: RunId, body: shapes.DecisionsRequest, identity: Caller) -> Response:
    runs = services(request).runs
    slot = runs.slot()
    try:
        work = runs.resume(run_id, body.decisions, identity)
        result = await while_connected(request.receive, work)
    except ClientGone:
        return Response(status_code=499)
    finally:
        slot.release()
    return shapes.Json(_answer(result), headers={"X-Run-Id": run_id})


def reader_of(request: Request) -> RecordReader:
    """The records of this server.

    Raises:
        ApiError: none are kept (404).
    """
    reader = services(request).reader
    if reader is None:
        raise ApiError(404, "no_records", "This server keeps no records.")
    return reader


def own(identity: Identity, wanted: RunFilter) -> RunFilter:
    """The filter narrowed to what a caller may see."""
    if identity.trusted:
        return wanted
    from dataclasses import replace

    return replace(wanted, owner=identity.key)


def _answer(result: RunResult) -> dict[str, Any]:
    from agent_engine.tools.result import plain

    return {
        "run_id": result.run_id,
        "status": result.status,
        "output": plain(result.output),
        "session_id": result.session_id,
        "usage": {"input_tokens": result.usage.input_tokens, "output_tokens": result.usage.output_tokens},
        "visited": list(result.visited),
        "pending": [plain(ask.to_dict()) for ask in result.pending],
    }


def _summary(row: RunRow) -> dict[str, Any]:
    names = shapes.RunSummary.model_fields
    return {**{name: getattr(row, name) for name in names}, "started_at": iso(row.started_at)}


def _step(step: Step) -> dict[str, Any]:
    return {
        "step_id": step.step_id,
        "kind": step.kind,
        "name": step.name,
        "agent": step.agent,
        "started_at": iso(step.started_at) if step.started_at is not None else None,
        "duration_ms": step.duration_ms,
        "status": step.status,
        "outcome": step.outcome,
        "refused_by": step.refused_by,
        "reason": step.reason,
        "error_type": step.error_type,
        "unheard": list(step.unheard),
        "detail": {**step.opened, **step.closed},
        "payloads": step.payloads,
        "records": [record.to_dict() for record in step.records],
        "steps": [_step(child) for child in step.children],
    }
