"""What a run costs, beside the same work in other frameworks, interleaved in one process.

Prints a table with a bound for each figure and exits 1 where one is passed. The other frameworks are the dependency
group ``bench``; where they are not installed here but in ``.venv-bench``, that interpreter is used.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import _peers
from tests.fakes.openai_server import FakeOpenAI, says

ROUNDS = 25
ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("agent_framework", "strands", "pydantic_ai", "praisonaiagents")

rows: list[tuple[str, str, str, bool]] = []


def row(what: str, figure: str, bound: str, holds: bool) -> None:
    rows.append((what, figure, bound, holds))
    print(f"{'ok  ' if holds else 'FAIL'}  {what:<58} {figure:>16}   {bound}", flush=True)


Work = Callable[[], Awaitable[Any]]


async def interleaved(
    works: dict[str, Work], rounds: int, each: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds for one piece of work, in rounds that take each in turn."""
    for work in works.values():
        await work()
        await work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began = clock()
            for _ in range(each):
                await work()
            times[name].append((clock() - began) / each)
    return times


def middle(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


async def one_run(calls: int, rounds: int) -> None:
    works: dict[str, Work] = {"agent-engine": _peers.make_agent_engine(calls)}
    works |= {name: make(calls) for name, make in _peers.PEERS.items()}
    for name, work in works.items():
        answer = await work()
        assert answer == _peers.ANSWER, f"{name} answered {answer!r}"
    took = middle(await interleaved(works, rounds, 4))
    own = took.pop("agent-engine")
    fastest = min(took, key=lambda name: took[name])
    ratio = own / took[fastest]
    told = ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in took.items())
    print(f"      {calls} tool call(s), µs a run: agent-engine {own * 1e6:.0f}, {told}")
    row(
        f"a run with {calls} tool call(s), part of the fastest's time",
        f"{ratio:.2f}",
        f"at most 0.50 of {fastest}",
        ratio <= 0.5,
    )


