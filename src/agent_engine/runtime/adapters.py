"""Between the runtime's own types and those that middleware and observers see."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agent_engine.hooks.middleware import InvocationContext, ModelRequest, ModelResponse, ToolRequest
from agent_engine.hooks.middleware import Refused as RefusedByMiddleware
from agent_engine.hooks.payloads import private_copy
from agent_engine.models.base import ToolCall, Usage
from agent_engine.runtime.tool_gates import Refused

if TYPE_CHECKING:
    from agent_engine.models import base
    from agent_engine.runtime.turn import Turn

logger = logging.getLogger("agent_engine.runtime")
OBSERVER_SECONDS = 60.0
T = TypeVar("T")


def invocation(turn: Turn, *, tool: str | None = None, model: str | None = None) -> InvocationContext:
    state = turn.state
    return InvocationContext(turn.node.name, state.run_id, state.session_id, tool, model, {})


def tool_request(turn: Turn, call: ToolCall, arguments: dict[str, Any]) -> ToolRequest:
    """The request that middleware and observers of a tool call see; its arguments are their own copy."""
    return ToolRequest(call.name, private_copy(arguments), invocation(turn, tool=call.name), {"call_id": call.id})


def refusal_of(answer: T | RefusedByMiddleware, *, withheld: bool = False) -> T:
    """The answer of a middleware chain; its refusal is raised as the door's own.

    Raises:
        Refused: the chain refused.
    """
    if isinstance(answer, RefusedByMiddleware):
        raise Refused(answer.hook, answer.reason, withheld=withheld)
    return answer


def shown_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Tool calls as hooks and middleware see them: id, name, arguments."""
    return [{"id": call.id, "name": call.name, "arguments": private_copy(call.arguments)} for call in calls]


def calls_from(shown: Sequence[dict[str, Any]], before: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Tool calls as a hook or middleware left them. What it did not touch stays the model's own object.

    Raises:
        TypeError: an entry is no dict of name and arguments.
    """
    known = {call.id: call for call in before}
    calls: list[ToolCall] = []
    for number, entry in enumerate(shown, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise TypeError("tool_calls must be a list of {id, name, arguments}")
        arguments = entry.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise TypeError(f"the arguments of {entry['name']} must be a dict, not {type(arguments).__name__}")
        old = known.get(str(entry.get("id") or ""))
        if old is not None and old.name == entry["name"] and old.arguments == arguments:
            calls.append(old)
        else:
            calls.append(ToolCall(str(entry.get("id") or f"call_{number}"), entry["name"], arguments))
    if len(calls) == len(before) and all(new is old for new, old in zip(calls, before, strict=True)):
        return before
    return calls


def shown_response(turn: Turn, response: base.ModelResponse, model: str) -> ModelResponse:
    """A model's answer as middleware and on_step see it."""
    usage = response.usage
    return ModelResponse(
        response.text,
        model,
        {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, **usage.details},
        invocation(turn, model=model),
        shown_calls(response.tool_calls),
        {"finish_reason": response.finish_reason},
    )


def response_from(
    shown: ModelResponse, before: base.ModelResponse | None, after: Callable[[], base.ModelResponse]
) -> base.ModelResponse:
    """The answer as middleware left it; ``after`` makes an empty one where no model was called."""
    old = before if before is not None else after()
    calls = calls_from(shown.tool_calls or [], old.tool_calls)
    text = shown.content if isinstance(shown.content, str) else str(shown.content or "")
    if before is not None and text == old.text and calls is old.tool_calls:
        return old
    from agent_engine.models.base import ModelResponse as Response

    # The provider's own parts hold the original words: they do not outlive a change.
    return Response(text, calls, old.usage if before is not None else Usage(), old.finish_reason, None)


def model_request(
    turn: Turn, messages: Sequence[base.Message], model: str, temperature: float | None, tools: list[dict[str, Any]]
) -> ModelRequest:
    """The request that middleware of a model call sees; everything in it is its own copy."""
    return ModelRequest(
        private_copy(list(messages)),
        model,
        temperature,
        invocation(turn, model=model),
        tools,
        {},
    )


async def observe(observer: Callable[[Any], Any], seen: object, what: str) -> None:
    """Call an observer: its answer is ignored, its failure is logged by its type."""
    from agent_engine.hooks.limits import within

    _, problem = await within(_observed(observer, seen), OBSERVER_SECONDS)
    if problem is not None:  # an observer can hold nothing back
        logger.warning("The %s observer failed: %s", what, type(problem).__name__)


async def _observed(observer: Callable[[Any], Any], seen: object) -> None:
    from agent_engine.hooks.definition import is_async_callable
    from agent_engine.hooks.workers import run_in_worker

    if is_async_callable(observer):
        await observer(seen)
    else:
        await run_in_worker(observer, seen, limit=OBSERVER_SECONDS)
