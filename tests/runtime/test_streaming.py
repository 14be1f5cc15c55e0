"""Streams: what is held back and how long, the window of on_llm_delta, and leaving early."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.hooks import GuardrailBlocked, HookResult, after_model, wrap_model_call, wrap_tool_call
from agent_engine.hooks.errors import HookExecutionError, RunBlocked
from agent_engine.hooks.middleware import MiddlewareChain, ModelResponse
from agent_engine.models.errors import ModelError
from agent_engine.models.scripted import ScriptedModel
from agent_engine.runtime.limits import Limits

from .run_kit import Made, call, listen, made, no_task_left, node_of, unbalanced

SECRET = "sk-12345"


def texts(events: Sequence[Any]) -> list[str]:
    return [event.data["text"] for event in events if event.type == "text"]


async def work() -> str:
    """Work."""
    return "done"


async def test_without_hooks_text_passes_at_once() -> None:
    one = made([{"stream": ["a", "b", "c"]}])
    stream = one.stream()
    seen = [await anext(stream)]
    assert (seen[0].type, seen[0].data) == ("text", {"text": "a"})
    seen += [event async for event in stream]
    assert [event.type for event in seen] == ["text", "text", "text", "final"]
    assert seen[-1].data["output"] == "abc"
    assert seen[-1].result is not None
    assert seen[-1].result.output == "abc"


async def test_events_of_a_run_with_a_tool() -> None:
    one = made([call("work"), "answer"], [work])
    events = await one.events()
    assert [event.type for event in events] == ["tool_started", "tool_finished", "text", "final"]
    assert events[0].data == {"call_id": "c1", "tool_name": "work", "agent": "root"}
    assert events[1].data.pop("duration_ms") > 0
    assert events[1].data == {"call_id": "c1", "tool_name": "work", "agent": "root", "status": "ok"}
    assert len({event.run_id for event in events}) == 1


async def test_hook_decisions_are_events_too() -> None:
    one = made([call("work"), "answer"], [work])
    one.registry.register_function("before_tool", lambda seen: "no", name="gate")
    one.registry.register_function("before_agent", lambda seen: 1 / 0, failure_policy="warn", name="broken")
    hooks = [event.data for event in await one.events() if event.type == "hook"]
    told = [(one["event"], one["hook"], one["decision"], one["reason"], one["agent"]) for one in hooks]
    assert told == [("before_agent", "broken", "failed", None, "root"), ("before_tool", "gate", "deny", "no", "root")]


@pytest.mark.parametrize("event", ["after_llm", "after_agent", "message_sending"])
async def test_text_is_held_while_a_hook_may_refuse_or_change_it(event: str) -> None:
    """Fault 1."""
    one = made([{"stream": ["mail joe@", "ex", "ample.com"]}])

    def mask(seen: Any) -> Any:
        return HookResult.modify(response=re.sub(r"\S+@\S+", "[mail]", seen.response))

    if event != "message_sending":
        one.registry.register_function(event, mask)
    else:
        # The channel fires it, on the whole text: the stream only has to hold it that long.
        one.registry.register_function(event, lambda seen: None)
    events = await one.events()
    if event == "message_sending":
        assert texts(events) == ["mail joe@example.com"]
    else:
        assert texts(events) == ["mail [mail]"]
        assert "joe" not in str([one.to_dict() for one in events])


@pytest.mark.parametrize("decorate", [after_model, wrap_model_call])
async def test_text_is_held_for_middleware(decorate: Any) -> None:
    async def mask(item: Any, call_next: Any = None) -> Any:
        response = await call_next(item) if call_next is not None else item
        response.content = response.content.replace(SECRET, "***")
        return response

    if decorate is after_model:

        @after_model
        async def middleware(response: Any) -> Any:
            return await mask(response)
    else:

        @wrap_model_call
        async def middleware(request: Any, call_next: Any) -> Any:
            return await mask(request, call_next)

    one = made([{"stream": ["key ", "sk-1", "2345"]}], middleware=MiddlewareChain([middleware]))
    assert texts(await one.events()) == ["key ***"]


async def test_observers_hold_nothing_back() -> None:
    one = made([{"stream": ["a", "b"]}])
    listen(one.registry)
    assert texts(await one.events()) == ["a", "b"]


async def test_with_a_hook_on_after_agent_text_leaves_at_the_end() -> None:
    sent_before: list[Any] = []
    one = made([{**call("work"), "text": "let me see, "}, "answer"], [work])
    events: list[Any] = []
    one.registry.register_function("after_agent", lambda seen: sent_before.extend(texts(events)))
    async for event in one.stream():
        events.append(event)
    assert texts(events) == ["let me see, ", "answer"]
    assert sent_before == []


async def test_where_after_agent_replaces_the_answer_nothing_else_leaves() -> None:
    one = made([{**call("work"), "text": f"let me see {SECRET}"}, f"it is {SECRET}"], [work])
    one.registry.register_function("after_agent", lambda seen: HookResult.modify(response="it is ***"))
    assert texts(await one.events()) == ["it is ***"]


@pytest.mark.parametrize("event", ["after_llm", "after_agent", "on_llm_delta"])
async def test_refused_text_is_never_sent_stored_or_logged(event: str, caplog: pytest.LogCaptureFixture) -> None:
    one = made([{"stream": ["forbidden ", "words"]}])

    def refuse(seen: Any) -> None:
        raise GuardrailBlocked("not this")

    one.registry.register_function(event, refuse)
    events: list[Any] = []
    with pytest.raises(RunBlocked):
        async for seen in one.stream(context=_context()):
            events.append(seen)
    assert "forbidden" not in str([seen.to_dict() for seen in events])
    assert "forbidden" not in caplog.text
    assert await one.host.store.load(("o", "u", "c")) == []  # type: ignore[arg-type]


def _context() -> Any:
    from agent_engine import RunContext

    return RunContext(organization_id="o", user_id="u", conversation_id="c")


async def test_a_child_does_not_speak_to_the_person() -> None:
    child = node_of([{"stream": ["inner ", "thoughts"]}], name="child")
    one = made([call("child", {"message": "go"}), "answer"], children=(child,))
    assert texts(await one.events()) == ["answer"]


async def test_a_hand_off_answers_in_the_place_of_its_parent() -> None:
    child = node_of([{"stream": ["from ", "the child"]}], name="child")
    one = made([call("child", {"message": "go"})], handoffs=(child,))
    events = await one.events()
    assert texts(events) == ["from the child"]
    assert events[-1].data["output"] == "from the child"
    assert events[-1].data["visited"] == ["root", "child"]


async def test_the_answer_of_a_hand_off_is_read_as_the_output_type_like_any_other() -> None:
    child = node_of(["4"], name="child")
    one = made([call("child", {"message": "go"})], handoffs=(child,), output_type=int)
    events = await one.events()
    assert (texts(events), events[-1].data["output"]) == (["4"], 4)

    child = node_of(["four"], name="child")
    one = made([call("child", {"message": "go"}), "4"], handoffs=(child,), output_type=int)
    events = await one.events()
    assert (texts(events), events[-1].data["output"]) == (["4"], 4)
    assert [message["role"] for message in one.seen()[-3:]] == ["tool", "assistant", "user"]


async def test_on_run_end_fails_the_run_before_final() -> None:
    for held, shown in ((False, ["a", "b"]), (True, [])):
        one = made([{"stream": ["a", "b"]}])
        one.registry.register_function("on_run_end", lambda seen: 1 / 0, failure_policy="fail")
        if held:
            one.registry.register_function("after_agent", lambda seen: None)
        events: list[Any] = []
        with pytest.raises(HookExecutionError):
            async for event in one.stream():
                events.append(event)
        assert texts(events) == shown
        assert all(event.type != "final" for event in events)


# The window


def masked(one: Made, hold_back: int) -> None:
    def mask(seen: Any) -> Any:
        return HookResult.modify(text=seen.text.replace(SECRET, "[key]"))

    one.registry.register_function("on_llm_delta", mask, hold_back=hold_back)


def cuts(text: str, places: Sequence[int]) -> list[str]:
    edges = [0, *sorted(places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@given(st.data())
async def test_no_character_of_a_secret_leaves_wherever_it_is_cut(data: st.DataObject) -> None:
    before, after = data.draw(st.text("ab ", max_size=12)), data.draw(st.text("ab ", max_size=12))
    text = before + SECRET + after
    places = data.draw(st.lists(st.integers(0, len(text)), min_size=1, max_size=3))
    one = made([{"stream": cuts(text, places)}])
    masked(one, len(SECRET) - 1)
    events = await one.events()
    sent = texts(events)
    assert "".join(sent) == f"{before}[key]{after}"
    assert not any(character in "".join(sent).replace("[key]", "") for character in "sk-12345")
    assert events[-1].data["output"] == f"{before}[key]{after}"


async def test_every_cut_over_two_to_four_chunks() -> None:
    """The same, exhaustively, for a secret in the middle of a text."""
    text = f"x{SECRET}y"
    places = range(len(text) + 1)
    for chosen in [(a, b, c) for a in places for b in places[a:] for c in places[b:]][::3]:
        one = made([{"stream": cuts(text, chosen)}])
        masked(one, len(SECRET) - 1)
        assert "".join(texts(await one.events())) == "x[key]y", chosen


async def test_the_window_releases_all_but_what_it_holds_back() -> None:
    one = made([{"stream": ["abc", "def", "ghi"]}])
    seen: list[Any] = []
    one.registry.register_function(
        "on_llm_delta", lambda payload: seen.append((payload.text, payload.index, payload.final)) or None, hold_back=2
    )
    assert texts(await one.events()) == ["a", "bcd", "efg", "hi"]
    assert seen == [("abc", 0, False), ("bcdef", 1, False), ("efghi", 2, False), ("hi", 3, True)]


async def test_on_a_face_that_does_not_stream_it_fires_once_with_the_whole_text() -> None:
    one = made([{"stream": ["abc", "def"]}])
    seen: list[Any] = []

    def shout(payload: Any) -> Any:
        seen.append((payload.text, payload.final))
        return HookResult.modify(text=payload.text.upper())

    one.registry.register_function("on_llm_delta", shout, hold_back=2)
    trace = listen(one.registry, ["after_llm"])
    assert (await one.run()).output == "ABCDEF"
    assert seen == [("abcdef", True)]
    assert trace.one("after_llm").response == "ABCDEF"


async def test_after_llm_sees_what_the_window_left() -> None:
    one = made([{"stream": ["sk-1", "2345"]}])
    masked(one, len(SECRET) - 1)
    trace = listen(one.registry, ["after_llm"])
    await one.events()
    assert trace.one("after_llm").response == "[key]"


# Errors on the way


async def test_a_stream_that_breaks_before_any_text_is_begun_anew() -> None:
    busy = {"error": {"category": "server", "retry_after": 0}}
    one = made([busy, {"stream": ["a", "b"]}])
    assert texts(await one.events()) == ["a", "b"]


async def test_a_stream_that_breaks_after_text_has_left_fails_the_run() -> None:
    broken = {"stream": ["a"], "error": {"category": "server", "retry_after": 0}}
    one = made([broken, "other"], fallback=[node_of(["spare"]).models[0][0]])
    trace = listen(one.registry)
    events: list[Any] = []
    with pytest.raises(ModelError):
        async for event in one.stream():
            events.append(event)
    assert texts(events) == ["a"]
    assert trace.of("on_retry") == []
    assert unbalanced(trace.names) == []


async def test_a_stream_whose_text_is_held_can_go_on_with_a_fallback() -> None:
    broken = {"stream": ["a"], "error": {"category": "bad_request"}}
    one = made([broken], fallback=[node_of(["spare"]).models[0][0]])
    one.registry.register_function("after_llm", lambda seen: None)
    assert texts(await one.events()) == ["spare"]


# Leaving


@pytest.mark.parametrize("how", ["aclose", "break", "cancel"])
async def test_leaving_a_stream_cancels_the_run_and_closes_every_pair(how: str) -> None:
    stopped = asyncio.Event()

    async def slow() -> None:
        """Slow."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    one = made([{**call("slow"), "stream": ["a"]}], [slow])
    trace = listen(one.registry)
    async with no_task_left():
        if how == "cancel":
            reached = asyncio.Event()

            async def read() -> None:
                async for event in one.stream():
                    if event.type == "tool_started":
                        reached.set()

            task = asyncio.create_task(read())
            await reached.wait()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            stream = one.stream()
            async for event in stream:
                if event.type == "tool_started":
                    await asyncio.sleep(0)
                    break
            await stream.aclose()  # type: ignore[attr-defined]
    assert trace.statuses("after_agent") == ["cancelled"]
    assert type(trace.one("on_run_error")).__name__ == "RunCancelled"
    assert unbalanced(trace.names) == []


