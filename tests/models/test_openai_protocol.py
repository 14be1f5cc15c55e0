"""The provider adapter over a real client library and a real socket, speaking Chat Completions."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from dataclasses import dataclass

import pytest
from tests.fakes.idle_clock import Clock
from tests.fakes.openai_server import FakeOpenAI, calls, cuts, fails, garbage, hangs, says

from agent_engine.models import messages as m
from agent_engine.models.base import Message, Model, ModelResponse, ModelSettings, ToolDefinition
from agent_engine.models.errors import ModelConfigError, ModelError
from agent_engine.models.resolve import model_from

ADD = ToolDefinition("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
ASK: list[Message] = [m.system("Be brief."), m.user("What is one and one?")]
KEY = "sk-test-0123456789"


@dataclass
class Spec:
    provider: str
    name: str | None
    region: str | None = None
    base_url: str | None = None


def model_at(fake: FakeOpenAI, **environ: str) -> Model:
    return model_from(Spec("openai", "some-model", base_url=fake.base_url), {"OPENAI_API_KEY": KEY, **environ})


async def answer(model: Model, messages: list[Message], **settings: object) -> ModelResponse:
    return await model.request(messages, [ADD], ModelSettings(**settings))  # type: ignore[arg-type]


async def streamed(model: Model, messages: list[Message], into: list[object] | None = None) -> None:
    async for item in model.stream(messages, [ADD], ModelSettings()):
        if into is not None:
            into.append(item)


async def test_text_goes_there_and_back() -> None:
    with FakeOpenAI(says("Two.")) as fake:
        response = await answer(model_at(fake), ASK, temperature=0.5, max_tokens=9, top_p=0.25)
        sent = fake.received[0]
    assert (response.text, response.finish_reason, response.native) == ("Two.", "stop", None)
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total) == (11, 7, 18)
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is one and one?"},
    ]
    assert (sent.body["temperature"], sent.body["max_tokens"], sent.body["top_p"]) == (0.5, 9, 0.25)
    assert [tool["function"]["name"] for tool in sent.body["tools"]] == ["add"]


async def test_a_tool_call_and_its_result_keep_their_places() -> None:
    with FakeOpenAI(calls(("add", {"a": 1}), ("add", {"a": 2}), text="I add."), says("Done.")) as fake:
        model = model_at(fake)
        response = await answer(model, ASK)
        assert [(c.id, c.name, c.arguments) for c in response.tool_calls] == [
            ("call_1", "add", {"a": 1}),
            ("call_2", "add", {"a": 2}),
        ]
        assert (response.text, response.finish_reason) == ("I add.", "tool_calls")
        history = [*ASK, m.assistant_from(response), m.tool("call_1", "add", "1"), m.tool("call_2", "add", "2")]
        await answer(model, history)
        sent = fake.received[1].body["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert [json.loads(c["function"]["arguments"]) for c in sent[2]["tool_calls"]] == [{"a": 1}, {"a": 2}]
    assert [(t["tool_call_id"], t["content"]) for t in sent[3:]] == [("call_1", "1"), ("call_2", "2")]


async def test_a_stream_gives_its_chunks_and_then_the_whole_answer() -> None:
    with FakeOpenAI(says("Hel", "lo", "."), calls(("add", {"a": 1}), text="I add.")) as fake:
        model = model_at(fake)
        spoken = [item async for item in model.stream(ASK, [ADD], ModelSettings())]
        calling = [item async for item in model.stream(ASK, [ADD], ModelSettings())]
    assert spoken[:-1] == ["Hel", "lo", "."]
    whole = spoken[-1]
    assert isinstance(whole, ModelResponse)
    assert (whole.text, whole.usage.total) == ("Hello.", 18)
    whole = calling[-1]
    assert isinstance(whole, ModelResponse)
    assert calling[:-1] == ["I add."]
    assert [(c.name, c.arguments) for c in whole.tool_calls] == [("add", {"a": 1})]


@pytest.mark.parametrize(
    ("reply", "category", "status", "retryable", "retry_after"),
    [
        (fails(429, retry_after=2), "rate_limit", 429, True, 2.0),
        (fails(429), "rate_limit", 429, True, None),
        (fails(401), "auth", 401, False, None),
        (fails(400), "bad_request", 400, False, None),
        (fails(404), "bad_request", 404, False, None),
        (fails(500), "server", 500, True, None),
        (fails(503, retry_after=1), "server", 503, True, 1.0),
        (garbage(), "server", None, True, None),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_an_error_has_its_kind_and_none_of_the_providers_words(
    reply: object, category: str, status: int | None, retryable: bool, retry_after: float | None, streaming: bool
) -> None:
    with FakeOpenAI(reply) as fake, pytest.raises(ModelError) as raised:  # type: ignore[arg-type]
        await (streamed if streaming else answer)(model_at(fake), ASK)
    error = raised.value
    assert (error.category, error.status, error.retryable, error.retry_after) == (
        category,
        status,
        retryable,
        retry_after,
    )
    assert "own words" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert KEY not in repr(error)
    assert len(fake.received) == 1, "the client library retried behind our back"


async def test_a_refused_key_names_its_variable() -> None:
    with FakeOpenAI(fails(401)) as fake, pytest.raises(ModelError, match="check OPENAI_API_KEY"):
        await answer(model_at(fake), ASK)


async def test_no_answer_in_time(clock: Clock) -> None:
    with FakeOpenAI(hangs()) as fake, pytest.raises(ModelError) as raised:
        asked = asyncio.create_task(answer(model_at(fake), ASK, extra={"timeout": 60}))
        while not fake.received:
            await asyncio.sleep(0.01)
        clock.put_forward(60)
        await asked
    assert (raised.value.category, raised.value.retryable) == ("timeout", True)
    assert len(fake.received) == 1


async def test_nobody_listens() -> None:
    with FakeOpenAI(says("x")) as fake:
        model = model_at(fake)
    with pytest.raises(ModelError) as raised:
        await answer(model, ASK)
    assert (raised.value.category, raised.value.retryable) == ("connection", True)


async def test_a_stream_that_breaks_off_shows_its_text_and_then_fails() -> None:
    got: list[object] = []
    with FakeOpenAI(cuts("half ", "an ans")) as fake, pytest.raises(ModelError) as raised:
        await streamed(model_at(fake), ASK, got)
    assert got == ["half ", "an ans"]
    assert raised.value.category == "connection"


async def test_a_stream_of_garbage_is_no_answer() -> None:
    with FakeOpenAI(garbage(b"data: {not json\n\n", "text/event-stream")) as fake, pytest.raises(ModelError) as raised:
        await streamed(model_at(fake), ASK)
    assert raised.value.category == "server"


@pytest.mark.parametrize("sent", ["{nope", "[1, 2]", '"text"', "{'a': 1}"])
async def test_arguments_that_are_no_json_object_are_kept_raw(sent: str) -> None:
    with FakeOpenAI(calls(("add", sent)), says("Sorry.")) as fake:
        model = model_at(fake)
        response = await answer(model, ASK)
        (call,) = response.tool_calls
        assert (call.arguments, call.raw) == ({}, sent)
        assert call.error is not None
        await answer(model, [*ASK, m.assistant_from(response), m.tool(call.id, call.name, '{"error": "no"}')])
        (back,) = fake.received[1].body["messages"][2]["tool_calls"]
    assert json.loads(back["function"]["arguments"]) == {"INVALID_JSON": sent}


async def test_leaving_a_stream_early_lets_go_of_the_connection() -> None:
    with FakeOpenAI(says(*["word "] * 200)) as fake:
        model = model_at(fake)
        stream = model.stream(ASK, [ADD], ModelSettings())
        assert await anext(stream) == "word "
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await answer(model, ASK)).text.startswith("word")


def test_one_model_serves_loop_after_loop_and_loops_side_by_side() -> None:
    with FakeOpenAI(says("x")) as fake:
        model = model_at(fake)

        async def ask() -> str:
            return (await answer(model, ASK)).text

        assert [asyncio.run(ask()) for _ in range(2)] == ["x", "x"]
        texts: list[str] = []
        threads = [threading.Thread(target=lambda: texts.append(asyncio.run(ask()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == ["x"] * 4


async def test_a_closed_model_opens_again_when_it_is_used() -> None:
    with FakeOpenAI(says("x")) as fake:
        model = model_at(fake)
        await answer(model, ASK)
        await model.aclose()  # type: ignore[attr-defined]
        assert (await answer(model, ASK)).text == "x"
        await model.aclose()  # type: ignore[attr-defined]


async def test_images_and_text_go_in_one_message() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8=", "detail": "low"}}
    with FakeOpenAI(says("A picture.")) as fake:
        await answer(model_at(fake), [m.user([{"type": "text", "text": "What is it?"}, image])])
        (sent,) = fake.received[0].body["messages"]
    assert sent["content"][0] == {"type": "text", "text": "What is it?"}
    assert sent["content"][1]["image_url"]["url"] == "data:image/png;base64,aGVsbG8="


async def test_a_local_server_needs_no_key() -> None:
    with FakeOpenAI(says("x")) as fake:
        model = model_from(Spec("openai", "llama", base_url=fake.base_url), {})
        assert (await answer(model, ASK)).text == "x"
        by_variable = model_from("openai:llama", {"OPENAI_BASE_URL": fake.base_url})
        assert (await answer(by_variable, ASK)).text == "x"
        assert KEY not in fake.received[0].headers["authorization"]


async def test_another_compatible_provider_goes_to_the_address_it_is_given() -> None:
    with FakeOpenAI(says("x")) as fake:
        model = model_from(Spec("together", "m", base_url=fake.base_url), {"TOGETHER_API_KEY": "t"})
        assert (await answer(model, ASK)).text == "x"
        assert fake.received[0].headers["authorization"] == "Bearer t"


async def test_the_client_libraries_do_not_log_requests(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), FakeOpenAI(says("x")) as fake:
        await answer(model_at(fake), ASK)
    assert "one and one" not in caplog.text
    assert fake.base_url not in caplog.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("anthropic:x", "The model provider 'anthropic' needs its key: set ANTHROPIC_API_KEY."),
        ("openai:x", "The model provider 'openai' needs its key: set OPENAI_API_KEY."),
        ("gemini:x", "The model provider 'google' needs its key: set GOOGLE_API_KEY or GEMINI_API_KEY."),
        ("antropic:x", "Unknown model provider 'antropic'; did you mean 'anthropic'?"),
        ("openai:", "The model provider 'openai' needs the name of a model: openai:NAME."),
        ("gpt-5", "Unknown model provider 'gpt-5'; write PROVIDER:NAME, such as openai:NAME."),
        ("anthropc", "Unknown model provider 'anthropc'; did you mean 'anthropic'?"),
        ("xai", "The model provider 'xai' needs the name of a model: xai:NAME."),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(value: str, text: str) -> None:
    with pytest.raises(ModelConfigError) as raised:
        model_from(value, {})
    assert str(raised.value) == text


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_engine.models import providers

    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("pydantic_ai.providers.infer_provider_class", absent)
    with pytest.raises(ModelConfigError, match=r"pip install 'agent-engine\[openai\]'"):
        providers.build_provider("openai", {"OPENAI_API_KEY": "k"}, region=None, base_url=None)
    with pytest.raises(ModelConfigError, match=r"pip install 'pydantic-ai-slim\[cohere\]'"):
        providers.build_provider("cohere", {"CO_API_KEY": "k"}, region=None, base_url=None)


def test_every_provider_of_the_table_is_known_to_the_model_layer() -> None:
    from pydantic_ai.providers import infer_provider_class

    from agent_engine.models.providers import PROVIDERS

    for name in PROVIDERS:
        try:
            infer_provider_class(name)
        except ImportError:
            continue  # known, and not installed
