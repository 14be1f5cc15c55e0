"""Where agentctl keeps conversations and waiting runs: a database beside the system's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.memory.store import ConversationStore


def state_path(config: Path) -> Path:
    """The database of the system that ``config`` declares; it need not exist.

    It is beside the file as it was named, like prompts and plugins; what a link to a file points to does not count.
    """
    return config.parent.resolve() / ".agent_engine" / f"{config.stem}.db"


def open_store(config: Path) -> ConversationStore:
    """The store of a system. Its file is made when something is first kept."""
    from agent_engine.memory.sqlite import SqliteStore

    return SqliteStore(state_path(config))
