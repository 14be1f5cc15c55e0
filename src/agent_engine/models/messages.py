"""Builders and readers of messages in the chat shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_engine.models.base import Message, ModelResponse, ToolCall

# One encoder for all: json.dumps makes a new one at each call where it is not asked for its defaults.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: str | list[Any]) -> Message:
    return {"role": "user", "content": content}


def assistant(
    content: str | None, tool_calls: Sequence[ToolCall] = (), native: Mapping[str, Any] | None = None
) -> Message:
    """An assistant message. A call whose arguments were no JSON object keeps the text that the model sent."""
    message: Message = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = [call_entry(call) for call in tool_calls]
    if native is not None:
        message["native"] = dict(native)
    return message


def assistant_from(response: ModelResponse) -> Message:
    """The message that stands for ``response`` in a transcript."""
    return assistant(response.text or (None if response.tool_calls else ""), response.tool_calls, response.native)


def tool(call_id: str, name: str, content: str) -> Message:
    """The result of one tool call, as the model reads it."""
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def call_entry(call: ToolCall) -> dict[str, Any]:
    """A tool call as an entry of ``tool_calls``; ``arguments`` is JSON text."""
    arguments = call.raw if call.raw is not None else _encode(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def parse_call(call_id: str, name: str, arguments: str | Mapping[str, Any] | None) -> ToolCall:
    """A ToolCall from arguments as a provider sent them. No arguments at all count as an empty object."""
    if isinstance(arguments, Mapping):
        return ToolCall(call_id, name, dict(arguments))
    if arguments is None or not arguments.strip():
        return ToolCall(call_id, name)
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        where = f": {error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        return ToolCall(call_id, name, raw=arguments, error=f"The arguments are not valid JSON{where}.")
    if not isinstance(value, dict):
        found = _JSON_NAMES.get(type(value), type(value).__name__)
        return ToolCall(call_id, name, raw=arguments, error=f"The arguments must be a JSON object, not {found}.")
    return ToolCall(call_id, name, value)


_JSON_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def calls_of(message: Message) -> list[ToolCall]:
    """The tool calls of an assistant message."""
    calls = []
    for entry in message.get("tool_calls") or ():
        function = entry.get("function") or {}
        calls.append(parse_call(entry.get("id") or "", function.get("name") or "", function.get("arguments")))
    return calls


def text_of_content(content: object) -> str:
    """The text of a message's content: text as it is, of a list of parts the text parts, joined by newlines."""
    if isinstance(content, str):
        return content
    if isinstance(content, Iterable):
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                texts.append(part["text"])
        return "\n".join(texts)
    return ""
