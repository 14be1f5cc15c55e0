"""How long the inspector's pages take over a million decision records, in SQLite and in PostgreSQL.

python benchmarks/records_million.py [RECORDS] [sqlite|postgres]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fakes.postgres import running_postgres

from agent_engine.records.facts import FIELDS, Fact
from agent_engine.records.query import RecordReader
from agent_engine.records.settings import RecordSettings
from agent_engine.records.sqlsink import SqlSink
from agent_engine.server.app import create_app

LIMIT_MS = 300.0
HOOKS = tuple(f"hook_{number}" for number in range(10))
TOOLS = tuple(f"tool_{number}" for number in range(25))
AGENTS = tuple(f"agent_{number}" for number in range(8))
BIG = "the-run-of-500-steps"


def _fact(kind: str, /, **values: object) -> Fact:
    return kind, (), *(values.get(name) for name in FIELDS[kind])


def _hook(number: int, run_id: str, step_id: str, agent: str, hook: int, at: float) -> Fact:
    deny = number % 97 == 0
    decision = "deny" if deny else "modify" if number % 31 == 0 else "failed" if number % 503 == 0 else "allow"
    return _fact(
        "hook", record_id=f"r-{number:x}", run_id=run_id, step_id=step_id, agent=agent, at=at, decision=decision,
        reason="because of the policy" if deny else None, broke=decision == "failed", before_digest=f"{number:064x}",
        after_digest=f"{number:064x}", duration_ms=0.05 + number % 13 * 0.1, grp=0, context=False, event="before_tool",
        hook_id=f"id_{hook}", hook_name=HOOKS[hook], hook_kind="function", source="plugins/hooks/policy.py:12",
        mode="sequential", priority=100, policy="deny", observe=False, shadow=False,
    )  # fmt: skip


def facts(records: int) -> Iterator[Fact]:
    """Runs of 4 steps with 10 hook runs each, and one of 500 steps, the newest."""
    number, run = 0, 0
    start = time.time() - 6 * 86400
    while number < records - 5000:
        run_id, agent, tool = f"run-{run:08x}", AGENTS[run % 8], TOOLS[run % 25]
        at = start + run * 5
        yield from _run(run_id, agent, at, [(tool, range(number, number + 10))])
        number += 10
        run += 1
    steps = [(TOOLS[step % 25], range(number + step * 10, number + step * 10 + 10)) for step in range(500)]
    yield from _run(BIG, "agent_0", time.time(), steps)


def _run(run_id: str, agent: str, at: float, tools: list[tuple[str, range]]) -> Iterator[Fact]:
    yield _fact("run_opened", run_id=run_id, system="bench", user_id="ann", organization_id="acme", at=at)
    yield _fact("step_opened", run_id=run_id, step_id="turn", kind="agent", name=agent, agent=agent, at=at)
    for index, (tool, numbers) in enumerate(tools):
        step = f"t{index}"
        yield _fact(
            "step_opened", run_id=run_id, step_id=step, parent_id="turn", kind="tool", name=tool, agent=agent, at=at,
            detail='{"call_id":"c"}',
        )  # fmt: skip
        for number in numbers:
            yield _hook(number, run_id, step, agent, number % 10, at)
        yield _fact(
            "step_closed", run_id=run_id, step_id=step, status="ok", outcome="ran", duration_ms=5.0,
            unheard="after_tool_call before_tool_call",
        )  # fmt: skip
    yield _fact("step_closed", run_id=run_id, step_id="turn", status="ok", outcome="ran", duration_ms=9.0)
    yield _fact("run_closed", run_id=run_id, status="completed", at=at + 1, duration_ms=10.0)


def fill(address: str, records: int) -> None:
    sink = SqlSink(address, RecordSettings())
    sink.open()
    started, batch = time.perf_counter(), []
    for fact in facts(records):
        batch.append(fact)
        if len(batch) >= 5000:
            sink.write(batch)
            batch.clear()
    if batch:
        sink.write(batch)
    sink.close()
    print(f"  filled in {time.perf_counter() - started:.0f} s")


def measure(address: str) -> bool:
    pages = {
        "runs": "/ui/runs",
        "runs, filtered by status, tool, agent and decision": (
            "/ui/runs?status=completed&tool=tool_3&agent=agent_3&decision=deny"
        ),
        "runs, nothing found": "/ui/runs?status=failed&tool=tool_3&age=24h",
        "a run of 500 steps": f"/ui/runs/{BIG}",
        "hooks": "/ui/hooks",
        "coverage": "/ui/coverage",
        "API: runs": "/runs?limit=50",
    }
    good = True
    with RecordReader.open(address) as reader:
        app = create_app(None, records=reader)
        with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as http:
            for name, path in pages.items():
                times = []
                for _ in range(5):
                    started = time.perf_counter()
                    answer = http.get(path)
                    times.append((time.perf_counter() - started) * 1000)
                    assert answer.status_code == 200, answer.text
                good = good and statistics.median(times) < LIMIT_MS
                print(f"  {name:<52} median {statistics.median(times):6.1f} ms   max {max(times):6.1f} ms")
    return good


def main(records: int, kinds: list[str]) -> int:
    good = True
    with tempfile.TemporaryDirectory() as folder:
        if "sqlite" in kinds:
            address = f"sqlite:{Path(folder) / 'records.db'}"
            print(f"SQLite, {records:,} records")
            fill(address, records)
            good = measure(address) and good
    if "postgres" in kinds:
        with running_postgres() as server:
            address = server.address()
            print(f"PostgreSQL, {records:,} records")
            fill(address, records)
            good = measure(address) and good
    return 0 if good else 1


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    sys.exit(main(count, sys.argv[2:] or ["sqlite", "postgres"]))
