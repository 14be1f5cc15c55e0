"""Host: what an Engine or an Agent lends to each of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agent_engine.runtime.sessions import Sessions

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.scope import HookScope
    from agent_engine.memory.store import ConversationStore
    from agent_engine.records.journal import Journal
    from agent_engine.runtime.approvals import Approver


class Host:
    """The surroundings of a run. One per Engine, one per Agent; any number of runs share it, from any loop.

    Args:
        system_name: the system's name, as RunEndContext and the journal show it.
        scope: the hooks that hold for every run here.
        journal: where entries go; None writes none and builds none.
        approver: answers asks: a callable, "later", or None (nobody: every ask is a no).
        store: conversations and waiting runs; None keeps them in memory (the store is made when first needed).
    """

    __slots__ = ("_store", "approver", "contexts", "journal", "scope", "sessions", "system_name")

    def __init__(
        self,
        *,
        system_name: str = "",
        scope: HookScope,
        journal: Journal | None = None,
        approver: Approver | Literal["later"] | None = None,
        store: ConversationStore | None = None,
    ) -> None:
        self.system_name = system_name
        self.scope = scope
        self.journal = journal
        self.approver = approver
        self._store = store
        self.sessions = Sessions(self)
        # The RunContext of each run that waits in this process: a token is never written to a store.
        self.contexts: dict[str, RunContext] = {}

    @property
    def store(self) -> ConversationStore:
        """The store of conversations and waiting runs; made in memory when none was given."""
        if self._store is None:
            from agent_engine.memory.store import MemoryStore

            self._store = MemoryStore()
        return self._store
