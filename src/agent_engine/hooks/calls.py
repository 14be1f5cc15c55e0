"""One model call or tool call as middleware sees it: the request, the response, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class InvocationContext:
    """Where a call stands: which agent, run and session, and which tool or model it is about to use."""

    agent_id: str = ""
    run_id: str = ""
    session_id: str = ""
    tool_name: str | None = None
    model_name: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ModelRequest:
    """One call of a model, before it is made."""

    messages: list[dict[str, Any]]
    model: str
    temperature: float | None = 1.0
    context: InvocationContext | None = None
    tools: list[dict[str, Any]] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ModelResponse:
    """What a model, or a wrap_model_call in its place, answered."""

    content: str
    model: str
    usage: dict[str, Any] | None = None
    context: InvocationContext | None = None
    tool_calls: list[dict[str, Any]] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ToolRequest:
    """One call of a tool, before it is made."""

    tool_name: str
    arguments: dict[str, Any]
    context: InvocationContext | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ToolResponse:
    """What a tool, or a wrap_tool_call in its place, returned; ``error`` is the text of its failure."""

    tool_name: str
    result: Any
    error: str | None = None
    context: InvocationContext | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """A middleware said no. ``reason`` is what it gave on purpose, None where it gave none; ``hook`` is its name."""

    reason: str | None
    hook: str
