"""Conversations and waiting runs: the protocol of a store, and the one that keeps them in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from agent_engine.memory.message import Message

WAITING_SECONDS = 24 * 3600.0
"""How long a stopped run waits for its answer; after that the answer is no."""


class StoreError(Exception):
    """A store that cannot do its work now. The text names the store and the kind of failure, and no content."""


class ConversationKey(NamedTuple):
    """Who a conversation belongs to. The same conversation id from another caller is another conversation."""

    organization_id: str | None
    user_id: str | None
    conversation_id: str


@runtime_checkable
class ConversationStore(Protocol):
    """Keeps conversations, and runs that wait for an answer.

    Any method may be called from any thread and any event loop. A write that cannot be made raises; the caller keeps
    the turn in a spill file then.
    """

    async def load(self, key: ConversationKey) -> list[Message]:
        """The conversation's messages, oldest first; an empty list where there is none. They are the caller's own."""
        ...

    async def append(self, key: ConversationKey, messages: Iterable[Message]) -> None:
        """Add messages at the end, all or none of them."""
        ...

    async def replace(self, key: ConversationKey, messages: Iterable[Message]) -> None:
        """Put these messages in the place of the whole conversation, all or none of them."""
        ...

    async def delete(self, key: ConversationKey) -> None:
        """Remove the conversation, if there is one."""
        ...

    async def save_waiting(self, run_id: str, document: Mapping[str, Any]) -> None:
        """Keep a run that waits. ``document`` is JSON-ready; without a ``saved_at`` (epoch seconds) it gets one."""
        ...

    async def load_waiting(self, run_id: str) -> dict[str, Any] | None:
        """The waiting run's document, or None. It stays in the store."""
        ...

    async def list_waiting(self) -> list[dict[str, Any]]:
        """Every waiting run's document, oldest first, expired ones included."""
        ...

    async def remove_waiting(self, run_id: str, document: Mapping[str, Any] | None = None) -> bool:
        """Take the waiting run out of the store: True for exactly one caller, who may go on with it.

        With ``document``, as it was loaded, only where the run still waits with that one: somebody may have gone on
        with it and it may wait again, for something else.
        """
        ...

    async def close(self) -> None:
        """Give back what the store holds open. It may be called twice."""
        ...


def waiting_expired(document: Mapping[str, Any], now: float | None = None) -> bool:
    """Whether a waiting run's 24 hours are over. A document without a time counts as expired."""
    saved_at = document.get("saved_at")
    if not isinstance(saved_at, (int, float)):
        return True
    return (time.time() if now is None else now) - saved_at >= WAITING_SECONDS


def stamped(document: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """The document as a store keeps it: with its run id and the time it was saved."""
    return {"saved_at": time.time(), **document, "run_id": run_id}


class MemoryStore:
    """Keeps everything in this process, as long as the store lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._conversations: dict[ConversationKey, list[Message]] = {}
        self._waiting: dict[str, dict[str, Any]] = {}

    async def load(self, key: ConversationKey) -> list[Message]:
        with self._lock:
            return [dict(message) for message in self._conversations.get(key, ())]

    async def append(self, key: ConversationKey, messages: Iterable[Message]) -> None:
        added = [dict(message) for message in messages]
        with self._lock:
            self._conversations.setdefault(key, []).extend(added)

    async def replace(self, key: ConversationKey, messages: Iterable[Message]) -> None:
        kept = [dict(message) for message in messages]
        with self._lock:
            self._conversations[key] = kept

    async def delete(self, key: ConversationKey) -> None:
        with self._lock:
            self._conversations.pop(key, None)

    async def save_waiting(self, run_id: str, document: Mapping[str, Any]) -> None:
        kept = stamped(document, run_id)
        with self._lock:
            self._waiting[run_id] = kept

    async def load_waiting(self, run_id: str) -> dict[str, Any] | None:
        with self._lock:
            document = self._waiting.get(run_id)
            return None if document is None else dict(document)

    async def list_waiting(self) -> list[dict[str, Any]]:
        with self._lock:
            documents = [dict(document) for document in self._waiting.values()]
        return sorted(documents, key=lambda document: (document["saved_at"], document["run_id"]))

    async def remove_waiting(self, run_id: str, document: Mapping[str, Any] | None = None) -> bool:
        with self._lock:
            if document is not None and self._waiting.get(run_id) != document:
                return False
            return self._waiting.pop(run_id, None) is not None

    async def close(self) -> None:
        return None
