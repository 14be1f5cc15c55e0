"""What a provider sends beyond text and calls comes back to it: thinking with its signature, cache marks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.fakes import anthropic_server as blocks
from tests.fakes.anthropic_server import FakeAnthropic
from tests.fakes.openai_server import FakeOpenAI, says

from agent_engine.models import messages as m
from agent_engine.models.base import Message, Model, ModelResponse, ModelSettings, ToolDefinition
from agent_engine.models.resolve import model_from

ADD = ToolDefinition("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
FIRST = [
    blocks.thinking("The sum needs the tool.", "SIGNATURE=="),
    blocks.text("I add."),
    blocks.tool_use("t1", "add", a=1),
]
ASK: list[Message] = [m.system("Be brief."), m.user("One and one?")]


@dataclass
class Spec:
    provider: str
    name: str
    region: str | None
    base_url: str


def model_at(fake: FakeAnthropic) -> Model:
    return model_from(Spec("anthropic", "claude-sonnet-5", None, fake.address), {"ANTHROPIC_API_KEY": "k"})


async def first_and_second(streaming: bool, edit: Any = None) -> tuple[ModelResponse, list[dict[str, Any]]]:
    with FakeAnthropic(FIRST, [blocks.text("Two.")]) as fake:
        model = model_at(fake)
        if streaming:
            items = [item async for item in model.stream(ASK, [ADD], ModelSettings())]
            response = items[-1]
            assert isinstance(response, ModelResponse)
            assert "".join(str(item) for item in items[:-1]) == "I add."
        else:
            response = await model.request(ASK, [ADD], ModelSettings())
        stored = json.loads(json.dumps(m.assistant_from(response)))
        if edit is not None:
            edit(stored)
        await model.request([*ASK, stored, m.tool("t1", "add", "2")], [ADD], ModelSettings())
        return response, fake.received[1].body["messages"]


async def test_thinking_and_its_signature_go_back_as_they_came() -> None:
    for streaming in (False, True):
        response, sent = await first_and_second(streaming)
        assert (response.text, response.finish_reason) == ("I add.", "tool_calls")
        assert sent[1]["content"] == [
            {"type": "thinking", "thinking": "The sum needs the tool.", "signature": "SIGNATURE=="},
            {"type": "text", "text": "I add."},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
        ]


async def test_what_one_provider_thought_is_not_told_to_another() -> None:
    response, _ = await first_and_second(False)
    with FakeOpenAI(says("Two.")) as other:
        model = model_from(Spec("openai", "some-model", None, other.base_url), {"OPENAI_API_KEY": "k"})
        await model.request([*ASK, m.assistant_from(response), m.tool("t1", "add", "2")], [ADD], ModelSettings())
        (sent,) = other.received
    assert "needs the tool" not in json.dumps(sent.body)
    assert sent.body["messages"][2]["content"] == "I add."
    assert [entry["id"] for entry in sent.body["messages"][2]["tool_calls"]] == ["t1"]


async def test_cached_tokens_are_counted_in_usage() -> None:
    response, _ = await first_and_second(False)
    assert (response.usage.input_tokens, response.usage.output_tokens) == (16, 7)
    assert response.usage.details["cache_read_tokens"] == 5


async def test_a_text_that_was_replaced_does_not_come_back_and_neither_does_its_thinking() -> None:
    def redact(message: Message) -> None:
        message["content"] = "[redacted]"

    _, sent = await first_and_second(False, redact)
    assert sent[1]["content"] == [
        {"type": "text", "text": "[redacted]"},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
    ]


async def test_a_call_that_was_rewritten_goes_back_rewritten_with_its_thinking() -> None:
    def rewrite(message: Message) -> None:
        message["tool_calls"][0]["function"]["arguments"] = '{"a": 7}'

    _, sent = await first_and_second(False, rewrite)
    assert [block["type"] for block in sent[1]["content"]] == ["thinking", "text", "tool_use"]
    assert sent[1]["content"][2]["input"] == {"a": 7}


async def test_native_repeats_neither_text_nor_arguments() -> None:
    response, _ = await first_and_second(False)
    kept = json.dumps(response.native)
    assert "I add." not in kept
    assert '"a"' not in kept
    assert "SIGNATURE==" in kept


async def test_native_of_another_version_falls_back_to_text_and_calls() -> None:
    def spoil(message: Message) -> None:
        message["native"]["pydantic_ai"]["parts"] = [{"part": {"part_kind": "from the future"}}]

    _, sent = await first_and_second(False, spoil)
    assert [block["type"] for block in sent[1]["content"]] == ["text", "tool_use"]


async def test_a_cache_mark_on_a_content_part_is_sent_as_one() -> None:
    long = {"type": "text", "text": "The whole book.", "cache_control": {"type": "ephemeral"}}
    with FakeAnthropic([blocks.text("Read.")]) as fake:
        await model_at(fake).request([m.user([long, {"type": "text", "text": "Who did it?"}])], [], ModelSettings())
        (sent,) = fake.received[0].body["messages"]
    assert sent["content"][0]["cache_control"]["type"] == "ephemeral"
    assert "cache_control" not in sent["content"][1]
