"""Checking a token that an authorisation server issued, with joserfc."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent_engine.batteries.credentials.base import CredentialError

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Signatures with a private key; one that a shared secret could forge has to be asked for by name."""
KEYS_SECONDS = 600.0
"""How long the keys behind an address are used before they are fetched again."""
KEYS_AGAIN_SECONDS = 10.0
"""How soon they may be fetched again for a token that none of them fits."""


class TokenCheck:
    """Whether a token is a JWT of the right issuer, for the right audience, and still good.

    Args:
        keys: a JWK set (as JSON-ready data), or the https address of one.
        issuer: what ``iss`` must be; None does not look.
        audience: what ``aud`` must hold; None takes the audience that was asked for.
        algorithms: the signatures that are accepted.
        leeway: seconds that clocks may differ.
    """

    def __init__(
        self,
        keys: Mapping[str, Any] | str,
        *,
        issuer: str | None = None,
        audience: str | None = None,
        algorithms: Sequence[str] = ALGORITHMS,
        leeway: int = 30,
    ) -> None:
        self._address = keys if isinstance(keys, str) else None
        if self._address is not None:
            parts = urlsplit(self._address)
            if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
                raise ValueError("The address of a key set begins with https:// (http:// on this machine alone)")
        self.issuer = issuer
        self.audience = audience
        self.algorithms = list(algorithms)
        self.leeway = leeway
        self._keys: KeySet | None = None if isinstance(keys, str) else _key_set(keys)
        self._fetched_at = 0.0

    def __repr__(self) -> str:
        return f"<TokenCheck issuer={self.issuer!r} audience={self.audience!r}>"

    async def claims(self, token: str, *, audience: str | None = None) -> dict[str, Any]:
        """The claims of a token that passes.

        Args:
            audience: what the token was asked for; where the check names an audience, that one counts.

        Raises:
            CredentialError: it does not pass; the message says which check, never the token.
        """
        from joserfc import jwt
        from joserfc.errors import JoseError

        keys = await self._current(KEYS_SECONDS)
        for last in (False, True):
            problem = ""
            try:
                decoded = jwt.decode(token, keys, algorithms=self.algorithms)
            except (JoseError, ValueError) as error:
                problem = type(error).__name__
            if not problem:
                return self._checked(decoded.claims, self.audience or audience)
            if last or self._address is None:
                break
            keys = await self._current(KEYS_AGAIN_SECONDS)
        raise CredentialError(f"The token that was issued is not signed as it should be ({problem})")

    def _checked(self, claims: dict[str, Any], audience: str | None) -> dict[str, Any]:
        from joserfc.errors import JoseError
        from joserfc.jwt import JWTClaimsRegistry

        wanted: dict[str, Any] = {"exp": {"essential": True}}
        if self.issuer is not None:
            wanted["iss"] = {"essential": True, "value": self.issuer}
        if audience is not None:
            wanted["aud"] = {"essential": True, "value": audience}
        problem = ""
        try:
            JWTClaimsRegistry(leeway=self.leeway, **wanted).validate(claims)
        except JoseError as error:
            problem = f"{type(error).__name__} of {getattr(error, 'claim', None) or 'a claim'}"
        if problem:
            raise CredentialError(f"The token that was issued does not fit: {problem}")
        return claims

    def seconds_left(self, claims: Mapping[str, Any]) -> float:
        """How long a token with these claims is good for."""
        return max(0.0, float(claims["exp"]) - time.time())

    async def _current(self, older_than: float) -> KeySet:
        if self._address is None:
            assert self._keys is not None
            return self._keys
        if self._keys is None or time.monotonic() - self._fetched_at > older_than:
            self._keys = await self._fetched(self._address)
            self._fetched_at = time.monotonic()
        return self._keys

    async def _fetched(self, address: str) -> KeySet:
        import httpx2
        from joserfc.errors import JoseError

        from agent_engine.mcp.quiet import quieten

        quieten()
        problem = ""
        try:
            async with asyncio.timeout(10), httpx2.AsyncClient(follow_redirects=False) as client:
                answer = await client.get(address)
            if answer.status_code == 200:
                return _key_set(answer.json())
            problem = f"HTTP {answer.status_code}"
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            problem = type(error).__name__
        except (ValueError, TypeError, KeyError, RecursionError, JoseError):
            problem = "it is no key set"
        parts = urlsplit(address)
        raise CredentialError(f"The key set at {parts.scheme}://{parts.hostname} cannot be read ({problem})")


def _key_set(keys: Mapping[str, Any]) -> KeySet:
    from joserfc.jwk import KeySet

    return KeySet.import_key_set(keys)  # type: ignore[arg-type]  # a JWK set as JSON-ready data is what it takes
