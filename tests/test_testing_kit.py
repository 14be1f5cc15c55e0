"""The kit: a payload for every event, assertions that say what they found, a recorder, and an isolated registry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from agent_engine.hooks import (
    CommandHook,
    FunctionHook,
    HookEvent,
    HookRegistry,
    HookResult,
    HookRunner,
    RunContext,
    add_hook,
    fire_hook,
    get_default_registry,
)
from agent_engine.hooks.events import CATALOGUE
from agent_engine.hooks.payloads import payload_type
from agent_engine.testing import (
    Recorder,
    arun_hook,
    assert_allowed,
    assert_asked,
    assert_denied,
    assert_modified,
    fresh_default_registry,
    invocation,
    payload,
    run_hook,
)


@pytest.mark.parametrize("event", list(CATALOGUE))
def test_there_is_a_payload_for_every_event(event: HookEvent) -> None:
    built = payload(event)

    assert isinstance(built, payload_type(event))
    if hasattr(built, "event_name"):
        assert (built.event_name, built.session_id, built.run_id) == (event.value, "test-session", "test-run")
    assert invocation(event).payload_as(payload_type(event)) is not None


def test_fields_are_taken_and_unknown_ones_refused_with_those_there_are() -> None:
    assert payload("before_tool", tool_name="search", agent_name="a").tool_name == "search"
    assert payload("on_run_start", user_id="u").run_id == "test-run"
    error = ValueError("x")
    assert payload("on_run_error", error=error) is error
    with pytest.raises(TypeError, match=r"before_tool has no field 'tool'; it has .*tool_name"):
        payload("before_tool", tool="search")
    with pytest.raises(TypeError, match=r"on_run_error has no field 'x'; it has error"):
        payload("on_run_error", x=1)
    with pytest.raises(ValueError, match="Did you mean 'before_tool'"):
        payload("befor_tool")


def test_an_invocation_is_what_a_declared_method_gets() -> None:
    called = invocation("before_mcp_request", RunContext(user_id="u"), server_id="s")

    assert (called.hook_point, called.payload.server_id) == ("before_mcp_request", "s")
    assert called.run_context is not None
    assert called.run_context.user_id == "u"


def test_functions_hooks_and_registries_can_be_run() -> None:
    assert_denied(run_hook(lambda given: "not allowed", "before_tool", tool_name="rm"), "not allowed")
    assert_denied(run_hook(CommandHook(event="before_tool", command="exit 2"), "before_tool"), "Blocked by hook")
    registry = HookRegistry()
    registry.register_function("before_tool", lambda given: False, matcher="rm")
    assert_denied(run_hook(registry, "before_tool", tool_name="rm"))
    assert_allowed(run_hook(registry, "before_tool", tool_name="ls"))
    assert_allowed(run_hook(registry, "after_tool"))


def test_options_of_a_functions_registration_and_a_ready_payload() -> None:
    def upper(given: Any) -> HookResult:
        return HookResult.modify(q=given.tool_input["q"].upper())

    verdict = run_hook(upper, "before_tool", tool_input={"q": "x"}, register_sequential=True)
    assert_modified(verdict, q="X")
    assert_modified(verdict, tool_input={"q": "X"})
    built = payload("before_tool", tool_input={"q": "y"})
    assert_modified(run_hook(upper, "before_tool", built, register_sequential=True), q="Y")


def test_a_ready_payload_may_be_a_dict_and_is_one_of_this_event() -> None:
    def no(payload: Any) -> str | None:
        return "no" if payload.tool_name == "rm" else None

    assert_denied(run_hook(no, "before_tool", {"tool_name": "rm"}), "no")
    with pytest.raises(TypeError, match="The payload of before_tool is a BeforeToolInput or a dict of its fields"):
        run_hook(no, "before_tool", payload("after_tool"))


async def test_the_same_for_async_tests() -> None:
    async def gate(given: Any) -> bool:
        await asyncio.sleep(0)
        return False

    assert_denied(await arun_hook(gate, "before_tool"), "Denied by hook")


def test_the_assertions_take_whatever_tells_about_a_hook() -> None:
    registry = HookRegistry()
    registry.register_function("before_tool", lambda given: HookResult.modify(q="new"), sequential=True)
    rows = HookRunner(registry).execute_sync("before_tool", {"tool_input": {"q": "old"}})

    assert_modified(rows, q="new")
    assert_modified(rows[0], q="new")
    assert_modified(HookResult.modify(q="new"), q="new")
    assert_allowed(HookResult.allow())
    assert assert_denied(HookResult.deny("a policy"), "policy") == "a policy"
    registry.register_function("before_tool", lambda given: "no")
    assert_denied(HookRunner(registry).execute_sync("before_tool"), "no")


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (lambda: assert_denied(HookResult.allow("fine")), r"expected a deny, got allow \(fine\)"),
        (lambda: assert_denied(HookResult.ask()), "expected a deny, got ask"),
        (lambda: assert_denied([]), "expected a deny, got nothing: no hook ran"),
        (lambda: assert_denied(HookResult.deny("b"), "a"), "expected a deny with 'a' in its reason, got 'b'"),
        (lambda: assert_allowed(HookResult.deny("b")), r"expected an allow, got deny \(b\)"),
        (lambda: assert_allowed(HookResult.ask("b")), r"expected an allow, got ask \(b\)"),
        (
            lambda: assert_modified(HookResult.allow(), q=1),
            "expected a change, got allow; what a parallel hook changes",
        ),
        (lambda: assert_asked(HookResult.deny("no")), r"expected an ask, got deny \(no\)"),
        (
            lambda: assert_asked(HookResult.ask("a mail leaves"), "delete"),
            "expected an ask with 'delete' in its reason",
        ),
        (lambda: assert_modified(HookResult.modify(q=2), q=1), "expected q to be 1, got 2"),
        (lambda: assert_modified(HookResult.modify(q=2), n=1), r"expected 'n' to be changed; .* \['q'\]"),
        (lambda: assert_modified(HookResult.deny("b"), q=1), r"expected an allow, got deny \(b\)"),
    ],
)
def test_a_failed_assertion_says_what_it_found(check: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check()


def test_what_tells_about_no_hook_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not a int"):
        assert_denied(5)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: run_hook(_refuse, "before_tool", {"tool_name": "a"}, tool_input={}), "tool_input would be ignored"),
        (lambda: run_hook(HookRegistry(), "before_tool", register_timeout=1), "register_timeout is for a function"),
        (lambda: Recorder().attach("before_tool"), "takes the registry first"),  # type: ignore[arg-type]  # on purpose
        (lambda: payload("before_tool", tool_input=5), "tool_input at before_tool is a dict, not int"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_told(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        call()


def _refuse(payload: Any) -> bool:
    return False


def test_a_recorder_remembers_and_changes_nothing() -> None:
    registry = HookRegistry()
    recorder = Recorder().attach(registry)
    for event in CATALOGUE:
        verdict = run_hook(registry, event)
        assert verdict.decision == ("ask" if event is HookEvent.ON_PERMISSION_ASK else "allow")

    assert recorder.events == [event.value for event in CATALOGUE]
    assert [seen.tool_name for seen in recorder.of("before_tool")] == [""]
    assert len(recorder.payloads) == len(CATALOGUE)
    recorder.clear()
    assert recorder.calls == []


def test_what_a_recorder_has_seen_no_later_hook_changes() -> None:
    registry = HookRegistry()
    recorder = Recorder().attach(registry, "before_tool", sequential=True, priority=1)

    @registry.on("before_tool", sequential=True)
    def later(given: Any) -> None:
        given.tool_input["q"] = "changed"

    verdict = run_hook(registry, "before_tool", tool_input={"q": "first"})

    assert recorder.payloads[0].tool_input == {"q": "first"}
    assert_modified(verdict, q="changed")


def test_a_recorder_without_a_registry_listens_to_the_process_wide_one(isolated_hooks: HookRegistry) -> None:
    recorder = Recorder().attach(None, "notification")
    fire_hook("notification", {"message": "hello"})

    assert [seen.message for seen in recorder.of("notification")] == ["hello"]


def test_the_fixture_isolates_the_process_wide_registry(isolated_hooks: HookRegistry) -> None:
    assert get_default_registry() is isolated_hooks
    assert len(isolated_hooks) == 0
    add_hook("before_tool", lambda given: None)
    assert len(isolated_hooks) == 1


def test_after_the_fixture_the_registry_before_is_back() -> None:
    outside = get_default_registry()
    with pytest.raises(KeyError), fresh_default_registry() as registry:
        assert get_default_registry() is registry is not outside
        raise KeyError
    assert get_default_registry() is outside


def test_importing_the_kit_is_light_and_needs_no_pytest() -> None:
    code = (
        "import sys\n"
        "import agent_engine.testing\n"
        "heavy = {'pytest', 'pydantic', 'httpx2', 'ruamel', 'typer', 'rich', 'mcp', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert not hasattr(agent_engine.testing, 'isolated_hooks')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stderr


def test_a_failure_that_refuses_nothing_is_no_deny() -> None:
    def breaks(payload: Any) -> None:
        raise KeyError

    registry = HookRegistry()
    registry.register_function("before_tool", breaks, failure_policy="warn")
    rows = fire_hook("before_tool", {"tool_name": "x"}, registry=registry)

    with pytest.raises(AssertionError, match="expected a deny"):
        assert_denied(rows)
    assert_allowed(rows)


def test_a_hook_for_another_event_is_not_taken_for_an_allow() -> None:
    hook = FunctionHook(event="before_llm", func=lambda payload: False)

    with pytest.raises(ValueError, match="does not listen to before_tool"):
        run_hook(hook, "before_tool")


def test_hooks_of_one_agent_or_server_run_on_its_payloads() -> None:
    for_agent = FunctionHook(event="before_tool", func=lambda payload: False, agents=("writer",))
    for_server = FunctionHook(event="before_mcp_request", func=lambda request: HookResult.deny(), servers=("files",))

    assert run_hook(for_agent, "before_tool", agent_name="writer").denied
    assert not run_hook(for_agent, "before_tool", agent_name="reader").denied
    assert run_hook(for_server, "before_mcp_request", server_id="files").denied
