"""Who a request comes from: a bearer token, a browser's session, or this machine where no token is set."""

from __future__ import annotations

from fastapi import Request

from agent_engine.server.gateway import Gateway
from agent_engine.server.identity import LOCAL, Identity, Unauthenticated, Verifier
from agent_engine.server.sessions import Session, Sessions
from agent_engine.server.settings import ServerSettings


class Access:
    """Identifies callers. ``gateway`` is set once the engine is built: ``on_auth`` sees every caller."""

    def __init__(self, settings: ServerSettings) -> None:
        self._open = settings.is_open
        self._verifier = Verifier(settings.token, settings.jwt)
        self.sessions = Sessions()
        self.gateway: Gateway | None = None

    @property
    def is_open(self) -> bool:
        return self._open

    async def caller(self, request: Request) -> Identity:
        """The identity behind an API request.

        Raises:
            Unauthenticated: no valid token. ApiError: an ``on_auth`` hook refused the caller.
        """
        token = _bearer(request.headers.get("authorization"))
        if token is not None and not self._open:
            return await self._known(self._verifier.identify(token), request)
        if self._open:
            return await self._known(LOCAL, request)
        raise Unauthenticated("A valid token is needed.")

    async def log_in(self, token: str, request: Request) -> str:
        """Begin a browser's session with a token; returns the cookie's value. Raises as ``caller`` does."""
        return self.sessions.begin(await self._known(self._verifier.identify(token.strip()), request))

    async def browser(self, request: Request) -> Session | None:
        """The session behind a page; None where somebody has to log in first."""
        return self.sessions.find(request.cookies)

    async def open_session(self, request: Request) -> str:
        """A session for somebody at this machine, where no token is set; returns the cookie's value."""
        return self.sessions.begin(await self._known(LOCAL, request))

    async def _known(self, identity: Identity, request: Request) -> Identity:
        if self.gateway is None:
            return identity
        client = request.client.host if request.client is not None else ""
        return await self.gateway.authenticated(identity, client)


def _bearer(header: str | None) -> str | None:
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
