"""A hook that does nothing changes nothing: not a word, not a token, not the order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_engine.hooks.registry import HookRegistry
from agent_engine.models.base import ToolCall
from agent_engine.models.scripted import ScriptedModel, Turn
from agent_engine.tools.result import plain

from .run_kit import Made, call, listen, made, node_of, nothing


async def work(n: int = 0, deep: dict[str, Any] | None = None) -> Any:
    """Work."""
    if n == 13:
        raise ValueError("unlucky")
    return {"n": n, "deep": deep, "list": [1, {"x": (1, 2)}]}


def turns() -> list[Any]:
    native = {"parts": [{"type": "thinking", "signature": "abc"}]}
    return [
        Turn(
            text="let me see",
            tool_calls=[ToolCall("a", "work", {"n": 1, "deep": {"k": [1, 2]}}), ToolCall("b", "work", {"n": 13})],
            native=native,
            usage={"input_tokens": 5, "output_tokens": 3},  # type: ignore[arg-type]  # read below
        ),
        call("child", {"message": "help"}, "c"),
        call("nowhere", {}, "d"),
        {"stream": ["the ", "answer"], "usage": {"input_tokens": 7, "output_tokens": 1}},
    ]


def script() -> list[Any]:
    first, *rest = turns()
    from agent_engine.models.base import Usage

    first.usage = Usage(5, 3)
    return [first, *rest]


def one_run(registry: HookRegistry, *, fallback: bool = False) -> Made:
    child = node_of([call("work", {"n": 2}), "from the child"], [work], name="child")
    options: dict[str, Any] = {"registry": registry, "children": (child,)}
    if fallback:
        spare = ScriptedModel(script())
        one = made([ValueError("down")], [work], fallback=[spare], **options)
        one.model = spare
        return one
    return made(script(), [work], **options)


async def told(one: Made, face: str) -> str:
    """Everything a caller and a model can see of a run."""
    events: list[Any] = []
    if face == "stream":
        events = [event for event in await one.events("go") if event.type != "hook"]
        result = events[-1].result
        shown = [
            (event.type, {key: value for key, value in event.data.items() if key != "duration_ms"}) for event in events
        ]
    else:
        result = await one.run("go")
        shown = []
    requests = [(request.messages, request.tools, request.settings) for request in one.model.requests]
    text = [result.output, result.usage, result.messages, result.visited, requests, shown if face == "stream" else None]
    return json.dumps(plain(text), sort_keys=True).replace(result.run_id, "RUN")


@pytest.mark.parametrize("face", ["run", "stream", "fallback"])
async def test_byte_for_byte_the_same(face: str) -> None:
    """Fault 14."""
    bare = await told(one_run(HookRegistry(), fallback=face == "fallback"), face)
    for prepare in (nothing, listen):
        registry = HookRegistry()
        prepare(registry)
        hooked = await told(one_run(registry, fallback=face == "fallback"), face)
        if prepare is nothing and face == "stream":
            # Hooks that may refuse hold the text back: it comes in one piece, and is the same text.
            assert _joined(hooked) == _joined(bare)
        else:
            assert hooked == bare


def _joined(shown: str) -> Any:
    """What was told, with the texts of a stream as one, and the events of calls that ran side by side call by call."""
    *rest, events = json.loads(shown)
    text = "".join(data["text"] for kind, data in events if kind == "text")
    others = [event for event in events if event[0] != "text"]
    return [*rest, text, sorted(others, key=lambda event: event[1].get("call_id", "~"))]


@pytest.mark.parametrize("face", ["run", "stream"])
async def test_sequential_and_parallel_alike(face: str) -> None:
    bare = _ready(await told(one_run(HookRegistry()), face))
    for sequential in (True, False):
        registry = HookRegistry()
        for event in ("before_agent", "before_llm", "after_llm", "before_tool", "after_tool", "after_agent"):
            registry.register_function(event, lambda seen: None, sequential=sequential)
            registry.register_function(event, _silent, sequential=sequential)
        assert _ready(await told(one_run(registry), face)) == bare


async def _silent(seen: Any) -> None:
    return None


def _ready(shown: str) -> Any:
    return _joined(shown) if json.loads(shown)[-1] is not None else shown
