"""MiddlewareChain: the middleware of one agent in its order, and how each kind is driven."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from agent_engine.hooks.calls import ModelRequest, ModelResponse, Refused, ToolRequest, ToolResponse
from agent_engine.hooks.errors import HookExecutionError, guardrail_in
from agent_engine.hooks.layer import KINDS, Item, Layer, copy_of, layer_of, log_failure
from agent_engine.hooks.limits import within
from agent_engine.hooks.result import STRICTNESS, HookResult
from agent_engine.hooks.workers import run_in_worker
from agent_engine.hooks.wrapping import around

LIMIT: Final = 60.0
"""Seconds for one before_* or after_*. A wrap_* has no limit of its own: it lasts as long as the call it is around."""


class MiddlewareChain:
    """The middleware of one agent, ready to run; the first one given is the outermost.

    The ``has_*`` flags say whether a step has any, so that a chain without one costs nothing. Each driving method
    returns the changed request or response, or Refused.

    Raises:
        TypeError: something given has none of the six decorators.
    """

    def __init__(self, middleware: Iterable[Callable[..., Any]] = ()) -> None:
        self._given: list[Callable[..., Any]] = []
        self._layers: dict[str, tuple[Layer, ...]] = dict.fromkeys(KINDS, ())
        for function in middleware:
            self.add(function)

    def add(self, function: Callable[..., Any]) -> None:
        """Put one more inside all that are there."""
        layer = layer_of(function)
        self._given.append(function)
        self._layers[layer.kind] = (*self._layers[layer.kind], layer)

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self._given)

    @property
    def holds_text(self) -> bool:
        """Whether a model's text may leave only after this chain has seen it: not where it only observes."""
        layers = (*self._layers["after_model"], *self._layers["wrap_model_call"])
        return any(not layer.observe for layer in layers)

    @property
    def has_before_model(self) -> bool:
        return bool(self._layers["before_model"])

    @property
    def has_wrap_model(self) -> bool:
        return bool(self._layers["wrap_model_call"])

    @property
    def has_after_model(self) -> bool:
        return bool(self._layers["after_model"])

    @property
    def has_before_tool(self) -> bool:
        return bool(self._layers["before_tool"])

    @property
    def has_wrap_tool(self) -> bool:
        return bool(self._layers["wrap_tool_call"])

    @property
    def has_after_tool(self) -> bool:
        return bool(self._layers["after_tool"])

    async def before_model(self, request: ModelRequest) -> ModelRequest | Refused:
        """The request after every before_model.

        Raises:
            HookExecutionError: one of them raised, took too long, or returned something else than is allowed.
        """
        return await _through(self._layers["before_model"], request)

    async def wrap_model(
        self, request: ModelRequest, call_next: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse | Refused:
        """The response of ``call_next`` inside every wrap_model_call. What ``call_next`` raises comes through as it is.

        Raises:
            HookExecutionError: one of them broke by itself.
        """
        return await around(self._layers["wrap_model_call"], request, call_next, ModelResponse)

    async def after_model(self, response: ModelResponse) -> ModelResponse | Refused:
        """The response after every after_model, last one first.

        Raises:
            HookExecutionError: see before_model.
        """
        return await _through(self._layers["after_model"][::-1], response)

    async def before_tool(self, request: ToolRequest) -> ToolRequest | Refused:
        """The request after every before_tool.

        Raises:
            HookExecutionError: see before_model.
        """
        return await _through(self._layers["before_tool"], request)

    async def wrap_tool(
        self, request: ToolRequest, call_next: Callable[[ToolRequest], Awaitable[ToolResponse]]
    ) -> ToolResponse | Refused:
        """The response of ``call_next`` inside every wrap_tool_call. What ``call_next`` raises comes through as it is.

        Raises:
            HookExecutionError: one of them broke by itself.
        """
        return await around(self._layers["wrap_tool_call"], request, call_next, ToolResponse)

    async def after_tool(self, response: ToolResponse) -> ToolResponse | Refused:
        """The response after every after_tool, last one first.

        Raises:
            HookExecutionError: see before_model.
        """
        return await _through(self._layers["after_tool"][::-1], response)


async def _through(layers: Sequence[Layer], item: Item) -> Item | Refused:
    """One before_* or after_* chain."""
    for layer in layers:
        said, problem = await within(_said(layer, copy_of(item) if layer.observe else item), LIMIT)
        refusal = None if problem is None else guardrail_in(problem)
        if layer.observe:
            if problem is not None and refusal is None:
                log_failure(layer, problem)
            continue
        if refusal is not None:
            return Refused(refusal.reason, layer.name)
        try:
            if problem is not None:
                raise problem
            taken = _read(layer, item, said)
        except BaseException as failure:
            raise HookExecutionError(layer.kind, layer.name, failure) from failure
        if isinstance(taken, Refused):
            return taken
        item = taken
    return item


async def _said(layer: Layer, item: Item) -> object:
    if layer.is_async:
        said = layer.function(item)
    else:
        said = await run_in_worker(layer.function, item, limit=LIMIT)
    return await said if inspect.isawaitable(said) else said


def _read(layer: Layer, item: Item, said: object) -> Item | Refused:
    """What a before_* or after_* returned, read as the next request or response."""
    if said is None:
        return item
    if isinstance(said, type(item)):
        return said
    if not isinstance(said, HookResult):
        raise TypeError(
            f"{layer.kind} middleware {layer.name} returned a {type(said).__name__}; "
            f"it may return the {type(item).__name__}, None or a HookResult"
        )
    if said.decision not in STRICTNESS:
        raise ValueError(f"{layer.kind} middleware {layer.name} returned the unknown decision {said.decision!r}")
    if said.is_denied():
        return Refused(said.reason, layer.name)
    if said.modified_input:
        item = _changed(item, said.modified_input)
    if said.additional_context:
        item.extra.setdefault("additional_context", []).append(said.additional_context)
    return item


def _changed(item: Item, changes: dict[str, Any]) -> Item:
    if isinstance(item, ToolRequest):
        return replace(item, arguments={**item.arguments, **changes})
    known = {one.name for one in fields(item)} - {"context"}
    strange = sorted(set(changes) - known)
    if strange:
        raise ValueError(
            f"a {type(item).__name__} has no field {strange[0]!r} to change; it has {', '.join(sorted(known))}"
        )
    return replace(item, **changes)
