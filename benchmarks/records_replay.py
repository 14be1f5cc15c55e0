"""How fast recorded tool calls replay against a new policy of inline hooks: calls a second.

python benchmarks/records_replay.py [CALLS]; exit code 1 below the bound.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from agent_engine.hooks.definition import FunctionHook
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookRun
from agent_engine.hooks.scope import HookScope
from agent_engine.records.journal import HookRan, RunClosed, RunOpened, StepClosed, StepOpened, open_journal
from agent_engine.records.past_calls import ReplayFilter
from agent_engine.records.query import RecordReader
from agent_engine.records.replay import Replay

BOUND = 20_000


async def fill(address: str, calls: int) -> None:
    journal = open_journal(address)
    assert journal is not None
    await journal.start()
    hook = FunctionHook(name="guard", event="before_tool", func=print)
    for number in range(calls):
        run_id, now = f"run-{number}", time.time()
        tool = ("search", "write_file", "delete")[number % 3]
        payload = BeforeToolInput(call_id="c", tool_name=tool, tool_input={"path": f"/data/{number}", "text": "x" * 80})
        journal.write(RunOpened(run_id, "bench", None, "ann", "acme", now))
        journal.write(StepOpened(run_id, "t", None, "tool", tool, "main", now))
        journal.write(HookRan(run_id, "t", "main", HookRun(hook, hook.event, before=payload, started_at=now)))
        journal.write(StepClosed(run_id, "t", "ok", None, "ran", None, None, 1.0))
        journal.write(RunClosed(run_id, "completed", None, now, 1.0))
        if journal.full:
            await journal.room()
    await journal.stop()


async def main(calls: int) -> int:
    registry = HookRegistry()

    def policy(event: BeforeToolInput) -> str | None:
        return "no deletes" if event.tool_name == "delete" else None

    registry.register_function("before_tool", policy, inline=True, sequential=True)
    registry.register_function("before_tool", lambda event: None, name="second", inline=True, sequential=True)
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:{Path(folder) / 'records.db'}"
        await fill(f"{address}?capture=before_tool", calls)
        with RecordReader.open(address) as reader:
            told: list[int] = []
            result = await Replay(reader, HookScope(registry), ReplayFilter()).run(told.append)
    assert told[-1] == result.calls == calls
    rate = result.calls / result.seconds
    print(
        f"{result.calls:,} calls in {result.seconds:.2f} s, progress told {len(told):,} times; {dict(result.by_target)}"
    )
    holds = rate >= BOUND
    print(f"{'ok  ' if holds else 'FAIL'}  recorded calls replayed a second{rate:>14,.0f}   at least {BOUND:,}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)))
