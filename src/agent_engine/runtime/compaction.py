"""Shortening a long history before a turn: before_compaction, a summary by the model, after_compaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.models.base import Message
    from agent_engine.runtime.turn import Turn


async def shortened(turn: Turn, history: Sequence[Message]) -> Sequence[Message]:
    """The history of a turn, shortened where it passes the limit of ``context_tokens``."""
    return history
