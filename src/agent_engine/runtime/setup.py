"""setup: an agent or engine is first made ready."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.events import HookEvent

if TYPE_CHECKING:
    from agent_engine.runtime.host import Host


async def fire_setup(host: Host, agent: str | None, source: str = "startup") -> None:
    """Fire ``setup``, where somebody listens; what its hooks set in context variables stays with them."""
    plan = host.scope.plan(HookEvent.SETUP, agent=agent)
    if plan is None:
        return
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.payloads import SetupInput
    from agent_engine.hooks.scope import Site
    from agent_engine.runtime.limits import NO_LIMITS
    from agent_engine.runtime.state import RunState

    state = RunState(host=host, scope=host.scope, run_context=RunContext(), limits=NO_LIMITS)
    payload = SetupInput(agent_name=agent, source=source)
    site = Site(agent=agent, sink=state.sink, wants_payloads=state.wants_payloads)
    await in_context(contextvars.copy_context(), plan.dispatch(payload, site))
