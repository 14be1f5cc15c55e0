"""The guide to hooks from Python and from the shell: each of its snippets runs, each row of its tables holds."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import agent_engine.hooks as package
import agent_engine.memory
from agent_engine import Agent, HooksConfig, tool
from agent_engine.hooks import (
    CommandHook,
    FunctionHook,
    HookEvent,
    HookOutput,
    HookRegistry,
    HookResult,
    HookRunner,
    ModelResponse,
    ToolRequest,
    add_hook,
    afire_hook,
    before_model,
    before_tool,
    fire_hook,
    get_default_registry,
    has_hook,
    remove_hook,
)
from agent_engine.hooks.events import CATALOGUE
from agent_engine.hooks.payloads import HookInput, payload_type
from agent_engine.models.errors import ModelError
from agent_engine.models.scripted import ScriptedModel
from agent_engine.plugins import GuardrailBlocked, Plugin, PluginManager

pytestmark = pytest.mark.usefixtures("isolated_hooks")

BLOCKED = "Execution of {} was blocked by security policy."
FACES: dict[str, Callable[[Agent, str], Any]] = {
    "chat": lambda agent, prompt: agent.chat(prompt),
    "achat": lambda agent, prompt: asyncio.run(agent.achat(prompt)),
    "stream": lambda agent, prompt: "".join(agent.stream(prompt)),
}


@pytest.fixture(params=list(FACES))
def ask(request: pytest.FixtureRequest) -> Callable[[Agent, str], Any]:
    """One of the faces of an agent: sync, async, streaming."""
    return FACES[request.param]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENGINE_MODEL", "offline")


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    """A model's answer that calls one tool."""
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def agent_with(*turns: Any, tools: Any = (), **options: Any) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel([*turns, "done"], repeat_last=True)
    return Agent(name="Assistant", instructions="Help.", model=model, tools=tools, **options), model


def tool_texts(model: ScriptedModel) -> list[str]:
    """What the model read as results of its tools, in its last request."""
    return [message["content"] for message in model.requests[-1].messages if message["role"] == "tool"]


ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def delete_file(path: str) -> str:
    """Delete a file."""
    ran.append(f"delete {path}")
    return f"deleted {path}"


def read_file(path: str) -> str:
    """Read a file."""
    ran.append(f"read {path}")
    return f"the content of {path}"


# --- Quick start ------------------------------------------------------------------------------------------------------


