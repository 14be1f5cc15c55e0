"""The chat shape: building it, reading it, and taking it to the model layer and back without loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart

from agent_engine.models import messages as m
from agent_engine.models.base import Message, ToolCall, Usage
from agent_engine.models.errors import ModelError
from agent_engine.models.native import from_native, to_native

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, max_size=3)


def test_usage_adds_up() -> None:
    total = Usage(1, 2, {"cached": 3}) + Usage(10, 20, {"cached": 4, "audio": 5})
    assert (total.input_tokens, total.output_tokens, total.total) == (11, 22, 33)
    assert total.details == {"cached": 7, "audio": 5}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{nope", "not valid JSON: Expecting property name enclosed in double quotes at character 1"),
        ("[1]", "must be a JSON object, not an array"),
        ('"x"', "must be a JSON object, not a string"),
        ("3", "must be a JSON object, not a number"),
        ("null", "must be a JSON object, not null"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_arguments_that_are_no_object_are_kept_with_what_is_wrong(text: str, says: str) -> None:
    call = m.parse_call("1", "look", text)
    assert (call.arguments, call.raw) == ({}, text)
    assert says in str(call.error)
    (back,) = m.calls_of(m.assistant(None, [call]))
    assert back == call


@pytest.mark.parametrize("nothing", [None, "", "  "])
def test_no_arguments_are_an_empty_object(nothing: str | None) -> None:
    assert m.parse_call("1", "look", nothing) == ToolCall("1", "look", {})


@given(arguments)
def test_a_call_is_the_same_after_a_trip_through_a_message(given_arguments: dict[str, Any]) -> None:
    call = ToolCall("1", "look", given_arguments)
    message = json.loads(json.dumps(m.assistant("text", [call])))
    assert m.calls_of(message) == [call]


def test_text_of_content_reads_text_and_parts() -> None:
    assert m.text_of_content("a") == "a"
    assert m.text_of_content([{"type": "text", "text": "a"}, {"type": "image_url"}, "b"]) == "a\nb"
    assert m.text_of_content(None) == ""


parts = st.lists(
    st.one_of(
        st.text(min_size=1, max_size=20).map(TextPart),
        st.builds(ThinkingPart, st.text(max_size=20), signature=st.text(min_size=1, max_size=10)),
        st.builds(ToolCallPart, st.sampled_from(["look", "list"]), arguments),
    ),
    max_size=6,
)


def shape(response: ModelResponse) -> list[Any]:
    """What a provider would read, text parts that touch each other joined."""
    read: list[Any] = []
    for part in response.parts:
        if isinstance(part, TextPart):
            if read and read[-1][0] == "text":
                read[-1] = ("text", read[-1][1] + part.content)
            else:
                read.append(("text", part.content))
        elif isinstance(part, ThinkingPart):
            read.append(("thinking", part.content, part.signature))
        else:
            assert isinstance(part, ToolCallPart)
            read.append(("call", part.tool_name, part.args_as_dict(), part.tool_call_id))
    return read


@given(parts)
def test_a_response_comes_back_to_its_provider_as_it_was(given_parts: list[Any]) -> None:
    response = ModelResponse(parts=given_parts, provider_name="some", finish_reason="stop")
    message = json.loads(json.dumps(m.assistant_from(from_native(response))))
    back = to_native([message])
    plain = not any(isinstance(part, ThinkingPart) for part in given_parts)
    wanted = shape(response)
    if plain:  # without provider parts only text and calls count, text first
        wanted = [("text", "".join(p[1] for p in wanted if p[0] == "text"))] + [p for p in wanted if p[0] == "call"]
        wanted = [entry for entry in wanted if entry != ("text", "")]
    if not back:
        assert wanted == []
    else:
        assert isinstance(back[0], ModelResponse)
        assert shape(back[0]) == wanted


@given(parts, st.text(max_size=20))
def test_a_replaced_text_is_the_only_one_a_provider_gets(given_parts: list[Any], other: str) -> None:
    response = ModelResponse(parts=given_parts, provider_name="some")
    message = m.assistant_from(from_native(response))
    message["content"] = other
    for back in to_native([message]):
        assert isinstance(back, ModelResponse)
        said = "".join(part.content for part in back.parts if isinstance(part, TextPart))
        assert said == other
        if other != "".join(part.content for part in given_parts if isinstance(part, TextPart)):
            assert not any(isinstance(part, ThinkingPart) for part in back.parts)


def test_requests_are_grouped_and_results_find_the_name_of_their_call() -> None:
    history: list[Message] = [
        m.system("S"),
        m.user("U"),
        m.assistant(None, [ToolCall("1", "look", {})]),
        {"role": "tool", "tool_call_id": "1", "content": "R"},
        m.user("V"),
    ]
    first, second, third = to_native(history)
    assert isinstance(first, ModelRequest)
    assert isinstance(second, ModelResponse)
    assert isinstance(third, ModelRequest)
    assert [part.part_kind for part in first.parts] == ["system-prompt", "user-prompt"]
    assert [part.part_kind for part in third.parts] == ["tool-return", "user-prompt"]
    assert third.parts[0].tool_name == "look"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "robot", "content": "x"}, "unknown role 'robot'"),
        ({"role": "user", "content": [{"type": "hologram"}]}, "A content part of type 'hologram' is not known"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}}]},
            "not base64",
        ),
    ],
)
def test_a_message_that_cannot_be_sent_says_why(message: Message, says: str) -> None:
    with pytest.raises(ModelError, match=says) as raised:
        to_native([message])
    assert raised.value.category == "bad_request"
