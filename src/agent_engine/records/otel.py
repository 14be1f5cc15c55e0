"""Traces: a span for each run, turn, model call, tool call, MCP request and hook run, under the GenAI conventions.

This module imports OpenTelemetry, and is imported only where telemetry was asked for. A step's span is the current one
inside the step, so that what a tool itself instruments hangs below it. No prompt, argument or result is put on a span.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from contextvars import Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from agent_engine.records.journal import Entry, HookRan, RunClosed, RunOpened, StepClosed, StepOpened

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

logger = logging.getLogger("agent_engine.records")

_SCOPE = "agent_engine"
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-cloud": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "xai": "x_ai",
}
"""Providers that the GenAI conventions call otherwise than we do; any other keeps its name, as they want it."""
_TRANSPORT_OPERATIONS = ("stream", "close")
"""Requests to an MCP server that are no JSON-RPC method."""
_LIMIT = 10_000


@dataclass(slots=True)
class _Open:
    span: Span
    context: Context
    token: Token[Context] | None
    conversation: str | None


class OtelJournal:
    """A journal that makes spans with the tracer given, or the globally configured one."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        from agent_engine import __version__

        self._tracer = tracer or trace.get_tracer(_SCOPE, __version__)
        self._runs: OrderedDict[str, _Open] = OrderedDict()
        self._steps: OrderedDict[tuple[str, str], _Open] = OrderedDict()

    @property
    def wants_payloads(self) -> bool:
        return False

    @property
    def full(self) -> bool:
        return False

    def write(self, entry: Entry) -> None:
        """Begin, end or make a span. Call it where the step runs, so that its span can become the current one."""
        try:
            self._write(entry)
        except Exception as error:  # noqa: BLE001 - a fault of the telemetry set-up must not reach the run
            logger.warning("A span was not made: %s", type(error).__name__)

    def _write(self, entry: Entry) -> None:
        if isinstance(entry, HookRan):
            self._hook(entry)
        elif isinstance(entry, StepOpened):
            self._step_opened(entry)
        elif isinstance(entry, StepClosed):
            self._step_closed(entry)
        elif isinstance(entry, RunOpened):
            self._run_opened(entry)
        else:
            self._run_closed(entry)

    async def room(self) -> None:
        return None

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        """End the spans of what never ended, so that they are exported at all."""
        for opened in (*self._steps.values(), *self._runs.values()):
            opened.span.set_status(Status(StatusCode.ERROR, "did not end"))
            opened.span.end()
        self._steps.clear()
        self._runs.clear()

    def _run_opened(self, entry: RunOpened) -> None:
        attributes = _known(
            {
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": entry.system,
                "gen_ai.conversation.id": entry.session_id,
                "agent_engine.run.id": entry.run_id,
                "agent_engine.generation": entry.generation,
                "user.id": entry.user_id,
                "agent_engine.organization.id": entry.organization_id,
            }
        )
        name = f"invoke_workflow {entry.system}" if entry.system else "invoke_workflow"
        span = self._tracer.start_span(name, kind=SpanKind.INTERNAL, attributes=attributes, start_time=_ns(entry.at))
        self._runs[entry.run_id] = self._enter(span, otel_context.get_current(), entry.session_id)
        _bound(self._runs)

    def _run_closed(self, entry: RunClosed) -> None:
        opened = self._runs.pop(entry.run_id, None)
        if opened is None:
            return
        for key in ("input_tokens", "output_tokens"):
            if isinstance(value := entry.usage.get(key), int):
                opened.span.set_attribute(f"gen_ai.usage.{key}", value)
        opened.span.set_attribute("agent_engine.run.status", entry.status)
        _fail(opened.span, entry.error_type, entry.status not in ("completed", "waiting"), entry.status)
        self._leave(opened, _ns(entry.at))

    def _step_opened(self, entry: StepOpened) -> None:
        parent = self._steps.get((entry.run_id, entry.parent_id)) if entry.parent_id is not None else None
        parent = parent or self._runs.get(entry.run_id)
        context = parent.context if parent is not None else otel_context.get_current()
        conversation = parent.conversation if parent is not None else None
        name, kind, attributes = _described(entry, conversation)
        span = self._tracer.start_span(
            name, context=context, kind=kind, attributes=_known(attributes), start_time=_ns(entry.at)
        )
        self._steps[(entry.run_id, entry.step_id)] = self._enter(span, context, conversation)
        _bound(self._steps)

    def _step_closed(self, entry: StepClosed) -> None:
        opened = self._steps.pop((entry.run_id, entry.step_id), None)
        if opened is None:
            return
        span, detail = opened.span, entry.detail
        span.set_attributes(
            _known(
                {
                    "agent_engine.step.outcome": entry.outcome,
                    "agent_engine.step.refused_by": entry.refused_by,
                    "agent_engine.step.unheard": tuple(str(event) for event in entry.unheard) or None,
                    "gen_ai.usage.input_tokens": detail.get("input_tokens"),
                    "gen_ai.usage.output_tokens": detail.get("output_tokens"),
                    "http.response.status_code": detail.get("status_code"),
                }
            )
        )
        if finish := detail.get("finish_reason"):
            span.set_attribute("gen_ai.response.finish_reasons", (str(finish),))
        _fail(span, entry.error_type, entry.outcome not in ("ran", "waiting"), entry.outcome)
        self._leave(opened, None)

    def _hook(self, entry: HookRan) -> None:
        run = entry.run
        owner = self._steps.get((entry.run_id, entry.step_id)) if entry.run_id and entry.step_id else None
        if owner is None and entry.run_id is not None:
            owner = self._runs.get(entry.run_id)
        context = owner.context if owner is not None else otel_context.get_current()
        attributes = _known(
            {
                "agent_engine.record.id": entry.record_id,
                "agent_engine.run.id": entry.run_id,
                "agent_engine.step.id": entry.step_id,
                "agent_engine.hook.event": str(run.event),
                "agent_engine.hook.id": run.hook.id,
                "agent_engine.hook.name": run.hook.name,
                "agent_engine.hook.source": run.hook.source or None,
                "agent_engine.hook.mode": run.mode,
                "agent_engine.hook.decision": run.decision,
                "agent_engine.hook.policy": run.policy,
                "agent_engine.hook.changed": run.changed or None,
                "agent_engine.hook.shadow": run.shadow or None,
                "gen_ai.agent.name": entry.agent,
            }
        )
        start = _ns(run.started_at)
        span = self._tracer.start_span(
            f"hook {run.event} {run.hook.name}", context=context, attributes=attributes, start_time=start
        )
        _fail(span, run.failure_type, run.broke, "the hook failed")
        span.end(start + int(run.duration_ms * 1_000_000))

    def _enter(self, span: Span, parent: Context, conversation: str | None) -> _Open:
        context = trace.set_span_in_context(span, parent)
        return _Open(span, context, otel_context.attach(context), conversation)

    def _leave(self, opened: _Open, at: int | None) -> None:
        opened.span.end(at)
        if opened.token is not None:
            # A run that is closed elsewhere than it was opened leaves the other context to its own end.
            with contextlib.suppress(ValueError, RuntimeError):
                opened.token.var.reset(opened.token)


