"""The one end of a request: on_run_end, on_run_error, or a wait for a person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.errors import RunBlocked, RunCancelled
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import RunEndContext
from agent_engine.hooks.payloads import private_copy
from agent_engine.runtime.closing import close_step, dispatch_closing
from agent_engine.runtime.reporting import error_type_of, notify, report_error
from agent_engine.runtime.result import RunResult
from agent_engine.runtime.step import Step

if TYPE_CHECKING:
    from agent_engine.models.base import Message
    from agent_engine.runtime.result import RunStatus
    from agent_engine.runtime.state import RunState
    from agent_engine.runtime.waiting import Waiting


class Ending:
    """How a request ends: ``succeeded``, ``failed`` or ``waits``, each with its hooks and its line in the journal."""

    __slots__ = ("_closed", "root", "saved_at", "state")

    def __init__(self, state: RunState, root: str) -> None:
        self.state = state
        self.root = root
        self.saved_at: float | None = None
        self._closed = False

    def opened(self) -> None:
        """The request has come in."""
        state = self.state
        if state.journal is None:
            return
        from agent_engine.records.journal import RunOpened
        from agent_engine.runtime.waiting import digest_of

        context = state.run_context
        state.journal.write(
            RunOpened(
                state.run_id,
                state.host.system_name,
                state.session_id or None,
                context.user_id,
                context.organization_id,
                state.started_at,
                digest_of({"message": state.message}) if state.message else None,
                state.host.generation(state.scope),
            )
        )

    async def succeeded(self) -> None:
        """on_run_end, before anything is final: where it fails, the run has failed."""
        state, step = self.state, self._step()
        plan = step.plan(HookEvent.ON_RUN_END)
        if plan is not None:
            payload = RunEndContext(
                run_id=state.run_id,
                system_name=state.host.system_name,
                visited=tuple(state.visited),
                used_tool_count=state.tool_calls,
            )
            await dispatch_closing(step, plan, payload)
        await state.host.sessions.end_own(state)
        self._close("completed", None)

    async def failed(self, error: BaseException) -> None:
        """on_run_error, once for each request that fails, for any reason."""
        if self._closed:
            # The run had ended well; what failed is what comes after it.
            return
        state = self.state
        cancelled = isinstance(error, asyncio.CancelledError)
        shown: BaseException = RunCancelled() if cancelled else error
        try:
            await close_step(
                state,
                error,
                lambda: self._report(error),
                lambda: self._run_error(shown),
                lambda: state.host.sessions.end_own(state),
            )
        finally:
            status = "cancelled" if cancelled else "blocked" if isinstance(error, RunBlocked) else "failed"
            self._close(status, error_type_of(error))

    async def _report(self, error: BaseException) -> None:
        step = self._step()
        await report_error(step, error)
        if not isinstance(error, asyncio.CancelledError):
            await notify(step, "run_failed", f"The run failed: {error_type_of(error)}.")

    async def _run_error(self, error: BaseException) -> None:
        step = self._step()
        plan = step.plan(HookEvent.ON_RUN_ERROR)
        if plan is not None:
            await dispatch_closing(step, plan, error)

    async def waits(self, waiting: Waiting) -> RunResult:
        """The run stops for a person: its document goes to the store, and its own RunContext stays here."""
        from agent_engine.runtime.frames import asks_of, run_document
        from agent_engine.runtime.waiting import abandon

        state = self.state
        document = run_document(state, waiting.frame, self.saved_at)
        state.host.keep_context(state.run_context)
        try:
            await state.host.store.save_waiting(state.run_id, document)
        except BaseException as error:
            await abandon(state, [waiting], error)
            raise
        self._close("waiting", None)
        return self.result("", [], "waiting", asks_of(document))

    def result(
        self, output: Any, messages: Sequence[Message], status: RunStatus = "completed", pending: tuple[Any, ...] = ()
    ) -> RunResult:
        """The RunResult, and the stream's final event."""
        state = self.state
        result = RunResult(
            output=output,
            status=status,
            run_id=state.run_id,
            session_id=state.session_id,
            usage=state.usage,
            messages=[private_copy(message) for message in messages],
            visited=tuple(state.visited),
            pending=pending,
        )
        if state.emit is not None:
            from agent_engine.tools.result import plain

            state.tell(
                "final",
                result,
                output=plain(output),
                status=status,
                session_id=state.session_id,
                usage={"input_tokens": state.usage.input_tokens, "output_tokens": state.usage.output_tokens},
                visited=list(state.visited),
                pending=[plain(ask.to_dict()) for ask in pending],
            )
        return result

    def _step(self) -> Step:
        return Step(self.state, self.state.scope, "agent", self.root, self.root)

    def _close(self, status: str, error_type: str | None) -> None:
        self._closed = True
        state = self.state
        if state.journal is None:
            return
        from agent_engine.records.journal import RunClosed

        usage = {"input_tokens": state.usage.input_tokens, "output_tokens": state.usage.output_tokens}
        state.journal.write(RunClosed(state.run_id, status, error_type, time.time(), state.elapsed_ms(), usage))
