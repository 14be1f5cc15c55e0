"""What the tests of the run core share: nodes on scripted models, hosts, and hooks that write down what they hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.scope import HookScope
from agent_engine.models.base import Model, ModelSettings
from agent_engine.models.scripted import ScriptedModel
from agent_engine.runtime.host import Host
from agent_engine.runtime.limits import DEFAULT_LIMITS, Limits
from agent_engine.runtime.node import Node
from agent_engine.runtime.result import RunEvent, RunResult
from agent_engine.runtime.run import call_tool_directly, resume_request, run_request
from agent_engine.runtime.streaming import stream_events
from agent_engine.tools.function import tool_of

RUN_EVENTS = [
    event
    for event in HookEvent
    if event.value
    in {
        "session_start",
        "on_run_start",
        "user_prompt_submit",
        "before_agent",
        "before_tool_definitions",
        "before_llm",
        "on_llm_delta",
        "after_llm",
        "model_fallback",
        "prompt_prefix_invalidated",
        "before_tool",
        "on_permission_ask",
        "before_tool_call",
        "transform_tool_result",
        "after_tool",
        "after_tool_call",
        "on_tool_error",
        "on_error",
        "on_retry",
        "before_compaction",
        "after_compaction",
        "session_persist_failed",
        "subagent_stop",
        "notification",
        "after_agent",
        "on_run_end",
        "on_run_error",
        "session_end",
    }
]
"""The events of a run and its session."""


def call(name: str, arguments: Mapping[str, Any] | None = None, call_id: str = "c1") -> dict[str, Any]:
    """A turn of a script: one tool call."""
    return {"tool_calls": [{"id": call_id, "name": name, "arguments": dict(arguments or {})}]}


def calls(*made: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A turn of a script: several tool calls, with ids c1, c2 …"""
    return {
        "tool_calls": [
            {"id": f"c{number}", "name": name, "arguments": dict(arguments)}
            for number, (name, arguments) in enumerate(made, 1)
        ]
    }


@dataclass
class Made:
    """A node, its host, its model and its hooks."""

    node: Node
    host: Host
    model: ScriptedModel
    registry: HookRegistry

    async def run(self, message: Any = "go", **options: Any) -> RunResult:
        return await run_request(self.node, message, host=self.host, **options)

    def stream(self, message: Any = "go", **options: Any) -> AsyncIterator[RunEvent]:
        return stream_events(lambda emit: run_request(self.node, message, host=self.host, emit=emit, **options))

    async def events(self, message: Any = "go", **options: Any) -> list[RunEvent]:
        return [event async for event in self.stream(message, **options)]

    async def resume(self, run_id: str, decisions: Mapping[str, Any], **options: Any) -> RunResult:
        return await resume_request(self.node, run_id, decisions, host=self.host, **options)

    async def direct(self, name: str, arguments: Mapping[str, Any], **options: Any) -> Any:
        return await call_tool_directly(self.node, name, arguments, host=self.host, **options)

    def seen(self, request: int = -1) -> list[dict[str, Any]]:
        """The messages of one request that the model got."""
        return self.model.requests[request].messages

    def tool_text(self, request: int = -1) -> str:
        """The last tool result that the model read in a request."""
        return next(one["content"] for one in reversed(self.seen(request)) if one["role"] == "tool")


def node_of(
    turns: Sequence[Any] | Model,
    tools: Sequence[Any] = (),
    *,
    name: str = "root",
    fallback: Sequence[Model] = (),
    **options: Any,
) -> Node:
    """A node on a scripted model that plays ``turns``."""
    model = turns if isinstance(turns, Model) else ScriptedModel(list(turns))
    models = tuple((one, ModelSettings()) for one in (model, *fallback))
    options.setdefault("prompt", "You help.")
    return Node(name=name, models=models, tools=tuple(tool_of(one) for one in tools), **options)


def made(
    turns: Sequence[Any] | Model,
    tools: Sequence[Any] = (),
    *,
    registry: HookRegistry | None = None,
    approver: Any = None,
    journal: Any = None,
    store: Any = None,
    limits: Limits = DEFAULT_LIMITS,
    **options: Any,
) -> Made:
    """A node with a host whose scope is one registry of its own."""
    registry = HookRegistry() if registry is None else registry
    node = node_of(turns, tools, limits=limits, **options)
    scope = HookScope(registry, with_default=False)
    host = Host(system_name="demo", scope=scope, approver=approver, journal=journal, store=store)
    return Made(node, host, node.models[0][0], registry)  # type: ignore[arg-type]  # a scripted model in nearly every test


@dataclass
class Trace:
    """What hooks heard, in order."""

    rows: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.rows]

    def of(self, event: str) -> list[Any]:
        """The payloads of one event."""
        return [payload for name, payload in self.rows if name == event]

    def one(self, event: str) -> Any:
        """The payload of an event that fired once."""
        payloads = self.of(event)
        assert len(payloads) == 1, f"{event} fired {len(payloads)} times: {self.names}"
        return payloads[0]

    def statuses(self, event: str) -> list[str]:
        return [payload.status for payload in self.of(event)]


def listen(registry: HookRegistry, events: Sequence[Any] = RUN_EVENTS, trace: Trace | None = None) -> Trace:
    """Observers on events that keep what they get."""
    trace = Trace() if trace is None else trace

    def keep(name: str) -> Callable[[Any], Any]:
        async def heard(payload: Any) -> Any:
            trace.rows.append((name, payload))
            return payload if name == "transform_tool_result" else None

        return heard

    for event in events:
        name = str(event)
        registry.register_function(
            name, keep(name), observe=True, sequential=True, name=f"hears {name}", priority=10_000
        )
    return trace


PAIRS = {
    "before_agent": ("after_agent",),
    "before_llm": ("after_llm",),
    "before_tool": ("after_tool",),
    "before_tool_call": ("after_tool_call", "on_tool_error"),
}
"""What opens a step, and what closes it."""


def unbalanced(names: Sequence[str]) -> list[str]:
    """The pairs that do not balance, for steps whose opening hooks all let them through."""
    return [
        f"{opening}: {names.count(opening)} opened, {sum(names.count(one) for one in closings)} closed"
        for opening, closings in PAIRS.items()
        if names.count(opening) != sum(names.count(one) for one in closings)
    ]


def closing_events() -> list[HookEvent]:
    return [event for event, spec in CATALOGUE.items() if spec.closing]


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """No asyncio task more than before."""
    before = asyncio.all_tasks()
    yield
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() - before == set()
