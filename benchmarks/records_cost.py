"""What recording costs: processor time a record, how long it holds the loop, what it leaves of the throughput.

The run that is measured is the one of ``benchmarks/run.py``: one tool call, five sequential async hooks on before_tool,
a model in the process. Sides are run in turns, and the medians of the rounds are compared. Exit code 1 beyond a bound.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import _peers

from agent_engine import Agent
from agent_engine.hooks import HookRegistry
from agent_engine.hooks.scope import HookScope
from agent_engine.models.base import ModelSettings
from agent_engine.records.journal import Journal, open_journal
from agent_engine.runtime.host import Host
from agent_engine.runtime.node import Node
from agent_engine.runtime.run import run_request
from agent_engine.tools.function import tool_of

Run = Callable[[], Awaitable[None]]

RECORD_BOUND_US = 40.0
HELD_BOUND_MS = 1.0
THROUGHPUT_BOUND = 1 / 3
HOOKS = 5
ENTRIES = 10 + HOOKS
"""Entries of one run: it opens and closes, and so do its turn, two model calls and the tool call; and the hooks."""
RUNS = 200
ROUNDS = 11


async def silent(_: Any) -> None:
    return None


def side(journal: Journal | None, hooks: int) -> Run:
    """One request to an agent. An Agent records nothing by itself; the core that it shares with an Engine does."""
    registry = HookRegistry()
    for number in range(hooks):
        registry.register_function("before_tool", silent, name=f"hook{number}", sequential=True)
    agent = Agent("calc", "You add.", model=_peers.Fake(1), tools=[_peers.add], hooks=registry)
    host: Any = None

    async def run() -> None:
        nonlocal host
        if host is None:
            await agent.arun("Hello")
            host = agent._host
            host.journal = journal
        await agent.aend_session()
        await agent.arun("What is 1 + 2?")

    return run


async def timed(run: Run, journal: Any, number: int) -> tuple[float, float]:
    """Seconds of wall and of processor time (all threads) for one run, until its entries are on the disk."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(number):
        await run()
    if journal is not None:
        await journal.flush()
    return (time.perf_counter() - wall) / number, (time.process_time() - processor) / number


def row(what: str, figure: str, bound: str, holds: bool) -> bool:
    print(f"{'ok  ' if holds else 'FAIL'}  {what:<62} {figure:>14}   {bound}", flush=True)
    return holds


class Sides:
    """The same run with and without hooks, with and without records."""

    def __init__(self, folder: Path) -> None:
        self.journals: dict[str, Journal | None] = {
            "off": None,
            "on": open_journal(f"sqlite:{folder / 'on.db'}"),
            "no digests": open_journal(f"sqlite:{folder / 'plain.db'}?digests=off"),
        }
        self.runs = {(name, hooks): side(one, hooks) for name, one in self.journals.items() for hooks in (0, HOOKS)}
        self.wall: dict[tuple[str, int], list[float]] = {name: [] for name in self.runs}
        self.processor: dict[tuple[str, int], list[float]] = {name: [] for name in self.runs}

    async def measure(self) -> None:
        for journal in self.journals.values():
            if journal is not None:
                await journal.start()
        for round_ in range(ROUNDS + 1):
            for name, run in self.runs.items():
                wall, processor = await timed(run, self.journals[name[0]], RUNS)
                if round_:  # the first one warms up
                    self.wall[name].append(wall)
                    self.processor[name].append(processor)
        for journal in self.journals.values():
            if journal is not None:
                await journal.stop()

    def added(self, name: str, hooks: int) -> float:
        """Microseconds of processor time that recording adds to a run."""
        pairs = zip(self.processor[name, hooks], self.processor["off", hooks], strict=True)
        return statistics.median(on - off for on, off in pairs) * 1e6

    def report(self) -> bool:
        holds = True
        for name in ("on", "no digests"):
            each = self.added(name, HOOKS) / ENTRIES
            record = (self.added(name, HOOKS) - self.added(name, 0)) / HOOKS
            what = "digests included" if name == "on" else "without digests"
            bound = f"at most {RECORD_BOUND_US:.0f} µs"
            holds &= row(
                f"processor time a decision record, {what}", f"{record:.1f} µs", bound, record <= RECORD_BOUND_US
            )
            holds &= row(f"... an entry of any kind, {what}", f"{each:.1f} µs", bound, each <= RECORD_BOUND_US)
        off, on = (statistics.median(self.wall[name, HOOKS]) for name in ("off", "on"))
        print(f"      a run with {HOOKS} hooks: {off * 1e6:.0f} µs without records, {on * 1e6:.0f} µs with")
        share = statistics.median(
            without / with_ for without, with_ in zip(self.wall["off", HOOKS], self.wall["on", HOOKS], strict=True)
        )
        holds &= row("throughput that is left", f"{share:.2f}", "at least 0.33", share >= THROUGHPUT_BOUND)
        return holds


