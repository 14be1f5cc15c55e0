"""Conversations and their stores, and the standalone HooksManager."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.memory.hooks_manager import HooksManager as HooksManager
    from agent_engine.memory.hooks_manager import create_hooks_manager as create_hooks_manager
    from agent_engine.memory.sqlite import SqliteStore as SqliteStore
    from agent_engine.memory.store import ConversationStore as ConversationStore
    from agent_engine.memory.store import MemoryStore as MemoryStore

_HOMES = {
    "HooksManager": "agent_engine.memory.hooks_manager",
    "create_hooks_manager": "agent_engine.memory.hooks_manager",
    "ConversationStore": "agent_engine.memory.store",
    "MemoryStore": "agent_engine.memory.store",
    "SqliteStore": "agent_engine.memory.sqlite",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agent_engine.memory' has no attribute {name!r}; it offers {', '.join(_HOMES)}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
