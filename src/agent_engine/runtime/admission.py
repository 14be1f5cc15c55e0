"""Which calls of a model get to the door at all: known and offered ones, within the limits, not made before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_engine.hooks.errors import RunBlocked
from agent_engine.hooks.events import HookEvent
from agent_engine.runtime.delegate import AgentTool
from agent_engine.runtime.outcome import ToolOutcome
from agent_engine.runtime.tool_gates import blocked_text
from agent_engine.runtime.waiting import digest_of
from agent_engine.tools.result import error_for_model

if TYPE_CHECKING:
    from agent_engine.models.base import ToolCall
    from agent_engine.runtime.limits import Limits
    from agent_engine.runtime.turn import Turn
    from agent_engine.tools.base import Tool

REFUSALS = 3
"""How often the same call may be refused in one run; the last one ends the turn."""


def admit(turn: Turn, call: ToolCall, tool: Tool | None, offered: frozenset[str]) -> ToolOutcome | None:
    """None for a call that may go to the door, and counts it; otherwise the outcome in its place."""
    if tool is None:
        known = ", ".join(sorted(offered - {call.name})) or "none"
        text = error_for_model(f"There is no tool '{call.name}'. Tools: {known}.")
        return ToolOutcome("error", text, text, "UnknownTool")
    if call.name not in offered:
        # Taken out of the list by a hook: naming it all the same does not bring it back.
        text = blocked_text(call.name, None)
        return ToolOutcome("denied", text, text)
    if (limit := _limit_reached(turn, tool)) is not None:
        text = error_for_model(f"{call.name} was not run: {limit}. Answer with what you have.")
        return ToolOutcome("error", text, text, "LimitReached", over_limit=True)
    if not turn.state.limits.allow_duplicate_tool_calls:
        key = call_key(turn, call)
        if key in turn.state.seen:
            text = error_for_model(f"{call.name} was not run: this call was made before with the same arguments.")
            return ToolOutcome("error", text, text, "DuplicateCall")
        turn.state.seen.add(key)
    _count(turn, tool)
    return None


def count_again(turn: Turn, tool: Tool) -> str | None:
    """Count one more call that a wrapper makes of a tool; the limit it would pass, where there is one."""
    over = _limit_reached(turn, tool)
    if over is None:
        _count(turn, tool)
    return over


def call_key(turn: Turn, call: ToolCall) -> tuple[str, str, str]:
    """What makes two calls the same: the agent, the tool, the arguments as the model sent them."""
    return (turn.node.name, call.name, digest_of(call.arguments) if call.raw is None else call.raw)


def count_refusal(turn: Turn, call: ToolCall, hook: str | None, reason: str | None) -> RunBlocked | None:
    """Count a refusal by a hook or a person; at the last one that is allowed, what ends the turn."""
    key = call_key(turn, call)
    turn.state.seen.discard(key)
    refusals = turn.state.refusals
    refusals[key] = refusals.get(key, 0) + 1
    if refusals[key] < REFUSALS:
        return None
    return RunBlocked(HookEvent.BEFORE_TOOL, hook, reason)


def _limit_reached(turn: Turn, tool: Tool) -> str | None:
    """Which limit this call would pass. A call of another agent counts as that, and not as a tool call."""
    state = turn.state
    whole: Limits = state.limits
    own: Limits | None = turn.node.limits if turn.depth else None
    if isinstance(tool, AgentTool):
        return _over(whole.child_calls, state.child_calls, "calls of other agents") or (
            _over(own.child_calls, turn.child_calls, "calls of other agents") if own is not None else None
        )
    by_agent = state.tool_calls_by.get(turn.node.name, 0)
    return (
        _over(whole.tool_calls, state.tool_calls, "tool calls of this run")
        or _over(whole.tool_calls_per_agent, by_agent, "tool calls of this agent")
        or (_over(own.tool_calls, turn.tool_calls, "tool calls of this agent") if own is not None else None)
    )


def _over(bound: int | None, count: int, what: str) -> str | None:
    return f"the limit of {bound} {what} is reached" if bound is not None and count >= bound else None


def _count(turn: Turn, tool: Tool) -> None:
    state, name = turn.state, turn.node.name
    if isinstance(tool, AgentTool):
        state.child_calls += 1
        turn.child_calls += 1
    else:
        state.tool_calls += 1
        state.tool_calls_by[name] = state.tool_calls_by.get(name, 0) + 1
        turn.tool_calls += 1
