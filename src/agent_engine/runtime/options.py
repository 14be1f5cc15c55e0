"""What callers may hand over: what is something else is told where it is given, and not in the middle of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent_engine.runtime.limits import Limits

TOOLS = "functions, @tool functions or their names, Agents or agent.handoff()"
MODELS = "text such as 'openai:NAME', or a Model"


def is_text(option: str, value: object, *, or_none: str = "") -> None:
    """Raises TypeError where ``value`` is no text. ``or_none`` says what None stands for, where it may be given."""
    if isinstance(value, str) or (or_none and value is None):
        return
    also = f", or None for {or_none}" if or_none else ""
    raise TypeError(f"{option} of an Agent is text{also}, not {kind(value)}.")


def is_model(option: str, value: object) -> None:
    """Raises TypeError where ``value`` stands for no model."""
    if value is None or isinstance(value, str):
        return
    from agent_engine.models.base import Model
    from agent_engine.models.resolve import ModelSpecLike

    if isinstance(value, type) or not isinstance(value, (Model, ModelSpecLike)):
        raise TypeError(f"{option} of an Agent is {MODELS}, not {kind(value)}.")


def several(option: str, value: Any, what: str) -> tuple[Any, ...]:
    """The items of a list. Raises TypeError where it is none, or one text, which would be taken for its letters."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return tuple(value)
    raise TypeError(f"{option} of an Agent is a list of {what}, not {kind(value)}; write {option}=[…].")


def is_store(value: object) -> None:
    """Raises TypeError where ``value`` keeps no conversations."""
    if value is None:
        return
    from agent_engine.memory.store import ConversationStore

    if isinstance(value, type) or not isinstance(value, ConversationStore):
        path = repr(value) if isinstance(value, str) else "'conversations.db'"
        hint = f"for an SQLite file write SqliteStore({path}) (agent_engine.memory.sqlite)"
        raise TypeError(f"store of an Agent is a conversation store or None, not {kind(value)}; {hint}.")


def is_approver(value: object) -> None:
    """Raises TypeError for what could answer no ask."""
    if value is None or value == "later":
        return
    if not callable(value):
        raise TypeError(f"approver is a function of a ToolApproval, 'later' or None, not {kind(value)}.")
    from agent_engine.hooks.definition import cannot_be_called

    problem = cannot_be_called(value)
    if problem is not None:
        raise TypeError(f"approver is a function of a ToolApproval, and {problem}.")


def is_limits(value: object) -> None:
    """Raises TypeError where ``value`` is no Limits."""
    if not isinstance(value, Limits):
        raise TypeError(f"limits is a Limits, such as Limits(tool_calls=10), not {kind(value)}.")


def is_output_type(value: object) -> None:
    """Raises TypeError where no answer can be read as ``value``."""
    if value is not None:
        from agent_engine.runtime.output import shape_of

        shape_of(value)


def is_prompt(value: object) -> None:
    """Raises TypeError where ``value`` is no message of a person."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, (str, dict)) for part in value)):
        return
    raise TypeError(f"a message is text, or a list of content parts such as {{'type': 'text', …}}, not {kind(value)}.")


def is_context(value: object) -> None:
    """Raises TypeError where ``value`` says nothing about a caller."""
    if value is None:
        return
    from agent_engine.hooks.managed import RunContext

    if not isinstance(value, RunContext):
        raise TypeError(f"context is a RunContext, such as RunContext(user_id='ada'), or None, not {kind(value)}.")


def is_mapping(what: str, value: object) -> None:
    """Raises TypeError where ``value`` is no dict."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} are a dict, not {kind(value)}.")


def kind(value: object) -> str:
    """How an error names a value: text as it is, a class by its name, anything else by its type."""
    if isinstance(value, str):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
