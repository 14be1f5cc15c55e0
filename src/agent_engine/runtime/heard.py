"""A dispatch that knows which of its hooks have heard the event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_engine.hooks.dispatch import Dispatch

if TYPE_CHECKING:
    from agent_engine.hooks.dispatch import Ran
    from agent_engine.hooks.plan import Entry, Plan
    from agent_engine.hooks.site import Site


class HeardDispatch(Dispatch):
    """Remembers whose turn came, so that after a cancellation the others can still be told."""

    def __init__(self, plan: Plan, payload: Any, site: Site) -> None:
        super().__init__(plan, payload, site)
        self._heard: set[int] = set()

    def begin(self, entry: Entry, shared: Any = None) -> Ran | None:
        self._heard.add(id(entry))
        return super().begin(entry, shared)

    def rest(self) -> Plan | None:
        """The hooks that have not heard the event; None where all have, or where it was refused before."""
        if self.stopped:
            return None
        entries = [entry for entry in self.plan.entries if id(entry) not in self._heard]
        return type(self.plan)(self.plan.event, entries) if entries else None