def test_a_hook_that_logs_tools(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    @add_hook("before_tool")
    def log_tools(event_data: Any) -> None:
        print(f"Running tool: {event_data.tool_name}")

    agent, _ = agent_with(calls("read_file", path="a"), tools=[read_file])

    assert ask(agent, "Help me organise my files") == "done"
    assert capsys.readouterr().out == "Running tool: read_file\n"


def test_the_agent_of_the_snippet_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    @add_hook("before_tool")
    def log_tools(event_data: Any) -> None:
        print(f"Running tool: {event_data.tool_name}")

    agent = Agent(name="SecureAssistant", instructions="You are a helpful assistant.")

    assert isinstance(agent.start("Help me organise my files"), str)


def test_a_hook_that_blocks_deletions(ask: Any) -> None:
    @add_hook("before_tool")
    def block_delete(event_data: Any) -> str | None:
        if "delete" in event_data.tool_name.lower():
            return "Delete operations are blocked"
        return None

    agent, model = agent_with(
        calls("delete_file", path="a"), calls("read_file", path="b"), tools=[delete_file, read_file]
    )

    assert ask(agent, "Tidy up") == "done"
    assert ran == ["read b"]
    assert tool_texts(model) == [
        f"{BLOCKED.format('delete_file')} Reason: Delete operations are blocked",
        "the content of b",
    ]


@pytest.mark.parametrize(
    ("said", "reason"),
    [(None, None), (False, "Denied by hook"), ("not today", "not today")],
)
def test_what_a_hook_returns(said: Any, reason: str | None) -> None:
    add_hook("before_tool", lambda event_data: said)

    agent, model = agent_with(calls("delete_file", path="a"), tools=[delete_file])
    agent.start("go")

    expected = "deleted a" if reason is None else f"{BLOCKED.format('delete_file')} Reason: {reason}"
    assert tool_texts(model) == [expected]
    assert ran == ([] if reason else ["delete a"])


def test_a_function_that_returns_nothing_allows() -> None:
    @add_hook("before_tool")
    def silent(event_data: Any) -> None: ...

    agent, _ = agent_with(calls("delete_file", path="a"), tools=[delete_file])
    agent.start("go")

    assert ran == ["delete a"]


def test_priority_decides_who_runs_first_and_ties_keep_their_order(ask: Any) -> None:
    seen: list[str] = []

    @add_hook("after_llm", priority=90)
    def trace(event_data: Any) -> None:
        seen.append("trace")

    @add_hook("after_llm", priority=10)
    def redact(event_data: Any) -> None:
        seen.append("redact")

    for label in "ab":
        add_hook("after_llm", lambda event_data, label=label: seen.append(label), name=label, sequential=True)
    agent, _ = agent_with()
    ask(agent, "Say hi")

    assert seen == ["redact", "trace", "a", "b"]


def test_hooks_config_gets_each_step_and_each_tool_call(ask: Any) -> None:
    steps: list[str] = []

    def log_step(event_data: Any) -> None:
        steps.append(f"Step: {type(event_data).__name__} {event_data.content}")

    def on_tool(event_data: Any) -> None:
        steps.append(f"Tool called: {event_data.tool_name}")

    agent, _ = agent_with(
        calls("read_file", path="a"),
        tools=[read_file],
        hooks=HooksConfig(on_step=log_step, on_tool_call=on_tool),
    )
    ask(agent, "Write a haiku about Python")

    assert steps == ["Step: ModelResponse ", "Tool called: read_file", "Step: ModelResponse done"]


def test_a_private_registry_fires_for_its_agent_alone(ask: Any) -> None:
    private = HookRegistry()
    fired_on: list[tuple[str | None, str]] = []

    @private.on(HookEvent.BEFORE_TOOL)
    def audit(event: Any) -> Any:
        fired_on.append((event.agent_name, event.tool_name))
        return event

    def agent(name: str, **options: Any) -> Agent:
        model = ScriptedModel([calls("read_file", path="a"), "done"])
        return Agent(name=name, instructions="Help.", model=model, tools=[read_file], **options)

    ask(agent("SecureAgent", hooks=HooksConfig(registry=private)), "Read the customer record")
    ask(agent("HelperAgent"), "Format this code snippet")

    assert fired_on == [("SecureAgent", "read_file")]
    assert ran == ["read a", "read a"]


def test_the_default_registry_still_fires_on_an_agent_with_its_own() -> None:
    add_hook("before_tool", lambda event_data: "for everyone")

    agent, model = agent_with(
        calls("read_file", path="a"), tools=[read_file], hooks=HooksConfig(registry=HookRegistry())
    )
    agent.start("go")

    assert tool_texts(model) == [f"{BLOCKED.format('read_file')} Reason: for everyone"]


# --- API surface ------------------------------------------------------------------------------------------------------


def test_every_function_of_the_api_surface() -> None:
    seen: list[Any] = []
    hook_id = add_hook("before_tool", seen.append, priority=100)

    assert isinstance(hook_id, str)
    assert has_hook("before_tool")
    assert not has_hook("after_tool")
    assert len(get_default_registry()) == 1
    (row,) = fire_hook("before_tool", {"tool_name": "t"})
    assert (row.success, seen[0].tool_name) == (True, "t")
    assert remove_hook(hook_id)
    assert not remove_hook(hook_id)
    assert not has_hook("before_tool")
    assert fire_hook("before_tool", {"tool_name": "t"}) == []


def test_fire_hook_emits_to_the_default_registry_or_to_a_scoped_one() -> None:
    scoped, seen = HookRegistry(), []
    add_hook("notification", lambda given: seen.append(f"default {given.message}"))
    scoped.register_function("notification", lambda given: seen.append(f"scoped {given.message}"))

    fire_hook("notification", {"message": "a"})
    fire_hook(HookEvent.NOTIFICATION, {"message": "b"}, registry=scoped)
    asyncio.run(afire_hook("NOTIFICATION", {"message": "c"}))

    assert seen == ["default a", "scoped b", "default c"]


def test_the_standalone_manager_is_another_thing_and_never_fires_by_itself(tmp_path: Any) -> None:
    manager = agent_engine.memory.HooksManager(tmp_path)
    manager.register("pre_run_command", lambda context: ran.append("standalone"))

    agent, _ = agent_with(calls("read_file", path="a"), tools=[read_file])
    agent.start("go")
    assert ran == ["read a"]
    manager.execute("pre_run_command", {})
    assert ran == ["read a", "standalone"]


# --- How it works: fail closed ----------------------------------------------------------------------------------------


class Odd(Exception):
    """An exception of one's own."""


def broken(what: str) -> FunctionHook | CommandHook:
    def raises(event_data: Any) -> None:
        raise Odd("details")

    async def hangs(event_data: Any) -> None:
        await asyncio.sleep(60)

    made: dict[str, Callable[[], FunctionHook | CommandHook]] = {
        "raises": lambda: FunctionHook(event="before_tool", name=what, func=raises),
        "times out": lambda: FunctionHook(event="before_tool", name=what, func=hangs, timeout=0.05),
        "no callable": lambda: FunctionHook(event="before_tool", name=what, func=None),
        "127": lambda: CommandHook(event="before_tool", name=what, command="/no/such/gate"),
        "126": lambda: CommandHook(event="before_tool", name=what, args=("/",)),
        "1": lambda: CommandHook(event="before_tool", name=what, command="exit 1"),
        "137": lambda: CommandHook(event="before_tool", name=what, command="kill -9 $$"),
        "allow, then a crash": lambda: CommandHook(
            event="before_tool", name=what, command="""echo '{"decision": "allow"}'; exit 127"""
        ),
        "command times out": lambda: CommandHook(event="before_tool", name=what, command="sleep 60", timeout=0.05),
    }
    return made[what]()


BREAKS = ["raises", "times out", "no callable", "127", "126", "1", "137", "allow, then a crash", "command times out"]


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_gate_keeps_the_tool_from_running(what: str) -> None:
    get_default_registry().register(broken(what))

    agent, model = agent_with(calls("delete_file", path="a"), tools=[delete_file])

    assert agent.start("go") == "done"
    assert ran == []
    assert tool_texts(model) == [BLOCKED.format("delete_file")]


@pytest.mark.parametrize("what", BREAKS)
def test_every_broken_gate_is_a_deny_with_a_reason(what: str) -> None:
    registry = HookRegistry()
    registry.register(broken(what))
    rows = HookRunner(registry).execute_sync("before_tool", {"tool_name": "t"})

    (row,) = rows
    assert row.output is not None
    assert row.output.decision == "deny"
    assert row.output.reason
    assert HookRunner.is_blocked(rows)
    assert HookRunner.get_blocking_reason(rows) == row.output.reason


def test_strict_hooks_surface_the_exception_underneath() -> None:
    get_default_registry().register(broken("raises"))
    agent, _ = agent_with(calls("delete_file", path="a"), tools=[delete_file])
    agent._strict_hooks = True

    with pytest.raises(Odd, match="details"):
        agent.start("go")
    assert ran == []


def test_the_snippet_of_exit_codes() -> None:
    runner = HookRunner(HookRegistry(), cwd="/tmp")

    result = runner._parse_command_output(stdout="", stderr="not found", exit_code=127)
    assert result.decision == "deny"
    assert result.reason == "Hook exited with unexpected code 127: not found"

    result = runner._parse_command_output(stdout='{"decision": "allow"}', stderr="", exit_code=127)
    assert result.decision == "deny"
    assert "127" in (result.reason or "")

    result = runner._parse_command_output(stdout='{"decision": "deny", "reason": "policy"}', stderr="", exit_code=127)
    assert result.decision == "deny"
    assert result.reason == "policy"


def test_the_snippet_of_a_hook_without_a_callable() -> None:
    hook = FunctionHook(id="broken", name="broken", event=HookEvent.BEFORE_TOOL, func=None)
    registry = HookRegistry()
    assert registry.register(hook) == "broken"

    rows = HookRunner(registry).execute_sync("before_tool", {"tool_name": "t"})

    assert rows[0].output == HookResult(decision="deny", reason="Hook 'broken' has no callable")
    assert HookRunner.is_blocked(rows)


@pytest.mark.parametrize(
    ("line", "decision", "reason"),
    [
        ("exit 0", "allow", None),
        ("""echo '{"decision": "deny", "reason": "policy"}'""", "deny", "policy"),
        ("""echo '{"modified_input": {"q": "new"}, "additional_context": "note"}'""", "allow", None),
        ("echo no >&2; exit 2", "deny", "no"),
        ("echo no; exit 2", "deny", "no"),
        ("""echo '{"decision": "deny", "reason": "policy"}'; echo no >&2; exit 2""", "deny", "policy"),
        ("exit 127", "deny", "Hook exited with unexpected code 127: no output"),
        ("exit 126", "deny", "Hook exited with unexpected code 126: no output"),
        ("echo oops >&2; exit 1", "deny", "Hook exited with unexpected code 1: oops"),
        ("exit 137", "deny", "Hook exited with unexpected code 137: no output"),
        (
            """echo '{"decision": "allow"}'; exit 1""",
            "deny",
            "Hook exited with unexpected code 1 after emitting an allow decision: no stderr",
        ),
        ("sleep 60", "deny", "Hook 'gate' timed out after 0.3s"),
    ],
)
def test_every_row_of_the_exit_code_table_with_a_real_command(line: str, decision: str, reason: str | None) -> None:
    registry = HookRegistry()
    registry.register_command("before_tool", line, name="gate", sequential=True, timeout=0.3 if "sleep" in line else 20)

    (row,) = HookRunner(registry).execute_sync("before_tool", {"tool_name": "t", "tool_input": {"q": "old"}})

    assert row.output is not None
    assert (row.output.decision, row.output.reason) == (decision, reason)
    if "modified_input" in line:
        assert (row.output.modified_input, row.output.additional_context) == ({"q": "new"}, "note")


# --- Sequential and parallel ------------------------------------------------------------------------------------------


def test_a_logger_runs_parallel_and_a_rewriter_sequential(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    registry = HookRegistry()
    logged: list[str] = []

    def log_prompt(event_data: Any) -> None:
        logged.append(event_data.messages[-1]["content"])

    def redact_pii(event_data: Any) -> HookResult:
        messages = [{**one, "content": str(one["content"]).replace("4111", "[card]")} for one in event_data.messages]
        return HookResult(decision="allow", modified_input={"messages": messages})

    registry.register_function(event=HookEvent.BEFORE_LLM, func=log_prompt, name="my.logger")
    registry.register_function(event=HookEvent.BEFORE_LLM, func=redact_pii, name="my.pii_redactor", sequential=True)
    modes = {row["name"]: row["sequential"] for row in registry.list_hooks()["before_llm"]}
    assert modes == {"my.logger": False, "my.pii_redactor": True}

    agent, model = agent_with(hooks=registry)
    ask(agent, "my card is 4111")

    assert logged == ["my card is 4111"]
    assert model.requests[0].messages[-1]["content"] == "my card is [card]"
    assert "discarded" not in caplog.text


def test_a_parallel_rewriter_is_discarded_with_the_warning(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    registry = HookRegistry()
    registry.register_function(
        "before_llm", lambda given: HookResult(modified_input={"messages": []}), name="my.pii_redactor"
    )
    agent, model = agent_with(hooks=registry)
    with caplog.at_level(logging.WARNING):
        ask(agent, "hello")

    assert model.requests[0].messages[-1]["content"] == "hello"
    assert (
        "Parallel hook 'my.pii_redactor' returned modified_input which is discarded; "
        "register it with sequential=True to apply it."
    ) in caplog.messages


def test_parallel_hooks_overlap() -> None:
    registry = HookRegistry()
    both = threading.Barrier(2, timeout=60)
    for _ in range(2):
        registry.register_function("session_start", lambda given: (both.wait(), None)[1])

    assert all(row.success for row in HookRunner(registry).execute_sync("session_start"))


def test_priority_holds_across_the_border_of_modes(ask: Any) -> None:
    seen: list[str] = []
    registry = HookRegistry()

    @registry.on(HookEvent.BEFORE_LLM, priority=20)
    def trace(event_data: Any) -> None:
        seen.append(event_data.messages[-1]["content"])

    @registry.on(HookEvent.BEFORE_LLM, sequential=True, priority=10)
    def redact(event_data: Any) -> HookResult:
        return HookResult.modify(messages=[{"role": "user", "content": "scrubbed"}])

    agent, _ = agent_with(hooks=registry)
    ask(agent, "secret")

    assert seen == ["scrubbed"]


def test_list_hooks_is_in_execution_order_with_priorities() -> None:
    registry = HookRegistry()

    @registry.on(HookEvent.AFTER_LLM, priority=90)
    def trace(event_data: Any) -> HookResult:
        return HookResult.allow()

    @registry.on(HookEvent.AFTER_LLM, sequential=True, priority=10)
    def redact(event_data: Any) -> HookResult:
        return HookResult.allow()

    listed = [(hook["name"], hook["priority"]) for hook in registry.list_hooks()["after_llm"]]
    assert listed == [("redact", 10), ("trace", 90)]


def test_every_way_to_register_takes_a_priority_and_its_default_is_100() -> None:
    registry = HookRegistry()
    registry.register_function("before_tool", lambda given: None, name="function")
    registry.register_command("before_tool", "true", name="command")
    registry.on("before_tool", name="on")(lambda given: None)
    registry.register_function("before_tool", lambda given: None, name="first", priority=1)
    registry.register_command("before_tool", "true", name="second", priority=2)
    registry.on("before_tool", name="third", priority=3)(lambda given: None)
    add_hook("before_tool", lambda given: None, name="added")

    listed = [(row["name"], row["priority"]) for row in registry.list_hooks()["before_tool"]]
    assert listed == [("first", 1), ("second", 2), ("third", 3), ("function", 100), ("command", 100), ("on", 100)]
    assert get_default_registry().list_hooks()["before_tool"][0]["priority"] == 100


def test_a_denial_in_a_sequential_run_ends_the_chain() -> None:
    seen: list[str] = []
    registry = HookRegistry()
    registry.register_function("before_tool", lambda given: "no", sequential=True, priority=1)
    registry.register_function("before_tool", lambda given: seen.append("later"), sequential=True, priority=2)
    registry.register_function("before_tool", lambda given: seen.append("parallel"), priority=3)

    rows = HookRunner(registry).execute_sync("before_tool", {"tool_name": "t"})

    assert len(rows) == 1
    assert seen == []


# --- Thread safety ----------------------------------------------------------------------------------------------------


def test_registering_and_reading_from_many_threads() -> None:
    registry = HookRegistry()
    problems: list[BaseException] = []

    def worker() -> None:
        try:
            for _ in range(100):
                hook_id = registry.register_function(
                    event=HookEvent.BEFORE_TOOL, func=lambda data: data, name="my.hook"
                )
                registry.get_hooks(HookEvent.BEFORE_TOOL)
                assert registry.unregister(hook_id)
        except BaseException as problem:  # noqa: BLE001 - told by the test
            problems.append(problem)

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    assert len(registry) == 0


def test_a_hook_may_register_and_unregister_hooks() -> None:
    registry = HookRegistry()
    seen: list[str] = []

    def once(given: Any) -> None:
        seen.append("once")
        registry.unregister(first)
        registry.register_function("notification", lambda later: seen.append("later"))

    first = registry.register_function("notification", once)
    runner = HookRunner(registry)
    runner.execute_sync("notification")
    runner.execute_sync("notification")

    assert seen == ["once", "later"]


# --- Available events -------------------------------------------------------------------------------------------------


def test_the_core_events_fire_in_a_run(ask: Any) -> None:
    seen: list[str] = []
    core = [
        "before_agent",
        "after_agent",
        "before_tool",
        "after_tool",
        "before_tool_definitions",
        "before_llm",
        "after_llm",
    ]
    core += ["on_error", "on_retry", "session_start", "session_end"]
    for event in core:
        add_hook(event, lambda given, event=event: (seen.append(event), given)[1], sequential=True)
    agent, _ = agent_with(
        calls("read_file", path="a"),
        ModelError("busy", category="rate_limit", retryable=True, retry_after=0.001),
        tools=[read_file],
    )
    ask(agent, "go")
    agent.close()

    model_call = ["before_tool_definitions", "before_llm"]
    assert [event for event in seen if event != "on_error"] == [
        *("session_start", "before_agent"),
        *(*model_call, "after_llm", "before_tool", "after_tool"),
        *(*model_call, "on_retry", "after_llm", "after_agent", "session_end"),
    ]


def test_on_error_fires_for_an_error_inside_a_run(ask: Any) -> None:
    seen: list[str] = []
    add_hook("on_error", lambda given: seen.append(given.error_type))
    agent, _ = agent_with(ModelError("no", category="auth"))

    with pytest.raises(ModelError):
        ask(agent, "go")

    assert "ModelError" in seen


def test_there_are_about_forty_events_and_more_each_with_its_input_class() -> None:
    named = [
        "before_llm",
        "after_llm",
        "model_fallback",
        "on_init",
        "on_shutdown",
        "message_received",
        "message_sending",
        "message_sent",
        "message_undelivered",
        "gateway_start",
        "gateway_stop",
        "before_compaction",
        "after_compaction",
        "on_permission_ask",
        "on_config",
        "on_auth",
        "schedule_add",
        "schedule_remove",
        "schedule_trigger",
        "job_completed",
        "subagent_stop",
        "kanban_task_created",
    ]

    assert set(named) <= {event.value for event in HookEvent}
    assert len(CATALOGUE) >= 40
    for event in named:
        kind = payload_type(event)
        assert issubclass(kind, HookInput)
        assert getattr(package, kind.__name__) is kind


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("before_message", "message_received"),
        ("after_message", "message_sending"),
        ("tool_result_persist", "after_tool"),
    ],
)
def test_old_names_are_aliases_of_live_events(old: str, new: str) -> None:
    seen: list[str] = []
    add_hook(old, lambda given: (seen.append(given.event_name), given)[1])

    fire_hook(new, {"event_name": new})

    assert seen == [new]
    assert HookEvent(old) is HookEvent(new)


def test_plugin_events_are_fired_by_the_plugin_manager() -> None:
    seen: list[str] = []
    add_hook("on_init", lambda given: seen.append(f"init {given.plugin_name}"))
    add_hook("on_shutdown", lambda given: seen.append(f"shutdown {given.plugin_name}"))

    class Mine(Plugin):
        name = "mine"

    manager = PluginManager()
    manager.register(Mine())
    manager.unregister("mine")

    assert seen == ["init mine", "shutdown mine"]


def test_on_retry_fires_once_for_each_retry_and_never_blocks_the_loop(ask: Any) -> None:
    seen: list[tuple[int, str]] = []
    busy = ModelError("busy", category="server", retryable=True, retry_after=0.001)

    @add_hook("on_retry")
    def note(event_data: Any) -> None:
        seen.append((event_data.attempt, threading.current_thread().name))

    agent, model = agent_with(busy, busy)
    assert ask(agent, "go") == "done"

    assert [attempt for attempt, _ in seen] == [1, 2]
    assert all(name.startswith("agent-engine-worker") for _, name in seen)
    assert len(model.requests) == 3


def test_model_hooks_fire_on_every_face(ask: Any) -> None:
    seen: list[str] = []
    add_hook("before_llm", lambda given: seen.append("before_llm"))
    add_hook("after_llm", lambda given: seen.append(f"after_llm {given.response}"), sequential=True)

    agent, _ = agent_with()
    ask(agent, "hi")

    assert seen == ["before_llm", "after_llm done"]


def test_two_lookalike_fields() -> None:
    assert HookResult(decision="allow", modified_input={"a": 1}).modified_input == {"a": 1}
    assert HookOutput(modified_data={"a": 1}).modified_data == {"a": 1}
    registry = HookRegistry()
    registry.register_command("before_tool", """echo '{"modified_data": {"q": "new"}}'""", sequential=True)
    (row,) = HookRunner(registry).execute_sync("before_tool", {"tool_input": {"q": "old"}})
    assert row.output is not None
    assert row.output.modified_input == {"q": "new"}


# --- Configuration options --------------------------------------------------------------------------------------------


def test_the_defaults_of_the_options() -> None:
    config = HooksConfig()

    assert (config.on_step, config.on_tool_call, list(config.middleware), config.registry) == (None, None, [], None)


@pytest.mark.parametrize("is_async", [True, False])
def test_observers_are_called_and_their_return_is_ignored(ask: Any, is_async: bool) -> None:
    steps: list[ModelResponse] = []
    requests: list[ToolRequest] = []

    def step(response: Any) -> Any:
        steps.append(response)
        return HookResult.deny("ignored")

    def request(call: Any) -> Any:
        requests.append(call)
        call.arguments["path"] = "edited"
        return False

    async def async_step(response: Any) -> Any:
        return step(response)

    async def async_request(call: Any) -> Any:
        return request(call)

    config = HooksConfig(on_step=async_step if is_async else step, on_tool_call=async_request if is_async else request)
    agent, _ = agent_with(calls("read_file", path="a"), tools=[read_file], hooks=config)

    assert ask(agent, "go") == "done"
    assert [type(one) for one in steps] == [ModelResponse, ModelResponse]
    assert [(type(one), one.tool_name) for one in requests] == [(ToolRequest, "read_file")]
    assert ran == ["read a"]


def test_middleware_runs_before_on_tool_call_and_may_rewrite_or_block(ask: Any) -> None:
    seen: list[str] = []

    @before_tool
    def block_delete(request: Any) -> Any:
        if request.tool_name == "delete_file":
            return HookResult.block("delete_file is not allowed")
        request.arguments["path"] = "rewritten"
        return request

    def log_tool(request: Any) -> None:
        seen.append(f"tool: {request.tool_name} args={request.arguments}")

    agent, model = agent_with(
        calls("delete_file", path="a"),
        calls("read_file", path="b"),
        tools=[delete_file, read_file],
        hooks=HooksConfig(on_tool_call=log_tool, middleware=[block_delete]),
    )
    ask(agent, "Tidy up the workspace")

    assert seen == ["tool: read_file args={'path': 'rewritten'}"]
    assert ran == ["read rewritten"]
    assert tool_texts(model)[0] == f"{BLOCKED.format('delete_file')} Reason: delete_file is not allowed"


def test_an_async_observer_beside_middleware() -> None:
    seen: list[str] = []

    async def log_tool(request: Any) -> None:
        seen.append(f"→ {request.tool_name}({request.arguments})")

    @before_model
    def my_validator(request: Any) -> None:
        seen.append("validated")

    agent, _ = agent_with(
        calls("read_file", path="a"),
        tools=[read_file],
        hooks=HooksConfig(on_tool_call=log_tool, middleware=[my_validator]),
    )
    agent.start("go")

    assert seen == ["validated", "→ read_file({'path': 'a'})", "validated"]


# --- Common patterns --------------------------------------------------------------------------------------------------


def test_security_filtering(ask: Any) -> None:
    blocked_tools = {"delete_file", "execute_command", "drop_table"}

    @add_hook("before_tool")
    def security_filter(event_data: Any) -> str | None:
        if event_data.tool_name in blocked_tools:
            return f"Tool '{event_data.tool_name}' is not allowed in this environment"
        return None

    agent, model = agent_with(calls("delete_file", path="a"), tools=[delete_file])
    ask(agent, "Clean up the old log files")

    assert ran == []
    reason = "Tool 'delete_file' is not allowed in this environment"
    assert tool_texts(model) == [f"{BLOCKED.format('delete_file')} Reason: {reason}"]


def test_guardrails_run_before_tracing(ask: Any) -> None:
    registry = HookRegistry()
    order: list[str] = []

    @registry.on(HookEvent.AFTER_LLM, priority=90)
    def add_trace_span(event_data: Any) -> HookResult:
        order.append(f"trace {event_data.response}")
        return HookResult.allow()

    @registry.on(HookEvent.AFTER_LLM, sequential=True, priority=10)
    def redact_pii(event_data: Any) -> HookResult:
        event_data.response = event_data.response.replace("done", "[redacted]")
        return HookResult.allow()

    agent, _ = agent_with(hooks=registry)

    assert ask(agent, "Fetch the user profile") == "[redacted]"
    assert order == ["trace [redacted]"]


def test_audit_logging(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    @add_hook("before_tool")
    def audit_before(event_data: Any) -> None:
        print(json.dumps({"ts": datetime.now(UTC).isoformat(), "event": "before_tool", "tool": event_data.tool_name}))

    @add_hook("after_tool")
    def audit_after(event_data: Any) -> None:
        print(json.dumps({"ts": datetime.now(UTC).isoformat(), "event": "after_tool", "tool": event_data.tool_name}))

    agent, _ = agent_with(calls("read_file", path="a"), tools=[read_file])
    ask(agent, "Search for the latest AI research papers")

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["tool"]) for line in lines] == [
        ("before_tool", "read_file"),
        ("after_tool", "read_file"),
    ]


