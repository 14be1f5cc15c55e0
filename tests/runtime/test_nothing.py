"""A hook that does nothing changes nothing: not a word, not a token, not the order."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from agent_engine import Agent
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.registry import HookRegistry
from agent_engine.models.base import ToolCall
from agent_engine.models.scripted import ScriptedModel, Turn
from agent_engine.tools.result import plain

from .run_kit import RUN_EVENTS, Made, call, made, node_of


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


def nothing(registry: HookRegistry, *, listens: bool) -> Counter[str]:
    """A hook that does nothing on each event of a run, be it that it only listens; how often each was called."""
    called: Counter[str] = Counter()

    def hook(event: HookEvent) -> Any:
        def does_nothing(seen: Any) -> Any:
            called[event.value] += 1
            return seen if event is HookEvent.TRANSFORM_TOOL_RESULT else None

        async def hears(seen: Any) -> None:
            called[event.value] += 1

        return hears if listens else does_nothing

    for event in RUN_EVENTS:
        registry.register_function(event, hook(event), observe=listens, sequential=listens or None)
    return called


def one_run(registry: HookRegistry, face: str) -> Made:
    child = node_of([call("work", {"n": 2}), "from the child"], [work], name="child")
    options: dict[str, Any] = {"registry": registry, "children": (child,)}
    if face == "resumed":
        options.update(approver="later", needs_approval=True)
    if face == "fallback":
        spare = ScriptedModel(script())
        one = made([ValueError("down")], [work], fallback=[spare], **options)
        one.model = spare
        return one
    return made(script(), [work], **options)


def agent(registry: HookRegistry) -> tuple[Agent, ScriptedModel]:
    child = Agent("child", model=ScriptedModel([call("work", {"n": 2}), "from the child"]), tools=[work])
    model = ScriptedModel(script())
    return Agent("root", "You help.", model=model, tools=[work, child], hooks=registry), model


async def told(registry: HookRegistry, face: str) -> str:
    """Everything a caller and a model can see of a run."""
    if face in ("start", "chat", "achat", "stream of an agent", "astream"):
        whole, model = agent(registry)
        said = await spoken(whole, face)
        return json.dumps(plain([said, _requests(model), None]), sort_keys=True)
    one = one_run(registry, face)
    if face == "direct":
        outcomes = [await one.direct("work", {"n": n}) for n in (1, 13)]
        return json.dumps(plain([(outcome.status, outcome.text, outcome.value) for outcome in outcomes] + [None]))
    events: list[Any] = []
    if face == "stream":
        events = [event for event in await one.events("go") if event.type != "hook"]
        result = events[-1].result
        shown = [
            (event.type, {key: value for key, value in event.data.items() if key != "duration_ms"}) for event in events
        ]
    else:
        result = await one.run("go")
        while result.status == "waiting":
            result = await one.resume(result.run_id, {ask.call_id: "yes" for ask in result.pending})
        shown = []
    text = [result.output, result.usage, result.messages, result.visited, _requests(one.model)]
    return json.dumps(plain([*text, shown if face == "stream" else None]), sort_keys=True).replace(result.run_id, "RUN")


async def spoken(whole: Agent, face: str) -> str:
    if face == "start":
        return str(await asyncio.to_thread(whole.start, "go"))
    if face == "chat":
        return str(whole.chat("go"))
    if face == "achat":
        return str(await whole.achat("go"))
    if face == "astream":
        return "".join([text async for text in whole.astream("go")])
    return "".join(whole.stream("go"))


def _requests(model: ScriptedModel) -> list[Any]:
    return [(request.messages, request.tools, request.settings) for request in model.requests]


IN_A_CALL = {
    "on_run_start",
    "before_tool",
    "before_tool_call",
    "transform_tool_result",
    "after_tool",
    "after_tool_call",
    "on_tool_error",
    "on_error",
    "on_run_end",
}
IN_A_RUN = IN_A_CALL | {
    "session_start",
    "user_prompt_submit",
    "before_agent",
    "before_tool_definitions",
    "before_llm",
    "on_llm_delta",
    "after_llm",
    "subagent_stop",
    "after_agent",
}
ALSO = {"fallback": {"model_fallback"}, "resumed": {"on_permission_ask", "notification"}}
FACES = ["run", "stream", "fallback", "resumed", "direct", "start", "chat", "achat", "stream of an agent", "astream"]


@pytest.mark.parametrize("listens", [False, True], ids=["nothing", "listening"])
@pytest.mark.parametrize("face", FACES)
async def test_byte_for_byte_the_same(face: str, listens: bool) -> None:
    """Fault 14."""
    bare = await told(HookRegistry(), face)
    registry = HookRegistry()
    called = nothing(registry, listens=listens)
    hooked = await told(registry, face)
    assert (IN_A_CALL if face == "direct" else IN_A_RUN) | ALSO.get(face, set()) <= set(called)
    if face == "stream" and not listens:
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
    bare = _ready(await told(HookRegistry(), face))
    for sequential in (True, False):
        registry = HookRegistry()
        for event in ("before_agent", "before_llm", "after_llm", "before_tool", "after_tool", "after_agent"):
            registry.register_function(event, lambda seen: None, sequential=sequential)
            registry.register_function(event, _silent, sequential=sequential)
        assert _ready(await told(registry, face)) == bare


async def _silent(seen: Any) -> None:
    return None


def _ready(shown: str) -> Any:
    return _joined(shown) if json.loads(shown)[-1] is not None else shown
