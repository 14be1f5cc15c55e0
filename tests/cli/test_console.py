"""Asking a person at the terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.runtime.engine_kit import engine, project

from agent_engine.cli.console import TerminalApprover

YAML = """
system: {name: demo}
agents: {clerk: {tools: [pay]}}
tools: {pay: {description: Pays., approval: required}}
graph: {clerk: }
"""
PAY = "def pay(to: str) -> str:\n    raise AssertionError('nobody said yes')\n"


@pytest.mark.parametrize("face", ["run", "stream"])
async def test_after_a_q_nothing_goes_on_and_nothing_else_is_asked(tmp_path: Path, face: str) -> None:
    asked: list[str] = []
    going: list[asyncio.Task[None]] = []

    async def read(prompt: str) -> str:
        asked.append(prompt)
        return "q"

    async def room(ask: object) -> None:
        return None

    approver = TerminalApprover(room, lambda: going[0].cancel(), read)
    calls = [{"id": name, "name": "pay", "arguments": {"to": name}} for name in ("ann", "bob")]
    built, model = engine(
        project(tmp_path, YAML, {"plugins/tools/pay.py": PAY}), [{"tool_calls": calls}, "paid"], approver=approver
    )

    async def go() -> None:
        if face == "run":
            await built.run("pay them")
            return
        async for _ in built.stream("pay them"):
            pass

    async with built:
        going.append(asyncio.create_task(go()))
        with pytest.raises(asyncio.CancelledError):
            await going[0]
    assert len(asked) == 1
    assert len(model.requests) == 1, "the model was not asked to go on"
