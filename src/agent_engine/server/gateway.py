"""The hooks at the server's own edge: who calls, what comes in, what goes out, and the server's start and stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import (
    GatewayStartInput,
    GatewayStopInput,
    MessageReceivedInput,
    MessageSendingInput,
    MessageSentInput,
    MessageUndeliveredInput,
    OnAuthInput,
)
from agent_engine.hooks.site import Site, Where
from agent_engine.server.errors import ApiError
from agent_engine.server.identity import Identity

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.result import HookRun, Verdict
    from agent_engine.runtime.engine import Engine

PLATFORM = "http"


class Gateway:
    """Fires the events of the server. ``engine`` is built."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def holds_answers(self) -> bool:
        """Whether a hook may still change or refuse an answer that is complete."""
        return self._engine.scope.listens(HookEvent.MESSAGE_SENDING)

    async def started(self) -> None:
        await self._fire(HookEvent.GATEWAY_START, GatewayStartInput(platforms=[PLATFORM], reason="serve"))

    async def stopped(self, reason: str) -> None:
        await self._fire(HookEvent.GATEWAY_STOP, GatewayStopInput(platforms=[PLATFORM], reason=reason))

    async def authenticated(self, identity: Identity, client: str) -> Identity:
        """Let ``on_auth`` see the caller, and change or refuse it.

        Raises:
            ApiError: a hook refused it (403).
        """
        if self._engine.scope.plan(HookEvent.ON_AUTH) is None:
            return identity
        payload = OnAuthInput(scheme=identity.scheme, principal=identity.principal(), client=client)
        verdict = await self._fire(HookEvent.ON_AUTH, payload)
        if verdict is None:
            return identity
        if verdict.denied or verdict.asked:
            raise ApiError(403, "blocked", _sentence(verdict))
        principal = verdict.payload.principal
        return identity.with_principal(principal) if isinstance(principal, dict) else identity

    async def received(self, message: str, context: RunContext) -> str:
        """Let ``message_received`` see the message; returns what it left.

        Raises:
            ApiError: a hook refused it (403). The refusal is recorded as a blocked run.
        """
        verdict = await self._message(
            HookEvent.MESSAGE_RECEIVED, context, MessageReceivedInput, content=message, sender_id=context.user_id
        )
        if verdict is None:
            return message
        if verdict.denied or verdict.asked:
            self._record_refusal(context)
            raise ApiError(403, "blocked", _sentence(verdict))
        content: str = verdict.payload.content
        return content

    async def sending(self, content: str, context: RunContext) -> str:
        """Let ``message_sending`` see an answer before it leaves; returns what it left.

        Raises:
            ApiError: a hook refused it (403); ``message_undelivered`` has fired.
        """
        verdict = await self._message(HookEvent.MESSAGE_SENDING, context, MessageSendingInput, content=content)
        if verdict is None:
            return content
        if verdict.denied or verdict.asked:
            await self.undelivered("", context, "refused by a hook")
            raise ApiError(403, "blocked", _sentence(verdict))
        left: str = verdict.payload.content
        return left

    async def sent(self, content: str, context: RunContext) -> None:
        await self._message(HookEvent.MESSAGE_SENT, context, MessageSentInput, content=content)

    async def undelivered(self, content: str, context: RunContext, error: str) -> None:
        await self._message(
            HookEvent.MESSAGE_UNDELIVERED, context, MessageUndeliveredInput, content=content, error=error
        )

    async def _message(self, event: HookEvent, context: RunContext, kind: Any, **fields: Any) -> Verdict | None:
        if self._engine.scope.plan(event, PLATFORM) is None:
            return None
        payload = kind(
            platform=PLATFORM,
            channel_id=context.conversation_id,
            channel_type="api",
            message_id=context.run_id,
            session_id=context.conversation_id,
            run_id=context.run_id,
            **fields,
        )
        return await self._fire(event, payload, PLATFORM, context)

    async def _fire(
        self, event: HookEvent, payload: Any, target: str | None = None, context: RunContext | None = None
    ) -> Verdict | None:
        plan = self._engine.scope.plan(event, target)
        if plan is None:
            return None
        return await plan.dispatch(payload, self._site(context))

    def _site(self, context: RunContext | None) -> Site:
        journal = self._engine.journal
        if journal is None:
            return Site(run_context=context)
        from agent_engine.records.journal import HookRan

        run_id = context.run_id if context is not None else None

        def sink(_site: Where, run: HookRun) -> None:
            journal.write(HookRan(run_id, None, None, run))

        return Site(run_context=context, sink=sink, wants_payloads=journal.wants_payloads)

    def _record_refusal(self, context: RunContext) -> None:
        """A message refused at the door never becomes a run of the engine; the log shows it as a blocked one."""
        journal = self._engine.journal
        if journal is None:
            return
        from agent_engine.records.journal import RunClosed, RunOpened

        now = time.time()
        system = self._engine.loaded.system.system.name
        who = (context.conversation_id, context.user_id, context.organization_id)
        journal.write(RunOpened(context.run_id, system, *who, now))
        journal.write(RunClosed(context.run_id, "blocked", "RunBlocked", now, 0.0, {}))


def _sentence(verdict: Verdict) -> str:
    reason = verdict.public_reason
    return f"Blocked by policy: {reason}" if reason else "Blocked by policy."
