"""Signing requests with a shared secret."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent_engine.batteries.credentials import hmac_verifier as scheme
from agent_engine.batteries.credentials.base import Credential, CredentialError

if TYPE_CHECKING:
    from agent_engine.batteries.credentials.sources import Source
    from agent_engine.hooks.managed import McpRequestContext, RunContext

_NO_BODY = hashlib.sha256(b"").hexdigest()


class HmacSigner(Credential):
    """Signs method, path with query, timestamp and the digest of the body; ``hmac_verifier.py`` verifies it.

    Args:
        secret: ``from_env(NAME)`` or ``from_file(PATH)``.
        key_id: sent as ``X-Key-Id``, so that a server can tell which secret it was; None sends none.
        servers: the MCP servers it is for; none means all.
    """

    def __init__(self, secret: Source, *, key_id: str | None = None, servers: Iterable[str] = ()) -> None:
        super().__init__(servers)
        self.secret = secret
        self.key_id = key_id

    def __repr__(self) -> str:
        return f"HmacSigner({self.secret!r})"

    def sign(self, request: McpRequestContext, *, now: float | None = None) -> dict[str, str]:
        """The headers that sign a request; ``now`` is in seconds since the epoch."""
        if not request.url.startswith(("http://", "https://")):
            raise CredentialError(f"A request to {request.url} has no headers that a signature could be in")
        parts = urlsplit(request.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        timestamp = str(int(time.time() if now is None else now))
        digest = request.body_sha256 or _NO_BODY
        key = self.secret.read().reveal().encode()
        headers = {
            scheme.TIMESTAMP: timestamp,
            scheme.BODY_DIGEST: digest,
            scheme.SIGNATURE: scheme.signature(key, request.method, target, timestamp, digest),
        }
        if self.key_id is not None:
            headers["X-Key-Id"] = self.key_id
        return headers

    async def headers(self, request: McpRequestContext, run_context: RunContext) -> Mapping[str, str]:
        return self.sign(request)
