"""Limits: what a run may not do more often, and what happens then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_engine.hooks.errors import LimitReached
from agent_engine.models.base import ModelResponse, ToolCall
from agent_engine.runtime.limits import Limits

from .run_kit import call, calls, listen, made, node_of, unbalanced


class Counter:
    def __init__(self) -> None:
        self.ran: list[Any] = []

    async def work(self, n: int = 0) -> int:
        """Work."""
        self.ran.append(n)
        return n


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("model_calls", -1, "a whole number of at least 0, or None, not -1"),
        ("tool_calls", 1.5, "a whole number of at least 0, or None, not 1.5"),
        ("max_tokens", "10", "a whole number of at least 0, or None, not '10'"),
        ("context_tokens", True, "a whole number of at least 0, or None, not True"),
        ("max_parallel_tools", 0, "a whole number of at least 1, or None, not 0"),
        ("timeout_s", float("nan"), "a number of at least 0, or None, not nan"),
        ("approval_s", float("nan"), "a number of at least 0, or None, not nan"),
        ("allow_duplicate_tool_calls", None, "True or False, not None"),
    ],
)
def test_a_bound_that_bounds_nothing_is_refused(limit: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"Limits.{limit} must be {words}"):
        Limits(**{limit: value})


@pytest.mark.parametrize("limit", ["tool_calls", "tool_calls_per_agent"])
async def test_a_call_over_the_limit_is_refused_and_the_model_gets_one_last_call_without_tools(limit: str) -> None:
    counter = Counter()
    turns = [calls(*[("work", {"n": n}) for n in range(3)]), "what I have"]
    one = made(turns, [counter.work], limits=Limits(**{limit: 2}))
    assert (await one.run()).output == "what I have"
    assert counter.ran == [0, 1]
    assert "limit of 2 tool calls" in one.tool_text()
    assert [len(request.tools) for request in one.model.requests] == [1, 0]


async def test_the_last_call_is_the_last_even_if_the_model_wants_more() -> None:
    one = made(
        [call("work"), call("work"), {**call("work"), "text": "all right"}],
        [Counter().work],
        limits=Limits(tool_calls=1),
    )
    result = await one.run()
    assert result.output == "all right"
    assert "tool_calls" not in result.messages[-1]


async def test_calls_of_other_agents_have_a_limit_of_their_own() -> None:
    counter = Counter()
    child = node_of([call("work"), "done"] * 3, [counter.work], name="child", limits=Limits(tool_calls=9))
    turns = [call("child", {"message": "1"}), call("child", {"message": "2"}), "answer"]
    one = made(turns, children=(child,), limits=Limits(child_calls=1, tool_calls_per_agent=1))
    assert (await one.run()).output == "answer"
    assert len(counter.ran) == 1
    assert "calls of other agents" in one.tool_text()


async def test_duplicates_are_refused_where_they_are_not_allowed() -> None:
    counter = Counter()
    turns = [call("work", {"n": 1}), call("work", {"n": 1}), call("work", {"n": 2}), "answer"]
    one = made(turns, [counter.work], limits=Limits(allow_duplicate_tool_calls=False))
    assert (await one.run()).output == "answer"
    assert counter.ran == [1, 2]
    assert "was made before" in one.tool_text(2)


async def test_a_duplicate_is_no_refusal_by_a_hook() -> None:
    one = made(
        [call("work", {"n": 1})] * 6 + ["answer"], [Counter().work], limits=Limits(allow_duplicate_tool_calls=False)
    )
    assert (await one.run()).output == "answer"


@pytest.mark.usefixtures("idle_clock")
async def test_the_clock_ends_a_run_with_closing_events_that_say_so() -> None:
    async def slow() -> None:
        """Slow."""
        await asyncio.Event().wait()

    one = made([call("slow")], [slow], limits=Limits(timeout_s=0.05))
    trace = listen(one.registry)
    with pytest.raises(LimitReached) as caught:
        await one.run()
    assert (caught.value.limit, caught.value.value) == ("timeout_s", 0.05)
    assert trace.statuses("after_tool") == trace.statuses("on_tool_error") == ["timed_out"]
    assert trace.statuses("after_agent") == ["timed_out"]
    assert trace.one("on_run_error") is caught.value
    assert unbalanced(trace.names) == []


@pytest.mark.usefixtures("idle_clock")
async def test_a_childs_own_clock_ends_the_child_alone() -> None:
    async def slow() -> None:
        """Slow."""
        await asyncio.Event().wait()

    child = node_of([call("slow")], [slow], name="child", limits=Limits(timeout_s=0.05))
    one = made([call("child", {"message": "go"}), "answer"], children=(child,))
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert trace.statuses("after_agent") == ["timed_out", "ok"]
    assert trace.one("subagent_stop").success is False
    assert "timeout_s" in one.tool_text()


async def test_a_childs_own_bounds_end_the_child_alone() -> None:
    child = node_of([call("work")] * 3, [Counter().work], name="child", limits=Limits(model_calls=1))
    one = made([call("child", {"message": "go"}), "answer"], children=(child,))
    assert (await one.run()).output == "answer"
    assert "model_calls" in one.tool_text()


async def test_the_requests_bounds_end_it_from_any_depth() -> None:
    child = node_of([call("work")] * 9, [Counter().work], name="child")
    one = made([call("child", {"message": "go"}), "answer"], children=(child,), limits=Limits(model_calls=3))
    trace = listen(one.registry)
    with pytest.raises(LimitReached):
        await one.run()
    assert trace.statuses("after_agent") == ["error", "error"]
    assert unbalanced(trace.names) == []


def test_limits_are_checked_when_they_are_made() -> None:
    for wrong in ({"model_calls": -1}, {"timeout_s": "5"}, {"tool_calls": True}, {"allow_duplicate_tool_calls": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)  # type: ignore[arg-type]


async def test_the_last_call_leaves_the_models_own_answer_as_it_is() -> None:
    said = ModelResponse("once more", (ToolCall("c1", "work"),))

    class Insists:
        name = provider = "insists"

        async def request(self, *given: Any) -> ModelResponse:
            return said

        async def stream(self, *given: Any) -> Any:
            yield said

    one = made(Insists(), [Counter().work], limits=Limits(tool_calls=1))
    result = await one.run()
    assert result.output == "once more"
    assert "tool_calls" not in result.messages[-1]
    assert len(said.tool_calls) == 1