def test_redacting_secrets_from_tool_output(ask: Any) -> None:
    secret = re.compile(r"sk-[A-Za-z0-9]{20,}")

    @add_hook("after_tool")
    def redact_secrets(event_data: Any) -> str | None:
        result = event_data.tool_output
        if isinstance(result, str) and secret.search(result):
            return secret.sub("[REDACTED-SECRET]", result)
        return None

    def read_log(path: str) -> str:
        """Read a log."""
        return f"{path}: key sk-{'a1' * 15} used"

    agent, model = agent_with(calls("read_log", path="/var/log/api.log"), tools=[read_log])
    ask(agent, "Read /var/log/api.log and summarise the errors")

    assert tool_texts(model) == ["/var/log/api.log: key [REDACTED-SECRET] used"]


def test_a_guardrail_blocks_a_result(ask: Any) -> None:
    @add_hook("after_tool")
    def block_pii(event_data: Any) -> None:
        if "ssn=" in str(event_data.tool_output).lower():
            raise GuardrailBlocked("Tool result contained PII; blocked before reaching model.")

    def look_up(order: int) -> str:
        """Look up an order."""
        return f"order {order} SSN=123-45-6789"

    agent, model = agent_with(calls("look_up", order=4821), tools=[look_up])
    ask(agent, "Look up the account details for order 4821")

    reason = "Tool result contained PII; blocked before reaching model."
    assert tool_texts(model) == [f"Result of look_up was blocked by security policy. Reason: {reason}"]
    assert "6789" not in str([request.messages for request in model.requests])


