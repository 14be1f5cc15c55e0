"""One middleware: the function, which of the six kinds it is, and whether it only observes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeVar

from agent_engine.hooks.calls import ModelRequest, ModelResponse, ToolRequest, ToolResponse
from agent_engine.hooks.definition import callable_name, cannot_be_called, is_async_callable
from agent_engine.hooks.payloads import private_copy

KINDS: Final = ("before_model", "after_model", "wrap_model_call", "before_tool", "after_tool", "wrap_tool_call")
MARK: Final = "__agent_engine_middleware__"
"""The attribute by which a decorator says what a function is: its kind, and whether it only observes."""

Item = TypeVar("Item", ModelRequest, ToolRequest, ModelResponse, ToolResponse)
"""What passes through middleware."""

logger = logging.getLogger("agent_engine.hooks")


@dataclass(frozen=True, slots=True)
class Layer:
    """One middleware of a chain."""

    function: Callable[..., Any]
    kind: str
    name: str
    is_async: bool
    observe: bool


def layer_of(function: Callable[..., Any]) -> Layer:
    """The layer that a decorated function is.

    Raises:
        TypeError: it has none of the six decorators, or cannot be called as its kind is.
    """
    kind, observe = getattr(function, MARK, (None, False))
    name = callable_name(function) if callable(function) else repr(function)[:80]
    if kind not in KINDS:
        raise TypeError(f"{name} is no middleware: decorate it with one of {', '.join(KINDS)}")
    problem = cannot_be_called(partial(function, None) if kind.startswith("wrap_") else function)
    if problem:
        arguments = "(request, call_next)" if kind.startswith("wrap_") else "one argument"
        raise TypeError(f"{kind} middleware {name} is called with {arguments}: {problem}")
    return Layer(function, kind, name, is_async_callable(function), observe)


def copy_of(item: Item) -> Item:
    """A private copy: what an observer does to it reaches nobody."""
    return replace(item, **{one.name: private_copy(getattr(item, one.name)) for one in fields(item)})


def log_failure(layer: Layer, problem: BaseException) -> None:
    """Say that an observer broke; its type only, for the text may quote a person."""
    logger.warning("Observing %s middleware %s failed: %s", layer.kind, layer.name, type(problem).__name__)
