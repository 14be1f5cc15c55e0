"""The model door: what the model gets, what becomes of its answer, retries, fallbacks, and the closing event."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_engine.hooks import HookResult, after_model, before_model, wrap_model_call
from agent_engine.hooks.errors import HookExecutionError, LimitReached, RunBlocked
from agent_engine.hooks.middleware import MiddlewareChain, ModelResponse
from agent_engine.models.base import ModelResponse as Given
from agent_engine.models.base import ToolCall, Usage
from agent_engine.models.errors import ModelConfigError, ModelError
from agent_engine.models.scripted import ScriptedModel, Turn
from agent_engine.runtime.limits import Limits

from .run_kit import Made, call, calls, listen, made, unbalanced

CARD = "4111 1111 1111 1111"


async def work(target: str = "x") -> str:
    """Work."""
    return "done"


# before_llm


async def test_before_llm_changes_this_one_call_and_not_the_history() -> None:
    one = made([call("work"), "answer"], [work])
    trace: list[Any] = []

    def mask(seen: Any) -> None:
        trace.append([message["content"] for message in seen.messages])
        for message in seen.messages:
            if message["role"] == "user":
                message["content"] = message["content"].replace(CARD, "[card]")

    one.registry.register_function("before_llm", mask, sequential=True)
    result = await one.run(f"pay with {CARD}")
    for request in one.model.requests:
        assert CARD not in str(request.messages)
    assert result.messages[0]["content"] == f"pay with {CARD}"
    assert trace[1][1] == f"pay with {CARD}"


@pytest.mark.parametrize("face", ["run", "stream", "fallback"])
async def test_before_llm_shapes_what_the_model_gets_on_every_face(face: str) -> None:
    """Fault 3: the same masking whatever the face."""
    fallback = ScriptedModel(["answer"])
    turns: list[Any] = [ModelError("down")] if face == "fallback" else ["answer"]
    one = made(turns, fallback=[fallback])

    def mask(seen: Any) -> Any:
        kept = [{**message, "content": message["content"].replace(CARD, "[card]")} for message in seen.messages]
        return HookResult.modify(messages=kept)

    one.registry.register_function("before_llm", mask, sequential=True)
    if face == "stream":
        await one.events(CARD)
    else:
        await one.run(CARD)
    asked = fallback if face == "fallback" else one.model
    assert asked.requests[0].messages[-1]["content"] == "[card]"
    assert all(CARD not in str(request.messages) for request in (*one.model.requests, *fallback.requests))


async def test_before_llm_changes_settings_and_adds_context() -> None:
    one = made(["answer"])

    def change(seen: Any) -> Any:
        return HookResult(modified_input={"temperature": 0.5, "max_tokens": 7}, additional_context="be brief")

    one.registry.register_function("before_llm", change, sequential=True)
    result = await one.run()
    request = one.model.requests[0]
    assert (request.settings.temperature, request.settings.max_tokens) == (0.5, 7)
    assert request.messages[:2] == [
        {"role": "system", "content": "You help."},
        {"role": "system", "content": "be brief"},
    ]
    assert "be brief" not in str(result.messages)


async def test_before_llm_puts_another_model_in_the_place_of_one() -> None:
    other = ScriptedModel(["from the other"], name="other")
    one = made(["answer"])
    one.host.resolve_model = lambda name: other if name == "scripted:other" else pytest.fail(name)
    one.registry.register_function("before_llm", lambda seen: HookResult.modify(model="other"), sequential=True)
    trace = listen(one.registry, ["after_llm"])
    assert (await one.run()).output == "from the other"
    assert trace.one("after_llm").model == "other"
    assert one.model.requests == []


async def test_the_providers_own_parts_go_with_a_message_and_leave_with_a_change() -> None:
    """A masked message whose original stood beside it in the provider's form would be no masked message."""
    native = {"provider": "x", "parts": ["thinking aloud: secret"]}
    first = Turn(text="secret", tool_calls=[ToolCall("c1", "work", {})], native=native)
    one = made([first, "answer"], [work])
    await one.run()
    assert one.seen()[2]["native"] == native
    one = made([first, "answer"], [work])

    def mask(seen: Any) -> None:
        for message in seen.messages:
            if message["content"]:
                message["content"] = message["content"].replace("secret", "***")

    one.registry.register_function("before_llm", mask, sequential=True)
    await one.run()
    assert "secret" not in str(one.seen())


