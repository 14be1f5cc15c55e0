"""Sessions: when they begin and end, whose they are, and what happens when the store fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_engine import RunContext
from agent_engine.hooks import HookResult
from agent_engine.hooks.registry import HookRegistry
from agent_engine.memory.store import ConversationKey, MemoryStore
from agent_engine.models.scripted import ScriptedModel, Turn
from agent_engine.runtime.limits import Limits

from .run_kit import Made, call, listen, made, node_of


def who(conversation: str | None = "c", user: str = "u", organization: str = "o") -> RunContext:
    return RunContext(organization_id=organization, user_id=user, conversation_id=conversation)


async def test_a_run_without_a_conversation_is_a_session_of_its_own() -> None:
    one = made(["a", "b"])
    trace = listen(one.registry, ["session_start", "session_end", "on_run_end"])
    await one.run()
    await one.run()
    assert trace.names == ["session_start", "on_run_end", "session_end"] * 2
    assert trace.of("session_end")[0].reason == "run_ended"


async def test_a_conversation_begins_once_and_ends_when_it_is_told_to() -> None:
    one = made([{"text": "a", "usage": {"input_tokens": 3, "output_tokens": 2}}, "b"])
    trace = listen(one.registry, ["session_start", "session_end"])
    await one.run(context=who())
    await one.run(context=who())
    assert trace.names == ["session_start"]
    assert trace.one("session_start").source == "startup"
    assert trace.one("session_start").session_id == "c"
    await one.host.sessions.end_all("close")
    await one.host.sessions.end_all("close")
    ended = trace.one("session_end")
    assert (ended.reason, ended.total_turns, ended.total_tokens, ended.session_id) == ("close", 2, 5, "c")


async def test_concurrent_first_runs_begin_one_session() -> None:
    one = made(["a"] * 10)
    trace = listen(one.registry, ["session_start"])
    await asyncio.gather(*(one.run(context=who()) for _ in range(10)))
    assert len(trace.of("session_start")) == 1


async def test_a_conversation_goes_on_and_resumes() -> None:
    store = MemoryStore()
    first = made(["hello joe"], store=store)
    await first.run("I am joe", context=who())
    second = made(["you are joe"], store=store)
    trace = listen(second.registry, ["session_start"])
    await second.run("who am I?", context=who())
    assert trace.one("session_start").source == "resume"
    assert [message["content"] for message in second.seen()] == ["You help.", "I am joe", "hello joe", "who am I?"]


@pytest.mark.parametrize("other", [who(user="v"), who(organization="p"), who("d"), who(None)])
async def test_the_same_id_from_another_caller_is_another_conversation(other: RunContext) -> None:
    one = made(["a", "b"])
    await one.run("secret of u", context=who())
    await one.run("hello", context=other)
    assert "secret" not in str(one.seen())


async def test_identity_changed_at_run_start_is_the_conversations() -> None:
    one = made(["a", "b"])
    await one.run("secret of u", context=who())
    one.registry.register_function("on_run_start", lambda context: context.replace(user_id="v"))
    await one.run("hello", context=who())
    assert "secret" not in str(one.seen())
    assert len(await one.host.store.load(ConversationKey("o", "v", "c"))) == 2


async def test_nothing_of_a_failed_or_refused_turn_is_kept() -> None:
    one = made([ValueError("x"), "fine"])
    with pytest.raises(ValueError, match="x"):
        await one.run("first", context=who())
    gate = one.registry.register_function("after_agent", lambda seen: HookResult.deny("no"))
    with pytest.raises(Exception, match="no"):
        await one.run("second", context=who())
    one.registry.unregister(gate)
    assert await one.host.store.load(ConversationKey("o", "u", "c")) == []


async def test_what_hooks_put_in_the_place_of_words_is_what_is_kept() -> None:
    one = made(["the answer is sk-1"])
    one.registry.register_function("user_prompt_submit", lambda seen: HookResult.modify(prompt="[masked]"))
    one.registry.register_function("after_agent", lambda seen: HookResult.modify(response="[also masked]"))
    result = await one.run("my key is sk-2", context=who())
    kept = await one.host.store.load(ConversationKey("o", "u", "c"))
    assert [message["content"] for message in kept] == ["[masked]", "[also masked]"]
    assert kept == result.messages
    assert "sk-" not in str(one.seen())


async def test_context_of_prompt_hooks_is_a_system_message_of_the_turn_alone() -> None:
    one = made([call("nothing"), "answer", "again"])
    one.registry.register_function("user_prompt_submit", lambda seen: HookResult(additional_context="from submit"))
    one.registry.register_function("before_agent", lambda seen: HookResult(additional_context="from agent"))
    await one.run("go", context=who())
    for request in one.model.requests:
        said = [message["content"] for message in request.messages if message["role"] == "system"]
        assert said == ["You help.", "from submit", "from agent"]
    kept = await one.host.store.load(ConversationKey("o", "u", "c"))
    assert all(message["role"] != "system" for message in kept)


class Broken(MemoryStore):
    broken = True

    async def append(self, key: Any, messages: Any) -> None:
        if self.broken:
            raise OSError("disk full: sk-secret")
        await super().append(key, messages)


async def test_a_turn_that_cannot_be_stored_is_spilled_and_told(tmp_path: Any, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.chdir(tmp_path)
    store = Broken()
    one = made(["answer", "again"], store=store)
    trace = listen(one.registry, ["session_persist_failed", "on_run_end", "on_run_error"])
    assert (await one.run("hello", context=who())).output == "answer"
    assert trace.names == ["on_run_end", "session_persist_failed"]
    told = trace.one("session_persist_failed")
    assert (told.role, told.content, told.error, told.spilled) == ("assistant", "answer", "OSError", True)
    assert "hello" in Path(told.spill_path).read_text()
    assert "sk-secret" not in caplog.text
    store.broken = False
    await one.run("more", context=who())
    assert [message["content"] for message in one.seen()] == ["You help.", "hello", "answer", "more"]


async def test_idle_sessions_end() -> None:
    one = made(["a"])
    trace = listen(one.registry, ["session_end"])
    await one.run(context=who())
    assert await one.host.sessions.end_idle(60) == 0
    assert await one.host.sessions.end_idle(0) == 1
    assert trace.one("session_end").reason == "idle"


async def test_history_of_the_caller_comes_before_the_message() -> None:
    one = made(["a"])
    result = await one.run("now", history=[{"role": "user", "content": "before"}])
    assert [message["content"] for message in one.seen()] == ["You help.", "before", "now"]
    assert [message["content"] for message in result.messages] == ["now", "a"]


# Compaction

LONG = [{"role": role, "content": f"{n} " + "x" * 200} for n, role in enumerate(("user", "assistant") * 5)]


async def stored(registry: HookRegistry, turns: list[Any], **limits: Any) -> Any:
    one = made(turns, registry=registry, limits=Limits(context_tokens=200, **limits))
    await one.host.store.append(ConversationKey("o", "u", "c"), LONG)
    return one


async def test_a_long_history_is_shortened_with_its_two_events() -> None:
    one = await stored(HookRegistry(), ["they talked", "answer"])
    trace = listen(one.registry, ["before_compaction", "after_compaction", "before_llm"])
    assert (await one.run("now", context=who())).output == "answer"
    assert trace.names == ["before_compaction", "before_llm", "after_compaction", "before_llm"]
    before, after = trace.one("before_compaction"), trace.one("after_compaction")
    assert (before.messages_count, before.limit) == (10, 200)
    assert before.tokens > 200 > after.tokens
    assert after.kept + after.removed == 10
    assert after.summary == "they talked"
    assert "they talked" in str(one.seen())
    assert len(one.seen()) < 10
    kept = await one.host.store.load(ConversationKey("o", "u", "c"))
    assert "they talked" in kept[0]["content"]
    assert [message["content"] for message in kept[-2:]] == ["now", "answer"]


@pytest.mark.parametrize(
    ("event", "turns"),
    [("before_compaction", ["answer"]), ("before_llm", ["answer"]), (None, [ValueError("x"), "answer"])],
)
async def test_a_history_that_may_or_can_not_be_shortened_stays(event: str | None, turns: list[Any]) -> None:
    one = await stored(HookRegistry(), turns)
    if event is not None:
        one.registry.register_function(
            event, lambda seen: False if event != "before_llm" or "Summarize" in str(seen.messages) else None
        )
    assert (await one.run("now", context=who())).output == "answer"
    assert len(one.seen()) == 12


async def test_an_empty_summary_takes_the_place_of_nothing() -> None:
    one = await stored(HookRegistry(), ["  ", "answer"])
    assert (await one.run("now", context=who())).output == "answer"
    assert len(one.seen()) == 12


@pytest.mark.parametrize("kept_here", [True, False], ids=["memory", "a store"])
async def test_what_others_said_while_a_history_was_shortened_stays(kept_here: bool) -> None:
    summary_asked, others_done = asyncio.Event(), asyncio.Event()

    async def summary() -> None:
        summary_asked.set()
        await others_done.wait()

    limits = Limits(context_tokens=200)
    store = None if kept_here else MemoryStore()
    one = made([Turn(text="they talked", wait=summary), "answer"], limits=limits, store=store)
    other = Made(node_of(["heard"]), one.host, one.model, one.registry)
    await one.host.store.append(ConversationKey("o", "u", "c"), LONG)
    running = asyncio.create_task(one.run("now", context=who()))
    await summary_asked.wait()
    await other.run("meanwhile", context=who())
    others_done.set()
    assert (await running).output == "answer"
    said = [message["content"] for message in await one.host.store.load(ConversationKey("o", "u", "c"))]
    assert "they talked" in said[0]
    assert said[-4:] == ["meanwhile", "heard", "now", "answer"]
    last = Made(node_of(["so it is"]), one.host, one.model, one.registry)
    await last.run("and now", context=who())
    model = last.node.models[0][0]
    assert isinstance(model, ScriptedModel)
    read = [message["content"] for message in model.requests[-1].messages]
    assert read[-5:] == ["meanwhile", "heard", "now", "answer", "and now"]


async def test_content_parts_stay_when_a_hook_rewrites_the_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = [{"type": "text", "text": "look at my secret"}, image]
    one = made(["a", "b"])
    await one.run(message)
    assert one.seen()[-1]["content"] == message
    one.registry.register_function("user_prompt_submit", lambda seen: HookResult.modify(prompt="look at [masked]"))
    await one.run(message)
    assert one.seen()[-1]["content"] == [{"type": "text", "text": "look at [masked]"}, image]


async def test_hooks_of_one_agent_hear_of_its_sessions() -> None:
    one = made(["a", "b"], name="desk")
    heard: list[tuple[str, str | None]] = []
    for event in ("session_start", "session_end"):
        for agents in (["desk"], ["other"]):
            one.registry.register_function(
                event, lambda seen: heard.append((seen.event_name, seen.agent_name)), agents=agents
            )
    await one.run()
    await one.run(context=who())
    await one.host.sessions.end_all("close")
    assert heard == [("session_start", "desk"), ("session_end", "desk")] * 2


@pytest.mark.parametrize("changes", [{"user_id": "u"}, {"conversation_id": "c"}])
async def test_identity_given_at_run_start_leaves_no_session_open(changes: dict[str, str]) -> None:
    one = made(["a"])
    one.registry.register_function("on_run_start", lambda context: context.replace(**changes))
    trace = listen(one.registry, ["session_start", "session_end"])
    await one.run()
    await one.host.sessions.end_all("close")
    assert trace.names == ["session_start", "session_end"] * (2 if "conversation_id" in changes else 1)
