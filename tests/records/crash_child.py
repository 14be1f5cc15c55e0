"""Run as a process of its own and killed: many runs at once, recorded to a store, until the end."""

from __future__ import annotations

import asyncio
import sys
from itertools import chain

from tests.records.build import hook_run, payload, run, tool_step

from agent_engine.records.journal import Journal, open_journal
from agent_engine.records.settings import RecordSettings

BODY = payload(q="x" * 50)
HOOKS = [hook_run(before=BODY)] * 3


async def one(journal: Journal, number: int) -> None:
    run_id = f"run-{number}"
    steps = (tool_step(run_id, f"t{step}", hooks=HOOKS) for step in range(10_000))
    for entries in chain([run(run_id, closed=False)], steps):
        if journal.full:
            await journal.room()
        for entry in entries:
            journal.write(entry)
        await asyncio.sleep(0)


async def main(address: str, audit: bool) -> None:
    journal = open_journal(address, settings=RecordSettings(audit=audit, batch_s=0.01))
    assert journal is not None
    await journal.start()
    # A whole run at first, so that something has ended.
    for entry in run("finished", tool_step("finished", hooks=[hook_run()])):
        journal.write(entry)
    print("ready", flush=True)
    await asyncio.gather(*(one(journal, number) for number in range(1000)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] == "audit"))
