"""One turn of one agent: model call, tool calls, and again, until there is an answer."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_engine.hooks import payloads
from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.errors import LimitReached, RunBlocked
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import private_copy
from agent_engine.models.messages import assistant_from
from agent_engine.models.messages import tool as tool_message
from agent_engine.runtime.closing import checkpoint, close_step, dispatch_closing, status_of
from agent_engine.runtime.compaction import shortened
from agent_engine.runtime.content import text_of_message, with_text
from agent_engine.runtime.model_call import call_model
from agent_engine.runtime.reporting import error_type_of, report_error
from agent_engine.runtime.step import Step, refuses
from agent_engine.runtime.streaming import past_delta
from agent_engine.runtime.tool_batch import run_calls
from agent_engine.runtime.toolset import Toolset, toolset_of
from agent_engine.runtime.waiting import Waiting

if TYPE_CHECKING:
    from agent_engine.hooks.scope import HookScope
    from agent_engine.models.base import Message, ToolCall
    from agent_engine.runtime.model_call import ModelAnswer
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.outcome import ToolOutcome
    from agent_engine.runtime.state import RunState


@dataclass(slots=True)
class Answer:
    """How a turn ended: the answer's text, and the object it stands for where the agent has an output type."""

    text: str
    value: Any


async def run_node(
    state: RunState,
    node: Node,
    message: str | list[dict[str, Any]],
    *,
    scope: HookScope,
    depth: int = 0,
    parent_id: str | None = None,
    history: Sequence[Message] = (),
    notes: Sequence[str] = (),
    frame: dict[str, Any] | None = None,
    timers: tuple[asyncio.Timeout, ...] = (),
    turns: list[Turn] | None = None,
    may_wait: bool = True,
) -> Answer:
    """One turn of ``node``, from before_agent to after_agent.

    Args:
        scope: the hooks that hold here: those of its callers, and its own.
        depth: 0 for the agent that the request reaches.
        history: messages before this turn.
        notes: system texts for this turn alone.
        frame: what a waiting turn left; the turn goes on from there.
        timers: the time limits that the turn runs under.
        turns: gets the Turn, for a caller that needs its messages.
        may_wait: whether an approver may say "later" in it.
    """
    seconds = node.limits.timeout_s if depth else None
    timer = asyncio.timeout(seconds) if seconds is not None else None
    turn = Turn(state, node, scope, depth, parent_id, timers if timer is None else (*timers, timer), may_wait)
    if turns is not None:
        turns.append(turn)
    if timer is None:
        return await turn.run(message, history, notes, frame)
    return await _within(timer, turn, message, frame)


async def _within(timer: asyncio.Timeout, turn: Turn, message: Any, frame: dict[str, Any] | None) -> Answer:
    try:
        async with timer:
            return await turn.run(message, (), (), frame)
    except TimeoutError:
        if not timer.expired():
            raise
        raise LimitReached("timeout_s", turn.node.limits.timeout_s) from None


