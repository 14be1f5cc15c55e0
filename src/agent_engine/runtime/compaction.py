"""Shortening a long history before a turn: before_compaction, a summary by the model, after_compaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_engine.hooks.errors import ends_the_run
from agent_engine.hooks.events import HookEvent
from agent_engine.runtime.step import refuses

if TYPE_CHECKING:
    from agent_engine.memory.compaction import Compaction
    from agent_engine.models.base import Message
    from agent_engine.runtime.turn import Turn

logger = logging.getLogger("agent_engine.runtime")


async def shortened(turn: Turn, history: Sequence[Message]) -> Sequence[Message]:
    """The history of a turn, shortened where it passes the limit ``context_tokens``.

    The summary is a model call like any other: it goes through the door, past the same hooks. Where it is refused or
    fails, the history stays as it is.
    """
    limit = turn.state.limits.context_tokens
    if limit is None or not history:
        return history
    from agent_engine.memory.compaction import compact, estimate_tokens

    tokens = estimate_tokens(history)
    if tokens <= limit or not await _allowed(turn, len(history), tokens, limit):
        return history
    try:
        done = await compact(history, keep_tokens=limit // 2, summarize=lambda messages: _summary(turn, messages))
    except Exception as error:
        if error is turn.state.ended or ends_the_run(error):
            raise
        logger.warning("The history of run %s was not shortened: %s", turn.state.run_id, type(error).__name__)
        return history
    if done is None:
        return history
    turn.shortened = (done.messages, len(history))
    await _tell(turn, done, len(history), limit)
    return done.messages


async def _summary(turn: Turn, messages: list[Message]) -> str:
    from agent_engine.runtime.model_call import call_model

    answer = await call_model(turn, messages)
    return answer.response.text


async def _allowed(turn: Turn, count: int, tokens: int, limit: int) -> bool:
    plan = turn.step.plan(HookEvent.BEFORE_COMPACTION)
    if plan is None:
        return True
    from agent_engine.hooks.payloads import BeforeCompactionInput

    payload = BeforeCompactionInput(**turn.step.base(), messages_count=count, tokens=tokens, limit=limit)
    return not refuses(await turn.step.aside(plan, payload))


async def _tell(turn: Turn, done: Compaction, count: int, limit: int) -> None:
    plan = turn.step.plan(HookEvent.AFTER_COMPACTION)
    if plan is None:
        return
    from agent_engine.hooks.payloads import AfterCompactionInput

    payload = AfterCompactionInput(
        **turn.step.base(),
        messages_count=count,
        tokens=done.tokens_after,
        limit=limit,
        kept=done.kept,
        removed=done.removed,
        summary=done.summary,
    )
    await turn.step.aside(plan, payload)