def _described(entry: StepOpened, conversation: str | None) -> tuple[str, SpanKind, dict[str, Any]]:
    detail = entry.detail
    attributes: dict[str, Any] = {
        "agent_engine.run.id": entry.run_id,
        "agent_engine.step.id": entry.step_id,
        "gen_ai.agent.name": entry.agent,
    }
    if entry.kind in ("agent", "model"):
        attributes["gen_ai.conversation.id"] = conversation
    if entry.kind == "agent":
        return f"invoke_agent {entry.name}", SpanKind.INTERNAL, {**attributes, "gen_ai.operation.name": "invoke_agent"}
    if entry.kind == "model":
        model = detail.get("model") or entry.name
        attributes |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
        provider = detail.get("provider")
        attributes["gen_ai.provider.name"] = _PROVIDERS.get(str(provider), provider)
        return f"chat {model}", SpanKind.CLIENT, attributes
    if entry.kind == "tool":
        attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": entry.name}
        attributes |= {"gen_ai.tool.call.id": detail.get("call_id"), "agent_engine.mcp.server": detail.get("server_id")}
        attributes["gen_ai.tool.type"] = "extension" if detail.get("server_id") else "function"
        return f"execute_tool {entry.name}", SpanKind.INTERNAL, attributes
    if entry.kind == "mcp":
        tool = detail.get("tool_name")
        attributes["mcp.method.name"] = None if entry.name in _TRANSPORT_OPERATIONS else entry.name
        attributes |= {"gen_ai.operation.name": "execute_tool" if tool else None, "gen_ai.tool.name": tool}
        attributes |= {
            "agent_engine.mcp.server": detail.get("server_id"),
            "agent_engine.attempt": detail.get("attempt"),
        }
        return f"{entry.name} {tool}" if tool else entry.name, SpanKind.CLIENT, attributes
    return f"{entry.kind} {entry.name}", SpanKind.INTERNAL, attributes


def _known(attributes: dict[str, Any]) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value is not None}


def _fail(span: Span, error_type: str | None, failed: bool, why: str) -> None:
    if failed:
        span.set_attribute("error.type", error_type or why)
        span.set_status(Status(StatusCode.ERROR, why))


def _bound(opened: OrderedDict[Any, _Open]) -> None:
    while len(opened) > _LIMIT:
        _, oldest = opened.popitem(last=False)
        oldest.span.end()


def _ns(at: float) -> int:
    return int(at * 1_000_000_000)