# The answer


async def test_what_after_llm_leaves_is_the_answer_everywhere() -> None:
    native = {"provider": "x", "parts": ["secret"]}
    one = made([Turn(text="secret", tool_calls=[ToolCall("c1", "work", {})], native=native), "secret answer"], [work])
    one.registry.register_function(
        "after_llm", lambda seen: HookResult.modify(response=seen.response.replace("secret", "***"))
    )
    result = await one.run()
    assert result.output == "*** answer"
    assert "secret" not in str(result.messages)
    assert "secret" not in str(one.model.requests)


async def test_after_llm_can_change_and_drop_tool_calls() -> None:
    seen: list[str] = []

    async def note(target: str) -> str:
        """Note."""
        seen.append(target)
        return "ok"

    one = made([calls(("note", {"target": "a"}), ("note", {"target": "b"})), "answer"], [note])

    def shape(payload: Any) -> None:
        if payload.tool_calls:
            payload.tool_calls.pop()
            payload.tool_calls[0]["arguments"]["target"] = "c"

    one.registry.register_function("after_llm", shape)
    result = await one.run()
    assert seen == ["c"]
    made_calls = [entry["function"] for message in result.messages for entry in message.get("tool_calls", ())]
    assert made_calls == [{"name": "note", "arguments": '{"target": "c"}'}]


@pytest.mark.parametrize("event", ["before_llm", "after_llm", "on_llm_delta"])
async def test_a_refused_model_call_ends_the_run(event: str) -> None:
    one = made(["refused words"])
    one.registry.register_function(event, lambda seen: HookResult.deny("no"), name="gate")
    trace = listen(one.registry)
    with pytest.raises(RunBlocked) as caught:
        await one.run()
    assert (caught.value.event, caught.value.hook, caught.value.reason) == (event, "gate", "no")
    assert trace.one("after_agent").status == "denied"
    assert trace.one("after_agent").response == ""
    assert trace.one("on_run_error") is caught.value
    if event == "on_llm_delta":
        assert trace.one("after_llm").status == "denied"
        assert trace.one("after_llm").response == ""
    else:
        assert trace.names.count("after_llm") == 0
    before = ("on_llm_delta", "after_llm")
    assert "refused words" not in str([payload for name, payload in trace.rows if name not in before])


async def test_the_payload_of_after_llm_has_text_calls_usage_and_latency() -> None:
    turn = Turn(text="hello", tool_calls=[ToolCall("c1", "work", {"target": "y"})], usage=Usage(10, 5))
    one = made([turn, "answer"], [work])
    trace = listen(one.registry, ["after_llm", "after_agent"])
    result = await one.run()
    first = trace.of("after_llm")[0]
    assert (first.response, first.tokens_used, first.model) == ("hello", 15, "scripted")
    assert first.tool_calls == [{"id": "c1", "name": "work", "arguments": {"target": "y"}}]
    assert first.latency_ms > 0
    assert result.usage == Usage(10, 5)
    assert trace.one("after_agent").total_tokens == 15
    assert trace.one("after_agent").tools_used == ["work"]


# Tool definitions


async def test_tool_definitions_are_shaped_for_each_call() -> None:
    one = made([call("work"), "answer"], [work])

    def shape(seen: Any) -> None:
        seen.tool_definitions[0]["description"] = "Another."
        seen.tool_definitions[0]["parameters"]["properties"].clear()

    one.registry.register_function("before_tool_definitions", shape)
    await one.run()
    assert [request.tools[0].description for request in one.model.requests] == ["Another.", "Another."]
    assert one.model.requests[0].tools[0].parameters["properties"] == {}
    prepared = one.node.prepared
    assert prepared is not None
    assert prepared.definitions[0].parameters["properties"] != {}


