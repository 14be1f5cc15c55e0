"""Run as a process of its own and killed: a thousand runs of a real engine at once, recorded to a store."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.runtime.engine_kit import project

from agent_engine import Engine, Limits, RunContext
from agent_engine.hooks import HookRegistry
from agent_engine.models.base import Message, ModelResponse, ToolCall
from agent_engine.records.journal import open_journal
from agent_engine.records.settings import RecordSettings

RUNS = 1000
AGENTS = """
    system: {name: busy}
    agents:
      clerk: {description: Looks things up., tools: [look]}
    tools: {look: Look something up.}
    graph: {clerk: {}}
"""
TOOL = """
    import asyncio


    async def look(what: str) -> str:
        await asyncio.sleep(0)
        return f"{what}: nothing"
"""


class Endless:
    """A model that calls the tool again and again, except where it is asked to end."""

    name = "endless"
    provider = "test"

    async def request(self, messages: Sequence[Message], tools: Any, settings: Any) -> ModelResponse:
        if any(message["content"] == "end" for message in messages):
            return ModelResponse("done")
        number = len(messages)
        return ModelResponse("", (ToolCall(f"c{number}", "look", {"what": f"thing {number}"}),))

    def stream(self, *_: Any) -> Any:
        raise NotImplementedError


async def main(address: str, folder: str) -> None:
    registry = HookRegistry()
    for event in ("before_agent", "before_llm", "before_tool", "after_tool"):
        registry.register_function(event, lambda _: None, name=f"watch {event}", inline=True, sequential=True)
    path = project(Path(folder), AGENTS, {"plugins/tools/look.py": TOOL})
    journal = open_journal(address, settings=RecordSettings(audit=True, batch_s=0.01))
    limits = Limits(model_calls=None, tool_calls=None)
    async with Engine.from_yaml(path, model=Endless(), hooks=registry, records=journal, limits=limits) as engine:
        await engine.run("end", RunContext(run_id="finished"))
        print("ready", flush=True)
        await asyncio.gather(*(engine.run("go", RunContext(run_id=f"run-{number}")) for number in range(RUNS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
