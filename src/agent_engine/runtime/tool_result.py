"""What happens to a tool's result on its way to the model, and the closing events of its call."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from agent_engine.hooks import payloads
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import ToolCallContext, ToolResultContext
from agent_engine.hooks.payloads import private_copy
from agent_engine.runtime.closing import dispatch_closing, in_turn, status_of
from agent_engine.runtime.outcome import ToolCancelled, ToolOutcome
from agent_engine.runtime.reporting import error_type_of, report_error
from agent_engine.runtime.step import refuses
from agent_engine.runtime.tool_gates import withheld_text
from agent_engine.tools.result import error_for_model, for_model, plain, printable, text_of

if TYPE_CHECKING:
    from agent_engine.hooks.result import Verdict
    from agent_engine.models.base import ToolCall
    from agent_engine.runtime.step import Step
    from agent_engine.runtime.tool_gates import Gates
    from agent_engine.runtime.turn import Turn
    from agent_engine.tools.base import Tool

# The first guide's contexts have their own words for two of the statuses.
_MANAGED_STATUS = {"ok": "succeeded", "error": "failed"}


class ResultHooks:
    """transform_tool_result, after_tool and after_tool_call, or after_tool and on_tool_error: each at most once."""

    __slots__ = (
        "_body_ms",
        "_body_returned",
        "_closed_call",
        "_closed_tool",
        "_error_type",
        "_output",
        "_started",
        "call",
        "gates",
        "step",
        "tool",
        "turn",
    )

    def __init__(self, turn: Turn, call: ToolCall, tool: Tool, step: Step, gates: Gates) -> None:
        self.turn = turn
        self.call = call
        self.tool = tool
        self.step = step
        self.gates = gates
        self._started = 0.0
        self._body_ms = 0.0
        self._body_returned = self._closed_tool = self._closed_call = False
        self._error_type: str | None = None
        self._output: Any = ""

    def start(self) -> None:
        """The body is about to be called."""
        self._started = time.perf_counter()

    async def returned(self, value: Any) -> ToolOutcome:
        """The body, or a wrapper in its place, returned ``value``."""
        self._clock()
        self._body_returned = True
        value, stopped = await self._transform(value)
        if stopped is not None:
            value = withheld_text(self.tool.name, stopped.public_reason)
        verdict = await self._after_tool("ok" if stopped is None else "denied", value)
        if stopped is None and verdict is not None:
            if refuses(verdict):
                stopped = verdict
            else:
                self.gates.context.extend(verdict.additional_context)
                if verdict.changed:
                    value = verdict.payload.tool_output
        verdict = await self._after_call("ok" if stopped is None else "denied")
        if stopped is None and verdict is not None and refuses(verdict):
            stopped = verdict
        self._used()
        if stopped is not None:
            text = withheld_text(self.tool.name, stopped.public_reason)
            return ToolOutcome(
                "denied", text, text, refused_by=stopped.hook, reason=stopped.public_reason, kind="withheld"
            )
        value = with_context(value, self.gates.context)
        return ToolOutcome("ok", for_model(value), value)

    async def failed(self, error: BaseException | None, text: str) -> ToolOutcome:
        """The body raised, or a wrapper answered with an error."""
        self._clock()
        self._used()
        self._error_type = error_type_of(error) if error is not None else "ToolError"
        status: Any = "error" if error is None else status_of(self.step, error)
        if isinstance(error, ToolCancelled):
            status, self._error_type = "cancelled", "CancelledError"
        shown: Any = error_for_model(text)
        refused: Verdict | None = None

        async def after_tool() -> None:
            nonlocal shown, refused
            verdict = await self._after_tool(status, shown, text)
            if verdict is None:
                return
            if refuses(verdict):
                refused = verdict
            elif verdict.changed:
                shown = verdict.payload.tool_output
            self.gates.context.extend(verdict.additional_context)

        closings: list[Callable[[], Coroutine[Any, Any, object]]] = [after_tool, lambda: self._tool_error(status)]
        if error is not None:
            closings.append(lambda: self._report(error, safe=refused is not None or shown != error_for_model(text)))
        await in_turn(self.turn.state, *closings)
        if refused is not None:
            shown = withheld_text(self.tool.name, refused.public_reason)
        else:
            shown = with_context(shown, self.gates.context)
        return ToolOutcome(status, for_model(shown), shown, self._error_type, error=error)

    async def _report(self, error: BaseException, *, safe: bool) -> None:
        """on_error; where a hook has changed or refused the error's text, on_error does not bring it back."""
        message = f"{self.tool.name} failed with {self._error_type}" if safe else None
        await report_error(self.step, error, message, call_id=self.call.id)

    # For the ways out of the door that have no outcome of their own

    def note_error(self, error: BaseException) -> None:
        self._clock()
        self._error_type = error_type_of(error)

    def note_refusal(self, text: str, *, withheld: bool) -> None:
        self._clock()
        self._output = text
        self._body_returned = self._body_returned or withheld

    def due(self, status: str) -> list[Callable[[], Coroutine[Any, Any, object]]]:
        """The closing events that this call still owes."""
        closings: list[Callable[[], Coroutine[Any, Any, object]]] = []
        if self.gates.passed_tool and not self._closed_tool:
            closings.append(lambda: self._after_tool(status, self._output))
        if self.gates.passed_call and not self._closed_call:
            closing = self._after_call if self._body_returned else self._tool_error
            closings.append(lambda: closing(status))
        return closings

    # The events

    async def _transform(self, value: Any) -> tuple[Any, Verdict | None]:
        """The result after transform_tool_result, and the verdict where that refused it."""
        plan = self.step.plan(HookEvent.TRANSFORM_TOOL_RESULT, self.gates.target, self.tool.server_id)
        if plan is None:
            return value, None
        text = text_of(value)
        payload = ToolResultContext(
            agent_id=self.turn.node.name,
            tool_name=self.tool.name,
            provider=self.tool.provider,
            server_id=self.tool.server_id,
            call_id=self.call.id,
            result=text,
            latency_ms=self._body_ms,
        )
        verdict = await plan.dispatch(payload, self.step)
        if refuses(verdict):
            return value, verdict
        changed = verdict.payload.result
        return (value if changed == text else changed), None

    async def _after_tool(self, status: str, output: Any, error: str | None = None) -> Verdict | None:
        self._closed_tool = True
        plan = self.step.plan(HookEvent.AFTER_TOOL, self.gates.target, self.tool.server_id)
        if plan is None:
            return None
        payload = payloads.AfterToolInput(
            **self.step.base(),
            call_id=self.call.id,
            tool_name=self.tool.name,
            tool_input=private_copy(self.gates.arguments),
            tool_output=shown(output),
            tool_error=error,
            execution_time_ms=self._body_ms,
            status=status,
            error_type=self._error_type,
        )
        return await dispatch_closing(self.step, plan, payload)

    async def _after_call(self, status: str) -> Verdict | None:
        return await self._managed(HookEvent.AFTER_TOOL_CALL, status)

    async def _tool_error(self, status: str) -> Verdict | None:
        return await self._managed(HookEvent.ON_TOOL_ERROR, status)

    async def _managed(self, event: HookEvent, status: str) -> Verdict | None:
        self._closed_call = True
        plan = self.step.plan(event, self.gates.target, self.tool.server_id)
        if plan is None:
            return None
        failed = self._error_type is not None
        payload = ToolCallContext(
            agent_id=self.turn.node.name,
            tool_name=self.tool.name,
            provider=self.tool.provider,
            server_id=self.tool.server_id,
            call_id=self.call.id,
            status=_MANAGED_STATUS.get(status, status),
            latency_ms=self._body_ms,
            error=f"{self.tool.name} failed with {self._error_type}" if failed else None,
            error_type=self._error_type,
        )
        return await dispatch_closing(self.step, plan, payload)

    def _clock(self) -> None:
        if self._started and not self._body_ms:
            self._body_ms = (time.perf_counter() - self._started) * 1000

    def _used(self) -> None:
        self.turn.tools_used.append(self.tool.name)


def shown(output: Any) -> Any:
    """A result as hooks may see it and edit it: a copy; where its own code breaks while it is read, what the model
    would read of it."""
    try:
        return private_copy(output)
    except Exception:  # noqa: BLE001 - a container of the tool's own may raise anything
        return plain(output)


def with_context(value: Any, context: list[str]) -> Any:
    """A result with the additional context that hooks gave: after a newline of a text, under a key of a dict, beside
    anything else."""
    if not context:
        return value
    text = "\n".join(context)
    if isinstance(value, str):
        return f"{printable(value)}\n{text}"
    if isinstance(value, dict):
        return {**value, "_additional_context": text}
    return {"result": value, "_additional_context": text}