class Lookout:
    """How long the writer's thread kept the loop's from going on, at the longest.

    Hooks and tools look at the clocks again and again while runs are recorded. Between two looks the loop's thread
    computes, waits for a processor (the kernel says how long), or waits for the interpreter's lock; the last counts, as
    far as the writer's thread computed meanwhile.
    """

    def __init__(self, writer: int) -> None:
        self._clock = time.pthread_getcpuclockid(writer)
        self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._last = self._now()
        self.looks = 0
        self.worst = 0.0

    def _now(self) -> tuple[float, float, float]:
        queued = int(os.pread(self._file, 99, 0).split()[1]) / 1e9
        return time.perf_counter() - time.thread_time() - queued, time.clock_gettime(self._clock), queued

    def look(self) -> None:
        now = self._now()
        waited = min(now[0] - self._last[0], now[1] - self._last[1])
        self.looks += 1
        self.worst = max(self.worst, waited)
        self._last = now

    def resume(self) -> None:
        """The loop had nothing to do since the last look."""
        self._last = self._now()

    def close(self) -> None:
        os.close(self._file)


async def watched(address: str) -> Lookout:
    """A thousand runs and more, fifty at a time, with a lookout in each hook; they are never asked to wait."""
    journal: Any = open_journal(f"{address}?queue=1000000")
    await journal.start()
    lookout = Lookout(journal._thread.ident)
    registry = HookRegistry()
    for point in ("user_prompt_submit", "before_agent", "before_llm", "after_llm", "before_tool", "after_tool"):
        registry.register_function(point, lambda _: lookout.look(), name=point, inline=True, sequential=True)
    host = Host(system_name="bench", scope=HookScope(registry, with_default=False), journal=journal)
    node = Node(
        name="calc", prompt="You add.", models=((_peers.Fake(1), ModelSettings()),), tools=(tool_of(_peers.add),)
    )
    for _ in range(25):
        await asyncio.gather(*(run_request(node, "What is 1 + 2?", host=host) for _ in range(50)))
        lookout.look()
        await asyncio.sleep(0.002)
        lookout.resume()
    await journal.stop()
    lookout.close()
    return lookout


async def longest_hold(folder: Path) -> bool:
    """The best of five: what the writer does it does each time, a hiccup of the machine does not come back.

    The collector is off: its pauses are the interpreter's, and grow with all that the program holds.
    """
    gc.collect()
    gc.disable()
    found = [await watched(f"sqlite:{folder / f'held{number}.db'}") for number in range(5)]
    gc.enable()
    worst = min(one.worst for one in found) * 1000
    what = f"longest that the writer kept the loop, of {found[0].looks:,} looks"
    return row(what, f"{worst:.2f} ms", f"under {HELD_BOUND_MS:.0f} ms", worst < HELD_BOUND_MS)


async def nothing_when_off() -> bool:
    """With recording off, no object of any class of the records is made, and nothing of them is even imported."""
    from agent_engine.hooks import result
    from agent_engine.records import journal

    kinds = [
        journal.RunOpened,
        journal.RunClosed,
        journal.StepOpened,
        journal.StepClosed,
        journal.HookRan,
        result.HookRun,
    ]
    made: dict[str, int] = {}
    originals = {kind: kind.__init__ for kind in kinds}

    def counting(kind: Any) -> Any:
        def init(self: Any, *arguments: Any, **named: Any) -> None:
            made[kind.__name__] = made.get(kind.__name__, 0) + 1
            originals[kind](self, *arguments, **named)

        return init

    for kind in kinds:
        kind.__init__ = counting(kind)  # type: ignore[method-assign]  # put back below
    try:
        run = side(None, HOOKS)
        for _ in range(100):
            await run()
        off = dict(made)
        recorded = side(journal.MemoryJournal(), HOOKS)
        await recorded()
    finally:
        for kind, original in originals.items():
            kind.__init__ = original  # type: ignore[method-assign]  # as it was
    assert sum(made.values()) == ENTRIES + HOOKS, made
    return row("objects made for records in 100 runs with recording off", f"{sum(off.values())}", "0", not off)


async def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        sides = Sides(Path(name))
        await sides.measure()
        holds = sides.report()
        holds &= await longest_hold(Path(name))
    holds &= await nothing_when_off()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