async def test_refused_tool_definitions_leave_the_call_without_tools() -> None:
    one = made(["answer"], [work])
    one.registry.register_function("before_tool_definitions", lambda seen: False)
    assert (await one.run()).output == "answer"
    assert one.model.requests[0].tools == []


# Retries and fallbacks


def busy(**options: Any) -> ModelError:
    return ModelError("busy", status=429, retryable=True, retry_after=0, category="rate_limit", **options)


async def test_retries_stay_inside_one_pair_with_on_retry_before_each_wait() -> None:
    one = made([busy(), busy(), "answer"])
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert len(trace.of("before_llm")) == len(trace.of("after_llm")) == 1
    told = [
        (seen.attempt, seen.delay_ms, seen.max_attempts, seen.error_type, seen.operation)
        for seen in trace.of("on_retry")
    ]
    assert told == [(1, 0.0, 3, "ModelError", "model"), (2, 0.0, 3, "ModelError", "model")]
    assert trace.of("on_error") == []


async def test_a_wait_of_hours_is_not_waited_for() -> None:
    """A fallback model goes on at once."""
    one = made(
        [ModelError("come back tomorrow", retryable=True, retry_after=86_400)], fallback=[ScriptedModel(["answer"])]
    )
    trace = listen(one.registry)
    async with asyncio.timeout(20):
        assert (await one.run()).output == "answer"
    assert trace.names.count("on_retry") == 0
    assert trace.names.count("model_fallback") == 1