def test_a_registry_as_hooks_sees_every_tool(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    registry = HookRegistry()

    @registry.on(HookEvent.BEFORE_TOOL)
    def file_guard(event_data: Any) -> HookResult:
        if event_data.tool_name.startswith("write_"):
            print(f"Write operation: {event_data.tool_name}")
        return HookResult.allow()

    def write_summary(path: str) -> str:
        """Write a summary."""
        return "written"

    agent, _ = agent_with(calls("write_summary", path="output.txt"), tools=[write_summary], hooks=registry)
    ask(agent, "Create a summary and save it to output.txt")

    assert capsys.readouterr().out == "Write operation: write_summary\n"


def fetching(text: str) -> None:
    @tool(name="fetch")
    def fetch(url: str) -> str:
        """Fetch a page."""
        return text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("key sk-SECRET123", "key [REDACTED]"),
        ("ssn=1 sk-SECRET123", "Result of fetch was blocked by security policy. Reason: PII detected in tool output"),
        ("plain", "plain"),
    ],
)
def test_redacting_in_place_and_blocking_with_a_tool_given_by_name(ask: Any, text: str, read: str) -> None:
    registry = HookRegistry()

    @registry.on(HookEvent.AFTER_TOOL)
    def redact_secrets(event_data: Any) -> HookResult:
        scrubbed = str(event_data.tool_output).replace("sk-SECRET123", "[REDACTED]")
        event_data.tool_output = scrubbed
        return HookResult.allow()

    @registry.on(HookEvent.AFTER_TOOL)
    def block_on_pii(event_data: Any) -> HookResult:
        if "ssn=" in str(event_data.tool_output):
            return HookResult.block("PII detected in tool output")
        return HookResult.allow()

    fetching(text)
    agent, model = agent_with(calls("fetch", url="u"), tools=["fetch"], hooks=registry)
    ask(agent, "Fetch the user profile")

    assert tool_texts(model) == [read]


