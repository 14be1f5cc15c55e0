"""Where a dispatch happens: whose run, which agent, which step, and who wants to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.result import HookRun


@dataclass(slots=True)
class Site:
    """The circumstances of one dispatch.

    ``sink`` gets a HookRun for every hook that ran; where it is None no row is built. ``wants_payloads`` asks for
    copies of the payload in them. ``strict`` raises a hook's own exception in the place of a refusal.
    """

    run_context: RunContext | None = None
    agent: str | None = None
    step_id: str | None = None
    sink: Callable[[Site, HookRun], None] | None = None
    wants_payloads: bool = False
    strict: bool = False
    metadata: dict[str, Any] | None = None
    cwd: str | None = None
