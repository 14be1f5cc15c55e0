"""Step: one step of a run as the hooks and the journal see it."""

from __future__ import annotations

import contextvars
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.scope import HookScope

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from agent_engine.hooks.events import HookEvent
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.plan import Plan
    from agent_engine.hooks.result import Verdict
    from agent_engine.hooks.site import Sink
    from agent_engine.records.journal import Outcome, StepClosed, StepKind, StepOpened
    from agent_engine.runtime.state import RunState


class Step:
    """A turn, a model call or a tool call. It asks its scope who listens, is where their hooks run, and writes its two
    lines in the journal."""

    __slots__ = (
        "agent", "kind", "name", "opened", "parent_id", "scope", "state", "step_id", "timers", "unheard",
    )  # fmt: skip

    def __init__(
        self,
        state: RunState,
        scope: HookScope,
        kind: StepKind,
        name: str,
        agent: str | None,
        parent_id: str | None = None,
        timers: tuple[asyncio.Timeout, ...] = (),
    ) -> None:
        self.state = state
        self.scope = scope
        self.kind = kind
        self.name = name
        self.agent = agent
        self.parent_id = parent_id
        # The time limits that this step runs under: one that has expired is why it is being cancelled.
        self.timers = timers
        self.step_id: str | None = None
        self.unheard: list[str] | None = None
        self.opened = time.perf_counter()

    async def open(self, **detail: Any) -> None:
        """Write the step's first line, where there is a journal; wait for it where it asks to."""
        journal = self.state.journal
        if journal is None:
            return
        if journal.full:
            await journal.room()
        step_opened, _, new_id = _entries()
        self.step_id = new_id()
        self.unheard = []
        journal.write(
            step_opened(
                self.state.run_id, self.step_id, self.parent_id, self.kind, self.name, self.agent, time.time(), detail
            )
        )

    def close(
        self,
        status: str,
        outcome: Outcome,
        *,
        error_type: str | None = None,
        refused_by: str | None = None,
        reason: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the step's last line, where there is a journal."""
        journal = self.state.journal
        if journal is None or self.step_id is None:
            return
        journal.write(
            _entries()[1](
                self.state.run_id,
                self.step_id,
                status,
                error_type,
                outcome,
                refused_by,
                reason,
                self.elapsed_ms(),
                detail or {},
                tuple(self.unheard or ()),
            )
        )

    def failed(self, status: str, error: BaseException) -> None:
        """Write the last line of a step that ``error`` ended."""
        if self.state.journal is None:
            return
        from agent_engine.runtime.reporting import error_type_of

        outcomes: dict[str, Outcome] = {"denied": "refused", "cancelled": "cancelled"}
        self.close(
            status,
            outcomes.get(status, "failed"),
            error_type=error_type_of(error),
            refused_by=getattr(error, "hook", None) or getattr(error, "ref", None),
            reason=getattr(error, "reason", None),
        )

    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self.opened) * 1000

    def plan(
        self, event: HookEvent, target: str | tuple[str, ...] | None = None, server: str | None = None
    ) -> Plan | None:
        """Who listens here. None: nobody, and then nothing is to be built."""
        plan = self.scope.plan(event, target, agent=self.agent, server=server)
        if plan is None and self.unheard is not None:
            self.unheard.append(event._value_)
        return plan

    # Where hooks run, as the dispatcher wants to know it; read from the state, which may change what it holds.

    @property
    def run_context(self) -> RunContext:
        return self.state.run_context

    @property
    def sink(self) -> Sink | None:
        return self.state.sink

    @property
    def wants_payloads(self) -> bool:
        return self.state.wants_payloads

    @property
    def strict(self) -> bool:
        return self.state.strict

    @property
    def metadata(self) -> None:
        return None

    @property
    def cwd(self) -> None:
        return None

    async def aside(self, plan: Plan, payload: Any) -> Verdict:
        """A dispatch that is a step of its own: what its hooks set in context variables is seen by nobody else."""
        return await in_context(contextvars.copy_context(), plan.dispatch(payload, self))

    def base(self) -> dict[str, Any]:
        """The fields that every payload has."""
        return {"session_id": self.state.session_id, "agent_name": self.agent, "run_id": self.state.run_id}


@cache
def _entries() -> tuple[type[StepOpened], type[StepClosed], Callable[[], str]]:
    """What a step writes, imported where something is recorded, and once."""
    from agent_engine.records.journal import StepClosed, StepOpened, new_id

    return StepOpened, StepClosed, new_id


def refuses(verdict: Verdict) -> bool:
    """Whether a verdict stops the step where an ask cannot be lifted: an ask is a deny there."""
    return verdict.denied or verdict.asked
