"""Spans: one each for run, turn, model call, tool call, MCP request and hook run, nested as they ran."""

from __future__ import annotations

import contextvars
import subprocess
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.records.build import AT, hook_run, payload, run, tool_step

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