async def five_hooks(calls: int) -> None:
    """Five sequential async hooks on before_tool, records off: what they add for each time they fire.

    Of processor time, the least of many short rounds: what is measured is small beside what else a machine may do.
    """
    from agent_engine.hooks import HookRegistry

    async def silent(seen: Any) -> None:
        return None

    registry = HookRegistry()
    for _ in range(5):
        registry.register_function("before_tool", silent, sequential=True)
    works: dict[str, Work] = {
        "with": _peers.make_agent_engine(calls, registry),
        "without": _peers.make_agent_engine(calls, HookRegistry()),
    }
    times = await interleaved(works, 400 // calls, 5, clock=time.process_time)
    added = (min(times["with"]) - min(times["without"])) * 1e6 / calls
    row(
        f"five sequential async hooks, {calls} tool call(s), added a call",
        f"{added:.1f} µs",
        "at most 10 µs",
        added <= 10,
    )


async def together() -> None:
    """200 runs at once."""

    def at_once(make: Work) -> Work:
        async def work() -> None:
            answers = await asyncio.gather(*(make() for _ in range(200)))
            assert set(answers) == {_peers.ANSWER}

        return work

    works: dict[str, Work] = {"agent-engine": at_once(_peers.make_agent_engine_alone(1))}
    for name, make in _peers.PEERS.items():
        run = make(1)
        works[name] = at_once(getattr(run, "concurrent", run))
    took = middle(await interleaved(works, 4, 1))
    rates = {name: 200 / seconds for name, seconds in took.items()}
    own = rates.pop("agent-engine")
    fastest = max(rates, key=lambda name: rates[name])
    print(f"      runs a second: agent-engine {own:.0f}, " + ", ".join(f"{n} {rate:.0f}" for n, rate in rates.items()))
    row(
        "200 runs at once, times the fastest's rate",
        f"{own / rates[fastest]:.1f}",
        f"at least 2.0 of {fastest}",
        own >= 2 * rates[fastest],
    )


async def history() -> None:
    """The engine's own cost of a turn, by the length of the conversation before it."""
    works: dict[str, Work] = {str(length): _peers.make_turn_after(length) for length in (10, 100, 1000)}
    took = middle(await interleaved(works, 60, 5))
    growth = took["1000"] / took["10"]
    told = ", ".join(f"{length}: {seconds * 1e6:.0f}" for length, seconds in took.items())
    print(f"      µs a turn by messages of history: {told}")
    row("a turn after 1,000 messages, times one after 10", f"{growth:.2f}", "at most 1.25", growth <= 1.25)


def agents() -> None:
    from agent_engine import Agent

    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = [Agent(f"agent {number}", "You add.", tools=[_peers.add]) for number in range(1000)]
    size = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    tracemalloc.stop()
    row("memory of an agent with one tool", f"{size:.0f} bytes", "at most 2,048 bytes", size <= 2048)


PEER_IMPORTS = {
    "agent-framework-core": "agent_framework",
    "strands-agents": "strands",
    "pydantic-ai-slim": "pydantic_ai",
    "praisonaiagents": "praisonaiagents",
}
FIRST_ANSWERS = {
    "agent-engine": "from agent_engine import Agent; assert Agent(model='offline').start('hello')",
    **{
        name: f"import asyncio, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import _peers; "
        f"assert asyncio.run(_peers.PEERS[{name!r}](0)())"
        for name in _peers.PEERS
    },
    # It has no model in the process: its provider's client asks a server on this machine.
    "praisonaiagents": "from praisonaiagents import Agent; "
    "assert Agent(instructions='You add.', llm='fake').start('hello')",
}


def fresh_process(what: str, own: str, codes: dict[str, str], **environment: str) -> None:
    """Seconds of a fresh interpreter that runs a line of code, less those of one that runs nothing."""
    codes = {"nothing": "pass", "agent-engine": own, **codes}
    times: dict[str, list[float]] = {name: [] for name in codes}
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
    for number in range(6):
        for name, code in codes.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.DEVNULL)
            if number:
                times[name].append(time.perf_counter() - began)
    took = middle(times)
    empty = took.pop("nothing")
    took = {name: max(seconds - empty, 1e-4) for name, seconds in took.items()}
    mine = took.pop("agent-engine")
    fastest = min(took, key=lambda name: took[name])
    print(
        f"      {what}, ms: agent-engine {mine * 1e3:.0f}, " + ", ".join(f"{n} {s * 1e3:.0f}" for n, s in took.items())
    )
    row(
        f"{what}, in a fresh process",
        f"{mine * 1e3:.0f} ms",
        f"no longer than {fastest} ({took[fastest] * 1e3:.0f} ms)",
        mine <= took[fastest],
    )


async def main() -> int:
    logging.disable(logging.WARNING)
    print(f"{'':6}{'figure':<58} {'':>16}   bound")
    await one_run(1, ROUNDS)
    await one_run(10, ROUNDS // 2)
    await five_hooks(1)
    await five_hooks(10)
    await together()
    await history()
    agents()
    fresh_process("import", "import agent_engine", {name: f"import {module}" for name, module in PEER_IMPORTS.items()})
    own = FIRST_ANSWERS.pop("agent-engine")
    with FakeOpenAI(says(_peers.ANSWER)) as fake:
        server = {"OPENAI_BASE_URL": fake.base_url, "OPENAI_API_KEY": "none", "PRAISONAI_TELEMETRY_DISABLED": "true"}
        fresh_process("the first offline answer", own, FIRST_ANSWERS, **server)
    failed = [what for what, _, _, holds in rows if not holds]
    return 1 if failed else 0


def elsewhere() -> str | None:
    """The interpreter that has the other frameworks, where this one has not."""
    if all(importlib.util.find_spec(name) is not None for name in NEEDED):
        return None
    other = ROOT / ".venv-bench" / "bin" / "python"
    if not other.exists():
        sys.exit(
            "The other frameworks are not installed: make a .venv-bench with `.` and the dependency group 'bench'."
        )
    return str(other)


if __name__ == "__main__":
    interpreter = elsewhere()
    if interpreter is not None and sys.executable != interpreter:
        raise SystemExit(subprocess.call([interpreter, __file__]))
    raise SystemExit(asyncio.run(main()))
