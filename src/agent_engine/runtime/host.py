"""Host: what an Engine or an Agent lends to each of its runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from agent_engine.runtime.heard import HeardPlans
from agent_engine.runtime.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.scope import HookScope
    from agent_engine.memory.spill import Keeper
    from agent_engine.memory.store import ConversationStore
    from agent_engine.models.base import Model
    from agent_engine.records.generation import Generations
    from agent_engine.records.journal import Journal
    from agent_engine.runtime.approvals import Approver
    from agent_engine.runtime.node import Node


class Host:
    """The surroundings of a run. One per Engine, one per Agent; any number of runs share it, from any loop.

    Args:
        system_name: the system's name, as RunEndContext and the journal show it.
        scope: the hooks that hold for every run here, those of the agent that requests reach included.
        journal: where entries go; None writes none and builds none.
        approver: answers asks: a callable, "later", or None (nobody: every ask is a no).
        store: conversations and waiting runs; None keeps them in memory (the store is made when first needed).
        resolve_model: finds the model that a hook names in the place of another; by default as an Agent's ``model=``.
        configuration: what the system declares, as plain data; its digest is part of each run's ``generation``.
    """

    __slots__ = (
        "_configuration",
        "_generations",
        "_keeper",
        "_models",
        "_store",
        "_waiting_since",
        "approver",
        "contexts",
        "heard_plans",
        "journal",
        "keeps_conversations",
        "resolve_model",
        "scope",
        "sessions",
        "system_name",
    )

    def __init__(
        self,
        *,
        system_name: str = "",
        scope: HookScope,
        journal: Journal | None = None,
        approver: Approver | Literal["later"] | None = None,
        store: ConversationStore | None = None,
        resolve_model: Callable[[str], Model] | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        self.system_name = system_name
        self.scope = scope
        self.journal = journal
        self.approver = approver
        self._store = store
        self._keeper: Keeper | None = None
        self.sessions = Sessions(self)
        # A store that was made here is nobody else's: each conversation is loaded once.
        self.keeps_conversations = store is None
        self.resolve_model = resolve_model
        self._configuration = configuration
        self._generations: Generations | None = None
        self.heard_plans = HeardPlans()
        self._models: dict[str, Model] = {}
        # The RunContext of each run that waits in this process: a token is never written to a store.
        self.contexts: dict[str, RunContext] = {}
        self._waiting_since: dict[str, float] = {}

    def generation(self, scope: HookScope) -> str:
        """The name of the configuration in force, for the records."""
        if self._generations is None:
            from agent_engine.records.generation import Generations

            self._generations = Generations(self._configuration)
        return self._generations.name(scope)

    @property
    def store(self) -> ConversationStore:
        """The store of conversations and waiting runs; made in memory when none was given."""
        if self._store is None:
            from agent_engine.memory.store import MemoryStore

            self._store = MemoryStore()
        return self._store

    @property
    def keeper(self) -> Keeper:
        """The store, with a spill file for what it cannot take."""
        if self._keeper is None:
            from agent_engine.memory.spill import Keeper

            self._keeper = Keeper(self.store)
        return self._keeper

    def keep_context(self, context: RunContext) -> None:
        """Keep the context of a run that begins to wait, for as long as it may."""
        from agent_engine.memory.store import WAITING_SECONDS

        now = time.monotonic()
        for run_id in [one for one, since in self._waiting_since.items() if now - since > WAITING_SECONDS]:
            self.forget_context(run_id)
        self.contexts[context.run_id] = context
        self._waiting_since[context.run_id] = now

    def forget_context(self, run_id: str) -> None:
        self.contexts.pop(run_id, None)
        self._waiting_since.pop(run_id, None)

    def model_named(self, name: str, instead_of: Model, node: Node) -> Model:
        """The model that a hook put in the place of another: one of the agent's own, else the one of that name; a name
        without a provider is one of the same provider."""
        for model, _ in node.models:
            if name in (model.name, f"{model.provider}:{model.name}"):
                return model
        full = name if ":" in name else f"{instead_of.provider}:{name}"
        if full not in self._models:
            resolve = self.resolve_model
            if resolve is None:
                from agent_engine.models.resolve import model_from

                resolve = model_from
            self._models[full] = resolve(full)
        return self._models[full]
