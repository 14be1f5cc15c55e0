"""A tool called by name, without a model; through the same door."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.callbacks import in_context
from agent_engine.models.base import ToolCall
from agent_engine.runtime.outcome import ToolOutcome
from agent_engine.runtime.tool_call import call_tool
from agent_engine.runtime.toolset import exists
from agent_engine.runtime.turn import Turn

if TYPE_CHECKING:
    from agent_engine.hooks.scope import HookScope
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.state import RunState


async def call_directly(state: RunState, root: Node, name: str, arguments: dict[str, Any]) -> ToolOutcome:
    """Find the nearest agent that has the tool and call it as that agent would.

    Raises:
        LookupError: there is none.
    """
    turn = await _owner(state, root, state.scope, name, 0)
    if turn is None:
        raise LookupError(f"Neither '{root.name}' nor an agent below it has a tool '{name}'.")
    from uuid import uuid4

    call = ToolCall(f"direct_{uuid4().hex}", name, arguments)
    return await in_context(contextvars.copy_context(), call_tool(turn, call, (await turn.toolset()).names))


async def _owner(state: RunState, node: Node, scope: HookScope, name: str, depth: int) -> Turn | None:
    turn = Turn(state, node, scope, depth, None, state.timers)
    if name in (await turn.toolset()).by_name:
        return turn
    for child in (*node.children, *node.handoffs):
        if not await exists(child, state):
            continue
        below = scope.extended(child.registry, child.inherit_default)
        found = await _owner(state, child, below, name, depth + 1)
        if found is not None:
            return found
    return None
