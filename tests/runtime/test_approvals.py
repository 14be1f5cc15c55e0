"""An ask is a question that somebody has to answer with yes; everything else is a no."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_engine import RunContext
from agent_engine.hooks import HookResult
from agent_engine.hooks.registry import HookRegistry
from agent_engine.records.journal import MemoryJournal, StepClosed
from agent_engine.runtime.approvals import ApprovalDesk, terminal_approver
from agent_engine.runtime.limits import Limits
from agent_engine.tools.base import CallableTool
from agent_engine.tools.function import FunctionTool

from .run_kit import Made, call, calls, listen, made, node_of

BLOCKED = "Execution of work was blocked by security policy."


class Asked:
    """A run whose tool is asked about."""

    def __init__(self, turns: Any = None, **options: Any) -> None:
        self.ran: list[str] = []
        self.registry = HookRegistry()

        async def work(target: str = "x") -> str:
            """Work."""
            self.ran.append(target)
            return "done"

        def ask(seen: Any) -> Any:
            return HookResult.ask("sure?")

        self.registry.register_function("before_tool", ask, name="asks", sequential=True)
        self.one: Made = made(turns or [call("work"), "answer"], [work], registry=self.registry, **options)

    async def run(self, **options: Any) -> str:
        await self.one.run(**options)
        return self.one.tool_text()


@pytest.mark.parametrize(
    "approver",
    [
        None,
        lambda ask: False,
        lambda ask: None,
        lambda ask: "yes",
        lambda ask: 1,
        lambda ask: 1 / 0,
        pytest.param(lambda ask: asyncio.Event().wait(), id="never answers"),
    ],
)
async def test_whatever_is_not_a_yes_is_a_no(approver: Any) -> None:
    """Fault 24."""
    asked = Asked(approver=approver, limits=Limits(approval_s=0.05))
    trace = listen(asked.registry)
    assert await asked.run() == BLOCKED
    assert asked.ran == []
    assert "after_tool" not in trace.names


@pytest.mark.parametrize("approver", [lambda ask: True, lambda ask: "session", lambda ask: _soon(True)])
async def test_a_yes_lets_it_run(approver: Any) -> None:
    asked = Asked(approver=approver)
    assert await asked.run() == "done"
    assert asked.ran == ["x"]


async def _soon(answer: Any) -> Any:
    await asyncio.sleep(0)
    return answer


@pytest.mark.usefixtures("idle_clock")
async def test_a_person_may_take_longer_than_a_hook() -> None:
    """The limit of hooks is not for people: only approval_s is."""
    asked = Asked(approver=lambda ask: _after(0.1))
    asked.registry.set_global_timeout(0.02)
    assert await asked.run() == "done"


async def _after(seconds: float) -> bool:
    await asyncio.sleep(seconds)
    return True


async def test_a_strict_deny_is_not_asked_about() -> None:
    asked = Asked(approver=lambda ask: pytest.fail("asked"))
    asked.registry.register_function("before_tool", lambda seen: HookResult.deny("never"), sequential=True)
    assert await asked.run() == f"{BLOCKED} Reason: never"


async def test_an_ask_elsewhere_is_a_deny() -> None:
    asked = Asked(approver=lambda ask: True)
    asked.registry.register_function("transform_tool_result", lambda seen: HookResult.ask("hm"))
    assert (await asked.run()).startswith("Result of work was blocked")


# Hooks on on_permission_ask


async def test_a_hook_answers_in_the_place_of_a_person() -> None:
    asked = Asked()
    asked.registry.register_function("on_permission_ask", lambda seen: True)
    assert await asked.run() == "done"


async def test_a_hooks_no_wins_and_its_reason_is_told() -> None:
    asked = Asked(approver=lambda ask: pytest.fail("asked"))
    asked.registry.register_function("on_permission_ask", lambda seen: True)
    asked.registry.register_function("on_permission_ask", lambda seen: HookResult.deny("not today"))
    assert await asked.run() == f"{BLOCKED} Reason: not today"


async def test_no_answer_of_the_hooks_asks_the_approver() -> None:
    people: list[Any] = []
    asked = Asked(approver=lambda ask: people.append(ask) or True)
    asked.registry.register_function("on_permission_ask", lambda seen: None)
    assert await asked.run() == "done"
    assert len(people) == 1


async def test_a_hook_that_breaks_at_the_ask_is_a_no() -> None:
    asked = Asked(approver=lambda ask: True)
    asked.registry.register_function("on_permission_ask", lambda seen: 1 / 0)
    assert await asked.run() == BLOCKED


# Changed arguments


async def test_arguments_changed_by_an_approver_pass_the_gates_again_without_a_new_ask() -> None:
    people: list[Any] = []

    def approve(ask: Any) -> bool:
        people.append(dict(ask.arguments))
        ask.arguments["target"] = "y"
        return True

    asked = Asked(approver=approve)
    trace = listen(asked.registry, ["before_tool", "after_tool"])
    assert await asked.run() == "done"
    assert asked.ran == ["y"]
    assert people == [{}]
    assert [seen.tool_input for seen in trace.of("before_tool")] == [{}, {"target": "y"}]
    assert trace.of("before_tool")[1].extra == {"pass": 2}
    assert len(trace.of("after_tool")) == 1


async def test_changed_arguments_are_refused_where_a_gate_forbids_them() -> None:
    asked = Asked(approver=lambda ask: ask.arguments.update(target="forbidden") or True)

    def gate(seen: Any) -> Any:
        return "forbidden" if seen.tool_input.get("target") == "forbidden" else None

    asked.registry.register_function("before_tool", gate, sequential=True)
    assert await asked.run() == f"{BLOCKED} Reason: forbidden"


async def test_changed_arguments_are_validated() -> None:
    asked = Asked(approver=lambda ask: ask.arguments.update(nonsense=1) or True)
    assert "Invalid arguments" in await asked.run()
    assert asked.ran == []


async def test_arguments_changed_with_a_no_stay_as_they_are() -> None:
    asked = Asked(approver=lambda ask: ask.arguments.update(target="y"))
    assert await asked.run() == BLOCKED


# Grants


def context(**fields: Any) -> RunContext:
    return RunContext(**{"organization_id": "o", "user_id": "u", "conversation_id": "c", **fields})


async def test_a_yes_for_the_session_holds_for_that_agent_and_tool_until_it_ends() -> None:
    people: list[str] = []
    asked = Asked([call("work"), "answer"] * 4, approver=lambda ask: people.append(ask.call_id) or "session")
    await asked.run(context=context())
    await asked.run(context=context())
    assert len(people) == 1
    await asked.run(context=context(user_id="other"))
    assert len(people) == 2
    await asked.one.host.sessions.end_all("close")
    await asked.run(context=context())
    assert len(people) == 3


async def test_a_yes_for_once_is_for_once() -> None:
    people: list[str] = []
    asked = Asked(
        [call("work"), call("work", call_id="c2"), "answer"], approver=lambda ask: people.append(ask.call_id) or True
    )
    await asked.run()
    assert people == ["c1", "c2"]


# Asked by the tool, or by the agent


async def test_a_tool_that_needs_approval_is_asked_about_without_any_hook() -> None:
    ran: list[int] = []

    def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    tool = FunctionTool(work, approval="required")
    one = made([call("work"), "answer"], [tool])
    await one.run()
    assert (one.tool_text(), ran) == (BLOCKED, [])
    one = made([call("work"), "answer"], [tool], approver=lambda ask: True)
    await one.run()
    assert (one.tool_text(), ran) == ("done", [1])


async def test_an_agent_that_is_not_automatic_asks_for_every_call() -> None:
    def work() -> str:
        """Work."""
        return "done"

    people: list[Any] = []
    one = made([call("work"), "answer"], [work], needs_approval=True, approver=lambda ask: people.append(ask) or True)
    await one.run()
    assert len(people) == 1


async def test_invalid_arguments_are_nothing_to_ask_about() -> None:
    asked = Asked([call("work", {"nonsense": 1}), "answer"], approver=lambda ask: pytest.fail("asked"))
    assert "Invalid arguments" in await asked.run()


# From outside


async def test_the_desk_is_answered_from_outside_by_id() -> None:
    desk = ApprovalDesk()
    asked = Asked(calls_two(), approver=desk)
    task = asyncio.create_task(asked.run())
    while len(desk.open()) < 2:
        await asyncio.sleep(0)
    assert {ask.call_id for ask in desk.open()} == {"c1", "c2"}
    assert desk.answer("c2", True)
    assert desk.answer("c1", False)
    assert not desk.answer("c1", True)  # somebody was faster
    assert not desk.answer("c9", True)
    await task
    read = [message["content"] for message in asked.one.seen() if message["role"] == "tool"]
    assert read == [BLOCKED, "done"]
    assert desk.open() == []


def calls_two() -> list[Any]:
    return [calls(("work", {"target": "a"}), ("work", {"target": "b"})), "answer"]


async def test_a_notification_tells_that_somebody_is_needed() -> None:
    asked = Asked(approver=lambda ask: True)
    trace = listen(asked.registry, ["notification"])
    events = await asked.one.events()
    assert trace.one("notification").kind == "approval_needed"
    approval = next(event.data for event in events if event.type == "approval")
    assert (approval["tool_name"], approval["arguments"], approval["reason"]) == ("work", {}, "sure?")


@pytest.mark.parametrize(("typed", "answer"), [("o\n", True), ("s\n", "session"), ("d\n", False), ("", False)])
def test_the_terminal_asks(typed: str, answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import io

    from agent_engine import ToolApproval

    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert terminal_approver(ToolApproval(call_id="c1", tool_name="work", arguments={"a": 1}, agent="me")) is answer
    assert 'me wants to call work {"a": 1}' in capsys.readouterr().err


@pytest.mark.parametrize(("approver", "outcome"), [(lambda ask: True, "ran"), (lambda ask: False, "declined")])
async def test_the_outcome_of_every_ask_is_recorded(approver: Any, outcome: str) -> None:
    journal = MemoryJournal()
    asked = Asked(approver=approver, journal=journal)
    await asked.run()
    closed = [entry for entry in journal.entries if isinstance(entry, StepClosed) and "approval" in entry.detail]
    assert [(entry.outcome, entry.detail["approval"]) for entry in closed] == [
        (outcome, {"answer": "yes" if outcome == "ran" else "no", "by": "approver"})
    ]


async def test_asks_of_two_agents_that_share_a_call_id_are_answered_one_by_one() -> None:
    desk = ApprovalDesk()
    ran: list[str] = []

    async def work(target: str) -> str:
        """Work."""
        ran.append(target)
        return "done"

    children = tuple(node_of([call("work", {"target": name}), name], [work], name=name) for name in ("left", "right"))
    turns = [calls(*[(child.name, {"message": "go"}) for child in children]), "answer"]
    one = made(turns, children=children, approver=desk)
    one.registry.register_function("before_tool", lambda seen: HookResult.ask("sure?"), matcher="work")
    task = asyncio.create_task(one.run())
    while len(desk.open()) < 2:
        await asyncio.sleep(0)
    assert [ask.call_id for ask in desk.open()] == ["c1", "c1#2"]
    refused = next(ask for ask in desk.open() if ask.agent == "left")
    for ask in desk.open():
        assert desk.answer(ask.call_id, ask is not refused)
    assert (await task).output == "answer"
    assert ran == ["right"]


@pytest.mark.parametrize("matcher", ["read", "files__read", "mcp__files__*"])
async def test_a_matcher_at_the_ask_is_tried_against_every_name_of_an_mcp_tool(matcher: str) -> None:
    ran: list[int] = []

    async def body(arguments: Any, invocation: Any) -> str:
        ran.append(1)
        return "done"

    names = {"provider": "mcp", "server_id": "files", "aliases": ("files__read", "mcp__files__read")}
    one = made([call("read"), "answer"], approver=lambda ask: True)
    one.node.tools = (CallableTool("read", "Reads.", {"type": "object", "properties": {}}, body, **names),)
    one.registry.register_function("before_tool", lambda seen: HookResult.ask("sure?"))
    one.registry.register_function("on_permission_ask", lambda seen: False, matcher=matcher)
    await one.run()
    assert ran == []


async def test_a_yes_for_the_session_is_for_the_tool_that_was_asked_about() -> None:
    asked: list[str] = []

    def approver(ask: Any) -> Any:
        asked.append(ask.tool_name)
        ask.tool_name = "other"
        return "session"

    async def work() -> str:
        """Work."""
        return "done"

    async def other() -> str:
        """Work on something else."""
        return "done"

    one = made([call("work"), call("other"), call("work"), "answer"], [work, other], approver=approver)
    one.registry.register_function("before_tool", lambda seen: HookResult.ask("sure?"))
    await one.run()
    assert asked == ["work", "other"]
