"""Shortening a history: what is kept is whole, and what is cut is summarized."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.memory.compaction import (
    SUMMARY_HEADING,
    compact,
    estimate_tokens,
    leading,
    split_point,
    summary_request,
    transcript,
)
from agent_engine.models import messages as m
from agent_engine.models.base import Message, ToolCall


async def short(request: list[Message]) -> str:
    return "it was about notes"


def exchange(n: int, calls: int = 0, size: int = 10) -> list[Message]:
    made: list[Message] = [m.user(f"question {n} " + "x" * size)]
    if calls:
        wanted = [ToolCall(f"{n}.{c}", "look", {"q": n}) for c in range(calls)]
        made.append(m.assistant(None, wanted))
        made.extend(m.tool(call.id, "look", "found " + "y" * size) for call in wanted)
    return [*made, m.assistant(f"answer {n}")]


exchanges = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=8).map(
    lambda shapes: [message for n, (calls, size) in enumerate(shapes) for message in exchange(n, calls, size)]
)


@given(st.integers(0, 2), exchanges, st.integers(0, 800))
def test_a_cut_never_parts_a_call_from_its_results(heads: int, history: list[Message], keep: int) -> None:
    messages = [*[m.system("rule")] * heads, *history]
    cut = split_point(messages, keep)
    assert leading(messages) <= cut <= len(messages)
    kept = messages[cut:]
    called = {call.id for message in kept for call in m.calls_of(message)}
    results = {message["tool_call_id"] for message in kept if message["role"] == "tool"}
    assert called == results
    if history:
        assert kept, "the last exchange is always kept"
    users = [n for n, message in enumerate(messages) if message["role"] == "user"]
    if cut != leading(messages) and users:
        assert messages[cut]["role"] in ("user", "assistant")


async def test_the_older_part_gives_way_to_a_summary() -> None:
    history = [m.system("Be brief."), *exchange(1, 2), *exchange(2, 1), *exchange(3)]
    seen: list[list[Message]] = []

    async def summarize(request: list[Message]) -> str:
        seen.append(request)
        return "it was about notes"

    done = await compact(history, keep_tokens=30, summarize=summarize)
    assert done is not None
    assert done.messages[0] == m.system("Be brief.")
    assert done.messages[1] == m.system(f"{SUMMARY_HEADING}\nit was about notes")
    assert done.messages[2:] == exchange(3)
    assert (done.removed, done.kept) == (9, 3)
    assert done.tokens_after < done.tokens_before == estimate_tokens(history)
    assert "question 1" in seen[0][1]["content"]
    assert "question 3" not in seen[0][1]["content"]


async def test_an_earlier_summary_is_summarized_with_the_rest() -> None:
    first = await compact([m.system("S"), *exchange(1), *exchange(2)], keep_tokens=15, summarize=short)
    assert first is not None
    second = await compact([*first.messages, *exchange(3), *exchange(4)], keep_tokens=15, summarize=short)
    assert second is not None
    headings = [message for message in second.messages if str(message["content"]).startswith(SUMMARY_HEADING)]
    assert len(headings) == 1
    assert second.messages[0] == m.system("S")


async def test_nothing_to_cut_is_no_compaction() -> None:
    for history in ([], [m.system("S")], exchange(1, 1), [m.system("S"), *exchange(1)]):
        assert await compact(history, keep_tokens=1000, summarize=short) is None


async def test_a_summary_that_fails_leaves_the_history_as_it_was() -> None:
    history = [*exchange(1), *exchange(2)]
    before = list(history)

    async def broken(request: list[Message]) -> str:
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError):
        await compact(history, keep_tokens=10, summarize=broken)
    assert history == before


def test_tokens_grow_with_text_calls_and_files() -> None:
    assert estimate_tokens([m.user("x" * 400)]) == pytest.approx(104, abs=5)
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "x" * 100_000}}
    assert 1000 <= estimate_tokens([m.user([{"type": "text", "text": "hi"}, image])]) < 2000
    assert estimate_tokens([m.assistant(None, [ToolCall("1", "look", {"q": "x" * 400})])]) > 100


def test_a_transcript_says_who_said_what() -> None:
    text = transcript([*exchange(1, 1), m.tool("9", "look", "z" * 10_000)])
    assert "user: question 1" in text
    assert 'assistant: calls look({"q": 1})' in text
    assert "tool look: found" in text
    assert "characters left out" in text
    assert summary_request(exchange(1))[0]["role"] == "system"
