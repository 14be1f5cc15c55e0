"""The only door to a tool body.

The order of one call: before_tool middleware, before_tool, an ask, before_tool_call, on_tool_call, wrap_tool_call, the
body, after_tool middleware, transform_tool_result, after_tool, after_tool_call or on_tool_error.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.errors import LimitReached, RunBlocked, ends_the_run, first_in
from agent_engine.hooks.limits import Escaped, ended
from agent_engine.hooks.payloads import private_copy
from agent_engine.runtime.admission import admit, count_again, count_refusal
from agent_engine.runtime.calling import CALLING
from agent_engine.runtime.closing import close_step, status_of
from agent_engine.runtime.outcome import Status, ToolCancelled, ToolExited, ToolOutcome
from agent_engine.runtime.reporting import error_type_of
from agent_engine.runtime.step import Step
from agent_engine.runtime.streaming import past_delta
from agent_engine.runtime.tool_gates import Gates, Refused
from agent_engine.runtime.tool_result import ResultHooks, shown
from agent_engine.runtime.waiting import Waiting
from agent_engine.tools.base import ArgumentsInvalid, ToolError, ToolInvocation

if TYPE_CHECKING:
    from agent_engine.hooks.middleware import ToolRequest, ToolResponse
    from agent_engine.models.base import ToolCall
    from agent_engine.records.journal import Outcome
    from agent_engine.runtime.state import RunState
    from agent_engine.runtime.turn import Turn
    from agent_engine.tools.base import Tool


async def call_tool(
    turn: Turn, call: ToolCall, offered: frozenset[str], resumed: Mapping[str, Any] | None = None
) -> ToolOutcome:
    """Run one tool call of a model through the door. What ends the whole run is raised; all else is an outcome."""
    step = Step(turn.state, turn.scope, "tool", call.name, turn.node.name, turn.step.step_id, turn.step.timers)
    tool = (await turn.toolset()).by_name.get(call.name)
    await step.open(
        call_id=call.id,
        provider=tool.provider if tool else None,
        server_id=tool.server_id if tool else None,
        **_asked(turn.state, call),
    )
    turn.state.tell("tool_started", call_id=call.id, tool_name=call.name, agent=turn.node.name)
    try:
        if (resumed is None or tool is None) and (stopped := admit(turn, call, tool, offered)) is not None:
            outcome = stopped
        else:
            assert tool is not None
            outcome = await ToolPassage(turn, call, tool, step, resumed).run()
    except Waiting as waiting:
        outcome = ToolOutcome("waiting", "", waiting=waiting)
    except BaseException as error:
        _finish(turn, call, step, ToolOutcome(status_of(step, error), "", error_type=error_type_of(error)))
        raise
    if outcome.status == "denied":
        outcome.blocked = count_refusal(turn, call, outcome.refused_by, outcome.reason)
    _finish(turn, call, step, outcome)
    return outcome


def _asked(state: RunState, call: ToolCall) -> dict[str, Any]:
    """The arguments as the model sent them, for a journal that wants payloads."""
    if not state.wants_payloads:
        return {}
    return {"payload": {"asked": private_copy(call.arguments)}}


def _finish(turn: Turn, call: ToolCall, step: Step, outcome: ToolOutcome) -> None:
    state = turn.state
    if state.emit is not None:
        state.tell(
            "tool_finished",
            call_id=call.id,
            tool_name=call.name,
            agent=turn.node.name,
            status=outcome.status,
            duration_ms=step.elapsed_ms(),
        )
    if state.journal is not None:
        kinds: dict[Status, Outcome] = {
            "ok": "ran",
            "waiting": "waiting",
            "denied": "refused",
            "cancelled": "cancelled",
        }
        step.close(
            outcome.status,
            outcome.kind or kinds.get(outcome.status, "failed"),
            error_type=outcome.error_type,
            refused_by=outcome.refused_by,
            reason=outcome.reason,
            detail=outcome.detail,
        )


class ToolPassage:
    """One call on its way through the door.

    A wrapper that calls on a second time starts a passage of its own (``inner``), without the middleware around it.
    """

    __slots__ = (
        "answer",
        "call",
        "called",
        "child_frame",
        "ended",
        "error",
        "gates",
        "inner",
        "may_wait",
        "results",
        "resumed",
        "step",
        "tool",
        "turn",
    )

    def __init__(
        self,
        turn: Turn,
        call: ToolCall,
        tool: Tool,
        step: Step,
        resumed: Mapping[str, Any] | None = None,
        *,
        inner: bool = False,
    ) -> None:
        self.turn = turn
        self.call = call
        self.tool = tool
        self.step = step
        self.resumed = resumed
        self.inner = inner
        # A further call of a wrapper cannot be gone on with: the wrapper would begin anew, with the calls before it.
        self.may_wait = turn.may_wait and not inner
        self.gates = Gates(turn, call, tool, step, resumed, self.may_wait)
        self.results = ResultHooks(turn, call, tool, step, self.gates)
        self.called = 0
        self.ended = False
        self.error: BaseException | None = None
        # What the body returned.
        self.answer: Any = None
        self.child_frame: dict[str, Any] | None = resumed.get("frame") if resumed else None

    async def run(self, arguments: dict[str, Any] | None = None) -> ToolOutcome:
        try:
            outcome = await self._run(self.call.arguments if arguments is None else arguments)
            outcome.detail = self._detail(outcome)
            return outcome
        except Waiting as waiting:
            raise Waiting(waiting.asks, self.gates.frame(waiting), [*waiting.abandon, self._abandoned]) from None
        except Refused as refusal:
            return await self._refused(refusal)
        except BaseException as error:
            await self._abandoned(error)
            raise

    async def _abandoned(self, error: BaseException) -> None:
        self.results.note_error(error)
        await close_step(self.turn.state, error, *self.results.due(status_of(self.step, error)))

    async def _run(self, arguments: dict[str, Any]) -> ToolOutcome:
        chain = None if self.inner else self.turn.node.middleware
        if chain is not None and chain.has_before_tool and self.resumed is None:
            arguments = await self._before_middleware(arguments)
        await self.gates.enter(arguments)
        if not self.inner:
            await self._observe()
        self.results.start()
        if chain is None or not (chain.has_wrap_tool or chain.has_after_tool):
            try:
                value = await self._body()
            except Exception as error:  # noqa: BLE001 - what a body raises is what the model reads
                return await self._failed(error)
            return await self._returned(value)
        response = await self._wrapped()
        if response.error is not None:
            return await self._failed(self.error, response.error)
        return await self._returned(response.result)

    # The body

    async def _body(self) -> Any:
        """Call the body on arguments that passed every gate; retry where the tool asks for it."""
        if self.gates.invalid is not None:
            raise self.gates.invalid
        if not self.tool.retries:
            return await self._once()
        from agent_engine.runtime.retry import retried

        return await retried(
            self._once,
            self.step,
            self.tool.retries + 1,
            operation="tool",
            tool_name=self.tool.name,
            worth=_worth_a_retry,
        )

    async def _once(self) -> Any:
        turn, state = self.turn, self.turn.state
        frame, self.child_frame = self.child_frame, None
        invocation = ToolInvocation(
            state.run_context, turn.node.name, self.call.id, turn.scope, state.journal, self.step.step_id, turn
        )
        if frame is not None:
            invocation.extra["frame"] = frame
        if not self.may_wait:
            invocation.extra["may_wait"] = False
        # What the body sets in context variables is seen by nobody else, its closing hooks included.
        own = contextvars.copy_context()
        own.run(CALLING.set, turn)
        try:
            work = self.tool.invoke(self.gates.values, invocation)
            self.answer = await in_context(own, work if self.tool.ends else ended(work))
            return self.answer
        except (RunBlocked, ExceptionGroup) as error:
            # A delegate was refused: to its parent this call was refused. (A TaskGroup of the body makes it a group.)
            if (failed := first_in(error, ends_the_run)) is not None:
                raise failed from None
            blocked = first_in(error, lambda one: isinstance(one, RunBlocked))
            if isinstance(blocked, RunBlocked):
                raise Refused(blocked.hook, blocked.reason) from error
            raise
        except Escaped as escaped:
            cancelled = isinstance(escaped.by, asyncio.CancelledError)
            raise (ToolCancelled if cancelled else ToolExited)(f"the tool {escaped}") from escaped.by

    async def _failed(self, error: BaseException | None, text: str | None = None) -> ToolOutcome:
        """The body raised: an outcome that the model reads, unless it is the end of the run."""
        if error is not None and (ends_the_run(error) or error is self.turn.state.ended):
            raise error
        if text is None:
            text = error_text(error) if error is not None else "failed"
        return await self.results.failed(error, text)

    async def _returned(self, value: Any) -> ToolOutcome:
        outcome = await self.results.returned(value)
        if outcome.status == "ok" and getattr(self.tool, "handoff", False):
            outcome.handed_over = True
            if outcome.text != self.answer:
                # Not what the other agent's model calls have passed: it is the person's to read all the same.
                model, _ = self.turn.node.models[self.turn.model_index]
                outcome.text = outcome.value = await past_delta(self.turn.step, model.name, outcome.text)
        return outcome

    async def _refused(self, refusal: Refused) -> ToolOutcome:
        """The call does not run, or does not run again: closing events where its first gate had let it through."""
        text = refusal.text(self.tool.name)
        self.results.note_refusal(text, withheld=refusal.withheld)
        await close_step(self.turn.state, refusal, *self.results.due("denied"))
        kind: Outcome = "withheld" if refusal.withheld else "declined" if refusal.declined else "refused"
        outcome = ToolOutcome("denied", text, text, refused_by=refusal.hook, reason=refusal.reason, kind=kind)
        outcome.detail = self._detail(outcome)
        return outcome

    def _detail(self, outcome: ToolOutcome) -> dict[str, Any] | None:
        """What the journal keeps of a call when it has ended."""
        if self.turn.state.journal is None:
            return None
        detail: dict[str, Any] = {}
        if self.gates.reply is not None:
            detail["approval"] = {"answer": self.gates.reply.decision, "by": self.gates.reply.by}
        if self.turn.state.wants_payloads:
            detail["payload"] = {"used": private_copy(self.gates.arguments), "result": shown(outcome.value)}
        return detail

    # Middleware and observers

    async def _before_middleware(self, arguments: dict[str, Any]) -> dict[str, Any]:
        from agent_engine.runtime.adapters import refusal_of, tool_request

        chain = self.turn.node.middleware
        assert chain is not None
        request = refusal_of(await chain.before_tool(tool_request(self.turn, self.call, arguments)))
        self.gates.take_context(request.extra)
        return request.arguments

    async def _observe(self) -> None:
        observer = self.turn.node.on_tool_call
        if observer is not None and not self.gates.past_observer:
            from agent_engine.runtime.adapters import observe, tool_request

            await observe(observer, tool_request(self.turn, self.call, self.gates.arguments), "on_tool_call")

    async def _wrapped(self) -> ToolResponse:
        from agent_engine.hooks.middleware import ToolResponse
        from agent_engine.runtime.adapters import refusal_of, tool_request

        chain = self.turn.node.middleware
        assert chain is not None
        request = tool_request(self.turn, self.call, self.gates.arguments)
        if chain.has_wrap_tool:
            try:
                response = refusal_of(await chain.wrap_tool(request, self._call_next))
            finally:
                self.ended = True
        else:
            response = await self._call_next(request)
        if not isinstance(response, ToolResponse):
            raise TypeError(f"wrap_tool_call gave a {type(response).__name__} instead of a ToolResponse")
        if chain.has_after_tool:
            response = refusal_of(await chain.after_tool(response), withheld=True)
        self.gates.take_context(response.extra)
        return response

    async def _call_next(self, request: ToolRequest) -> ToolResponse:
        """What a wrapper calls: the body. A changed request passes the gates again; a further call is its own step."""
        from agent_engine.hooks.middleware import ToolResponse

        if request.tool_name != self.tool.name:
            raise TypeError(
                f"a wrap_tool_call of {self.tool.name} asked for {request.tool_name}: it may change arguments only"
            )
        if self.ended:
            raise RuntimeError(f"call_next of {self.tool.name} was called after the call had ended")
        self.called += 1
        if self.called > 1:
            return await self._step_of_its_own(request)
        await self.gates.enter_again(request.arguments)
        try:
            value = await self._body()
        except RunBlocked:
            raise
        except Exception as error:
            if ends_the_run(error) or error is self.turn.state.ended:
                raise
            self.error = error
            return ToolResponse(self.tool.name, None, error_text(error), request.context)
        return ToolResponse(self.tool.name, value, None, request.context)

    async def _step_of_its_own(self, request: ToolRequest) -> ToolResponse:
        from agent_engine.hooks.middleware import ToolResponse

        if (over := count_again(self.turn, self.tool)) is not None:
            return ToolResponse(self.tool.name, None, f"{self.tool.name} was not run: {over}.", request.context)
        step = Step(
            self.turn.state,
            self.turn.scope,
            "tool",
            self.call.name,
            self.turn.node.name,
            self.step.step_id,
            self.step.timers,
        )
        await step.open(call_id=self.call.id, call=self.called)
        passage = ToolPassage(self.turn, self.call, self.tool, step, inner=True)
        try:
            outcome = await passage.run(request.arguments)
        except BaseException as error:
            _finish(
                self.turn, self.call, step, ToolOutcome(status_of(step, error), "", error_type=error_type_of(error))
            )
            raise
        _finish(self.turn, self.call, step, outcome)
        if outcome.status == "ok":
            return ToolResponse(self.tool.name, outcome.value, None, request.context)
        self.error = outcome.error
        return ToolResponse(self.tool.name, None, outcome.text, request.context)


def error_text(error: BaseException) -> str:
    """What the model is told about an exception: the text of one that is meant for it, else type and text."""
    from agent_engine.hooks.rows import text_of

    if isinstance(error, (ToolError, ArgumentsInvalid)):
        return text_of(error)
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _worth_a_retry(error: BaseException) -> bool:
    lasting = (ArgumentsInvalid, RunBlocked, LimitReached, ToolCancelled)
    return isinstance(error, Exception) and not isinstance(error, lasting) and not ends_the_run(error)
