"""Webhook hooks: the payload's JSON posted to an endpoint, the answer's JSON read back as a decision.

One request, one connection, no retry, no redirect, no proxy or password file taken from the surroundings. Secrets are
read from the environment at each call and appear in no error and no log line.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import re
import ssl
import time
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from agent_engine.hooks.definition import WebhookHook
from agent_engine.hooks.errors import HookFailure
from agent_engine.hooks.jsonform import JsonFormError, payload_json
from agent_engine.hooks.protocol import MAX_ANSWER, BadAnswer, find_object, read_object, read_refusal
from agent_engine.hooks.result import HookResult, Undecided

if TYPE_CHECKING:
    import httpx2

TIMESTAMP_HEADER = "X-Agent-Engine-Timestamp"
SIGNATURE_HEADER = "X-Agent-Engine-Signature"

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RESERVED_HEADERS = frozenset(
    name.lower()
    for name in (
        "Host",
        "Content-Length",
        "Content-Type",
        "Transfer-Encoding",
        "Connection",
        TIMESTAMP_HEADER,
        SIGNATURE_HEADER,
    )
)


async def post_webhook(hook: WebhookHook, payload: object, *, limit: float | None = None) -> HookResult:
    """Post one payload to one endpoint and read its decision.

    Args:
        hook: where to post, and which variables hold its secrets.
        payload: the body, in its JSON form.
        limit: seconds for the whole exchange; None means no limit.

    Raises:
        HookFailure: no JSON form, a variable that is not set, no answer in time, or an answer that is no decision.
    """
    try:
        body = payload_json(payload, hook.event)
    except JsonFormError as problem:
        raise HookFailure(f"Hook '{hook.name}' was not run: {problem}", failure_type="no_json_form") from None
    headers = _headers(hook, body)
    try:
        async with asyncio.timeout(limit):
            status, answer = await _exchange(hook, headers, body)
    except TimeoutError:
        raise HookFailure(f"Hook '{hook.name}' timed out after {limit}s", failure_type="timeout") from None
    return _read(hook, status, answer)


def check_webhook(hook: WebhookHook) -> None:
    """Refuse what is wrong before anything is sent.

    Raises:
        ValueError: what is wrong, in one sentence; it quotes neither the url nor what stands for a variable's name.
    """
    if not isinstance(hook.url, str):
        raise ValueError(f"its url is text, not {type(hook.url).__name__}")
    try:
        parts = urlsplit(hook.url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("its url cannot be read; write https://host/path") from None
    plain = hook.url.isascii() and not re.search(r"[\x00-\x20\x7f]", hook.url)
    if not host or parts.scheme not in ("https", "http") or not plain:
        raise ValueError("its url cannot be read; write https://host/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("its url holds a user or a password; name a variable in header_env instead")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError(
            f"it would send payloads to {host} over plain http; only loopback addresses may use it: use https"
        )
    for header, variable in hook.header_env.items():
        if not _HEADER_NAME.fullmatch(str(header)) or header.lower() in _RESERVED_HEADERS:
            raise ValueError(f"it may not set the header {header!r}")
        if not _is_variable(variable):
            raise ValueError(f"header_env gives the name of a variable for the header {header!r}, never its value")
    if hook.secret_env is not None and not _is_variable(hook.secret_env):
        raise ValueError("secret_env is the name of a variable, never its value")


def signature(secret: str, method: str, target: str, timestamp: str, body: bytes) -> str:
    """What the signature header holds: ``sha256=`` and the HMAC-SHA256, in hex, of four lines.

    The lines are the method, the target (path and query as sent), the timestamp (whole seconds since 1970) and the
    body.
    """
    signed = f"{method.upper()}\n{target}\n{timestamp}\n".encode() + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_signed(
    secret: str,
    method: str,
    target: str,
    timestamp: str,
    body: bytes,
    given: str,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> bool:
    """For an endpoint: whether ``given`` is the signature of this very request, made at most ``tolerance`` seconds ago
    or ahead.
    """
    if not re.fullmatch(r"\d{1,12}", timestamp, re.ASCII) or not given.isascii():
        return False
    fresh = abs((time.time() if now is None else now) - int(timestamp)) <= tolerance
    return hmac.compare_digest(signature(secret, method, target, timestamp, body), given) and fresh


async def _exchange(hook: WebhookHook, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
    import httpx2

    # A transport has no cookies, no redirects, no environment and no log line with the URL, which a client would have.
    verify = False if urlsplit(hook.url).scheme == "http" else _tls()
    transport = httpx2.AsyncHTTPTransport(
        verify=verify, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0)
    )
    try:
        async with transport:
            response = await transport.handle_async_request(
                httpx2.Request("POST", hook.url, headers=headers, content=body)
            )
            try:
                status, answer = response.status_code, await _body(hook, response)
                if not answer and 200 <= status < 300 and status != 204 and not _says_where_it_ends(response):
                    raise HookFailure(
                        f"Webhook {_shown(hook.url)} closed the connection where an answer was due", "bad_output"
                    )
                return status, answer
            finally:
                await response.aclose()
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as problem:
        kind = "TLS error" if _is_tls(problem) else type(problem).__name__
        raise HookFailure(f"Webhook {_shown(hook.url)} could not be asked: {kind}", failure_type="webhook") from None


def _says_where_it_ends(response: httpx2.Response) -> bool:
    """Whether an answer has a length; of any other nobody can tell whether it is empty or has been lost."""
    return "content-length" in response.headers or "transfer-encoding" in response.headers


async def _body(hook: WebhookHook, response: httpx2.Response) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise HookFailure(
            f"Webhook {_shown(hook.url)} answered in an encoding that was not asked for", failure_type="bad_output"
        )
    answer = bytearray()
    async for chunk in response.aiter_raw():
        answer += chunk
        if len(answer) > MAX_ANSWER:
            raise HookFailure(
                f"Webhook {_shown(hook.url)} answered with more than {MAX_ANSWER:,} bytes", failure_type="bad_output"
            )
    return bytes(answer)


def _read(hook: WebhookHook, status: int, answer: bytes) -> HookResult:
    """The decision table of webhooks."""
    if status == 204 or (200 <= status < 300 and not answer):
        return Undecided()
    try:
        text = answer.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if 400 <= status < 500:
        refusal = read_refusal(text)
        if refusal is not None:
            return refusal
    if status not in (200, 201):
        raise HookFailure(f"Webhook {_shown(hook.url)} answered with status {status}", failure_type="webhook")
    try:
        before, verdict = find_object(text)
        if before or verdict is None:
            raise BadAnswer("something that is not one JSON object")
        return read_object(verdict)
    except BadAnswer as problem:
        raise HookFailure(f"Webhook {_shown(hook.url)} answered with {problem}", failure_type="bad_output") from None


def _headers(hook: WebhookHook, body: bytes) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "agent-engine",
    }
    for header, variable in hook.header_env.items():
        headers[header] = _secret(hook, variable)
        if not headers[header].isascii() or not headers[header].isprintable():
            raise HookFailure(
                f"Hook '{hook.name}' was not run: the variable {variable} holds no header value", "not_started"
            )
    if hook.secret_env is not None:
        timestamp = str(int(time.time()))
        headers[TIMESTAMP_HEADER] = timestamp
        headers[SIGNATURE_HEADER] = signature(
            _secret(hook, hook.secret_env), "POST", _target(hook.url), timestamp, body
        )
    return headers


def _secret(hook: WebhookHook, variable: str) -> str:
    value = os.environ.get(variable, "")
    if not value:
        raise HookFailure(
            f"Hook '{hook.name}' was not run: the variable {variable} is not set", failure_type="not_started"
        )
    if any("\ud800" <= sign <= "\udfff" for sign in value):
        raise HookFailure(
            f"Hook '{hook.name}' was not run: the variable {variable} holds bytes that are not UTF-8", "not_started"
        )
    return value


def _target(url: str) -> str:
    import httpx2

    return httpx2.URL(url).raw_path.decode("ascii")


def _shown(url: str) -> str:
    """A URL without its path and query: either may hold a secret."""
    parts: SplitResult = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_variable(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_tls(problem: BaseException | None) -> bool:
    while problem is not None:
        if isinstance(problem, ssl.SSLError):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


@cache
def _tls() -> ssl.SSLContext:
    """Certificates are checked against what this machine trusts; made once, for it takes longer than a request."""
    import httpx2

    return httpx2.create_ssl_context()
