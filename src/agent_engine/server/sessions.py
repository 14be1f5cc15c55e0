"""Browser sessions: a cookie that stands for an identity, and the token that a form must send back."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_engine.server.identity import Identity

COOKIE = "agent_engine_session"
LIFETIME_S = 8 * 3600
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    """One browser. ``csrf`` is what its forms carry, ``key`` what its cookie holds."""

    identity: Identity
    csrf: str
    ends_at: float
    key: str = field(repr=False)


class Sessions:
    """The browsers that are logged in; kept in memory, gone with the process."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Session] = OrderedDict()

    def begin(self, identity: Identity) -> str:
        """A new session, which ends with the token it was begun with; returns the cookie's value."""
        key = secrets.token_urlsafe(32)
        ends_at = time.time() + LIFETIME_S
        if identity.expires_at is not None:
            ends_at = min(ends_at, identity.expires_at)
        self._known[key] = Session(identity, secrets.token_urlsafe(32), ends_at, key)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return key

    def find(self, cookies: Mapping[str, str]) -> Session | None:
        """The session of a request's cookies; None where there is none, or its time is over."""
        found = self._known.get(cookies.get(COOKIE, ""))
        if found is None or found.ends_at < time.time():
            self._known.pop(cookies.get(COOKIE, ""), None)
            return None
        return found

    def lasts(self, session: Session) -> bool:
        """Whether a session has neither been ended nor run out; for what goes on long after it was asked for."""
        return session.key in self._known and session.ends_at >= time.time()

    def end(self, cookies: Mapping[str, str]) -> None:
        self._known.pop(cookies.get(COOKIE, ""), None)


def same_token(session: Session, given: str) -> bool:
    """Whether a form came from a page of this session."""
    return hmac.compare_digest(session.csrf.encode(), given.encode("utf-8", "replace"))
