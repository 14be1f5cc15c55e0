"""Sessions of a host: which conversations are open here, what was granted in them, and their beginning and end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from agent_engine.hooks import payloads
from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import private_copy
from agent_engine.memory.store import ConversationKey
from agent_engine.runtime.step import Step

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.memory.spill import PersistFailure
    from agent_engine.models.base import Message
    from agent_engine.runtime.approvals import Grant
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.state import RunState


class Session:
    """One conversation as far as this process knows it. ``key`` is None for a run that is a session of its own.

    Attributes:
        grants: what a person allowed for as long as the session lasts.
        prefixes: the prompt prefix of the last model call, by agent.
        messages: the conversation, where this process alone writes to it; None until it is loaded.
        turns, tokens: what session_end tells.
        used: when a run last touched it (monotonic seconds).
    """

    __slots__ = ("agent", "begun", "context", "grants", "key", "messages", "prefixes", "tokens", "turns", "used")

    def __init__(self, key: ConversationKey | None, context: RunContext) -> None:
        self.key = key
        # Who the session belongs to, without the token that a run may carry.
        self.context = context
        # The agent that its first run reached.
        self.agent: str | None = None
        self.begun = False
        self.grants: set[Grant] = set()
        self.prefixes: dict[str, dict[str, str]] = {}
        self.messages: list[Message] | None = None
        self.turns = 0
        self.tokens = 0
        self.used = time.monotonic()


class Sessions:
    """The open sessions of one Host."""

    __slots__ = ("_host", "_lock", "_open")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._open: dict[ConversationKey, Session] = {}

    def of(self, context: RunContext) -> Session:
        """The session of a caller's conversation; a new one for a run without a conversation."""
        if not context.conversation_id:
            return Session(None, context)
        key = ConversationKey(context.organization_id, context.user_id, context.conversation_id)
        with self._lock:
            session = self._open.get(key)
            if session is None:
                from agent_engine.hooks.managed import RunContext

                identity = RunContext(
                    conversation_id=context.conversation_id,
                    user_id=context.user_id,
                    organization_id=context.organization_id,
                )
                session = self._open[key] = Session(key, identity)
            session.used = time.monotonic()
            return session

    async def begin(self, state: RunState) -> list[Message]:
        """Bring the run into its session: load the conversation, and fire session_start in the first run.

        Returns the messages of the conversation so far.
        """
        session = state.session = self.of(state.run_context)
        history = await self._load(session)
        with self._lock:
            first, session.begun = not session.begun, True
            session.agent = session.agent or state.agent
        if first:
            await _session_start(state, "resume" if history else "startup")
        return history

    async def rejoin(self, state: RunState) -> None:
        """Bring a run that waited back into its session; one that is a session of its own has begun before."""
        session = self.of(state.run_context)
        if session.key is None:
            session.begun = True
            state.session = session
        else:
            await self.begin(state)

    async def _load(self, session: Session) -> list[Message]:
        if session.key is None:
            return []
        if session.messages is not None:
            return session.messages
        loaded = await self._host.keeper.load(session.key)
        if self._host.keeps_conversations:
            session.messages = loaded
        return loaded

    async def keep(
        self, state: RunState, added: Sequence[Message], instead_of: tuple[Sequence[Message], int] | None
    ) -> None:
        """Store what a run added to its conversation.

        A store that cannot write does not fail the run: the turn goes to a spill file, and an event tells.

        Args:
            instead_of: a shortened history, and how many of the first messages it stands for: what others have added
                behind those meanwhile stays.
        """
        session = state.session
        if session is None:
            return
        session.turns += 1
        session.tokens += state.usage.total
        if session.key is None:
            return
        if session.messages is not None:
            if instead_of is not None:
                session.messages = _put_in(session.messages, instead_of)
            session.messages.extend(added)
        keeper = self._host.keeper
        if instead_of is not None:
            with contextlib.suppress(Exception):
                # The whole history is longer than it need be, and nothing is lost: it is shortened again next time.
                there = await keeper.store.load(session.key)
                await keeper.store.replace(session.key, _put_in(there, instead_of))
        failure = await keeper.append(session.key, added)
        if failure is not None:
            await _persist_failed(state, added, failure)

    async def end(self, context: RunContext, reason: str) -> bool:
        """End one session: session_end fires, and its grants are gone. False where none is open."""
        if not context.conversation_id:
            return False
        key = ConversationKey(context.organization_id, context.user_id, context.conversation_id)
        with self._lock:
            session = self._open.pop(key, None)
        if session is None:
            return False
        await self._ended(session, reason)
        return True

    async def end_all(self, reason: str) -> None:
        """End every open session."""
        with self._lock:
            sessions = list(self._open.values())
            self._open.clear()
        for session in sessions:
            await self._ended(session, reason)

    async def end_idle(self, seconds: float, reason: str = "idle") -> int:
        """End the sessions that no run has touched for so long. Returns how many."""
        limit = time.monotonic() - seconds
        with self._lock:
            idle = [session for session in self._open.values() if session.used < limit]
            for session in idle:
                if session.key is not None:
                    del self._open[session.key]
        for session in idle:
            await self._ended(session, reason)
        return len(idle)

    async def end_own(self, state: RunState) -> None:
        """End the session of a run that was one of its own."""
        session = state.session
        if session is not None and session.key is None and session.begun:
            session.begun = False
            await _session_end(state, session, "run_ended")

    async def _ended(self, session: Session, reason: str) -> None:
        if not session.begun:
            return
        session.begun = False
        from agent_engine.runtime.limits import NO_LIMITS
        from agent_engine.runtime.state import RunState

        state = RunState(
            host=self._host,
            scope=self._host.scope,
            run_context=session.context,
            limits=NO_LIMITS,
            agent=session.agent,
        )
        await _session_end(state, session, reason)


