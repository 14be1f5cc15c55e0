"""One door each: a tool body and a model are reached at one place in the code, and at no other when it runs."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_engine
from agent_engine import Agent
from agent_engine.models.base import ModelResponse, ToolCall
from agent_engine.models.errors import ModelError
from agent_engine.models.scripted import ScriptedModel
from agent_engine.runtime.limits import Limits
from agent_engine.tools.base import Tool
from agent_engine.tools.function import FunctionTool

from .run_kit import call, made, node_of

PACKAGE = Path(agent_engine.__file__).parent
MODEL_DOOR = "runtime/model_call.py"
TOOL_DOOR = "runtime/tool_call.py"


@functools.cache
def calls_in_the_package() -> dict[str, set[tuple[str, str]]]:
    """Method name -> where it is called: the module, and what it is called on."""
    found: dict[str, set[tuple[str, str]]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                site = (path.relative_to(PACKAGE).as_posix(), ast.unparse(node.func.value))
                found.setdefault(node.func.attr, set()).add(site)
    return found


# Methods of the same names on things that are neither tool nor model.
HTTP_API_RUNS = ("server/api.py", "runs")
MIDDLEWARE_REQUEST = ("runtime/model_hooks.py", "self")
MODEL_HOOKS = ("runtime/model_call.py", "self.hooks")


def test_a_tool_body_is_called_at_its_door_alone() -> None:
    assert calls_in_the_package()["invoke"] - {HTTP_API_RUNS} == {(TOOL_DOOR, "self.tool")}


def test_a_model_is_called_at_its_door_alone() -> None:
    """Adapters in models/ hand on to the client they wrap, and others call HTTP clients and engines by such names."""
    sites = calls_in_the_package()
    asked = {site for site in sites["request"] if site[0].startswith(("runtime/", "agent.py", "memory/", "tools/"))}
    assert asked - {MIDDLEWARE_REQUEST, MODEL_HOOKS} == {(MODEL_DOOR, "hooks.model")}
    streamed = {site for site in sites["stream"] if site[0].startswith(("runtime/", "agent.py", "memory/", "tools/"))}
    assert streamed == {(MODEL_DOOR, "hooks.model")}


def stack() -> Iterator[str]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def at_door(door: str) -> bool:
    return any(name.endswith(door) for name in stack())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Every tool body and model of the package, wrapped: each call looks for the door on its stack."""
    counts = {"tool": 0, "model": 0}

    def wrap_tool(kind: type[Tool]) -> None:
        body = kind.invoke

        async def invoke(self: Any, arguments: Any, invocation: Any) -> Any:
            assert at_door(TOOL_DOOR), "a tool body was reached outside its door"
            counts["tool"] += 1
            return await body(self, arguments, invocation)

        monkeypatch.setattr(kind, "invoke", invoke)

    wrap_tool(FunctionTool)
    ask = ScriptedModel._next

    async def asked(self: Any, *arguments: Any, **options: Any) -> Any:
        assert at_door(MODEL_DOOR), "a model was reached outside its door"
        counts["model"] += 1
        return await ask(self, *arguments, **options)

    monkeypatch.setattr(ScriptedModel, "_next", asked)
    return counts


async def work(n: int = 0) -> int:
    """Work."""
    return n


async def test_every_face_goes_through_the_doors(watched: dict[str, int]) -> None:
    def agent(**options: Any) -> Agent:
        options.setdefault("model", ScriptedModel([call("work"), "answer"]))
        return Agent("a", "Help.", tools=[work], **options)

    agent().start("go")
    agent().chat("go")
    await agent().achat("go")
    await agent().arun("go")
    list(agent().stream("go"))
    [text async for text in agent().astream("go")]
    await agent().acall_tool("work", {"n": 1})
    await agent(model=ScriptedModel([ModelError("down")]), fallback=[ScriptedModel([call("work"), "answer"])]).arun(
        "go"
    )
    child = node_of([call("work"), "done"], [work], name="child")
    for key in ("children", "handoffs"):
        await made([call("child", {"message": "go"}), "answer"], **{key: (child,)}).run()
        child = node_of([call("work"), "done"], [work], name="child")
    assert watched["tool"] == 10
    assert watched["model"] >= 17


async def test_the_engines_own_model_calls_go_through_the_door(watched: dict[str, int]) -> None:
    one = made(["a summary", "answer"], limits=Limits(context_tokens=50))
    heard: list[Any] = []
    one.registry.register_function(
        "before_llm", lambda payload: heard.append(payload.messages) or None, sequential=True
    )
    history = [{"role": role, "content": "x" * 200} for role in ("user", "assistant") * 4]
    await one.run(history=history)
    assert watched["model"] == 2
    assert "Summarize" in str(heard[0])


async def test_a_model_of_the_users_own_is_reached_at_the_door_too() -> None:
    class Own:
        name = "own"
        provider = "own"

        async def request(self, messages: Any, tools: Any, settings: Any) -> ModelResponse:
            assert at_door(MODEL_DOOR)
            return (
                ModelResponse("hello") if messages[-1]["role"] == "tool" else ModelResponse("", [ToolCall("", "work")])
            )

        def stream(self, messages: Any, tools: Any, settings: Any) -> Any:
            raise NotImplementedError

    assert await Agent("a", model=Own(), tools=[work]).achat("go") == "hello"
