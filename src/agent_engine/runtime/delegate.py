"""Agents that agents call: as a child, as a tool, or by handing the conversation over."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.events import HookEvent
from agent_engine.runtime.closing import close_step, dispatch_closing
from agent_engine.runtime.waiting import Waiting
from agent_engine.tools.base import Tool, ToolInvocation, check_schema

if TYPE_CHECKING:
    from agent_engine.hooks.scope import HookScope
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.turn import Turn

_MESSAGE = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What the agent is to do, with all it needs to know."}},
    "required": ["message"],
    "additionalProperties": False,
}


class AgentTool(Tool):
    """Another agent as a tool: it takes ``message`` and runs a turn of its own, in a fresh conversation."""

    ends = True

    __slots__ = ("_scopes", "handoff", "node")

    def __init__(self, node: Node, *, handoff: bool = False) -> None:
        description = node.description or f"Asks the agent '{node.name}'."
        if handoff:
            description = f"Hands the conversation over to '{node.name}', who answers. {node.description}".rstrip()
        # Providers refuse a request whose tools have names of anything else.
        super().__init__(re.sub(r"[^A-Za-z0-9_-]+", "_", node.name), description, _MESSAGE)
        self.node = node
        self.handoff = handoff
        self._scopes: tuple[HookScope, HookScope] | None = None

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return check_schema(self.name, _MESSAGE, arguments)

    async def invoke(self, arguments: dict[str, Any], call: ToolInvocation) -> Any:
        return await run_child(call.run, self.node, arguments["message"], call, self._scope_under(call.run.scope))

    def _scope_under(self, parent: HookScope) -> HookScope:
        """The hooks of its callers and its own; kept, since the plans compiled in it are worth keeping."""
        known = self._scopes
        if known is None or known[0] is not parent:
            known = self._scopes = (parent, parent.extended(self.node.registry, self.node.inherit_default))
        return known[1]


async def run_child(parent: Turn, node: Node, message: str, call: ToolInvocation, scope: HookScope) -> Any:
    """A turn of ``node`` under its parent's run and hooks; its answer is the result. ``subagent_stop`` fires when it
    has ended, whatever came of it, but not while it waits for a person."""
    from agent_engine.runtime.turn import run_node

    started = time.perf_counter()

    async def stopped(error: BaseException) -> None:
        await _stopped(parent, node, message, started, "", type(error).__name__)

    try:
        answer = await run_node(
            parent.state,
            node,
            message,
            scope=scope,
            depth=parent.depth + 1,
            parent_id=call.step_id,
            frame=call.extra.get("frame"),
            may_wait=call.extra.get("may_wait", True),
            timers=parent.step.timers,
        )
    except Waiting as waiting:
        waiting.abandon.append(stopped)
        raise
    except BaseException as error:
        failed = error
        await close_step(parent.state, error, lambda: stopped(failed))
        raise
    await _stopped(parent, node, message, started, answer.text, None)
    return answer.text


async def _stopped(parent: Turn, node: Node, message: str, started: float, output: str, error: str | None) -> None:
    plan = parent.step.plan(HookEvent.SUBAGENT_STOP)
    if plan is None:
        return
    from agent_engine.hooks.payloads import SubagentStopInput

    payload = SubagentStopInput(
        **{**parent.step.base(), "agent_name": node.name},
        task=message,
        success=error is None,
        output=output,
        error=error,
        depth=parent.depth + 1,
        duration_ms=(time.perf_counter() - started) * 1000,
    )
    await dispatch_closing(parent.step, plan, payload)