def _put_in(messages: Sequence[Message], instead_of: tuple[Sequence[Message], int]) -> list[Message]:
    shortened, count = instead_of
    return [*shortened, *messages[count:]]


async def _session_start(state: RunState, source: str) -> None:
    step = Step(state, state.scope, "session", state.session_id, state.agent)
    plan = step.plan(HookEvent.SESSION_START)
    if plan is None:
        return
    payload = payloads.SessionStartInput(**step.base(), source=source, session_name=state.session_id or None)
    await _alone(step, plan, payload)


async def _session_end(state: RunState, session: Session, reason: str) -> None:
    step = Step(state, state.scope, "session", state.session_id, state.agent)
    plan = step.plan(HookEvent.SESSION_END)
    if plan is None:
        return
    payload = payloads.SessionEndInput(
        **step.base(), reason=reason, total_turns=session.turns, total_tokens=session.tokens
    )
    await _alone(step, plan, payload)


async def _alone(step: Step, plan: Any, payload: Any) -> None:
    """A dispatch that is a step of its own: what its hooks set in context variables stays with them."""
    await step.open()
    status = "error"
    try:
        await in_context(copy_context(), plan.dispatch(payload, step))
        status = "ok"
    finally:
        step.close(status, "ran" if status == "ok" else "failed")


async def _persist_failed(state: RunState, messages: Sequence[Message], failure: PersistFailure) -> None:
    import logging

    logging.getLogger("agent_engine.runtime").warning(
        "The conversation of run %s could not be stored: %s", state.run_id, failure.error
    )
    step = Step(state, state.scope, "session", state.session_id, state.agent)
    plan = step.plan(HookEvent.SESSION_PERSIST_FAILED)
    if plan is None:
        return
    last = messages[-1] if messages else {}
    payload = payloads.SessionPersistFailedInput(
        **step.base(),
        role=last.get("role", ""),
        content=private_copy(last.get("content") or ""),
        error=failure.error,
        spilled=failure.spilled,
        spill_path=failure.path,
    )
    await _alone(step, plan, payload)
