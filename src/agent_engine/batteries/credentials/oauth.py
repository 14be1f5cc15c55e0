"""Tokens from an authorisation server: OAuth 2.1 client credentials, and RFC 8693 token exchange."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent_engine.batteries.credentials.base import Credential, CredentialError, bearer, without_scheme
from agent_engine.batteries.credentials.cache import Token, TokenCache

if TYPE_CHECKING:
    from agent_engine.batteries.credentials.checks import TokenCheck
    from agent_engine.batteries.credentials.sources import Secret, Source
    from agent_engine.hooks.managed import McpRequestContext, RunContext

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a kind of token
MAX_ANSWER = 256 << 10
LONGEST = 86_400
"""Seconds after which a token is renewed, however long it is said to be good for."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")
_METHODS = ("client_secret_basic", "client_secret_post", "none")


class _Endpoint(Credential):
    """A token endpoint and how the engine makes itself known to it."""

    def __init__(
        self,
        token_url: str,
        *,
        client_id: str,
        client_secret: Source | None = None,
        auth_method: str | None = None,
        check: TokenCheck | None = None,
        servers: Iterable[str] = (),
        timeout: float = 10.0,
    ) -> None:
        super().__init__(servers)
        parts = urlsplit(token_url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            raise ValueError("A token endpoint has an https:// address (http:// on this machine alone)")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "The address of a token endpoint has no credentials in it; use client_id and client_secret"
            )
        method = auth_method or ("none" if client_secret is None else "client_secret_basic")
        if method not in _METHODS:
            raise ValueError(f"auth_method must be one of {', '.join(_METHODS)}, not {method!r}")
        self.token_url = token_url
        self.client_id = client_id
        self.check = check
        self.timeout = timeout
        self._client_secret = client_secret
        self._auth_method = method
        self._cache = TokenCache()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of client '{self.client_id}' at {self._where}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"{type(self).__name__} is not pickled: it holds tokens; make it anew where it is used")

    @property
    def _where(self) -> str:
        parts = urlsplit(self.token_url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

    def _secret(self) -> str | None:
        return None if self._client_secret is None else self._client_secret.read().reveal()

    async def _issued(self, answer: Mapping[str, Any], what: str, audience: str | None) -> Token:
        """The token in an answer, once it is one that can be used as a bearer token and passes the check."""
        text = answer.get("access_token")
        if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
            raise CredentialError(f"The token endpoint at {self._where} answered {what} without a token")
        kind = answer.get("token_type", "Bearer")
        if not isinstance(kind, str) or kind.lower() not in ("bearer", "n_a"):
            raise CredentialError(f"The token endpoint at {self._where} answered {what} without a bearer token")
        life = answer.get("expires_in")
        # JSON has numbers that no clock has.
        seconds = float(min(life, LONGEST)) if isinstance(life, int | float) and not isinstance(life, bool) else None
        if self.check is not None:
            claims = await self.check.claims(text, audience=audience)
            left = self.check.seconds_left(claims)
            seconds = left if seconds is None else min(seconds, left)
        return Token.issued(text, seconds)

    def _refused(self, status: int, code: object, what: str) -> CredentialError:
        named = code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else f"HTTP {status}"
        return CredentialError(f"The token endpoint at {self._where} refused {what}: {named}")

    def _unreachable(self, error_type: str) -> CredentialError:
        return CredentialError(f"The token endpoint at {self._where} cannot be reached ({error_type})")


class ClientCredentials(_Endpoint):
    """The engine's own token: OAuth 2.1 client credentials, through Authlib's client.

    Args:
        token_url: the token endpoint; https, or http on this machine.
        client_id, client_secret: who the engine is to it; the secret is ``from_env(NAME)`` or ``from_file(PATH)``.
        scope: space-separated scopes, or None.
        audience: the service the token is for, where the server wants to be told.
        auth_method: client_secret_basic (the default), client_secret_post, or none.
        check: checks each token that is issued.
        servers: the MCP servers it is for; none means all.
        timeout: seconds for one request to the endpoint.
    """

    def __init__(
        self, token_url: str, *, scope: str | None = None, audience: str | None = None, **options: Any
    ) -> None:
        super().__init__(token_url, **options)
        self.scope = scope
        self.audience = audience

    async def token(self, *, refused: bool = False) -> Secret:
        """The token, from the cache where it is good for a while yet."""
        return await self._cache.get((self.audience, self.scope), self._fetch, refused=refused)

    async def headers(self, request: McpRequestContext, run_context: RunContext) -> Mapping[str, str]:
        return bearer((await self.token(refused=request.attempt > 1)).reveal())

    async def _fetch(self) -> Token:
        import httpx2
        from authlib.integrations.base_client.errors import OAuthError  # type: ignore[import-untyped]  # no types

        from agent_engine.mcp.quiet import quieten

        quieten()
        what = f"client credentials to '{self.client_id}'"
        extra = {"audience": self.audience} if self.audience else {}
        answer: Mapping[str, Any] = {}
        refusal: CredentialError | None = None
        try:
            async with self._client() as client:
                answer = await client.fetch_token(self.token_url, grant_type="client_credentials", **extra)
        except OAuthError as problem:
            refusal = self._refused(400, problem.error, what)
        except httpx2.HTTPStatusError as problem:
            refusal = self._refused(problem.response.status_code, None, what)
        except (httpx2.HTTPError, OSError) as problem:
            refusal = CredentialError(
                f"The token endpoint at {self._where} cannot be reached ({type(problem).__name__})"
            )
        except (ValueError, OverflowError, RecursionError):
            refusal = CredentialError(
                f"The token endpoint at {self._where} answered {what} with something that is no token"
            )
        if refusal is not None:
            raise refusal
        return await self._issued(answer, what, self.audience)

    def _client(self) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client  # type: ignore[import-untyped]  # no types

        return AsyncOAuth2Client(
            client_id=self.client_id,
            client_secret=self._secret(),
            token_endpoint_auth_method=self._auth_method,
            scope=self.scope,
            timeout=self.timeout,
            follow_redirects=False,
        )


class TokenExchange(_Endpoint):
    """The caller's token for one that an MCP server takes: RFC 8693, one form POST.

    Args:
        token_url, client_id, client_secret, auth_method, check, servers, timeout: as for :class:`ClientCredentials`.
        audience: the service the token is for.
        resource: its address, where the authorisation server goes by that.
        scope: space-separated scopes, or None.
        subject_token_type, requested_token_type: kinds of tokens, as RFC 8693 names them.
    """

    def __init__(
        self,
        token_url: str,
        *,
        audience: str | None = None,
        resource: str | None = None,
        scope: str | None = None,
        subject_token_type: str = ACCESS_TOKEN,
        requested_token_type: str | None = ACCESS_TOKEN,
        **options: Any,
    ) -> None:
        super().__init__(token_url, **options)
        self.audience = audience
        self.resource = resource
        self.scope = scope
        self.subject_token_type = subject_token_type
        self.requested_token_type = requested_token_type

    async def token(
        self, subject_token: str | None, *, audience: str | None = None, scope: str | None = None, refused: bool = False
    ) -> Secret:
        """The token for a subject, from the cache where it is good for a while yet.

        Args:
            subject_token: the caller's token, with or without ``Bearer``.
            audience, scope: instead of the declared ones.
            refused: a server has refused the token that is kept.

        Raises:
            CredentialError: there is no subject token, or the exchange was refused.
        """
        audience, scope = audience or self.audience, scope or self.scope
        if not subject_token:
            raise CredentialError(
                f"The run has no inbound access token to exchange for {audience or self.resource or 'a service'}; "
                "a server that needs one before any run is declared with `discover: first_use`"
            )
        subject = without_scheme(subject_token)
        digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()
        key = (digest, audience, self.resource, scope)
        return await self._cache.get(key, lambda: self._fetch(subject, audience, scope), refused=refused)

    async def headers(self, request: McpRequestContext, run_context: RunContext) -> Mapping[str, str]:
        inbound = run_context.auth_context.inbound_access_token
        return bearer((await self.token(inbound, refused=request.attempt > 1)).reveal())

    async def _fetch(self, subject: str, audience: str | None, scope: str | None) -> Token:
        wanted = {
            "grant_type": EXCHANGE,
            "subject_token": subject,
            "subject_token_type": self.subject_token_type,
            "requested_token_type": self.requested_token_type,
            "audience": audience,
            "resource": self.resource,
            "scope": scope,
        }
        what = f"an exchange for {audience or self.resource or 'a service'}"
        status, answer = await self._post({name: value for name, value in wanted.items() if value is not None})
        if status != 200 or "error" in answer:
            raise self._refused(status, answer.get("error"), what)
        return await self._issued(answer, what, audience)

    async def _post(self, form: dict[str, str]) -> tuple[int, Mapping[str, Any]]:
        """One form POST; the status, and the JSON object of the answer ({} where it is none)."""
        import json

        import httpx2
        from authlib.integrations.httpx_client import OAuth2ClientAuth

        from agent_engine.mcp.quiet import quieten

        quieten()
        auth = OAuth2ClientAuth(self.client_id, self._secret(), self._auth_method)
        problem_type = ""
        try:
            async with (
                httpx2.AsyncClient(timeout=self.timeout, follow_redirects=False) as client,
                client.stream(
                    "POST", self.token_url, data=form, auth=auth, headers={"accept": "application/json"}
                ) as response,
            ):
                body = b""
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER:
                        raise CredentialError(f"The token endpoint at {self._where} answers with more than a token")
            answer = json.loads(body) if body else {}
            return response.status_code, answer if isinstance(answer, dict) else {}
        except (httpx2.HTTPError, OSError) as problem:
            problem_type = type(problem).__name__
        except (ValueError, RecursionError):
            return response.status_code, {}
        raise self._unreachable(problem_type)
