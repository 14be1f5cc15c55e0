"""Verifies what :class:`HmacSigner` signs. Copy this file into a server: it needs nothing but Python.

The signature is an HMAC-SHA256, in hex, over five lines: the version, the method, the path with its query as it was
requested, the timestamp (seconds since the epoch), and the SHA-256 of the body, in hex. In an ASGI application::

    path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
    verify(SECRET, scope["method"], f"{path}?{query}" if query else path, headers, body)
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping

VERSION = "v1"
TIMESTAMP = "X-Timestamp"
BODY_DIGEST = "X-Content-SHA256"
SIGNATURE = "X-Signature"


class SignatureInvalid(Exception):
    """A request that is not signed as it should be; the text says what is wrong, for a log."""


def signed_text(method: str, target: str, timestamp: str, body_sha256: str) -> bytes:
    """What is signed."""
    return "\n".join((VERSION, method.upper(), target, timestamp, body_sha256)).encode()


def signature(secret: bytes, method: str, target: str, timestamp: str, body_sha256: str) -> str:
    """The signature of a request, in hex."""
    return hmac.new(secret, signed_text(method, target, timestamp, body_sha256), hashlib.sha256).hexdigest()


def verify(
    secret: bytes,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    max_age: float = 300.0,
    now: float | None = None,
) -> None:
    """Return if a request was signed with the secret, has this very body, and is not older than ``max_age`` seconds.

    Args:
        secret: the shared secret.
        method: GET, POST or DELETE.
        target: the path with its query, percent-encoded, exactly as on the request line.
        headers: the request's headers; names in any case.
        body: the bytes of the body; empty where there is none.
        max_age: how far the timestamp may be from this clock, in both directions.
        now: seconds since the epoch; None is the clock.

    Raises:
        SignatureInvalid: anything else.
    """
    given = {name.lower(): value for name, value in headers.items()}
    timestamp = given.get(TIMESTAMP.lower(), "")
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 15:
        raise SignatureInvalid("the timestamp is missing, or is no whole number of seconds")
    if abs((time.time() if now is None else now) - int(timestamp)) > max_age:
        raise SignatureInvalid("the timestamp is too far from the clock")
    digest = hashlib.sha256(body).hexdigest()
    if not hmac.compare_digest(digest.encode(), given.get(BODY_DIGEST.lower(), "").encode()):
        raise SignatureInvalid("the digest is not that of the body")
    expected = signature(secret, method, target, timestamp, digest)
    if not hmac.compare_digest(expected.encode(), given.get(SIGNATURE.lower(), "").encode()):
        raise SignatureInvalid("the signature does not fit the request")
