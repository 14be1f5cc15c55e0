"""Every question that a page asks has an index to walk: no table that grows with the runs is read whole."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from tests.records.build import hook_run, record, run, tool_step

from agent_engine.records.query import RecordReader
from agent_engine.records.views import RecordFilter, RunFilter

LARGE = ("record_steps", "record_hook_runs", "record_facets", "record_payloads")

QUESTIONS: dict[str, Callable[[RecordReader], Any]] = {
    "newest runs": lambda reader: reader.runs(),
    "next page": lambda reader: reader.runs(before=100),
    "by status": lambda reader: reader.runs(RunFilter(status="failed")),
    "by everything": lambda reader: reader.runs(
        RunFilter(status="completed", agent="main", tool="search", decision="deny", since=time.time() - 60)
    ),
    "by decision": lambda reader: reader.runs(RunFilter(decision="deny")),
    "by owner": lambda reader: reader.runs(RunFilter(owner=("ann", "acme"))),
    "by owner without an organisation": lambda reader: reader.runs(RunFilter(owner=("ann", None))),
    "lines": lambda reader: reader.folded(),
    "one run": lambda reader: reader.run("r1"),
    "one run, folded": lambda reader: reader.run("r1", fold_from=0),
    "one run, its last steps": lambda reader: reader.run("r1", most_steps=1),
    "one step": lambda reader: reader.records_of_step("r1", 3),
    "one record": lambda reader: reader.record("none"),
    "payloads": lambda reader: reader.payloads_of(3),
    "facet values": lambda reader: reader.values_of("tool"),
    "hooks": lambda reader: reader.hook_stats(),
    "coverage": lambda reader: reader.coverage(),
    "ungated steps": lambda reader: reader.ungated_steps("tool", "search"),
    "newest records": lambda reader: reader.records(),
    "following": lambda reader: reader.records(after=5),
    "records of a run": lambda reader: reader.records(RecordFilter(run_id="r1")),
    "refusals of a hook": lambda reader: reader.records(RecordFilter(hook="guard", decision="deny")),
}


@pytest.mark.parametrize("name", QUESTIONS)
async def test_no_large_table_is_scanned(address: str, name: str) -> None:
    await record(address, [entry for n in range(3) for entry in run(f"r{n}", tool_step(f"r{n}", hooks=[hook_run()]))])
    asked: list[tuple[str, Any]] = []
    with RecordReader.open(address) as reader:

        @event.listens_for(reader.engine, "before_cursor_execute")
        def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _x: Any, _many: bool) -> None:
            asked.append((statement, parameters))

        QUESTIONS[name](reader)
        event.remove(reader.engine, "before_cursor_execute", note)
        plans = []
        with reader.engine.connect() as connection:
            postgres = reader.engine.dialect.name == "postgresql"
            if postgres:
                # In a table of three rows a scan is best; the question is whether there is another way.
                connection.exec_driver_sql("SET enable_seqscan = off")
            for statement, parameters in asked:
                if statement.lstrip().upper().startswith(("SELECT", "WITH")):
                    explain = "EXPLAIN " if postgres else "EXPLAIN QUERY PLAN "
                    rows = connection.exec_driver_sql(explain + statement, parameters)
                    plans += [str(row[0] if postgres else row[3]) for row in rows]
    assert plans
    for line in plans:
        for table in LARGE:
            whole = rf"Seq Scan on {table}\b" if postgres else rf"^SCAN {table}\b(?! USING)"
            if name in ("newest records", "lines", "following") and table == "record_hook_runs":
                continue  # walked from one end by its key, as far as the limit
            assert not re.search(whole, line), line