async def test_a_stream_never_read_runs_nothing() -> None:
    one = made(["answer"])
    stream = one.stream()
    await stream.aclose()  # type: ignore[attr-defined]
    assert one.model.requests == []


async def test_what_a_wrapper_answers_by_itself_is_streamed() -> None:
    @wrap_model_call
    async def own(request: Any, call_next: Any) -> Any:
        return ModelResponse("kept from before", request.model)

    one = made(["never asked"], middleware=MiddlewareChain([own]))
    assert texts(await one.events()) == ["kept from before"]


@pytest.mark.parametrize("event", [None, "after_agent"])
async def test_of_a_wrapper_that_calls_on_twice_only_its_own_answer_leaves(event: str | None) -> None:
    @wrap_model_call
    async def better(request: Any, call_next: Any) -> Any:
        await call_next(request)
        response = await call_next(request)
        response.content = response.content.replace(SECRET, "***")
        return response

    one = made([f"first {SECRET}", f"second {SECRET}"], middleware=MiddlewareChain([better]))
    if event is not None:
        one.registry.register_function(event, lambda seen: None)
    assert texts(await one.events()) == ["second ***"]


async def test_a_summary_is_never_streamed_whatever_a_wrapper_does() -> None:
    @wrap_model_call
    async def twice(request: Any, call_next: Any) -> Any:
        await call_next(request)
        return await call_next(request)

    one = made(
        ["sum 1", "sum 2", "answer 1", "answer 2"],
        middleware=MiddlewareChain([twice]),
        limits=Limits(context_tokens=40),
    )
    history = [{"role": role, "content": "word " * 40} for role in ("user", "assistant") * 2]
    assert texts(await one.events(history=history)) == ["answer 2"]
    assert [one.seen(number)[0]["content"] == "You help." for number in range(4)] == [False, False, True, True]