def test_additional_context_is_added_to_a_text_after_a_line_break_and_to_a_dict_under_its_key(ask: Any) -> None:
    add_hook("after_tool", lambda given: HookResult(additional_context="mind the gap"))

    def a_text() -> str:
        """Give a text."""
        return "text"

    def a_dict() -> dict[str, int]:
        """Give a dict."""
        return {"a": 1}

    agent, model = agent_with(calls("a_text"), calls("a_dict"), tools=[a_text, a_dict])
    ask(agent, "go")

    first, second = tool_texts(model)
    assert first == "text\nmind the gap"
    assert json.loads(second) == {"a": 1, "_additional_context": "mind the gap"}


# --- Best practices ---------------------------------------------------------------------------------------------------


def test_add_hook_is_for_every_agent_in_the_process() -> None:
    add_hook("before_tool", lambda event_data: "no")

    for name in ("one", "two"):
        model = ScriptedModel([calls("read_file", path=name), "done"])
        Agent(name=name, model=model, tools=[read_file]).start("go")

    assert ran == []


def test_a_failing_tool_is_fed_back_and_the_run_goes_on(ask: Any) -> None:
    def fails() -> str:
        """Fail."""
        raise ValueError("disk full")

    def number() -> int:
        """Give a number."""
        return 5

    agent, model = agent_with(calls("fails"), calls("number"), tools=[fails, number])

    assert ask(agent, "go") == "done"
    first, second = (json.loads(text) for text in tool_texts(model))
    assert list(first) == ["error"]
    assert second == {"result": 5}


