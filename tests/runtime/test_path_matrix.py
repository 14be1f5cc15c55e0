"""No path skips a hook: every face, with every decision, registered in every way. The cells are generated."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_engine import Agent, Engine
from agent_engine.hooks import HookResult, add_hook, get_default_registry, remove_hook
from agent_engine.hooks.errors import HookExecutionError
from agent_engine.hooks.process import run_process
from agent_engine.hooks.registry import HookRegistry
from agent_engine.models.errors import ModelError
from agent_engine.models.scripted import ScriptedModel

from .engine_kit import project
from .run_kit import call

LIMIT = 0.1
REASON = "not on my watch"
DECISIONS = ("deny", "modify", "observe", "raise", "time out")
WAYS = ("yaml", "decorator", "registry", "command")


@dataclass
class Cell:
    """One cell: the tool's body, the gate before it, and what the face says afterwards."""

    folder: Path
    decision: str
    way: str
    bodies: list[str]
    gate_calls: list[str]
    registry: HookRegistry
    model: ScriptedModel | None = None

    def turns(self) -> list[Any]:
        return [call("work", {"target": "original"}), "answer"]

    def scripted(self, turns: list[Any] | None = None) -> ScriptedModel:
        self.model = ScriptedModel(self.turns() if turns is None else turns)
        return self.model

    def agent(self, **options: Any) -> Agent:
        if "model" not in options:
            options["model"] = self.scripted()
        options.setdefault("tools", [self.tool()])
        return Agent("face", "Help.", hooks=self.registry, **options)

    def tool(self) -> Callable[..., Any]:
        bodies = self.bodies

        async def work(target: str) -> str:
            """Work on a target."""
            bodies.append(target)
            return f"worked on {target}"

        return work

    def engine(
        self,
        graph: str = "graph: {leaf: }",
        turns: list[Any] | None = None,
        hooks: HookRegistry | None = None,
        **options: Any,
    ) -> Engine:
        head = "" if self.way != "yaml" else self.hooks_yaml()
        path = project(
            self.folder,
            "system: {name: matrix}\n"
            "agents:\n  leaf: {description: Works., tools: [work]}\n"
            "orchestrators:\n  top: {description: Routes., prompts: {orchestrator: r.md}}\n"
            f"tools: {{work: Works.}}\n{graph}\n{head}",
            {
                "r.md": "Route.",
                "plugins/tools/work.py": "import matrix_cell\n\n"
                "async def work(target: str) -> str:\n"
                "    matrix_cell.bodies.append(target)\n"
                "    return f'worked on {target}'\n",
            },
        )
        if "top" not in graph:
            path.write_text(
                path.read_text().replace(
                    "orchestrators:\n  top: {description: Routes., prompts: {orchestrator: r.md}}\n", ""
                )
            )
        if self.way != "yaml":
            hooks = self.registry
        return Engine.from_yaml(path, model=self.scripted(turns), hooks=hooks, **options)

    def hooks_yaml(self) -> str:
        observe = "true" if self.decision == "observe" else "false"
        gate = f"{{ref: 'matrix_cell:gate', matcher: work, timeout: {LIMIT}, observe: {observe}}}"
        return f"hooks:\n  before_tool:\n    - {gate}\n"

    def command(self) -> str:
        note = f"echo called >> {self.folder}/gate; "
        return (
            note
            + {
                "deny": f"echo '{REASON}' >&2; exit 2",
                "modify": """echo '{"decision": "modify", "modified_input": {"target": "changed"}}'""",
                "observe": f"echo '{REASON}' >&2; exit 2",
                "raise": "exit 1",
                "time out": "sleep 600",
            }[self.decision]
        )

    def asked_gate(self) -> int:
        file = self.folder / "gate"
        if file.exists():
            assert len(file.read_text().split()) == len(self.gate_calls)
        return len(self.gate_calls)


async def gate(decision: str, seen: Any) -> Any:
    if decision in ("deny", "observe"):  # whoever only watches may say what they like
        return HookResult.deny(REASON)
    if decision == "modify":
        return HookResult.modify(target="changed")
    if decision == "raise":
        raise PermissionError("the gate broke")
    if decision == "time out":
        await asyncio.Event().wait()
    return None


