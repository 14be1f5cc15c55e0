"""The scripted model plays exactly what it was given, and says clearly where a script is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_engine.models import messages as m
from agent_engine.models.base import Message, Model, ModelResponse, ModelSettings, ToolCall, ToolDefinition, Usage
from agent_engine.models.errors import ModelConfigError, ModelError
from agent_engine.models.scripted import ScriptedModel, Turn

SETTINGS = ModelSettings()
ASK: list[Message] = [m.user("hi")]


async def ask(
    model: Model, messages: list[Message] | None = None, tools: list[ToolDefinition] | None = None
) -> ModelResponse:
    return await model.request(ASK if messages is None else messages, tools or [], SETTINGS)


async def stream(model: Model) -> list[str | ModelResponse]:
    return [item async for item in model.stream(ASK, [], SETTINGS)]


async def test_turns_are_played_in_order() -> None:
    model = ScriptedModel(
        [
            "Hello.",
            {"tool_calls": [{"name": "look", "arguments": {"q": 1}}, "list"], "usage": {"input_tokens": 5}},
            {"text": "cut", "finish_reason": "length"},
            Turn(text="turn"),
            ModelResponse("whole", usage=Usage(1, 2)),
        ]
    )
    assert isinstance(model, Model)
    assert (await ask(model)).text == "Hello."
    called = await ask(model)
    assert [(c.name, c.arguments) for c in called.tool_calls] == [("look", {"q": 1}), ("list", {})]
    assert len({c.id for c in called.tool_calls}) == 2
    assert (called.finish_reason, called.usage.input_tokens, called.text) == ("tool_calls", 5, "")
    assert (await ask(model)).finish_reason == "length"
    assert (await ask(model)).text == "turn"
    assert (await ask(model)).usage.total == 3
    assert model.remaining == 0


async def test_running_out_of_turns_says_how_many_there_were() -> None:
    model = ScriptedModel(["one"])
    await ask(model)
    with pytest.raises(
        ModelError, match=r"'scripted' has no turn 2: the list it was given holds 1.*from user"
    ) as raised:
        await ask(model)
    assert not raised.value.retryable
    again = ScriptedModel(["one"], repeat_last=True)
    assert [(await ask(again)).text for _ in range(3)] == ["one"] * 3


async def test_a_stream_gives_the_scripts_chunks() -> None:
    model = ScriptedModel([{"stream": ["joe@", "ex", "ample.com"]}, "whole", {"tool_calls": ["look"]}])
    items = await stream(model)
    assert items[:-1] == ["joe@", "ex", "ample.com"]
    assert isinstance(items[-1], ModelResponse)
    assert items[-1].text == "joe@example.com"
    assert [item if isinstance(item, str) else item.text for item in await stream(model)] == ["whole", "whole"]
    assert len(await stream(model)) == 1


@pytest.mark.parametrize(
    ("error", "category", "status", "retryable", "retry_after"),
    [
        ("rate_limit", "rate_limit", 429, True, None),
        ({"category": "rate_limit", "retry_after": 1.5}, "rate_limit", 429, True, 1.5),
        ("timeout", "timeout", None, True, None),
        ("connection", "connection", None, True, None),
        ("server", "server", 500, True, None),
        ("auth", "auth", 401, False, None),
        ({"category": "server", "status": 503, "message": "busy"}, "server", 503, True, None),
    ],
)
async def test_errors_are_raised_as_a_provider_would(
    error: Any, category: str, status: int | None, retryable: bool, retry_after: float | None
) -> None:
    model = ScriptedModel([{"error": error}, "then"])
    with pytest.raises(ModelError) as raised:
        await ask(model)
    failed = raised.value
    assert (failed.category, failed.status, failed.retryable, failed.retry_after) == (
        category,
        status,
        retryable,
        retry_after,
    )
    assert (await ask(model)).text == "then"


async def test_a_stream_can_break_off() -> None:
    got: list[object] = []
    model = ScriptedModel([{"stream": ["half "], "error": "connection"}, KeyError("any exception")])

    async def read() -> None:
        async for item in model.stream(ASK, [], SETTINGS):
            got.append(item)

    with pytest.raises(ModelError):
        await read()
    assert got == ["half "]
    with pytest.raises(KeyError):
        await ask(model)


async def test_a_function_can_answer() -> None:
    async def later(messages: list[Message], tools: list[ToolDefinition], settings: ModelSettings) -> str:
        return f"{len(messages)} {len(tools)}"

    model = ScriptedModel([lambda messages, tools, settings: messages[-1]["content"], later])
    assert (await ask(model)).text == "hi"
    assert (await ask(model)).text == "1 0"


async def test_a_turn_can_wait_for_a_test() -> None:
    go_on = asyncio.Event()
    model = ScriptedModel([Turn(text="now", wait=go_on.wait)])
    task = asyncio.create_task(ask(model))
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    assert (await task).text == "now"


async def test_expectations_are_checked() -> None:
    look = ToolDefinition("look")
    model = ScriptedModel(
        [
            {"text": "a", "expect": "hi"},
            {"text": "b", "expect": {"contains": "hi", "tools": ["look"]}},
            {"text": "c", "expect": "something else"},
            {"text": "d", "expect": {"tools": ["missing"]}},
        ]
    )
    await ask(model)
    await ask(model, tools=[look])
    with pytest.raises(AssertionError, match="turn 3 .* expects the last message to contain 'something else'"):
        await ask(model)
    with pytest.raises(AssertionError, match=r"turn 4 .* expects the tools \['missing'\]"):
        await ask(model)


async def test_many_conversations_each_play_the_whole_script() -> None:
    model = ScriptedModel(["one", "two", "three"], by="conversation")

    async def converse() -> list[str]:
        history: list[Message] = [m.user("hi")]
        for _ in range(3):
            response = await ask(model, history)
            await asyncio.sleep(0)
            history += [m.assistant_from(response), m.user("and?")]
        return [message["content"] for message in history if message["role"] == "assistant"]

    for texts in await asyncio.gather(*(converse() for _ in range(50))):
        assert texts == ["one", "two", "three"]


async def test_one_script_is_shared_out_exactly_once() -> None:
    model = ScriptedModel([str(n) for n in range(100)])
    texts = await asyncio.gather(*(ask(model) for _ in range(100)))
    assert sorted(int(response.text) for response in texts) == list(range(100))


async def test_requests_are_kept_as_they_were_received() -> None:
    model = ScriptedModel(["a", "b"])
    history: list[Message] = [m.user("hi")]
    await ask(model, history)
    history[0]["content"] = "changed"
    history.append(m.user("more"))
    assert model.requests[0].messages == [m.user("hi")]
    assert not model.requests[0].streamed
    quiet = ScriptedModel(["a"], record=False)
    await ask(quiet)
    assert quiet.requests == []


async def test_a_response_is_the_callers_own() -> None:
    call = ToolCall("1", "look", {"q": [1]})
    model = ScriptedModel([Turn(tool_calls=[call])], repeat_last=True)
    first = await ask(model)
    first.tool_calls[0].arguments["q"] = 2
    assert (await ask(model)).tool_calls[0].arguments == {"q": [1]}


def write(folder: Path, text: str) -> Path:
    (folder / "script.yaml").write_text(text)
    return folder / "script.yaml"


async def test_a_yaml_file_is_a_script(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
router:
  by: conversation
  turns:
    - tool_calls: [{name: notes, arguments: {message: hi}}]
    - text: Done.
notes:
  - stream: [One, " two"]
  - error: {category: rate_limit, retry_after: 2}
""",
    )
    router = ScriptedModel(f"{path}#router")
    assert (await ask(router)).tool_calls[0].arguments == {"message": "hi"}
    assert (await ask(router)).tool_calls[0].name == "notes"
    notes = ScriptedModel(f"{path}#notes")
    assert (await ask(notes)).text == "One two"
    with pytest.raises(ModelError):
        await ask(notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("turns: 3", "must hold a list of turns"),
        ("- 3", "turn 1 must be text or a mapping, not int"),
        ("- txet: hi", "turn 1 has the unknown key 'txet'; a turn knows text, tool_calls"),
        ("- text: hi\n- error: boom", "turn 2: unknown error 'boom'; known are rate_limit"),
        ("- tool_calls: [{arguments: {}}]", "turn 1: a tool call is a name, or a mapping"),
        ("- usage: many", "turn 1: usage is a mapping"),
        ("- text: [", "line 1 is not valid YAML"),
        ("turns: []\nby: magic", "answers by 'order' or by 'conversation', not by 'magic'"),
    ],
)
def test_a_wrong_script_says_where(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ModelConfigError, match=says) as raised:
        ScriptedModel(write(tmp_path, text))
    assert "script.yaml" in str(raised.value) or "magic" in text


def test_a_missing_script_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"nowhere.yaml cannot be read \(FileNotFoundError\)"):
        ScriptedModel(tmp_path / "nowhere.yaml")
    with pytest.raises(ModelConfigError, match="has no key 'x'"):
        ScriptedModel(f"{write(tmp_path, '- hi')}#x")
