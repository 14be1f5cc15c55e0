"""What goes wrong, as the outside sees it: a code, a safe message and the request's id, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from agent_engine.hooks.errors import HookError, LimitReached, RunBlocked
from agent_engine.models.errors import ModelError
from agent_engine.records.settings import RecordsError
from agent_engine.runtime.engine import EngineError
from agent_engine.server.identity import Unauthenticated

logger = logging.getLogger("agent_engine.server")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error answer. ``retry_after`` is in seconds."""

    status: int
    code: str
    message: str
    retry_after: int | None = None


class ApiError(Exception):
    """An error that a route raises on purpose."""

    def __init__(self, status: int, code: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(status, code, message, retry_after)


_BY_STATUS = {
    400: ("bad_request", "The request cannot be understood."),
    401: ("unauthenticated", "A valid token is needed."),
    403: ("forbidden", "This is not yours to see or do."),
    404: ("not_found", "There is no such thing here."),
    405: ("method_not_allowed", "This address does not take that method."),
    413: ("too_large", "The request is too large."),
    415: ("unsupported_media_type", "Send JSON: Content-Type: application/json."),
}


def problem_of(error: BaseException) -> Problem:
    """The answer for an exception. The text of a stranger's exception is never part of it."""
    if isinstance(error, ApiError):
        return error.problem
    if isinstance(error, RunBlocked):
        return Problem(403, "blocked", str(error))
    if isinstance(error, LimitReached):
        return Problem(422, "limit_reached", str(error))
    if isinstance(error, Unauthenticated):
        return Problem(401, "unauthenticated", "A valid token is needed.")
    if isinstance(error, HTTPException):
        code, message = _BY_STATUS.get(error.status_code, ("error", "The request failed."))
        return Problem(error.status_code, code, message)
    if isinstance(error, ModelError):
        return Problem(502, "model_failed", "The model did not answer.")
    if isinstance(error, HookError):
        return Problem(500, "hook_failed", "A hook failed.")
    if isinstance(error, EngineError):
        return Problem(503, "not_ready", "The system is not ready.", 5)
    if isinstance(error, RecordsError):
        return Problem(503, "no_records", "The records cannot be read now.", 5)
    if isinstance(error, TimeoutError):
        return Problem(504, "timed_out", "The run took too long.")
    if isinstance(error, asyncio.CancelledError):
        return Problem(499, "cancelled", "The run was cancelled.")
    return Problem(500, "internal", "Something went wrong.")


def body_of(problem: Problem, request_id: str) -> dict[str, Any]:
    return {"error": {"code": problem.code, "message": problem.message, "request_id": request_id}}


def request_id_of(request: Request) -> str:
    return str(request.scope.get("request_id", ""))


def answer(request: Request, problem: Problem) -> JSONResponse:
    headers = {}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(problem.retry_after)
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body_of(problem, request_id_of(request)), problem.status, headers)


PageOf = Callable[[Request, Problem], Awaitable[Response]]


def install(app: FastAPI, page: PageOf) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Answer every exception of a route in the same form; ``page`` makes the form that the pages show.

    Returns the handler, for exceptions that no route expected: the framework's own would log their text.
    """

    async def respond(request: Request, problem: Problem) -> Response:
        if request.url.path.startswith("/ui") and "text/html" in request.headers.get("accept", ""):
            return await page(request, problem)
        return answer(request, problem)

    async def known(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.status >= 500:
            logger.error(
                "request %s failed: %s", request_id_of(request), type(error).__name__, exc_info=_for_debug(error)
            )
        response = await respond(request, problem)
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update({name: value for name, value in error.headers.items() if name.lower() == "allow"})
        return response

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await respond(request, Problem(422, "invalid_request", _what_is_invalid(error)))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, known)
    for kind in (ApiError, RunBlocked, LimitReached, Unauthenticated, ModelError, HookError, EngineError, RecordsError,
                 TimeoutError):  # fmt: skip
        app.add_exception_handler(kind, known)
    return known


def _for_debug(error: Exception) -> Exception | None:
    return error if logger.isEnabledFor(logging.DEBUG) else None


def _what_is_invalid(error: RequestValidationError) -> str:
    """Where the request is wrong and how, without what it held."""
    found = []
    for one in error.errors()[:5]:
        if one["type"] == "json_invalid":
            return f"The body is not valid JSON; see character {one['loc'][-1]}."
        if tuple(one["loc"]) == ("body",):
            return "The body must be a JSON object, sent with the header Content-Type: application/json."
        where = ".".join(str(part) for part in one["loc"] if part != "body") or "body"
        found.append(f"{where}: {one['msg']}")
    return "; ".join(found)[:500]
