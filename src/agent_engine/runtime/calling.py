"""Which turn's tool body the current code runs in, if any."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.runtime.turn import Turn

CALLING: ContextVar[Turn | None] = ContextVar("agent_engine_calling", default=None)


def calling() -> Turn | None:
    """The turn whose tool body calls this code; None outside any tool body."""
    return CALLING.get()
