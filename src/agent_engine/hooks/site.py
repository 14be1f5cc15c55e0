"""Where a dispatch happens: whose run, which agent, which step, and who wants to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.result import HookRun


Sink = Callable[["Where", "HookRun"], None]


class Where(Protocol):
    """The circumstances of one dispatch: a Site, or whatever knows as much, like a step of a run.

    ``sink`` gets a HookRun for every hook that ran; where it is None no row is built. ``wants_payloads`` asks for
    copies of the payload in them. ``strict`` raises a hook's own exception in the place of a refusal. ``metadata`` is
    what managed hooks are given with the invocation, ``cwd`` where command hooks run.
    """

    @property
    def run_context(self) -> RunContext | None: ...
    @property
    def agent(self) -> str | None: ...
    @property
    def step_id(self) -> str | None: ...
    @property
    def sink(self) -> Sink | None: ...
    @property
    def wants_payloads(self) -> bool: ...
    @property
    def strict(self) -> bool: ...
    @property
    def metadata(self) -> dict[str, Any] | None: ...
    @property
    def cwd(self) -> str | None: ...


@dataclass(slots=True)
class Site:
    """The circumstances of one dispatch, written down. The fields are explained at ``Where``."""

    run_context: RunContext | None = None
    agent: str | None = None
    step_id: str | None = None
    sink: Sink | None = None
    wants_payloads: bool = False
    strict: bool = False
    metadata: dict[str, Any] | None = None
    cwd: str | None = None