class Turn:
    """The state of one turn; see :func:`run_node`."""

    __slots__ = (
        "child_calls",
        "depth",
        "first",
        "held",
        "last_call",
        "may_wait",
        "messages",
        "model_calls",
        "model_index",
        "node",
        "prefixes",
        "prompt",
        "repairs",
        "scope",
        "shortened",
        "speaks",
        "started",
        "state",
        "step",
        "system",
        "task",
        "tokens",
        "tool_calls",
        "tools",
        "tools_used",
        "under_way",
    )

    def __init__(
        self,
        state: RunState,
        node: Node,
        scope: HookScope,
        depth: int = 0,
        parent_id: str | None = None,
        timers: tuple[asyncio.Timeout, ...] = (),
        may_wait: bool = True,
    ) -> None:
        self.state = state
        self.node = node
        self.scope = scope
        self.depth = depth
        self.step = Step(state, scope, "agent", node.name, node.name, parent_id, timers)
        self.may_wait = may_wait and state.may_wait
        self.started = time.perf_counter()
        # A turn lives in one task, its tool calls perhaps in others.
        self.task = asyncio.current_task()
        self.messages: list[Message] = []
        self.first = 0
        self.system = ""
        self.prompt = ""
        self.tools: Toolset | None = None
        self.tools_used: list[str] = []
        self.tokens = 0
        self.model_index = 0
        self.model_calls = self.tool_calls = self.child_calls = 0
        self.repairs = 0
        session = state.session
        # What the provider's prompt cache keys on, by agent; it lasts as long as the conversation.
        self.prefixes: dict[str, dict[str, str]] = {} if depth or session is None else session.prefixes
        # The history that takes the place of the stored one, where it was shortened, and how many messages that had.
        self.shortened: tuple[Sequence[Message], int] | None = None
        # Text of model calls that waits for the end of the turn.
        self.held: list[str] = []
        # Text of this turn goes out on the stream: only the agent that the request reached speaks to the person.
        self.speaks = depth == 0 and state.emit is not None
        # before_agent has let the turn through and after_agent has not fired yet.
        self.under_way = False
        # A limit on tools was reached: one more model call, without tools.
        self.last_call = False

    @property
    def added(self) -> list[Message]:
        """What this turn added to the conversation: the person's message first."""
        return self.messages[self.first :]

    async def run(
        self, message: Any, history: Sequence[Message], notes: Sequence[str], frame: dict[str, Any] | None
    ) -> Answer:
        state = self.state
        state.visit(self.node.name)
        await self.step.open(depth=self.depth)
        try:
            if frame is None:
                await self._begin(message, history, notes)
                answer = await self._loop()
            else:
                answer = await self._go_on(frame)
            answer = await self._end(answer)
        except Waiting as waiting:
            self.step.close("waiting", "waiting")
            waiting.abandon.append(self._close)
            raise
        except BaseException as error:
            await self._fail(error)
            raise
        self.step.close("ok", "ran")
        return answer

    # The beginning of a turn

    async def _begin(self, message: Any, history: Sequence[Message], notes: Sequence[str]) -> None:
        node, state = self.node, self.state
        prompt = given = text_of_message(message)
        self.system = await self._system_text()
        if node.user_prompt is not None:
            prompt = await node.user_prompt(state, prompt)
        prompt, own_notes = await self._before_agent(prompt, history)
        self.prompt = prompt
        if self.depth == 0:
            history = await shortened(self, history)
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        messages += history
        messages += [{"role": "system", "content": note} for note in (*notes, *own_notes)]
        self.first = len(messages)
        messages.append({"role": "user", "content": message if prompt == given else with_text(message, prompt)})
        self.messages = messages

    async def _system_text(self) -> str:
        node = self.node
        system = node.prompt if isinstance(node.prompt, str) else await node.prompt(self.state)
        if node.output_type is None:
            return system
        from agent_engine.runtime.output import shape_of

        return f"{system}\n\n{shape_of(node.output_type).instructions}".lstrip()

    async def _before_agent(self, prompt: str, history: Sequence[Message]) -> tuple[str, tuple[str, ...]]:
        plan = self.step.plan(HookEvent.BEFORE_AGENT)
        if plan is None:
            self.under_way = True
            return prompt, ()
        payload = payloads.BeforeAgentInput(
            **self.step.base(),
            prompt=prompt,
            conversation_history=private_copy(list(history)),
            tools_available=list((await self.toolset()).by_name),
        )
        verdict = await plan.dispatch(payload, self.step)
        if refuses(verdict):
            raise self.blocked(HookEvent.BEFORE_AGENT, verdict.hook, verdict.public_reason)
        self.under_way = True
        if verdict.changed and self.depth == 0:
            # The message is what the hooks made of it, wherever the run keeps it.
            self.state.message = verdict.payload.prompt
        return verdict.payload.prompt, verdict.additional_context

    async def toolset(self) -> Toolset:
        if self.tools is None:
            self.tools = await toolset_of(self.node, self.state)
        return self.tools

    # The loop

    async def _loop(self) -> Answer:
        while True:
            reply = await call_model(self)
            if self.last_call or not reply.tool_calls:
                # The model's own object may be asked for again: it is left as it is.
                response = replace(reply.response, tool_calls=()) if reply.tool_calls else reply.response
                self.messages.append(assistant_from(response))
                answer = self._answer(response.text)
                if answer is not None:
                    return answer
                continue
            self.messages.append(assistant_from(reply.response))
            answer = await self._call_tools(reply)
            if answer is not None:
                return answer

    async def _call_tools(self, reply: ModelAnswer) -> Answer | None:
        outcomes = await run_calls(self, reply.tool_calls, reply.offered)
        return await self._take(reply.tool_calls, reply.offered, outcomes)

    async def _take(
        self, calls: Sequence[ToolCall], offered: frozenset[str], outcomes: list[ToolOutcome]
    ) -> Answer | None:
        """What the outcomes of one message's tool calls mean for the turn."""
        if any(outcome.waiting is not None for outcome in outcomes):
            from agent_engine.runtime.frames import turn_frame

            waiting = [outcome.waiting for outcome in outcomes if outcome.waiting is not None]
            raise Waiting(
                [ask for one in waiting for ask in one.asks],
                turn_frame(self, calls, offered, outcomes),
                [step for one in waiting for step in one.abandon],
            )
        handed_over: str | None = None
        for call, outcome in zip(calls, outcomes, strict=True):
            self.messages.append(tool_message(call.id, call.name, outcome.text))
            if outcome.blocked is not None:
                raise outcome.blocked
            if outcome.over_limit:
                self.last_call = True
            if outcome.handed_over and handed_over is None:
                handed_over = outcome.text
        if handed_over is None:
            return None
        self.held.append(handed_over)
        self.messages.append({"role": "assistant", "content": handed_over})
        return self._answer(handed_over)

    async def _go_on(self, frame: dict[str, Any]) -> Answer:
        """Where a waiting turn goes on: its open calls first, then the loop."""
        from agent_engine.runtime.frames import restore_turn

        calls, offered, resumed = restore_turn(self, frame)
        self.under_way = True
        outcomes = await run_calls(self, calls, offered, resumed)
        answer = await self._take(calls, offered, outcomes)
        return answer if answer is not None else await self._loop()

    def _answer(self, text: str) -> Answer | None:
        """The answer that a text stands for; None where the model was asked to answer again."""
        if self.node.output_type is None:
            return Answer(text, text)
        from agent_engine.runtime.output import REPAIR_TURNS, OutputInvalid, shape_of

        try:
            return Answer(text, shape_of(self.node.output_type).parse(text))
        except OutputInvalid as problem:
            if self.repairs >= REPAIR_TURNS:
                raise
            self.repairs += 1
            self.held.clear()
            self.messages.append({"role": "user", "content": problem.repair})
            return None

    # The end of a turn

    async def _end(self, answer: Answer) -> Answer:
        await checkpoint(self.task)
        plan = self.step.plan(HookEvent.AFTER_AGENT)
        if plan is None:
            self.under_way = False
            return answer
        payload = self._after_agent("ok", answer.text, None, fired=True)
        verdict = await in_context(contextvars.copy_context(), dispatch_closing(self.step, plan, payload))
        if refuses(verdict):
            raise self.blocked(HookEvent.AFTER_AGENT, verdict.hook, verdict.public_reason)
        text = verdict.payload.response
        if text == answer.text:
            return answer
        text = await past_delta(self.step, self.node.models[self.model_index][0].name, text)
        self._replace_last(text)
        if self.node.output_type is None:
            return Answer(text, text)
        from agent_engine.runtime.output import shape_of

        return Answer(text, shape_of(self.node.output_type).parse(text))

    def _replace_last(self, text: str) -> None:
        """What a hook put in the answer's place is the answer in the conversation and on the stream too. What the model
        said on the way to it stays unsaid: the hook had no say in that."""
        self.held = [text]
        self.messages[-1] = {"role": "assistant", "content": text}

    async def _fail(self, error: BaseException) -> None:
        """on_error, then after_agent where it is due."""
        try:
            await close_step(self.state, error, lambda: report_error(self.step, error), lambda: self._close(error))
        finally:
            self.step.failed(status_of(self.step, error), error)

    async def _close(self, error: BaseException) -> None:
        if not self.under_way:
            return
        self.under_way = False
        plan = self.step.plan(HookEvent.AFTER_AGENT)
        if plan is not None:
            payload = self._after_agent(status_of(self.step, error), "", error_type_of(error), fired=True)
            await dispatch_closing(self.step, plan, payload)

    def _after_agent(self, status: str, response: str, error_type: str | None, *, fired: bool) -> Any:
        self.under_way = not fired
        return payloads.AfterAgentInput(
            **self.step.base(),
            prompt=self.prompt,
            response=response,
            tools_used=list(self.tools_used),
            total_tokens=self.tokens,
            execution_time_ms=(time.perf_counter() - self.started) * 1000,
            status=status,
            error_type=error_type,
        )

    def blocked(self, event: HookEvent, hook: str | None, reason: str | None) -> RunBlocked:
        return RunBlocked(event, hook, reason)
