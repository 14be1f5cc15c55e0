"""Spans: one each for run, turn, model call, tool call, MCP request and hook run, nested as they ran."""

from __future__ import annotations

import contextvars
import subprocess
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    mcp_attributes,
    user_attributes,
)
from tests.records.build import AT, hook_run, payload, run, tool_step

from agent_engine.models.providers import PROVIDERS
from agent_engine.records.journal import Entry, HookRan, StepClosed, StepOpened, open_journal
from agent_engine.records.otel import OtelJournal


def _journal() -> tuple[OtelJournal, InMemorySpanExporter, trace.Tracer]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    return OtelJournal(tracer), exporter, tracer


def _spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def _parent(spans: dict[str, ReadableSpan], name: str) -> str | None:
    parent = spans[name].parent
    if parent is None:
        return None
    return next(one.name for one in spans.values() if one.context and one.context.span_id == parent.span_id)


def _steps() -> list[Entry]:
    model = [
        StepOpened(
            "r1", "m", "turn", "model", "big-model", "main", AT, {"model": "big-model", "provider": "anthropic"}
        ),
        StepClosed("r1", "m", "ok", None, "ran", None, None, 2.0, {"input_tokens": 3, "output_tokens": 4}),
    ]
    mcp = [
        StepOpened("r1", "q", "t1", "mcp", "tools/call", "main", AT, {"server_id": "docs", "tool_name": "search"}),
        StepClosed("r1", "q", "error", None, "failed", None, None, 2.0, {"status_code": 502}),
    ]
    tool = tool_step("r1", hooks=[hook_run(decision="deny", before=payload(q="planted-secret"))])
    return run("r1", model, [*tool[:2], *mcp, *tool[2:]])


def test_spans_nest_as_the_run_did_and_carry_the_conventions_and_the_records_id() -> None:
    journal, exporter, _ = _journal()
    entries = _steps()
    for entry in entries:
        journal.write(entry)
    spans = _spans(exporter)
    assert _parent(spans, "invoke_workflow demo") is None
    assert _parent(spans, "invoke_agent main") == "invoke_workflow demo"
    assert _parent(spans, "chat big-model") == "invoke_agent main"
    assert _parent(spans, "execute_tool search") == "invoke_agent main"
    assert _parent(spans, "tools/call search") == "execute_tool search"
    assert _parent(spans, "hook before_tool guard") == "execute_tool search"
    chat = spans["chat big-model"].attributes or {}
    assert chat["gen_ai.operation.name"] == "chat"
    assert (chat["gen_ai.provider.name"], chat["gen_ai.usage.output_tokens"]) == ("anthropic", 4)
    hook = spans["hook before_tool guard"].attributes or {}
    (ran,) = [entry for entry in entries if isinstance(entry, HookRan)]
    assert hook["agent_engine.record.id"] == ran.record_id
    assert hook["agent_engine.hook.decision"] == "deny"
    assert spans["tools/call search"].status.status_code is trace.StatusCode.ERROR
    assert "planted-secret" not in str([span.to_json() for span in exporter.get_finished_spans()])


def test_every_attribute_is_of_the_conventions_or_says_that_it_is_ours() -> None:
    journal, exporter, _ = _journal()
    for entry in _steps():
        journal.write(entry)
    known = {
        value
        for module in (error_attributes, gen_ai_attributes, http_attributes, mcp_attributes, user_attributes)
        for name, value in vars(module).items()
        if name.isupper()
    }
    used = {name for span in exporter.get_finished_spans() for name in span.attributes or {}}
    assert {name for name in used if not name.startswith("agent_engine.")} <= known
    spans = _spans(exporter)
    for name in ("invoke_workflow demo", "invoke_agent main", "chat big-model"):
        assert (spans[name].attributes or {})["gen_ai.conversation.id"] == "s1"
    assert (spans["tools/call search"].attributes or {})["gen_ai.operation.name"] == "execute_tool"
    operations = {(span.attributes or {}).get("gen_ai.operation.name") for span in spans.values()} - {None}
    assert operations <= {one.value for one in gen_ai_attributes.GenAiOperationNameValues}


def test_a_provider_has_the_name_that_the_conventions_give_it() -> None:
    journal, exporter, _ = _journal()
    for provider in PROVIDERS:
        journal.write(StepOpened("r1", provider, None, "model", provider, "main", AT, {"provider": provider}))
        journal.write(StepClosed("r1", provider, "ok", None, "ran", None, None, 1.0))
    named = {name.removeprefix("chat "): dict(span.attributes or {}) for name, span in _spans(exporter).items()}
    told = {provider: attributes["gen_ai.provider.name"] for provider, attributes in named.items()}
    assert {name: told[name] for name in ("bedrock", "google", "google-cloud", "mistral", "xai", "groq", "ollama")} == {
        "bedrock": "aws.bedrock", "google": "gcp.gemini", "google-cloud": "gcp.vertex_ai", "mistral": "mistral_ai",
        "xai": "x_ai", "groq": "groq", "ollama": "ollama",
    }  # fmt: skip
    well_known = {one.value for one in gen_ai_attributes.GenAiProviderNameValues}
    changed = {value for name, value in told.items() if name != value}
    assert changed <= well_known


def test_a_request_that_is_no_method_of_the_protocol_is_not_said_to_be_one() -> None:
    journal, exporter, _ = _journal()
    journal.write(StepOpened("r1", "q", None, "mcp", "stream", "main", AT, {"server_id": "docs"}))
    journal.write(StepClosed("r1", "q", "ok", None, "ran", None, None, 1.0))
    attributes = dict(_spans(exporter)["stream"].attributes or {})
    assert "mcp.method.name" not in attributes
    assert attributes["agent_engine.mcp.server"] == "docs"


def test_what_a_tool_traces_itself_hangs_below_its_step_and_nothing_is_left_current() -> None:
    journal, exporter, tracer = _journal()
    entries = run("r1", closed=True)
    opened, closed = tool_step("r1")

    def step() -> None:
        journal.write(opened)
        tracer.start_span("http call").end()
        journal.write(closed)

    before = trace.get_current_span()
    for entry in entries[:2]:
        journal.write(entry)
    contextvars.copy_context().run(step)
    for entry in entries[2:]:
        journal.write(entry)
    assert trace.get_current_span() is before
    assert _parent(_spans(exporter), "http call") == "execute_tool search"


async def test_what_never_ended_is_exported_at_the_stop() -> None:
    journal, exporter, _ = _journal()
    for entry in run("r1", closed=False):
        journal.write(entry)
    await journal.stop()
    assert set(_spans(exporter)) == {"invoke_workflow demo", "invoke_agent main"}


def test_a_run_inside_somebody_elses_span_joins_that_trace() -> None:
    journal, exporter, tracer = _journal()
    with tracer.start_as_current_span("request"):
        for entry in run("r1"):
            journal.write(entry)
    assert _parent(_spans(exporter), "invoke_workflow demo") == "request"


def test_nothing_of_telemetry_is_imported_while_it_is_off() -> None:
    program = (
        "import sys, agent_engine.records.journal as j\n"
        "j.open_journal('memory'); j.open_journal(None)\n"
        "heavy = {'opentelemetry', 'sqlalchemy', 'alembic', 'pydantic', 'psycopg'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    assert isinstance(open_journal("otel"), OtelJournal)
