"""Toolset: what an agent can call in one turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agent_engine.runtime.delegate import AgentTool

if TYPE_CHECKING:
    from agent_engine.models.base import ToolDefinition
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.state import RunState
    from agent_engine.tools.base import Tool

logger = logging.getLogger("agent_engine.runtime")


class Toolset:
    """Tools by name, and their definitions as the model is offered them."""

    __slots__ = ("by_name", "definitions", "names")

    def __init__(self, tools: Iterable[Tool], owner: str = "") -> None:
        self.by_name: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self.by_name:
                raise ValueError(f"Agent '{owner}' has two tools of the name '{tool.name}'; rename one of them.")
            self.by_name[tool.name] = tool
        self.definitions: tuple[ToolDefinition, ...] = tuple(tool.definition for tool in self.by_name.values())
        self.names = frozenset(self.by_name)


async def toolset_of(node: Node, state: RunState) -> Toolset:
    """What ``node`` can call in this run: its tools, its children and hand-offs as far as they exist for the run."""
    if node.prepared is not None:
        return node.prepared
    tools: Sequence[Tool] = await node.tools(state) if callable(node.tools) else node.tools
    children = [AgentTool(child) for child in node.children if await exists(child, state)]
    handoffs = [AgentTool(child, handoff=True) for child in node.handoffs if await exists(child, state)]
    toolset = Toolset([*tools, *children, *handoffs], node.name)
    if not callable(node.tools) and all(child.visible is None for child in (*node.children, *node.handoffs)):
        node.prepared = toolset
    return toolset


async def exists(node: Node, state: RunState) -> bool:
    """Whether a node exists for this run. A check that raises says no; the log has the type of what it raised."""
    if node.visible is None:
        return True
    try:
        return await node.visible(state) is True
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a check raises means no
        logger.info(
            "The access check of '%s' raised %s: it does not exist for this run.", node.name, type(error).__name__
        )
        return False