# Text in the place of the model's


def telling(place: str) -> Made:
    """A run in which something other than a model puts the secret into the answer, which passes no model any more."""
    said = f"it is {SECRET}"

    def put(response: Any) -> Any:
        response.content = said
        return response

    @wrap_model_call
    async def wrapper(request: Any, call_next: Any) -> Any:
        return put(await call_next(request))

    @wrap_model_call
    async def twice(request: Any, call_next: Any) -> Any:
        await call_next(request)
        return put(await call_next(request))

    @wrap_model_call
    async def instead(request: Any, call_next: Any) -> Any:
        return ModelResponse(said, request.model)

    @wrap_model_call
    async def rescue(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ModelError:
            return ModelResponse(said, request.model)

    @after_model
    async def after(response: Any) -> Any:
        return put(response)

    @wrap_tool_call
    async def around_hand_off(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.result = said
        return response

    plain: list[Any] = [{"stream": ["he", "llo"]}]
    broken: list[Any] = [{"error": {"category": "auth"}}]
    hands_over: list[Any] = [call("child", {"message": "go"})]
    child = node_of(["hello"], name="child")
    if place in ("after_llm", "after_agent"):
        one = made(plain)
        one.registry.register_function(place, lambda seen: HookResult.modify(response=said))
    elif place == "structured":
        one = made(["nothing that fits", '"hello"'], output_type=str)
        one.registry.register_function("after_agent", lambda seen: HookResult.modify(response=f'"{said}"'))
    elif place == "fallback":
        one = made(broken, fallback=(ScriptedModel([{"stream": ["it is ", "sk-1", "2345"]}]),))
    elif place == "hand-off":
        one = made(hands_over, handoffs=(child,))
        one.registry.register_function("after_tool", lambda seen: said)
    elif place == "around a hand-off":
        one = made(hands_over, handoffs=(child,), middleware=MiddlewareChain([around_hand_off]))
    else:
        turns = plain * 2 if place == "twice" else broken if place == "rescue" else plain
        layers = {"wrapper": wrapper, "twice": twice, "instead": instead, "rescue": rescue, "after": after}
        one = made(turns, middleware=MiddlewareChain([layers[place]]))
    return one


PLACES = [
    "wrapper", "twice", "instead", "rescue", "after", "after_llm", "after_agent", "structured", "fallback", "hand-off",
    "around a hand-off",
]  # fmt: skip


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("place", PLACES)
async def test_whoever_put_it_there_text_leaves_only_past_on_llm_delta(place: str, streams: bool) -> None:
    one = telling(place)
    masked(one, len(SECRET) - 1)
    if not streams:
        assert (await one.run()).output == "it is [key]"
        return
    events = await one.events()
    assert "".join(texts(events)).strip('"') == "it is [key]"
    assert events[-1].data["output"] == "it is [key]"
    assert SECRET not in str([event.to_dict() for event in events])


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("place", PLACES)
async def test_whoever_put_it_there_text_that_on_llm_delta_refuses_does_not_leave(place: str, streams: bool) -> None:
    one = telling(place)
    one.registry.register_function(
        "on_llm_delta", lambda seen: "no keys" if SECRET in seen.text else None, hold_back=len(SECRET) - 1
    )
    trace = listen(one.registry)
    events: list[Any] = []
    with pytest.raises(RunBlocked, match="no keys"):
        if streams:
            async for event in one.stream():
                events.append(event)
        else:
            await one.run()
    assert SECRET not in str([event.to_dict() for event in events])
    assert unbalanced(trace.names) == []


async def test_after_llm_sees_what_the_window_left_of_a_wrappers_text_too() -> None:
    one = telling("wrapper")
    masked(one, 0)
    trace = listen(one.registry, ["after_llm", "on_llm_delta"])
    assert (await one.run()).output == "it is [key]"
    assert trace.one("after_llm").response == "it is [key]"
    assert [(seen.text, seen.index, seen.final) for seen in trace.of("on_llm_delta")] == [
        ("hello", 0, True),
        ("it is [key]", 1, True),
    ]


async def test_a_text_that_nobody_replaces_passes_on_llm_delta_once() -> None:
    @wrap_model_call
    async def looks(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    child = node_of(["hello"], name="child")
    one = made([call("child", {"message": "go"})], handoffs=(child,), middleware=MiddlewareChain([looks]))
    for event in ("after_llm", "after_agent", "after_tool"):
        one.registry.register_function(event, lambda seen: None)
    trace = listen(one.registry, ["on_llm_delta"])
    assert (await one.run()).output == "hello"
    assert [seen.text for seen in trace.of("on_llm_delta")] == ["hello"]
