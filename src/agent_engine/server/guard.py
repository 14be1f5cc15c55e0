"""Around every request: an id, a limit on its size, the right host name, and headers that keep browsers strict."""

from __future__ import annotations

import json
import logging
import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_engine.server.settings import ServerSettings, is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("agent_engine.server")

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


if TYPE_CHECKING:
    OnError = Callable[[Request, Exception], Awaitable[Response]]


class TooLarge(HTTPException):
    """More of a body came than the limit allows. An HTTPException, because others are taken for a bad request."""

    def __init__(self) -> None:
        super().__init__(413)


class Guard:
    """Plain ASGI, so that streams pass through untouched."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, unexpected: OnError) -> None:
        self._app = app
        self._settings = settings
        self._unexpected = unexpected
        self._names = {settings.host.strip("[]").lower(), *(name.lower() for name in settings.public_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        request_id = _request_id(headers.get(b"x-request-id", ""))
        scope["request_id"] = request_id
        started = False

        async def send_on(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), *HEADERS]
            await send(message)

        problem = self._problem(scope, headers)
        if problem is not None:
            await _refuse(send_on, request_id, *problem)
            return
        try:
            await self._app(scope, self._limited(receive), send_on)
        except Exception as error:  # noqa: BLE001 - the last place where it can become an answer
            if started:
                logger.error("request %s broke off: %s", request_id, type(error).__name__)
                raise ConnectionAbortedError("the response broke off") from None
            response = await self._unexpected(Request(scope), error)
            await response(scope, receive, send_on)

    def _problem(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str, str] | None:
        length = headers.get(b"content-length", "")
        if length.isdecimal() and int(length) > self._settings.max_body:
            return 413, "too_large", "The request is too large."
        if not self._settings.is_open:
            return None
        # Nobody has a token here, so what a browser says of itself is all that keeps a strange page out.
        client = scope.get("client")
        if client is not None and not is_loopback(client[0]):
            return 403, "forbidden", "Without a token this server answers its own machine only."
        if not self._is_own(headers.get(b"host", "")):
            return 403, "forbidden", "This server is reached as 127.0.0.1 or localhost only."
        if scope["method"] in _CHANGES:
            origin = headers.get(b"origin")
            if headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
                return 403, "forbidden", "A page of another site cannot use this server."
            if origin is not None and not self._is_own(urlsplit(origin).netloc):
                return 403, "forbidden", "A page of another site cannot use this server."
        return None

    def _is_own(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname or ""
        return is_loopback(name) or name in self._names

    def _limited(self, receive: Receive) -> Receive:
        left = self._settings.max_body

        async def receive_on() -> Message:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise TooLarge
            return message

        return receive_on


def _request_id(given: str) -> str:
    return given if _ID.fullmatch(given) else secrets.token_hex(16)


async def _refuse(send: Any, request_id: str, status: int, code: str, message: str) -> None:
    body = json.dumps({"error": {"code": code, "message": message, "request_id": request_id}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
