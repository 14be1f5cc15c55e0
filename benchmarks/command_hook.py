"""What a command hook costs: a whole dispatch of one, against the bare start of the same process and exchange with it.

Bare is what a program on an event loop does without us, asyncio's own subprocess; a blocking ``subprocess.run``, which
no loop can afford, stands beside it to compare. The sides run in turns, and medians are compared. Exit code 1 where a
ratio is over its bound.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from subprocess import PIPE
from typing import Any

from agent_engine.hooks import HookEvent, HookRegistry
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.scope import HookScope
from agent_engine.hooks.site import Site

BOUND = 1.2
ROUNDS = 151
PYTHON = "import json,sys; json.load(sys.stdin); print(json.dumps({'decision': 'allow'}))"
CASES: dict[str, dict[str, Any]] = {
    "a shell line (cat > /dev/null)": {"command": "cat > /dev/null"},
    "a program (/bin/true)": {"args": ["/bin/true"]},
    "a Python script that reads and answers": {"args": [sys.executable, "-S", "-E", "-c", PYTHON]},
}


def payload() -> BeforeToolInput:
    return BeforeToolInput(
        tool_name="search", tool_input={"q": "a question of ordinary length", "limit": 10}, call_id="1"
    )


async def bare(arguments: list[str], document: bytes) -> float:
    start = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    await process.communicate(document)
    took = time.perf_counter() - start
    assert process.returncode == 0, process
    return took


async def blocking(arguments: list[str], document: bytes) -> float:
    start = time.perf_counter()
    done = subprocess.run(arguments, input=document, capture_output=True)  # noqa: ASYNC221 - it is measured
    took = time.perf_counter() - start
    assert done.returncode == 0, done
    return took


async def ours(plan: Any) -> float:
    one, site = payload(), Site()
    start = time.perf_counter()
    verdict = await plan.dispatch(one, site)
    took = time.perf_counter() - start
    assert verdict.decision == "allow", verdict
    return took


async def measure(fields: dict[str, Any]) -> list[float]:
    """Median milliseconds of ours, of the bare way and of the blocking one."""
    registry = HookRegistry()
    registry.register_command("before_tool", **fields)
    plan = HookScope(registry, with_default=False).plan(HookEvent.BEFORE_TOOL, "search")
    arguments = fields.get("args") or ["/bin/sh", "-c", fields["command"]]
    document = json.dumps(payload().to_dict()).encode()
    sides: list[Callable[[], Awaitable[float]]] = [
        lambda: ours(plan),
        lambda: bare(arguments, document),
        lambda: blocking(arguments, document),
    ]
    found: list[list[float]] = [[], [], []]
    for number in range(ROUNDS):
        for turn in range(3):
            side = (number + turn) % 3
            found[side].append(await sides[side]())
    return [statistics.median(times[3:]) * 1000 for times in found]


def main() -> int:
    print(
        f"{'one command hook':<42}{'ours ms':>9}{'bare ms':>9}{'ratio':>8}{'bound':>8}{'blocking ms':>13}{'ratio':>8}"
    )
    over = False
    for name, fields in CASES.items():
        mine, theirs, run = asyncio.run(measure(fields))
        ratio = mine / theirs
        over = over or ratio > BOUND
        mark = "  over" if ratio > BOUND else ""
        print(f"{name:<42}{mine:>9.2f}{theirs:>9.2f}{ratio:>8.2f}{BOUND:>8.2f}{run:>13.2f}{mine / run:>8.2f}{mark}")
    return int(over)


if __name__ == "__main__":
    raise SystemExit(main())
