"""The Agent: its faces, its one conversation, and what it takes."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from tests.fakes.idle_clock import Clock

from agent_engine import Agent, HooksConfig, Limits, RunContext, tool
from agent_engine.hooks import HookRegistry, HookResult, add_hook, before_tool, remove_hook
from agent_engine.hooks.errors import HookExecutionError, LimitReached, RunBlocked
from agent_engine.models.base import ModelResponse, ToolCall
from agent_engine.models.errors import ModelConfigError, ModelError
from agent_engine.models.scripted import ScriptedModel


def call(name: str, arguments: dict[str, Any] | None = None, call_id: str = "c1") -> dict[str, Any]:
    return {"tool_calls": [{"id": call_id, "name": name, "arguments": arguments or {}}]}


def agent(*turns: Any, **options: Any) -> Agent:
    return Agent("a", "You help.", model=ScriptedModel(list(turns)), **options)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# The faces


def test_the_sync_faces_give_the_answer() -> None:
    one = agent("1", "2", "3", "4")
    assert (one.start("go"), one.chat("go"), "".join(one.stream("go"))) == ("1", "2", "3")
    result = one.run("go")
    assert (result.output, result.answer, result.status, result.session_id) == ("4", "4", "completed", one.session_id)
    assert result.visited == ("a",)
    assert [message["content"] for message in result.messages] == ["go", "4"]


async def test_the_async_faces_give_the_answer() -> None:
    one = agent("1", "2", "3", "4")
    assert (await one.astart("go"), await one.achat("go")) == ("1", "2")
    assert "".join([text async for text in one.astream("go")]) == "3"
    assert (await one.arun("go")).output == "4"


async def test_the_sync_faces_work_where_a_loop_runs() -> None:
    one = agent(call("add", {"a": 1, "b": 2}), "3", {"stream": ["a", "b"]}, tools=[add])
    assert one.start("go") == "3"
    assert list(one.stream("go")) == ["a", "b"]


def test_a_sync_face_inside_a_tool_of_a_sync_face() -> None:
    inner = agent("from inside", {"stream": ["s", "t"]})

    def ask() -> str:
        """Ask another agent."""
        return inner.start("go") + "".join(inner.stream("go"))

    async def ask_on_the_loop() -> str:
        """Ask another agent, on the loop."""
        return inner.start("go")

    inner._model._turns.append(inner._model._turns[0])  # type: ignore[union-attr]
    outer = agent(call("ask"), call("ask_on_the_loop"), "done", tools=[ask, ask_on_the_loop])
    result = outer.run("go")
    read = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert read == ["from insidest", "from inside"]


def test_leaving_a_sync_stream_early_cancels_the_run() -> None:
    registry = HookRegistry()
    ends: list[str] = []
    registry.register_function("after_agent", lambda seen: ends.append(seen.status), observe=True)

    async def slow() -> None:
        """Slow."""
        await asyncio.Event().wait()

    one = agent({**call("slow"), "stream": ["a"]}, tools=[slow], hooks=registry)
    for text in one.stream("go"):
        assert text == "a"
        break
    assert ends == ["cancelled"]
    assert one._queue is not None
    assert not one._queue._busy


def test_an_error_of_the_run_is_the_callers() -> None:
    for face in ("start", "chat", "run"):
        with pytest.raises(ModelError, match="down"):
            getattr(agent(ModelError("down")), face)("go")
    with pytest.raises(ModelError, match="down"):
        list(agent(ModelError("down")).stream("go"))


# The conversation


def test_an_agent_keeps_one_conversation() -> None:
    model = ScriptedModel(["hello joe", "you are joe"])
    one = Agent(instructions="You help.", model=model)
    one.chat("I am joe")
    one.chat("who am I?")
    assert [message["content"] for message in model.requests[1].messages] == [
        "You help.",
        "I am joe",
        "hello joe",
        "who am I?",
    ]


async def test_a_failed_turn_leaves_no_trace_in_the_conversation() -> None:
    model = ScriptedModel([ModelError("down"), "fine"])
    one = Agent(model=model)
    with pytest.raises(ModelError):
        await one.achat("first")
    await one.achat("second")
    assert [message["content"] for message in model.requests[1].messages] == ["second"]


async def test_a_conversation_in_a_store_goes_on_in_another_process(tmp_path: Any) -> None:
    from agent_engine.memory.sqlite import SqliteStore

    for n, answer in enumerate(["one", "two"]):
        store = SqliteStore(tmp_path / "talks.db")
        model = ScriptedModel([answer])
        await Agent(model=model, session_id="s", store=store).achat(f"message {n}")
        await store.close()
    assert [message["content"] for message in model.requests[0].messages] == ["message 0", "one", "message 1"]


async def test_a_conversation_in_a_store_is_what_everybody_made_of_it(tmp_path: Any) -> None:
    """Several processes, or agents, may serve one conversation, each by turns."""
    from agent_engine.memory.sqlite import SqliteStore

    first = agent("1", "3", store=SqliteStore(tmp_path / "c.db"), session_id="s")
    second = agent("2", store=SqliteStore(tmp_path / "c.db"), session_id="s")
    await first.achat("one")
    await second.achat("two")
    await first.achat("three")
    model = first._model
    assert isinstance(model, ScriptedModel)
    read = [message["content"] for message in model.requests[-1].messages if message["role"] != "system"]
    assert read == ["one", "1", "two", "2", "three"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_run_of_its_parent() -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow() -> str:
        """Slow."""
        inside.set()
        leave.wait(60)
        return "done"

    one = agent(call("slow"), "the parent's", "the other's", tools=[slow])
    answers: list[str] = []
    running = threading.Thread(target=lambda: answers.append(one.chat("go")))
    running.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        asked = threading.Thread(target=lambda: answers.append(one.chat("go")), daemon=True)
        asked.start()
        asked.join(30)
        os._exit(0 if answers == ["the parent's"] else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    leave.set()
    running.join()
    assert status == 0
    assert answers == ["the parent's"]


def test_the_session_ends_once_and_a_new_one_begins() -> None:
    registry = HookRegistry()
    rows: list[Any] = []
    registry.register_function("session_start", lambda seen: rows.append(("start", seen.session_id)), sequential=True)
    registry.register_function(
        "session_end", lambda seen: rows.append((seen.reason, seen.total_turns)), sequential=True
    )
    model = ScriptedModel(["1", "2", "3"])
    with Agent(model=model, hooks=registry) as one:
        one.chat("a")
        one.chat("b")
        first = one.session_id
        one.end_session()
        one.chat("c")
        second = one.session_id
    one.close()
    assert rows == [("start", first), ("end_session", 2), ("start", second), ("close", 1)]
    assert [message["content"] for message in model.requests[2].messages] == ["c"]


async def test_calls_on_one_agent_take_turns_from_any_thread_and_loop() -> None:
    running = most = 0
    lock = threading.Lock()

    async def answer(messages: Any, tools: Any, settings: Any) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        await asyncio.sleep(0.002)
        with lock:
            running -= 1
        return str(len(messages))

    one = Agent(model=ScriptedModel([answer] * 40))
    threads = [threading.Thread(target=lambda: [one.chat("go") for _ in range(3)]) for _ in range(4)]
    loops = [threading.Thread(target=lambda: asyncio.run(one.achat("go"))) for _ in range(4)]
    for thread in (*threads, *loops):
        thread.start()
    answers = await asyncio.gather(*(one.achat("go") for _ in range(8)))
    for thread in (*threads, *loops):
        await asyncio.to_thread(thread.join)
    assert most == 1
    assert len(set(answers)) == 8
    host = one._host
    assert host is not None
    (session,) = host.sessions._open.values()
    assert len(session.messages or ()) == 2 * 24


async def test_a_caller_that_gives_up_waiting_does_not_stop_the_queue() -> None:
    release = asyncio.Event()

    async def wait(messages: Any, tools: Any, settings: Any) -> str:
        await release.wait()
        return "answer"

    one = Agent(model=ScriptedModel([wait, "b", "c"]))
    first = asyncio.create_task(one.achat("1"))
    second = asyncio.create_task(one.achat("2"))
    third = asyncio.create_task(one.achat("3"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second.cancel()
    release.set()
    assert (await first, await third) == ("answer", "b")
    assert second.cancelled()


async def test_an_agent_that_calls_itself_does_not_wait_for_itself() -> None:
    model = ScriptedModel([call("again"), "inner", "outer"])

    async def again() -> str:
        """Ask the same agent."""
        return str(await one.achat("inside"))

    one = Agent("self", model=model, tools=[again])
    assert await one.achat("outside") == "outer"
    assert [message["content"] for message in model.requests[1].messages] == ["inside"]


# Refusals


REFUSALS = [
    "on_run_start",
    "user_prompt_submit",
    "before_agent",
    "before_llm",
    "after_llm",
    "on_llm_delta",
    "after_agent",
]


@pytest.mark.parametrize("event", REFUSALS)
@pytest.mark.parametrize("broke", [False, True], ids=["said no", "broke"])
async def test_a_refused_turn_says_so_on_every_face(event: str, broke: bool) -> None:
    registry = HookRegistry()
    registry.register_function(event, (lambda seen: 1 / 0) if broke else (lambda seen: HookResult.deny("not that")))
    text = "Blocked by policy." if broke else "Blocked by policy: not that"

    def one() -> Agent:
        return agent("forbidden", hooks=registry)

    assert one().start("go") == text
    assert one().chat("go") == text
    assert await one().achat("go") == text
    assert "".join(one().stream("go")) == text
    assert "".join([piece async for piece in one().astream("go")]) == text
    result = one().run("go")
    assert (result.output, result.status) == (text, "blocked")


async def test_a_refused_turn_tells_which_run_it_was_and_what_it_cost() -> None:
    registry = HookRegistry()
    registry.register_function("after_agent", lambda seen: "not that")
    seen: list[str] = []
    registry.register_function("on_run_start", lambda run: seen.append(run.run_id), observe=True)
    model = ScriptedModel([{"text": "done", "usage": {"input_tokens": 7, "output_tokens": 1}}])
    result = await Agent("clerk", model=model, hooks=registry).arun("go")
    assert result.status == "blocked"
    assert [result.run_id] == seen
    assert (result.usage.input_tokens, result.visited) == (7, ("clerk",))


async def test_with_an_output_type_a_refused_turn_raises() -> None:
    registry = HookRegistry()
    registry.register_function("before_agent", lambda seen: HookResult.deny("no"))
    with pytest.raises(RunBlocked, match="Blocked by policy: no"):
        await agent("{}", hooks=registry, output_type=dict).achat("go")


async def test_strict_hooks_raise_their_own_exception() -> None:
    registry = HookRegistry()

    def broken(seen: Any) -> None:
        raise KeyError("mine")

    registry.register_function("before_tool", broken)
    one = agent(call("add", {"a": 1, "b": 2}), "answer", tools=[add], hooks=registry)
    one._strict_hooks = True
    with pytest.raises(KeyError, match="mine"):
        await one.achat("go")


# Hooks, in every form


async def test_hooks_of_an_agent_come_in_four_forms() -> None:
    seen: list[str] = []

    @before_tool
    def note(request: Any) -> Any:
        seen.append("middleware")
        return request

    def registry() -> HookRegistry:
        made = HookRegistry()
        made.register_function("before_tool", lambda payload: seen.append("registry"))
        return made

    observers = {
        "on_step": lambda response: seen.append("on_step"),
        "on_tool_call": lambda request: seen.append("on_tool_call"),
    }
    forms: list[tuple[Any, list[str]]] = [
        (registry(), ["registry"]),
        ([note], ["middleware"]),
        (
            HooksConfig(registry=registry(), middleware=[note], **observers),
            ["on_step", "middleware", "registry", "on_tool_call", "on_step"],
        ),
        ({"registry": registry(), **observers}, ["on_step", "registry", "on_tool_call", "on_step"]),
    ]
    for hooks, expected in forms:
        seen.clear()
        await agent(call("add", {"a": 1, "b": 2}), "3", tools=[add], hooks=hooks).achat("go")
        assert seen == expected


@pytest.mark.parametrize("wrong", [5, "before_tool", object(), {"unknown": 1}, [lambda request: None]])
def test_other_hooks_are_refused_with_the_list_of_what_is_taken(wrong: Any) -> None:
    with pytest.raises(TypeError, match="HooksConfig|on_step|before_model"):
        agent("x", hooks=wrong)


def test_a_wrong_keyword_is_told_in_the_name_of_the_class_one_knows() -> None:
    with pytest.raises(TypeError, match=r"^Agent\.__init__\(\) got an unexpected keyword argument 'system_prompt'"):
        Agent(name="a", system_prompt="x")  # type: ignore[call-arg]  # what somebody used to another library writes


async def test_an_agents_own_hooks_fire_for_it_alone_and_everyones_for_all() -> None:
    own, everyone = HookRegistry(), []
    fired: list[str] = []
    own.register_function("before_agent", lambda seen: fired.append("own"))
    hook = add_hook("before_agent", lambda seen: everyone.append(seen.agent_name))
    try:
        await agent("1", hooks=own).achat("go")
        await agent("2").achat("go")
        await agent("3", hooks=HooksConfig(inherit_default=False)).achat("go")
    finally:
        remove_hook(hook)
    assert fired == ["own"]
    assert everyone == ["a", "a"]


async def test_a_parents_hooks_hold_for_whatever_it_delegates_to() -> None:
    registry = HookRegistry()
    seen: list[Any] = []
    registry.register_function("before_tool", lambda payload: seen.append((payload.agent_name, payload.tool_name)))
    child = Agent("child", "Adds.", model=ScriptedModel([call("add", {"a": 1, "b": 2}), "3"]), tools=[add])
    parent = agent(call("child", {"message": "add"}), "done", tools=[child], hooks=registry)
    await parent.achat("go")
    assert sorted(seen) == [("a", "child"), ("child", "add")]


async def test_a_denied_delegate_leaves_no_child_run() -> None:
    """Fault 4."""
    registry = HookRegistry()
    turns: list[str] = []
    registry.register_function("before_tool", lambda payload: "no", matcher="child")
    registry.register_function("before_agent", lambda payload: turns.append(payload.agent_name))
    child_model = ScriptedModel(["never"])
    parent = agent(call("child", {"message": "x"}), "done", tools=[Agent("child", model=child_model)], hooks=registry)
    assert await parent.achat("go") == "done"
    assert turns == ["a"]
    assert child_model.requests == []


async def test_a_refusal_inside_a_delegate_ends_the_delegate_alone() -> None:
    registry = HookRegistry()
    registry.register_function("before_llm", lambda seen: HookResult.deny("not you"), agents=["child"])
    child = Agent("child", model=ScriptedModel(["never"]))
    parent = agent(call("child", {"message": "x"}), "done", tools=[child], hooks=registry)
    result = await parent.arun("go")
    assert result.output == "done"
    assert result.messages[2]["content"] == "Execution of child was blocked by security policy. Reason: not you"


async def test_fail_comes_out_of_any_depth() -> None:
    registry = HookRegistry()
    registry.register_function("before_tool", lambda seen: 1 / 0, matcher="add", failure_policy="fail")
    leaf = Agent("leaf", model=ScriptedModel([call("add", {"a": 1, "b": 2})]), tools=[add])
    middle = Agent("middle", model=ScriptedModel([call("leaf", {"message": "x"})]), tools=[leaf])
    one = agent(call("middle", {"message": "x"}), tools=[middle], hooks=registry)
    with pytest.raises(HookExecutionError):
        await one.achat("go")
    one = agent(call("middle", {"message": "x"}), tools=[middle], hooks=registry)
    for delegate in (leaf, middle):
        delegate._model._played = 0  # type: ignore[union-attr]
    with pytest.raises(HookExecutionError):
        list(one.stream("go"))


async def test_a_delegate_starts_a_fresh_conversation_for_each_call() -> None:
    model = ScriptedModel(["one", "two"])
    child = Agent("child", "Answers.", model=model)
    turns = [call("child", {"message": "first"}), call("child", {"message": "second"}), "done"]
    await agent(*turns, tools=[child]).achat("go")
    assert [message["content"] for message in model.requests[1].messages] == ["Answers.", "second"]


# Tools


@tool
def named_tool_of_these_tests(x: int) -> int:
    """Named."""
    return x


async def test_tools_are_functions_names_and_agents() -> None:
    one = agent(
        call("named_tool_of_these_tests", {"x": 4}), "done", tools=["named_tool_of_these_tests", add, Agent("other")]
    )
    result = await one.arun("go")
    assert result.messages[2]["content"] == '{"result": 4}'
    model = one._model
    assert isinstance(model, ScriptedModel)
    assert [definition.name for definition in model.requests[0].tools] == ["named_tool_of_these_tests", "add", "other"]
    with pytest.raises(ValueError, match="no_such_tool"):
        agent("x", tools=["no_such_tool"])
    with pytest.raises(TypeError, match="agent.handoff"):
        agent("x", tools=[5])
    with pytest.raises(ValueError, match="two tools of the name 'add'"):
        await agent("x", tools=[add, Agent("add")]).achat("go")


class Point(BaseModel):
    x: int


@dataclass
class Made:
    when: datetime.date


class Box:
    def held(self, point: Point) -> Made:
        """Hold."""
        return Made(datetime.date(2024, 1, point.x))


async def test_sync_tools_generators_methods_models_and_dates_all_work() -> None:
    def counted() -> Any:
        """Count."""
        yield "working"
        yield "done"

    async def acounted() -> Any:
        """Count."""
        yield "working"
        yield "also done"

    registry = HookRegistry()
    outputs: list[Any] = []
    registry.register_function("after_tool", lambda seen: outputs.append(seen.tool_output), sequential=True)
    one = agent(
        call("held", {"point": {"x": 5}}), call("counted"), call("acounted"), "end",
        tools=[Box().held, counted, acounted], hooks=registry,
    )  # fmt: skip
    result = await one.arun("go")
    read = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert read == ['{"result": {"when": "2024-01-05"}}', "done", "also done"]
    assert outputs[1:] == ["done", "also done"]


async def test_call_tool_goes_through_the_door_and_a_plain_call_does_not() -> None:
    registry = HookRegistry()
    registry.register_function("before_tool", lambda seen: HookResult.modify(a=10), sequential=True)
    one = agent(tools=[add], hooks=registry)
    assert one.call_tool("add", {"a": 1, "b": 2}) == 12
    assert await one.acall_tool("add", {"a": 1, "b": 2}) == 12
    assert add(1, 2) == 3
    registry.register_function("before_tool", lambda seen: "no")
    assert one.call_tool("add", {"a": 1, "b": 2}) == "Execution of add was blocked by security policy. Reason: no"
    with pytest.raises(LookupError, match="subtract"):
        one.call_tool("subtract", {})
    with pytest.raises(ZeroDivisionError):
        agent(tools=[divide]).call_tool("divide", {"a": 1})


def divide(a: int) -> float:
    """Divide."""
    return a / 0


# Structured output


class City(BaseModel):
    name: str
    people: int


async def test_an_output_type_is_told_validated_and_repaired() -> None:
    registry = HookRegistry()
    calls: list[int] = []
    registry.register_function("before_llm", lambda seen: calls.append(1), sequential=True)
    model = ScriptedModel(["Paris has 2 million", '{"name": "Paris"}', '```json\n{"name": "Paris", "people": 2}\n```'])
    one = Agent(model=model, output_type=City, hooks=registry)
    assert await one.achat("Paris?") == City(name="Paris", people=2)
    assert len(calls) == 3
    assert "JSON Schema" in model.requests[0].messages[0]["content"]
    assert "people: Field required" in model.requests[2].messages[-1]["content"]


async def test_repair_is_bounded() -> None:
    from agent_engine.runtime.output import OutputInvalid

    one = Agent(model=ScriptedModel(["no"] * 9), output_type=City)
    with pytest.raises(
        OutputInvalid, match=r"The model's answer does not fit the output type City: answer: Invalid JSON"
    ):
        await one.achat("Paris?")


async def test_only_the_valid_answer_is_streamed() -> None:
    one = Agent(model=ScriptedModel(["no", "[1]"]), output_type=list[int])
    assert [text async for text in one.astream("go")] == ["[1]"]


async def test_text_as_the_output_type_is_the_answer_as_it_is() -> None:
    model = ScriptedModel(["It is so."])
    assert await Agent(model=model, output_type=str).achat("go") == "It is so."
    assert all("JSON" not in str(message) for message in model.requests[0].messages)


# Models


async def test_the_model_is_named_by_the_environment_or_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "script.yaml").write_text("- scripted answer\n")
    monkeypatch.setenv("AGENT_ENGINE_MODEL", f"scripted:{tmp_path}/script.yaml")
    assert await Agent().achat("go") == "scripted answer"
    monkeypatch.delenv("AGENT_ENGINE_MODEL")
    assert "offline" in (await Agent().achat("hello")).lower()


async def test_a_missing_key_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ModelConfigError, match="ANTHROPIC_API_KEY"):
        await Agent(model="anthropic:claude-sonnet-4-5").achat("go")


async def test_a_model_may_give_the_same_answer_object_each_time() -> None:
    class Constant:
        name = provider = "constant"
        answer = ModelResponse("hi", native={"a": 1})

        async def request(self, messages: Any, tools: Any, settings: Any) -> ModelResponse:
            return self.answer

        def stream(self, messages: Any, tools: Any, settings: Any) -> Any:
            raise NotImplementedError

    one = Agent(model=Constant())
    assert [await one.achat("go") for _ in range(3)] == ["hi"] * 3
    assert ModelResponse("hi", native={"a": 1}) == Constant.answer


# Waiting


async def test_an_agent_waits_for_approval_and_goes_on() -> None:
    registry = HookRegistry()
    registry.register_function("before_tool", lambda seen: HookResult.ask("sure?"), sequential=True)
    one = agent(call("add", {"a": 1, "b": 2}), "3", "again", tools=[add], hooks=registry, approver="later")
    waiting = await one.arun("go")
    assert waiting.status == "waiting"
    assert (await one.aresume(waiting.run_id, {"c1": "yes"})).output == "3"
    assert await one.achat("more") == "again"
    model = one._model
    assert isinstance(model, ScriptedModel)
    assert [message["role"] for message in model.requests[-1].messages] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    text = await agent(call("add", {"a": 1, "b": 2}), tools=[add], hooks=registry, approver="later").achat("go")
    assert text.endswith("waits for approval of: add (c1).")


async def test_a_context_without_a_conversation_is_the_agents() -> None:
    one = agent("1", "2", "3")
    first = await one.arun("a", context=RunContext(user_id="u"))
    second = await one.arun("b", context=RunContext(user_id="v"))
    assert first.session_id == second.session_id == one.session_id
    model = one._model
    assert isinstance(model, ScriptedModel)
    assert len(model.requests[1].messages) == 2, "another caller's conversation is another conversation"
    assert (await one.arun("c", context=RunContext(conversation_id="own"))).session_id == "own"


# Weight


def test_a_thousand_agents_are_light() -> None:
    import tracemalloc

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = [Agent(f"agent {n}", "You help.", tools=[add]) for n in range(1000)]
    size = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    tracemalloc.stop()
    assert size < 2048


def test_importing_is_light() -> None:
    """No heavy module for an agent with a plain function and a model of its own."""
    code = (
        "import sys, agent_engine\n"
        "agent_engine.Agent('a', tools=[])\n"
        "heavy = {'pydantic', 'httpx2', 'mcp', 'sqlalchemy', 'rich', 'typer', 'ruamel', 'tenacity', 'anyio'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class NoModel:
    name = provider = "x"


class NoType:
    pass


async def star(*words: str) -> None:
    """Takes what no model can fill."""


WRONG: list[tuple[str, Any, str]] = [
    ("name", 5, "name of an Agent is text"),
    ("instructions", 5, "instructions of an Agent is text, not int"),
    ("instructions", None, "instructions of an Agent is text, not NoneType"),
    ("session_id", 5, "session_id of an Agent is text"),
    ("model", 5, "model of an Agent is text such as 'openai:NAME', or a Model, not int"),
    ("model", NoModel(), "or a Model, not NoModel"),
    ("model", ScriptedModel, "or a Model, not the class ScriptedModel"),
    ("fallback", 5, "fallback of an Agent is a list"),
    ("fallback", [5], "fallback of an Agent is text such as 'openai:NAME', or a Model, not int"),
    ("tools", 5, "tools of an Agent is a list of functions"),
    ("tools", "add", "not 'add'; write tools=["),
    ("tools", {"add": add}, "not dict"),
    ("tools", add, "not function; write tools=["),
    ("tools", [5], "A tool of an Agent is a function"),
    ("tools", [star], "takes *words, which a model cannot fill"),
    ("store", "x", "for an SQLite file write SqliteStore('x')"),
    ("store", NoType(), "a conversation store or None, not NoType"),
    ("hooks", HooksConfig, "hooks takes a HooksConfig"),
    ("hooks", {"middleware": add}, "middleware is a list of functions with a middleware decorator, not function"),
    ("hooks", {"inherit_default": "no"}, "inherit_default is True or False, not 'no'"),
    ("output_type", 5, "output_type is a type that pydantic can validate"),
    ("output_type", NoType, "such as a pydantic model, a dataclass or list[int]"),
    ("output_type", add, "a function is no type"),
    ("output_type", [1], "such as a pydantic model, a dataclass or list[int]"),
    ("limits", {"model_calls": 3}, "limits is a Limits, such as Limits(tool_calls=10), not dict"),
    ("approver", "sometimes", "a function of a ToolApproval, 'later' or None, not 'sometimes'"),
    ("approver", lambda: True, "cannot be called with one argument"),
]


@pytest.mark.parametrize(("option", "value", "words"), WRONG)
def test_an_option_that_is_no_such_thing_is_told_in_one_sentence_where_it_is_given(
    option: str, value: Any, words: str
) -> None:
    options: dict[str, Any] = {"model": "offline", option: value}
    with pytest.raises(TypeError, match=re.escape(words)) as caught:
        Agent(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompt", [None, 5, b"x", {"type": "text"}, [5]])
async def test_a_message_that_is_none_is_told_before_anything_runs(prompt: Any) -> None:
    one = agent("x")
    with pytest.raises(TypeError, match="a message is text, or a list of content parts"):
        await one.astart(prompt)
    with pytest.raises(TypeError, match="a message is text, or a list of content parts"):
        async for _ in one.astream(prompt):
            pass


async def test_what_else_is_handed_to_a_face_is_told_too() -> None:
    one = agent("x", tools=[add])
    wrong: Any = {"user_id": "ada"}
    for face in (
        lambda: one.astart("go", context=wrong),
        lambda: one.acall_tool("add", {"a": 1, "b": 2}, context=wrong),
        lambda: one.aresume("some run", {}, context=wrong),
    ):
        with pytest.raises(
            TypeError, match=r"context is a RunContext, such as RunContext\(user_id='ada'\), or None, not"
        ):
            await face()
    with pytest.raises(TypeError, match="the arguments of a call of add are a dict, not int"):
        await one.acall_tool("add", 5)  # type: ignore[arg-type]  # what a caller without types may do
    with pytest.raises(TypeError, match="the decisions on a waiting run are a dict, not list"):
        await one.aresume("some run", ["yes"])  # type: ignore[arg-type]  # likewise


def test_the_process_can_exit_while_a_hook_hangs() -> None:
    code = (
        "import time\n"
        "from agent_engine import Agent\n"
        "from agent_engine.hooks import add_hook\n"
        "from agent_engine.models.scripted import ScriptedModel\n"
        "add_hook('before_agent', lambda seen: time.sleep(600), timeout=0.05)\n"
        "print(Agent(model=ScriptedModel(['x'])).start('go'))\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "Blocked by policy."
    assert time.monotonic() - began < 50


class Mine(Exception):
    pass


@pytest.mark.parametrize("event", ["before_agent", "before_llm", "before_tool", "after_tool", "after_agent"])
@pytest.mark.parametrize("depth", [0, 1])
async def test_a_strict_agent_raises_a_hooks_own_exception_from_any_depth(event: str, depth: int) -> None:
    def broken(seen: Any) -> None:
        raise Mine

    def work() -> str:
        """Work."""
        return "done"

    registry = HookRegistry()
    registry.register_function(event, broken)
    agent = Agent("inner", model=ScriptedModel([call("work"), "a"]), tools=[work], hooks=registry)
    if depth:
        agent = Agent("outer", model=ScriptedModel([call("inner", {"message": "go"}), "b"]), tools=[agent])
    agent._strict_hooks = True
    with pytest.raises(Mine):
        await agent.astart("go")


async def test_an_agent_can_resume_another_of_its_runs_from_inside_a_run() -> None:
    registry, ran = HookRegistry(), []
    registry.register_function("before_tool", lambda seen: HookResult.ask("sure?"), matcher="work")

    def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    async def approve() -> str:
        """Say yes to what waits."""
        return str((await agent.aresume(waiting.run_id, {"c1": "yes"})).output)

    model = ScriptedModel([call("work"), call("approve"), "resumed", "answer"])
    agent = Agent("desk", model=model, tools=[work, approve], hooks=registry, approver="later")
    waiting = await agent.arun("go")
    assert waiting.status == "waiting"
    assert await asyncio.wait_for(agent.astart("go on"), 60) == "answer"
    assert ran == [1]


async def test_resuming_inside_a_tool_is_no_way_around_the_hooks_of_its_run() -> None:
    asks, guard, ran = HookRegistry(), HookRegistry(), []
    asks.register_function("before_tool", lambda seen: HookResult.ask("sure?"))
    guard.register_function("before_tool", lambda seen: HookResult.deny("not here"), matcher="work")

    def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    inner = Agent("inner", model=ScriptedModel([call("work"), "a"]), tools=[work], hooks=asks, approver="later")
    waiting = await inner.arun("go")

    async def approve() -> str:
        """Say yes to what waits."""
        return str((await inner.aresume(waiting.run_id, {"c1": "yes"})).output)

    outer = Agent("outer", model=ScriptedModel([call("approve"), "b"]), tools=[approve], hooks=guard)
    await outer.astart("go")
    assert ran == []


async def test_an_agent_whose_setup_fails_answers_nothing_until_it_succeeds() -> None:
    broken, registry = [True], HookRegistry()

    def ready(seen: Any) -> None:
        if broken[0]:
            raise ValueError

    registry.register_function("setup", ready, failure_policy="fail")
    agent = Agent("desk", model=ScriptedModel(["answer"]), hooks=registry)
    for _ in range(2):
        with pytest.raises(HookExecutionError):
            await agent.astart("go")
    broken[0] = False
    assert await agent.astart("go") == "answer"


async def test_what_a_caller_does_to_a_result_is_not_done_to_the_conversation() -> None:
    model = ScriptedModel(["one", "two"])
    agent = Agent("desk", model=model)
    result = await agent.arun("mine")
    result.messages[0]["content"] = "another's"
    await agent.arun("again")
    assert [message["content"] for message in model.requests[-1].messages] == ["mine", "one", "again"]


def test_agents_whose_tools_call_each_other_do_not_wait_for_each_other() -> None:
    """Each has its turn and asks the other: the second one to ask gets its answer beside the conversation."""
    both = threading.Barrier(2)

    def ask_right() -> str:
        """Ask the agent on the right."""
        both.wait(60)
        return str(right.start("from the left"))

    def ask_left() -> str:
        """Ask the agent on the left."""
        both.wait(60)
        return str(left.start("from the right"))

    left = agent(call("ask_right"), "left", "left", tools=[ask_right])
    right = agent(call("ask_left"), "right", "right", tools=[ask_left])
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda one=one: answers.append(one.start("go")), daemon=True) for one in (left, right)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == ["left", "right"]


@pytest.mark.parametrize("where", ["tool", "hook"])
def test_an_agent_that_leads_to_itself_comes_to_an_end(where: str) -> None:
    calls: list[str] = []

    def again(*_: Any) -> Any:
        calls.append("again")
        return one.start("again")

    def tool_again() -> str:
        """Ask this agent again."""
        return str(again())

    class Always:
        """Calls the tool, then says what it returned."""

        name = provider = "always"

        async def request(self, messages: Any, *_: Any) -> ModelResponse:
            last = messages[-1]
            if where == "hook" or last["role"] == "tool":
                return ModelResponse(str(last["content"]))
            return ModelResponse("", [ToolCall("c", "tool_again", {})])

        def stream(self, *_: Any) -> Any:
            raise NotImplementedError

    hooks = HookRegistry()
    if where == "hook":
        hooks.register_function("before_llm", again)
    one = Agent(model=Always(), tools=[tool_again], hooks=hooks)
    answer = one.start("go")
    assert len(calls) == 16
    assert answer.startswith("Blocked by policy") if where == "hook" else "RecursionError" in answer


async def test_runs_that_lead_to_several_of_their_kind_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.runtime.under_way.MOST_AT_ONCE", 20)
    live: list[int] = []
    most, refused = 0, 0

    async def twice() -> str:
        """Have two more."""
        nonlocal most, refused
        live.append(1)
        most = max(most, len(live))
        answers = await asyncio.gather(*(parent().astart("go") for _ in range(2)), return_exceptions=True)
        live.pop()
        refused += sum(isinstance(answer, RecursionError) for answer in answers)
        return ", ".join(type(answer).__name__ for answer in answers)

    def parent() -> Agent:
        return agent(call("twice"), "done", tools=[twice])

    assert await parent().astart("go") == "done"
    assert 5 < most <= 21
    assert refused


async def test_runs_one_after_the_other_are_not_inside_one_another() -> None:
    """A tool may have the next run done later: that is no recursion, however often."""
    begun: list[asyncio.Task[Any]] = []

    async def next_one() -> str:
        """Have the next run done."""
        if len(begun) < 40:
            begun.append(asyncio.create_task(later()))
        return "will do"

    async def later() -> str:
        return str(await one.astart("go on"))

    one = agent(*[call("next_one"), "done"] * 41, tools=[next_one])
    await one.astart("go")
    for number in range(40):
        assert await begun[number] == "done"


def test_a_run_that_a_sync_tool_waits_for_ends_with_the_run_around_it(clock: Clock) -> None:
    ended = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def asks(*_: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        return call("ask")

    class Slow:
        name = provider = "slow"

        async def request(self, *_: Any) -> ModelResponse:
            clock.put_forward(60)
            loops[0].call_soon_threadsafe(int)  # that it looks at the clock
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError("never")

        def stream(self, *_: Any) -> Any:
            raise NotImplementedError

    inner = Agent(model=Slow())

    def ask() -> str:
        """Ask the slow one."""
        return str(inner.start("go"))

    with pytest.raises(LimitReached):
        agent(asks, "never", tools=[ask], limits=Limits(timeout_s=60)).start("go")
    assert ended.wait(60)


def test_a_sync_tool_that_is_left_behind_begins_no_run_any_more() -> None:
    left, went_on = threading.Event(), threading.Event()
    inner = agent("never")
    came_of_it: list[BaseException] = []

    def slow() -> str:
        """Outlives its run."""
        left.wait(60)
        try:
            return str(inner.start("go"))
        except BaseException as error:
            came_of_it.append(error)
            raise
        finally:
            went_on.set()

    with pytest.raises(LimitReached):
        agent(call("slow"), "never", tools=[slow], limits=Limits(timeout_s=0.05)).start("go")
    left.set()
    assert went_on.wait(60)
    assert [type(error) for error in came_of_it] == [asyncio.CancelledError]
    model = inner._model
    assert isinstance(model, ScriptedModel)
    assert model.requests == []
    assert inner.start("go") == "never"  # whoever else asks it is answered


async def test_an_agent_is_called_by_a_name_that_every_provider_takes() -> None:
    model = ScriptedModel([call("Front_desk_2", {"message": "hello"}), "done"])
    front = Agent("Front desk / 2", model=ScriptedModel(["hi"]))
    result = await Agent(tools=[front], model=model).arun("go")
    assert model.requests[0].tools[0].name == "Front_desk_2"
    assert result.messages[2]["content"] == "hi"
    assert result.visited == ("agent", "Front desk / 2")