@pytest.mark.parametrize("asked", ["soon", float("nan"), -5])
async def test_a_wait_that_is_no_number_of_seconds_counts_as_none(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.runtime.retry.FIRST_WAIT_SECONDS", 0.001)
    one = made([ModelError("busy", retryable=True, retry_after=asked), "answer"])
    assert (await one.run()).output == "answer"


async def test_retry_after_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made([ModelError("busy", retryable=True, retry_after=0.05), "answer"])
    trace = listen(one.registry, ["on_retry"])
    await one.run()
    assert trace.one("on_retry").delay_ms == 50


async def test_what_will_not_pass_is_not_tried_again() -> None:
    one = made([ModelError("no such model", category="bad_request"), "answer"])
    trace = listen(one.registry)
    with pytest.raises(ModelError):
        await one.run()
    assert trace.of("on_retry") == []
    assert trace.one("after_llm").status == "error"
    assert trace.one("on_error").error_type == "ModelError"
    assert one.model.remaining == 1


async def test_a_fallback_is_a_call_of_its_own_and_stays_for_the_turn() -> None:
    fallback = ScriptedModel([call("work"), "answer"], name="spare")
    one = made([ModelError("down", category="server")], [work], fallback=[fallback])
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert trace.statuses("after_llm") == ["error", "ok", "ok"]
    assert [seen.model for seen in trace.of("before_llm")] == ["scripted", "spare", "spare"]
    told = trace.one("model_fallback")
    assert (told.from_model, told.to_model, told.reason_category, told.fallback_index) == (
        "scripted",
        "spare",
        "server",
        1,
    )
    assert unbalanced(trace.names) == []


async def test_when_every_model_fails_the_last_error_is_the_runs() -> None:
    last = ModelError("also down")
    one = made([ModelError("down")], fallback=[ScriptedModel([last])])
    trace = listen(one.registry)
    with pytest.raises(ModelError, match="also down"):
        await one.run()
    assert trace.statuses("after_llm") == ["error", "error"]
    assert len(trace.of("on_error")) == 2
    assert len(trace.of("on_run_error")) == 1


async def test_a_failing_hook_is_no_reason_to_ask_another_model() -> None:
    fallback = ScriptedModel(["answer"])
    one = made(["answer"], fallback=[fallback])
    one.registry.register_function("before_llm", lambda seen: 1 / 0, failure_policy="fail")
    with pytest.raises(HookExecutionError):
        await one.run()
    assert fallback.requests == []


# The prompt prefix


async def test_a_changed_prefix_is_told_once() -> None:
    one = made([call("work"), call("work"), "answer"], [work])
    count = 0

    def shape(seen: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            seen.tool_definitions.clear()

    one.registry.register_function("before_tool_definitions", shape)
    trace = listen(one.registry, ["prompt_prefix_invalidated"])
    await one.run()
    assert [seen.reason for seen in trace.of("prompt_prefix_invalidated")] == ["tools changed", "tools changed"]
    first, second = trace.of("prompt_prefix_invalidated")
    assert (first.old_signature, first.new_signature) == (second.new_signature, second.old_signature)


async def test_the_same_prefix_is_told_never() -> None:
    one = made([call("work"), "answer"], [work])
    trace = listen(one.registry, ["prompt_prefix_invalidated"])
    await one.run()
    assert trace.rows == []


# Middleware


def chained(turns: list[Any], *middleware: Any, **options: Any) -> Made:
    return made(turns, [work], middleware=MiddlewareChain(middleware), **options)


async def test_middleware_changes_the_request_and_the_answer() -> None:
    @before_model
    def louder(request: Any) -> Any:
        request.messages[-1]["content"] = "GO"
        request.temperature = 0.1
        return request

    @after_model
    def softer(response: Any) -> Any:
        response.content = response.content.lower()
        return response

    one = chained(["ANSWER"], louder, softer)
    result = await one.run()
    assert result.output == "answer"
    assert one.seen()[-1]["content"] == "GO"
    assert one.model.requests[0].settings.temperature == 0.1
    assert [message["content"] for message in result.messages] == ["go", "answer"]


@pytest.mark.parametrize("decorate", [before_model, after_model])
async def test_middleware_refuses_the_turn(decorate: Any) -> None:
    one = chained(["answer"], decorate(lambda item: HookResult.deny("no")))
    trace = listen(one.registry)
    with pytest.raises(RunBlocked) as caught:
        await one.run()
    assert caught.value.reason == "no"
    assert trace.statuses("after_llm") == (["denied"] if decorate is after_model else [])
    assert len(one.model.requests) == (1 if decorate is after_model else 0)


async def test_a_wrapper_answers_by_itself_and_the_hooks_see_it() -> None:
    @wrap_model_call
    async def cached(request: Any, call_next: Any) -> Any:
        return ModelResponse("from the cache", request.model)

    one = chained([], cached)
    one.registry.register_function(
        "on_llm_delta", lambda seen: HookResult.modify(text=seen.text.replace("cache", "***"))
    )
    trace = listen(one.registry, ["before_llm", "after_llm"])
    assert (await one.run()).output == "from the ***"
    assert trace.one("after_llm").response == "from the ***"
    assert one.model.requests == []


async def test_a_wrapper_that_changes_the_request_sends_it_through_the_gate_again() -> None:
    @wrap_model_call
    async def inject(request: Any, call_next: Any) -> Any:
        request.messages[-1]["content"] = f"leak {CARD}"
        return await call_next(request)

    one = chained(["answer"], inject)
    passes: list[Any] = []

    def mask(seen: Any) -> None:
        passes.append(dict(seen.extra))
        seen.messages[-1]["content"] = seen.messages[-1]["content"].replace(CARD, "***")

    one.registry.register_function("before_llm", mask, sequential=True)
    trace = listen(one.registry, ["before_llm", "after_llm"])
    await one.run()
    assert one.seen()[-1]["content"] == "leak ***"
    assert passes == [{}, {"pass": 2}]
    assert len(trace.of("after_llm")) == 1


async def test_each_further_call_of_a_wrapper_is_a_step_of_its_own() -> None:
    @wrap_model_call
    async def retry(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ModelError:
            return await call_next(request)

    one = chained([ModelError("down"), "answer"], retry)
    trace = listen(one.registry)
    assert (await one.run()).output == "answer"
    assert len(trace.of("before_llm")) == len(trace.of("after_llm")) == 2
    assert unbalanced(trace.names) == []


async def test_a_sync_wrapper_works_too() -> None:
    @wrap_model_call
    def shout(request: Any, call_next: Any) -> Any:
        response = call_next(request)
        response.content = response.content.upper()
        return response

    assert (await chained(["answer"], shout).run()).output == "ANSWER"


# Limits


async def test_model_calls_are_limited() -> None:
    one = made([call("work")] * 5, [work], limits=Limits(model_calls=2))
    trace = listen(one.registry)
    with pytest.raises(LimitReached) as caught:
        await one.run()
    assert (caught.value.limit, caught.value.value) == ("model_calls", 2)
    assert len(one.model.requests) == 2
    assert trace.one("on_run_error") is caught.value
    assert unbalanced(trace.names) == []


async def test_tokens_are_limited() -> None:
    turn = {**call("work"), "usage": {"input_tokens": 90, "output_tokens": 20}}
    one = made([turn, "answer"], [work], limits=Limits(max_tokens=100))
    with pytest.raises(LimitReached, match="max_tokens"):
        await one.run()


class Gives:
    """A model that gives what it has, whatever that is."""

    name = provider = "gives"

    def __init__(self, given: Any) -> None:
        self.given = given

    async def request(self, *_: Any) -> Any:
        return self.given

    async def stream(self, *_: Any) -> Any:
        yield self.given


@pytest.mark.parametrize("face", ["run", "stream"])
@pytest.mark.parametrize(("given", "named"), [(None, "nothing"), ({"text": "hi"}, "a dict"), (7, "a int")])
async def test_a_model_that_gives_no_answer_has_failed_and_is_told_what_was_due(
    face: str, given: Any, named: str
) -> None:
    async def outcome(one: Made) -> Any:
        return await one.run() if face == "run" else (await one.events())[-1].result

    with pytest.raises(ModelError, match=f"gives gave {named} where its ModelResponse was due"):
        await outcome(made(Gives(given)))
    one = made(Gives(given), fallback=[ScriptedModel(["answer"])])
    trace = listen(one.registry)
    assert (await outcome(one)).output == "answer"
    assert trace.statuses("after_llm") == ["error", "ok"]


@pytest.mark.parametrize("face", ["run", "stream"])
async def test_an_answer_without_a_text_has_an_empty_one(face: str) -> None:
    """As a provider's content is None beside tool calls."""
    one = made(Gives(Given(text=None)))  # type: ignore[arg-type]  # what models do
    trace = listen(one.registry)
    result = await one.run() if face == "run" else (await one.events())[-1].result
    assert result is not None
    assert (result.output, trace.one("after_llm").response) == ("", "")


@pytest.mark.parametrize(
    ("event", "field", "value", "said"),
    [
        ("before_llm", "messages", ["no message"], "each a dict"),
        ("after_llm", "tool_calls", ["no call"], "a list of {id, name, arguments}"),
        ("before_tool_definitions", "tool_definitions", ["no tool"], "a list of {name, description, parameters}"),
    ],
)
async def test_what_hooks_leave_and_nobody_can_use_fails_the_call_and_is_told(
    event: str, field: str, value: list[Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = made(["answer"], [work])
    one.registry.register_function(event, lambda seen: HookResult.modify(**{field: value}), sequential=True)
    trace = listen(one.registry)
    with pytest.raises(HookExecutionError, match=f"failed at {event}: bad_edit"):
        await one.run()
    assert said in caplog.text
    assert unbalanced(trace.names) == []


async def test_a_call_whose_hooks_name_a_model_that_is_not_there_has_its_closing_event() -> None:
    one = made(["answer"])
    one.registry.register_function("before_llm", lambda seen: HookResult.modify(model="nobody:x"), sequential=True)
    trace = listen(one.registry)
    with pytest.raises(ModelConfigError, match="nobody"):
        await one.run()
    assert trace.statuses("after_llm") == ["error"]
    assert unbalanced(trace.names) == []
