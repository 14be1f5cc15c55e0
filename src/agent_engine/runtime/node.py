"""Node: one agent of a run, ready to run. Agent compiles itself to one; Engine builds them from agents.yaml."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_engine.runtime.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from agent_engine.hooks.middleware import MiddlewareChain
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.models.base import Model, ModelSettings
    from agent_engine.runtime.state import RunState
    from agent_engine.runtime.toolset import Toolset
    from agent_engine.tools.base import Tool


@dataclass(slots=True, kw_only=True)
class Node:
    """One agent of a run.

    Args:
        name: the agent's name; children are shown to the model as a tool of this name that takes ``message``.
        description: what the parent's model reads about it.
        prompt: the system text, or an async function of the run that makes it. "" sends no system message.
        user_prompt: shapes the message before before_agent sees it (YAML ``prompts.user``): an async function of the
            run and the message.
        models: the model and its settings, then the fallbacks in order.
        tools: its tools, or an async function of the run that finds them (a server listed at first use).
        children: agents it may call; each call is a turn of its own under the same run.
        handoffs: agents it may pass the conversation to; their answer is its answer.
        visible: None, or an async check; False (or an exception): for that run the node does not exist.
        registry: its own hooks; they hold for it and for whatever it delegates to.
        inherit_default: False cuts the tie to the process-wide registry.
        middleware: its middleware chain.
        on_step / on_tool_call: observers of each model response / each tool request.
        needs_approval: True asks for every tool call (YAML ``auto: false``).
        limits: bounds of its own turn; of the whole request where it is the root.
        output_type: a pydantic model, or any type pydantic can validate, for the answer.
        strict: a hook's own exception is raised instead of a refusal.
    """

    name: str
    description: str = ""
    prompt: str | Callable[[RunState], Awaitable[str]] = ""
    user_prompt: Callable[[RunState, str], Awaitable[str]] | None = None
    models: tuple[tuple[Model, ModelSettings], ...]
    tools: Sequence[Tool] | Callable[[RunState], Awaitable[Sequence[Tool]]] = ()
    children: tuple[Node, ...] = ()
    handoffs: tuple[Node, ...] = ()
    visible: Callable[[RunState], Awaitable[bool]] | None = None
    registry: HookRegistry | None = None
    inherit_default: bool = True
    middleware: MiddlewareChain | None = None
    on_step: Callable[[Any], Any] | None = None
    on_tool_call: Callable[[Any], Any] | None = None
    needs_approval: bool = False
    limits: Limits = DEFAULT_LIMITS
    output_type: Any = None
    strict: bool = False
    # What the runtime works out once about a node whose tools are the same in every run.
    prepared: Toolset | None = field(default=None, init=False, repr=False, compare=False)
