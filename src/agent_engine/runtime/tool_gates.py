"""What a tool call has to pass before its body: before_tool, an ask, before_tool_call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_engine.hooks import payloads
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import ToolRequestContext
from agent_engine.hooks.payloads import private_copy
from agent_engine.runtime.approvals import Reply, ToolApproval, consult, grant_of
from agent_engine.runtime.step import refuses
from agent_engine.runtime.waiting import Waiting, digest_of
from agent_engine.tools.base import ArgumentsInvalid

if TYPE_CHECKING:
    from agent_engine.hooks.result import Verdict
    from agent_engine.models.base import ToolCall
    from agent_engine.runtime.step import Step
    from agent_engine.runtime.turn import Turn
    from agent_engine.tools.base import Tool


class Refused(BaseException):
    """A call, or its result, was refused. No Exception, so that a wrapper between the gate and the door cannot take it
    for a failure and answer in its place.

    Args:
        hook: who refused.
        reason: the reason it gave on purpose; None where it broke.
        withheld: the body ran, and its result is refused.
        declined: a person, or a hook in their place, said no to an ask.
    """

    def __init__(self, hook: str | None, reason: str | None, *, withheld: bool = False, declined: bool = False) -> None:
        super().__init__("refused")
        self.hook = hook
        self.reason = reason
        self.withheld = withheld
        self.declined = declined

    def text(self, tool_name: str) -> str:
        """What the model reads."""
        return (withheld_text if self.withheld else blocked_text)(tool_name, self.reason)


def blocked_text(tool_name: str, reason: str | None) -> str:
    """What the model reads in the place of a call that was refused."""
    return f"Execution of {tool_name} was blocked by security policy." + (f" Reason: {reason}" if reason else "")


def withheld_text(tool_name: str, reason: str | None) -> str:
    """What the model reads in the place of a result that was refused."""
    return f"Result of {tool_name} was blocked by security policy." + (f" Reason: {reason}" if reason else "")


class Gates:
    """The gates of one call.

    Attributes:
        arguments: as they are after the gates; what hooks, wrappers and records see.
        values: the validated arguments, for the body.
        invalid: why the arguments do not fit; the body is not called then.
        passed_tool, passed_call: before_tool and before_tool_call let the call through: closing events are due.
        past_observer: the call goes on after a wait behind its observer.
        context: additional context that hooks gave.
        reply: what came of the ask, where there was one.
    """

    __slots__ = (
        "_again",
        "_approved",
        "_may_wait",
        "_passes",
        "_resumed",
        "arguments",
        "call",
        "context",
        "invalid",
        "passed_call",
        "passed_tool",
        "past_observer",
        "reply",
        "step",
        "target",
        "tool",
        "turn",
        "values",
    )

    def __init__(
        self,
        turn: Turn,
        call: ToolCall,
        tool: Tool,
        step: Step,
        resumed: Mapping[str, Any] | None,
        may_wait: bool,
    ) -> None:
        self.turn = turn
        self.call = call
        self.tool = tool
        self.step = step
        self.target: str | tuple[str, ...] = (tool.name, *tool.aliases) if tool.aliases else tool.name
        self.arguments: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.invalid: ArgumentsInvalid | None = None
        self.passed_tool = self.passed_call = self.past_observer = False
        self.context: list[str] = []
        self.reply: Reply | None = None
        self._passes = 0
        self._approved: set[str] = set()
        self._resumed = resumed
        self._may_wait = may_wait
        # A changed request of a wrapper that was on its way when the run stopped, and how far it had come.
        self._again: dict[str, Any] | None = None

    async def enter(self, arguments: dict[str, Any]) -> None:
        """The first pass. Raises Refused, or Waiting where the run has to stop for an answer."""
        if self._resumed is None:
            await self._pass(arguments)
        else:
            await self._take_up(self._resumed)

    async def enter_again(self, arguments: dict[str, Any]) -> None:
        """A wrapper calls on: with the request as it was, or with a changed one that passes the gates again."""
        if arguments == self.arguments:
            return
        again = self._again
        requested = digest_of(arguments)
        if again is None or again["requested"] != requested:
            self._again = {"requested": requested, "first": self.arguments}
            await self._pass(arguments)
            self._again["entered"] = self.arguments
        elif "entered" in again:
            self._use(again["entered"])
        else:
            await self._answered(again["ask"])
            again["entered"] = self.arguments

    # One pass

    async def _pass(self, arguments: dict[str, Any]) -> None:
        self._passes += 1
        asked = await self._before_tool(arguments)
        wanted = asked is not None or self.tool.approval or self.turn.node.needs_approval
        if wanted and self.invalid is None and digest_of(self.arguments) not in self._approved:
            await self._ask(asked)
        self.passed_tool = True
        await self._before_tool_call()

    async def _before_tool(self, arguments: dict[str, Any]) -> Verdict | None:
        """Fire before_tool and take over what it left. Returns the verdict where it asks."""
        plan = self.step.plan(HookEvent.BEFORE_TOOL, self.target, self.tool.server_id)
        if plan is None:
            self._use(arguments)
            return None
        state = self.turn.state
        payload = payloads.BeforeToolInput(
            session_id=state.session_id,
            agent_name=self.turn.node.name,
            run_id=state.run_id,
            call_id=self.call.id,
            tool_name=self.tool.name,
            tool_input=private_copy(arguments),
            tool_description=self.tool.description,
            extra={"pass": self._passes} if self._passes > 1 else {},
        )
        verdict = await plan.dispatch(payload, self.step)
        self.context.extend(verdict.additional_context)
        if verdict.denied:
            raise Refused(verdict.hook, verdict.public_reason)
        # Never the very object that hooks have had in their hands: one may keep it, and edit it behind the last gate.
        untouched = verdict.decision == "allow"
        self._use(arguments if untouched else private_copy(verdict.payload.tool_input))
        return verdict if verdict.asked else None

    async def _before_tool_call(self) -> None:
        plan = self.step.plan(HookEvent.BEFORE_TOOL_CALL, self.target, self.tool.server_id)
        if plan is not None:
            payload = ToolRequestContext(
                agent_id=self.turn.node.name,
                tool_name=self.tool.name,
                provider=self.tool.provider,
                server_id=self.tool.server_id,
                call_id=self.call.id,
                metadata={"pass": self._passes} if self._passes > 1 else {},
            )
            verdict = await plan.dispatch(payload, self.step)
            if refuses(verdict):
                raise Refused(verdict.hook, verdict.public_reason)
        self.passed_call = True

    def _use(self, arguments: dict[str, Any]) -> None:
        """Take these arguments for the call's own, and validate them."""
        self.arguments = arguments
        self.invalid = None
        if self.call.error is not None and not arguments:
            self.invalid = ArgumentsInvalid(f"{self.call.error} Call {self.tool.name} again with a JSON object.")
            return
        try:
            # A copy: what the body edits in its arguments is not what it was called with.
            self.values = self.tool.validate(private_copy(arguments))
        except ArgumentsInvalid as problem:
            self.invalid = problem

    def take_context(self, extra: dict[str, Any]) -> None:
        """Additional context that a middleware gave."""
        self.context.extend(extra.pop("additional_context", ()))

    # An ask

    async def _ask(self, asked: Verdict | None) -> None:
        ask = ToolApproval(
            call_id=self.call.id,
            tool_name=self.tool.name,
            arguments=self.arguments,
            agent=self.turn.node.name,
            server_id=self.tool.server_id,
            reason=asked.public_reason if asked is not None else None,
            hook=asked.hook if asked is not None else None,
            run_id=self.turn.state.run_id,
        )
        reply = await consult(self.step, ask, self.target, self.turn.state.limits.approval_s, may_wait=self._may_wait)
        if reply.decision == "later":
            raise Waiting((ask,), self._frame_of(ask))
        await self._lifted(reply)

    async def _answered(self, kept: Mapping[str, Any]) -> None:
        """The answer to an ask that the run stopped for; without one it goes on waiting."""
        state = self.turn.state
        ask = ToolApproval(**{name: value for name, value in kept.items() if name != "gates"})
        word = state.decisions.get(ask.call_id)
        self._use(ask.arguments)
        if word is None:
            raise Waiting((ask,), self._frame_of(ask))
        if word != "no":
            await self._new_gates(kept.get("gates", ()))
        if word == "session" and state.session is not None:
            state.session.grants.add(grant_of(ask))
        await self._lifted(Reply("no" if word == "no" else "yes", "approver", ask.arguments))
        self.passed_tool = True
        await self._before_tool_call()

    async def _new_gates(self, passed: Sequence[str]) -> None:
        """Hooks that were registered while the run waited have not seen this call: then it passes before_tool again,
        for a no; what it may be asked has been answered."""
        if not Counter(self._gate_names()) - Counter(passed):
            return
        self._passes += 1
        arguments = self.arguments
        await self._before_tool(arguments)
        if self.arguments != arguments:
            raise Refused(None, "its arguments are not the ones that were approved any more", declined=True)

    def _gate_names(self) -> list[str]:
        plan = self.step.scope.plan(
            HookEvent.BEFORE_TOOL, self.target, agent=self.step.agent, server=self.tool.server_id
        )
        # Names alone are not enough: every lambda has the same one.
        return [] if plan is None else [f"{entry.name} {entry.hook.source}" for entry in plan.entries]

    async def _lifted(self, reply: Reply) -> None:
        """A yes lifts the ask for these arguments; changed ones pass before_tool again, without a new ask."""
        self.reply = reply
        if reply.decision == "no":
            raise Refused(reply.hook, reply.reason, declined=True)
        if reply.arguments != self.arguments:
            self._passes += 1
            await self._before_tool(reply.arguments)
        self._approved.add(digest_of(self.arguments))

    # Stopping and going on

    def _frame_of(self, ask: ToolApproval) -> dict[str, Any]:
        kept = ask.to_dict()
        kept["arguments"] = self.arguments
        kept["gates"] = self._gate_names()
        return {"ask": kept}

    def frame(self, waiting: Waiting) -> dict[str, Any]:
        """What it takes to go on with this call: an ask of its own, or a delegate that waits inside its body."""
        frame: dict[str, Any] = {
            "context": list(self.context),
            "passes": self._passes,
            "approved": sorted(self._approved),
        }
        ask = waiting.frame.get("ask")
        if self._again is not None:
            again = {**self._again, "ask": ask} if ask is not None else self._again
            frame |= {"again": again, "arguments": self._again["first"]}
        elif ask is not None:
            frame |= {"ask": ask, "arguments": self.arguments}
        else:
            frame["arguments"] = self.arguments
        if ask is None:
            frame["frame"] = waiting.frame
        return frame

    async def _take_up(self, kept: Mapping[str, Any]) -> None:
        self.context = list(kept["context"])
        self._passes = kept["passes"]
        self._approved = set(kept["approved"])
        if "ask" in kept:
            await self._answered(kept["ask"])
            return
        self._use(kept["arguments"])
        self._again = kept.get("again")
        self.passed_tool = self.passed_call = self.past_observer = True