@pytest.fixture
def cell(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    decision, way = request.param
    registry = HookRegistry()
    one = Cell(tmp_path, decision, way, [], [], registry)

    async def function(payload: Any) -> Any:
        one.gate_calls.append(payload.tool_input["target"])
        return await gate(decision, payload)

    async def process(arguments: Any, document: bytes, **options: Any) -> Any:
        payload = json.loads(document)
        assert payload["tool_name"] == "work"
        one.gate_calls.append(payload["tool_input"]["target"])
        return await run_process(arguments, document, **options)

    async def method(event: Any) -> Any:
        one.gate_calls.append(event.payload.tool_input["target"])
        return await gate(decision, event)

    module = types.ModuleType("matrix_cell")
    module.bodies = one.bodies  # type: ignore[attr-defined]  # a module made for these tests
    module.gate = method  # type: ignore[attr-defined]
    sys.modules["matrix_cell"] = module
    options: dict[str, Any] = {"timeout": LIMIT, "sequential": True, "matcher": "work"}
    if decision == "observe":
        options["observe"] = True
    hook_id = None
    if way == "decorator":
        add_hook("before_tool", **options)(function)
        hook_id = get_default_registry().hook_id_of(function)
    elif way == "registry":
        registry.register_function("before_tool", function, **options)
    elif way == "command":
        options["timeout"] = LIMIT if decision == "time out" else 60
        # On a busy machine a process may be over before it could note that it was called.
        monkeypatch.setattr("agent_engine.hooks.command.run_process", process)
        registry.register_command("before_tool", one.command(), **options)
    else:
        (tmp_path / "hooks.yaml").write_text("system: {name: h}\n" + one.hooks_yaml())
    yield one
    if hook_id is not None:
        remove_hook(hook_id)
    del sys.modules["matrix_cell"]


def yaml_registry(one: Cell) -> None:
    """For an Agent, the YAML way is a registry read from a file."""
    if one.way == "yaml" and len(one.registry) == 0:
        path = project(
            one.folder / "agent", "system: {name: h}\nagents: {a: {}}\ngraph: {a: }\n" + one.hooks_yaml(), {"p.md": ""}
        )
        one.registry = HookRegistry.from_yaml(path)


async def start(one: Cell) -> None:
    yaml_registry(one)
    await asyncio.to_thread(one.agent().start, "go")


async def chat(one: Cell) -> None:
    yaml_registry(one)
    one.agent().chat("go")  # in a running loop


async def achat(one: Cell) -> None:
    yaml_registry(one)
    await one.agent().achat("go")


async def stream(one: Cell) -> None:
    yaml_registry(one)
    assert "".join(one.agent().stream("go")) == "answer"


async def astream(one: Cell) -> None:
    yaml_registry(one)
    assert "".join([text async for text in one.agent().astream("go")]) == "answer"


async def agent_as_tool(one: Cell) -> None:
    yaml_registry(one)
    child = Agent("helper", "Works.", model=one.scripted(), tools=[one.tool()])
    parent = one.agent(model=ScriptedModel([call("helper", {"message": "go"}), "answer"]), tools=[child])
    assert (await parent.arun("go")).output == "answer"


async def handed_over(one: Cell) -> None:
    yaml_registry(one)
    child = Agent("helper", "Works.", model=one.scripted(), tools=[one.tool()])
    parent = one.agent(model=ScriptedModel([call("helper", {"message": "go"})]), tools=[child.handoff()])
    assert (await parent.arun("go")).output == "answer"


async def agent_in_a_tool_body(one: Cell) -> None:
    yaml_registry(one)
    child = Agent("helper", "Works.", model=one.scripted(), tools=[one.tool()])

    async def delegate() -> str:
        """Let the helper work."""
        return str(await child.achat("go"))

    parent = one.agent(model=ScriptedModel([call("delegate"), "answer"]), tools=[delegate])
    assert (await parent.arun("go")).output == "answer"


async def fallback(one: Cell) -> None:
    yaml_registry(one)
    broken = ScriptedModel([ModelError("down")] * 2)
    assert (await one.agent(model=broken, fallback=[one.scripted()]).arun("go")).output == "answer"


async def direct(one: Cell) -> None:
    yaml_registry(one)
    await one.agent().acall_tool("work", {"target": "original"})


async def resumed(one: Cell) -> None:
    yaml_registry(one)
    one.registry.register_function("before_tool", lambda payload: HookResult.ask("sure?"), sequential=True, priority=1)
    agent = one.agent(approver="later")
    result = await agent.arun("go")
    if result.status == "waiting":
        assert one.bodies == []
        result = await agent.aresume(result.run_id, {"c1": "yes"})
    assert result.output == "answer"


async def after_a_wait(one: Cell) -> None:
    """The call comes in a run that waited for something else, and went on."""
    yaml_registry(one)

    async def first() -> str:
        """Asked for first."""
        return "done"

    one.registry.register_function("before_tool", lambda payload: HookResult.ask("sure?"), matcher="first")
    model = one.scripted([call("first", call_id="c0"), *one.turns()])
    agent = one.agent(model=model, tools=[first, one.tool()], approver="later")
    result = await agent.arun("go")
    assert (result.status, one.bodies, one.asked_gate()) == ("waiting", [], 0)
    assert (await agent.aresume(result.run_id, {"c0": "yes"})).output == "answer"


async def engine_resumed(one: Cell) -> None:
    asking = HookRegistry() if one.way == "yaml" else one.registry
    asking.register_function("before_tool", lambda payload: HookResult.ask("sure?"), sequential=True, priority=1)
    async with one.engine(hooks=asking, approver="later") as engine:
        result = await engine.run("go")
        if result.status == "waiting":
            assert one.bodies == []
            result = await engine.resume(result.run_id, {"c1": "yes"})
        assert result.answer == "answer"


async def sync_direct(one: Cell) -> None:
    yaml_registry(one)
    agent = one.agent()
    await asyncio.to_thread(agent.call_tool, "work", {"target": "original"})


async def engine_run(one: Cell) -> None:
    async with one.engine() as engine:
        assert (await engine.run("go")).answer == "answer"


async def engine_stream(one: Cell) -> None:
    async with one.engine() as engine:
        events = [event async for event in engine.stream("go")]
    assert events[-1].data["output"] == "answer"


async def engine_direct(one: Cell) -> None:
    async with one.engine() as engine:
        await engine.call_tool("work", {"target": "original"})


async def sub_agent(one: Cell) -> None:
    turns = [call("leaf", {"message": "go"}), call("work", {"target": "original"}), "from the leaf", "answer"]
    async with one.engine("graph: {top: {leaf: }}", turns) as engine:
        assert (await engine.run("go")).answer == "answer"


FACES: tuple[Callable[[Cell], Awaitable[None]], ...] = (
    start,
    chat,
    achat,
    stream,
    astream,
    agent_as_tool,
    handed_over,
    agent_in_a_tool_body,
    fallback,
    direct,
    sync_direct,
    resumed,
    after_a_wait,
    engine_run,
    engine_stream,
    engine_direct,
    engine_resumed,
    sub_agent,
)
CELLS = list(itertools.product(DECISIONS, WAYS))


@pytest.mark.parametrize("cell", CELLS, indirect=True, ids=[f"{decision}-{way}" for decision, way in CELLS])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
async def test_the_gate_holds(cell: Cell, face: Callable[[Cell], Awaitable[None]]) -> None:
    # A declared hook fails the request where it breaks; the other ways refuse the step.
    fails = cell.way == "yaml" and cell.decision in ("raise", "time out")
    if fails:
        with pytest.raises(HookExecutionError):
            await face(cell)
    else:
        await face(cell)
    expected = {"modify": ["changed"], "observe": ["original"]}.get(cell.decision, [])
    assert cell.bodies == expected
    assert cell.asked_gate() == 1
    assert cell.gate_calls == ["original"]
    if face in (direct, sync_direct, engine_direct) or fails:
        return
    read = _tool_results(cell)
    if cell.decision in ("modify", "observe"):
        assert read == [f"worked on {expected[0]}"]
    else:
        blocked = "Execution of work was blocked by security policy."
        assert read == [f"{blocked} Reason: {REASON}" if cell.decision == "deny" else blocked]
    assert _calls_as_made(cell) == ['{"target": "original"}']


def _tool_results(cell: Cell) -> list[str]:
    """What the model read as the tool's result."""
    assert cell.model is not None
    messages = [message for request in cell.model.requests for message in request.messages]
    return list(dict.fromkeys(one["content"] for one in messages if one["role"] == "tool" and one["name"] == "work"))


def _calls_as_made(cell: Cell) -> list[str]:
    """The arguments of the tool call in the transcript."""
    assert cell.model is not None
    messages = [message for request in cell.model.requests for message in request.messages]
    made = [entry["function"] for one in messages for entry in one.get("tool_calls") or ()]
    return sorted({function["arguments"] for function in made if function["name"] == "work"})
