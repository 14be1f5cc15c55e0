"""Tokens kept until shortly before they expire, each fetched once however many ask for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass

from agent_engine.batteries.credentials.base import CredentialError
from agent_engine.batteries.credentials.sources import Secret

EARLY_SECONDS = 60.0
"""A token is renewed this long before it expires, or a fifth of its life before, where that is shorter."""
LIFE_SECONDS = 300.0
"""The life of a token whose issuer does not say."""
JUST_NOW_SECONDS = 1.0
"""A token younger than this is not asked for again because a server refused it."""
MAX_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its times, in seconds of ``time.monotonic``."""

    secret: Secret
    fetched_at: float
    renew_at: float

    @classmethod
    def issued(cls, text: str, life: float | None = None) -> Token:
        """A token that was issued just now for ``life`` seconds."""
        now = time.monotonic()
        seconds = LIFE_SECONDS if life is None else max(0.0, life)
        return cls(Secret(text), now, now + seconds - min(EARLY_SECONDS, seconds / 5))


class TokenCache:
    """Keyed by whatever makes a token a different one: subject, audience, scope. Used from any loop and any thread."""

    def __init__(self, limit: int = MAX_TOKENS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Token] = OrderedDict()
        self._fetching: dict[Hashable, Future[Token]] = {}

    def __repr__(self) -> str:
        return f"<TokenCache of {len(self._kept)}>"

    async def get(self, key: Hashable, fetch: Callable[[], Awaitable[Token]], *, refused: bool = False) -> Secret:
        """The token of a key, fetched where there is none that will do.

        One caller fetches, in its own task; the others wait for it. If that caller is cancelled, the next one fetches.

        Args:
            key: which token.
            fetch: fetches it; what it raises is raised to everyone who waited.
            refused: a server has refused the token that is kept.
        """
        while True:
            with self._lock:
                kept = self._usable(key, refused)
                if kept is not None:
                    return kept.secret
                waiting = self._fetching.get(key)
                if waiting is None:
                    mine: Future[Token] = Future()
                    # A future that runs cannot be cancelled by one of those who wait for it.
                    mine.set_running_or_notify_cancel()
                    self._fetching[key] = mine
            if waiting is None:
                return (await self._fetch(key, fetch, mine)).secret
            try:
                return (await asyncio.wrap_future(waiting)).secret
            except _Left:
                continue
            except CredentialError as problem:
                failure = CredentialError(str(problem))
            raise failure

    def _usable(self, key: Hashable, refused: bool) -> Token | None:
        token = self._kept.get(key)
        now = time.monotonic()
        if token is None or now >= token.renew_at or (refused and now - token.fetched_at > JUST_NOW_SECONDS):
            return None
        self._kept.move_to_end(key)
        return token

    async def _fetch(self, key: Hashable, fetch: Callable[[], Awaitable[Token]], mine: Future[Token]) -> Token:
        try:
            token = await fetch()
        except BaseException as problem:
            with self._lock:
                del self._fetching[key]
            mine.set_exception(problem if isinstance(problem, Exception) else _Left())
            raise
        with self._lock:
            self._kept[key] = token
            self._kept.move_to_end(key)
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
            del self._fetching[key]
        mine.set_result(token)
        return token


class _Left(Exception):
    """The caller that was fetching has left; another one has to."""
