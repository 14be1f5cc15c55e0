"""RunState: what one run knows about itself."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from agent_engine.models.base import Usage
from agent_engine.runtime.result import EventType, RunEvent, RunResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.result import HookRun
    from agent_engine.hooks.scope import HookScope
    from agent_engine.hooks.site import Sink, Where
    from agent_engine.records.journal import Journal
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.limits import Limits
    from agent_engine.runtime.sessions import Session
    from agent_engine.runtime.under_way import UnderWay

CLOSING_SECONDS = 5.0
"""How long the closing events of a cancelled run may take, all of them together."""


class RunState:
    """One request on its way.

    The callables of a Node get it; they may read ``run_context``, ``message`` and ``host``, and keep what belongs to
    the run in ``metadata`` (resolved values, checked nodes).
    """

    __slots__ = (
        "_closing_until",
        "agent",
        "asked",
        "child_calls",
        "decisions",
        "emit",
        "ended",
        "host",
        "journal",
        "limits",
        "may_wait",
        "message",
        "metadata",
        "model_calls",
        "refusals",
        "reported",
        "run_context",
        "run_id",
        "scope",
        "seen",
        "session",
        "session_id",
        "sink",
        "sites",
        "started",
        "started_at",
        "strict",
        "timers",
        "tool_calls",
        "tool_calls_by",
        "under_way",
        "usage",
        "visited",
        "wants_payloads",
    )

    def __init__(
        self,
        *,
        host: Host,
        scope: HookScope,
        run_context: RunContext,
        limits: Limits,
        message: str = "",
        emit: Callable[[RunEvent], None] | None = None,
        strict: bool = False,
        agent: str | None = None,
    ) -> None:
        self.host = host
        # The agent that the request reaches.
        self.agent = agent
        self.scope = scope
        self.journal: Journal | None = host.journal
        self.run_context = run_context
        self.run_id = run_context.run_id
        self.session_id = run_context.conversation_id or ""
        self.session: Session | None = None
        self.limits = limits
        self.message = message
        self.emit = emit
        self.strict = strict
        self.sink: Sink | None = None
        self.wants_payloads = self.journal is not None and self.journal.wants_payloads
        if self.journal is not None or emit is not None:
            self.sink = self._sink()
        self.started = time.perf_counter()
        self.started_at = time.time() if self.journal is not None else 0.0
        self.model_calls = 0
        self.tool_calls = 0
        self.tool_calls_by: dict[str, int] = {}
        self.child_calls = 0
        self.usage = Usage()
        self.visited: dict[str, None] = {}
        self.refusals: dict[tuple[str, str, str], int] = {}
        self.seen: set[tuple[str, str, str]] = set()
        self.metadata: dict[str, Any] = {}
        # Answers to the asks of a waiting run, by call id; empty in a run that did not wait.
        self.decisions: Mapping[str, str] = {}
        # The ids that open questions to a person go by.
        self.asked: set[str] = set()
        # Whether an approver may say "later": not where there is no turn to go on with.
        self.may_wait = True
        self.timers: tuple[asyncio.Timeout, ...] = ()
        # Errors that on_error has told about; each is told once, at the step where it arose.
        self.reported: list[BaseException] = []
        # The request's own end (a limit of the whole request), as opposed to the end of one delegate.
        self.ended: BaseException | None = None
        self._closing_until: float | None = None
        # Set while the run is under way.
        self.under_way: UnderWay | None = None

    def visit(self, agent: str) -> None:
        self.visited.setdefault(agent)

    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self.started) * 1000

    def closing_seconds(self) -> float:
        """What is left of the time for closing events; the clock starts with the first question."""
        now = asyncio.get_running_loop().time()
        if self._closing_until is None:
            self._closing_until = now + CLOSING_SECONDS
        return max(0.0, self._closing_until - now)

    def report_once(self, error: BaseException) -> bool:
        """True the first time an error is told about."""
        if any(known is error for known in self.reported):
            return False
        self.reported.append(error)
        return True

    def tell(self, kind: EventType, result: RunResult | None = None, /, **data: Any) -> None:
        """Hand an event to the stream, where there is one."""
        if self.emit is not None:
            self.emit(RunEvent(kind, self.run_id, data, result))

    def _sink(self) -> Sink:
        journal, streamed = self.journal, self.emit is not None
        if journal is None:
            return self._tell_hook
        from agent_engine.records.journal import HookRan

        def sink(site: Where, run: HookRun) -> None:
            journal.write(HookRan(self.run_id, site.step_id, site.agent, run))
            if streamed:
                self._tell_hook(site, run)

        return sink

    def _tell_hook(self, site: Where, run: HookRun) -> None:
        self.tell(
            "hook",
            event=str(run.event),
            hook=run.hook.name,
            decision=run.decision,
            reason=None if run.broke else run.reason,
            agent=site.agent,
            duration_ms=run.duration_ms,
        )