def test_nothing_is_built_for_an_event_that_nobody_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def count(self: Any) -> None:
        built.append(type(self).__name__)

    names = ("BeforeAgentInput", "AfterAgentInput", "BeforeToolDefinitionsInput", "BeforeToolInput", "BeforeLLMInput")
    for name in names:
        kind = getattr(package, name)
        original = kind.__init__
        monkeypatch.setattr(
            kind, "__init__", lambda self, *a, _init=original, **k: (count(self), _init(self, *a, **k))[1]
        )
    agent, _ = agent_with(calls("read_file", path="a"), tools=[read_file])
    assert agent.start("Say hi") == "done"
    assert built == []

    turns: list[str] = []

    @add_hook("after_agent")
    def log_turn(event_data: Any) -> None:
        turns.append(f"Turn completed by {event_data.agent_name} in {event_data.execution_time_ms:.0f}ms")

    assert agent.start("Say hi again") == "done"
    assert built == ["AfterAgentInput"]
    assert re.fullmatch(r"Turn completed by Assistant in \d+ms", turns[0])


def test_a_slow_sync_hook_never_blocks_the_loop() -> None:
    entered, release = threading.Event(), threading.Event()

    @add_hook("before_tool")
    def slow(event_data: Any) -> None:
        entered.set()
        release.wait(60)

    async def main() -> str:
        agent, _ = agent_with(calls("read_file", path="a"), tools=[read_file])
        turn = asyncio.create_task(agent.achat("go"))
        started = time.monotonic()
        while not entered.is_set():
            await asyncio.sleep(0.001)
        release.set()
        assert time.monotonic() - started < 50, "it had waited until the hook gave up"
        return await turn

    assert asyncio.run(main()) == "done"
