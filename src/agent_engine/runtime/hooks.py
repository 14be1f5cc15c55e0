"""The names that hook code imports: the contexts of the managed points, and the errors of hooks."""

from __future__ import annotations

from agent_engine.hooks.errors import HookError, HookExecutionError, HookLoadError
from agent_engine.hooks.events import HOOK_POINTS
from agent_engine.hooks.managed import (
    AuthContext,
    EngineContext,
    HookInvocation,
    McpRequestContext,
    McpResponseContext,
    RunContext,
    RunEndContext,
    ToolCallContext,
    ToolRequestContext,
    ToolResultContext,
    current_run_context,
)

__all__ = [
    "HOOK_POINTS",
    "AuthContext",
    "EngineContext",
    "HookError",
    "HookExecutionError",
    "HookInvocation",
    "HookLoadError",
    "McpRequestContext",
    "McpResponseContext",
    "RunContext",
    "RunEndContext",
    "ToolCallContext",
    "ToolRequestContext",
    "ToolResultContext",
    "current_run_context",
]
