"""'ask': who may lift it, and what the yes is bound to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Answer = bool | Literal["session"]
Approver = Callable[["ToolApproval"], Answer | Awaitable[Answer]]
Decision = Literal["yes", "session", "no"]


@dataclass(slots=True, kw_only=True)
class ToolApproval:
    """One question to a person: may this call run?

    Args:
        call_id: the tool call's id; an answer names it.
        tool_name: the tool.
        arguments: the arguments the tool would see, after every rewrite. An approver that changes them and says yes
            approves the changed ones: they are validated and pass the before_tool hooks again.
        agent: name of the agent that makes the call.
        server_id: the MCP server of the tool, None for a local tool.
        reason: why it is asked.
        hook: name of the hook that asked; None where the tool or the agent asks for every call.
        run_id: the run.
    """

    call_id: str
    tool_name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    agent: str = ""
    server_id: str | None = None
    reason: str | None = None
    hook: str | None = None
    run_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The ask as a dict of its fields."""
        return {name: getattr(self, name) for name in self.__slots__}
