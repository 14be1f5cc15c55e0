"""One run, from message to answer: what an Engine and an Agent call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.models.base import Message
    from agent_engine.runtime.approvals import Decision
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.result import RunEvent, RunResult
    from agent_engine.runtime.tool_call import ToolOutcome

Emit = Callable[["RunEvent"], None]


async def run_request(
    root: Node,
    message: str | list[dict[str, Any]],
    *,
    host: Host,
    context: RunContext | None = None,
    history: Sequence[Message] = (),
    emit: Emit | None = None,
) -> RunResult:
    """Run one request: session_start, on_run_start … on_run_end or on_run_error.

    Args:
        root: the agent that gets the message.
        message: the person's message: text, or content parts in the chat shape.
        host: what the Engine or Agent lends to its runs.
        context: who asks. With a conversation_id the conversation is loaded, and kept afterwards; without one the run is a
            session of its own. An empty run_id is filled.
        history: messages that came before; they follow those of the stored conversation.
        emit: takes each RunEvent as it happens; given, the model is asked to stream.

    Raises:
        RunBlocked: a hook refused the turn. LimitReached: a limit ended it. HookExecutionError: a hook failed under
        ``fail``. asyncio.CancelledError: the run was cancelled. Any other exception is the run's own error.
    """
    raise NotImplementedError


async def resume_request(
    root: Node,
    run_id: str,
    decisions: Mapping[str, Decision],
    *,
    host: Host,
    context: RunContext | None = None,
    emit: Emit | None = None,
) -> RunResult:
    """Go on with a waiting run. ``decisions`` maps call ids to "yes", "session" or "no"; what it leaves out stays open.

    Raises:
        LookupError: no such waiting run, or somebody else has gone on with it.
        PermissionError: ``context`` is another caller's.
        ValueError: an unknown word in ``decisions``, or a call id that the run does not wait for.
    """
    raise NotImplementedError


async def call_tool_directly(
    root: Node, name: str, arguments: Mapping[str, Any], *, host: Host, context: RunContext | None = None
) -> ToolOutcome:
    """Call one tool of ``root`` (or of an agent below it) through the tool door, as a request of its own, without a model.

    Raises:
        LookupError: no agent here has a tool of that name.
    """
    raise NotImplementedError
