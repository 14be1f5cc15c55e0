"""Every event of a run fires from its real place, on every face."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_engine import Agent
from agent_engine.hooks import HookResult
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import payload_type
from agent_engine.hooks.registry import HookRegistry
from agent_engine.memory.store import MemoryStore
from agent_engine.models.errors import ModelError
from agent_engine.models.scripted import ScriptedModel
from agent_engine.runtime.limits import Limits

from .run_kit import RUN_EVENTS, Trace, call, listen


class Rarely(MemoryStore):
    """A store that loads and does not write."""

    async def append(self, key: Any, messages: Any) -> None:
        raise OSError("full")

    async def load(self, key: Any) -> Any:
        return [{"role": role, "content": "x" * 300} for role in ("user", "assistant") * 4]


def everything(registry: HookRegistry, *, fails: bool) -> Agent:
    """An agent whose one run goes through every event of a run."""

    async def work(kind: str = "ok") -> str:
        """Work."""
        if kind == "fail":
            raise ValueError("no")
        return "done"

    count = iter(range(100))

    def shape(seen: Any) -> None:
        for definition in seen.tool_definitions:
            definition["description"] = f"Different each time: {next(count)}."

    registry.register_function("before_tool_definitions", shape)
    registry.register_function("before_tool", lambda seen: HookResult.ask("?"), matcher="work", sequential=True)
    child = Agent("helper", "Helps.", model=ScriptedModel(["helped"]))
    busy = ModelError("busy", retryable=True, retry_after=0)
    turns: list[Any] = [
        busy,
        "a summary",
        call("work"),
        call("work", {"kind": "fail"}),
        call("helper", {"message": "help"}),
        ModelError("down"),
    ]
    last: list[Any] = [ModelError("also down")] if fails else ["answer"]
    return Agent(
        "all",
        "Help.",
        model=ScriptedModel(turns),
        fallback=[ScriptedModel(last)],
        tools=[work, child],
        hooks=registry,
        approver=lambda ask: True,
        store=Rarely(),
        limits=Limits(context_tokens=100),
    )


FACES = ("start", "chat", "achat", "stream", "astream")


async def play(agent: Agent, face: str) -> None:
    try:
        if face == "start":
            await asyncio.to_thread(agent.start, "go")
        elif face == "chat":
            agent.chat("go")
        elif face == "achat":
            await agent.achat("go")
        elif face == "stream":
            list(agent.stream("go"))
        else:
            [text async for text in agent.astream("go")]
    except ModelError:
        pass
    await agent.aclose()


@pytest.mark.parametrize("face", FACES)
async def test_every_event_fires(face: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    trace = Trace()
    for fails in (False, True):
        registry = HookRegistry()
        listen(registry, [*RUN_EVENTS, "setup"], trace)
        await play(everything(registry, fails=fails), face)
    missing = {event.value for event in (*RUN_EVENTS, HookEvent.SETUP)} - set(trace.names)
    assert missing == set()
    for name, payload in trace.rows:
        assert isinstance(payload, payload_type(name)), name
        if name != "on_run_error":
            payload.to_dict()
    for closing in ("after_tool", "after_llm", "after_agent"):
        assert all(payload.status for payload in trace.of(closing))
    ids = {
        payload.run_id
        for name, payload in trace.rows
        if name.startswith(("before_", "after_")) and getattr(payload, "run_id", None)
    }
    assert len(ids) == 2
