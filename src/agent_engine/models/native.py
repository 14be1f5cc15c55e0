"""Chat-shape messages to the model layer's own and back, with nothing lost on the way.

What a provider sends beyond text and tool calls (thinking and its signature, files, ids, citations) is kept under a
message's ``native`` key as JSON. Text and arguments are not kept there a second time: they are filled in again from the
message, so what a hook has put in their place is what the provider reads.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.messages import ModelResponse as NativeResponse

from agent_engine.models.base import Message, ModelResponse, ToolCall, Usage
from agent_engine.models.errors import ModelError
from agent_engine.models.messages import calls_of, parse_call, text_of_content

KEY = "pydantic_ai"
"""The key under a message's ``native`` that this adapter reads and writes; other keys are left alone."""

_FINISH = {"tool_call": "tool_calls", "stop": "stop", "length": "length", "content_filter": "content_filter"}
_RESPONSE_FIELDS = ("provider_name", "provider_url", "canonical_system", "provider_details", "provider_response_id")
_TOKENS = ("cache_read_tokens", "cache_write_tokens", "output_reasoning_tokens")


def to_native(messages: Sequence[Message], provider: str | None = None) -> list[ModelMessage]:
    """The messages as the model layer takes them. Raises ModelError for a role or content part it does not know.

    ``provider`` is who gets them, by the model layer's name: what another provider sent beyond text and calls is left
    out. The model layer would show its thinking to the model as text.
    """
    made: list[ModelMessage] = []
    parts: list[ModelRequestPart] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.get("role") == "assistant":
            if parts:
                made.append(ModelRequest(parts=parts))
                parts = []
            names.update({call.id: call.name for call in calls_of(message)})
            response = _response(message, provider)
            if response.parts:
                made.append(response)
        else:
            parts.append(_request_part(message, names))
    if parts:
        made.append(ModelRequest(parts=parts))
    return made


def from_native(response: NativeResponse) -> ModelResponse:
    """The engine's answer for the model layer's one."""
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    calls = tuple(
        parse_call(part.tool_call_id, part.tool_name, part.args)
        for part in response.parts
        if isinstance(part, ToolCallPart)
    )
    reason = "tool_calls" if calls else _FINISH.get(response.finish_reason or "stop", "error")
    return ModelResponse(text, calls, _usage(response), reason, _kept(response, text))


def _usage(response: NativeResponse) -> Usage:
    usage = response.usage
    details = {name: count for name in _TOKENS if (count := getattr(usage, name, 0))}
    counted = ("input_tokens", "output_tokens")
    details.update({name: count for name, count in usage.details.items() if count and name not in counted})
    return Usage(usage.input_tokens, usage.output_tokens, details)


def _kept(response: NativeResponse, text: str) -> dict[str, Any] | None:
    """The response without its text and arguments, or None where there is nothing beyond them."""
    (dumped,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    entries: list[dict[str, Any]] = []
    for part in dumped["parts"]:
        kept = {name: value for name, value in part.items() if value is not None}
        kind = kept["part_kind"]
        if kind == "text":
            entries.append({"text": len(kept.pop("content", "")), "part": kept})
        elif kind == "tool-call":
            kept.pop("args", None)
            kept.pop("tool_name", None)
            entries.append({"call": kept["tool_call_id"], "part": kept})
        else:
            entries.append({"part": kept})
    if not any(_says_more(entry["part"]) for entry in entries):
        return None
    head = {name: dumped[name] for name in _RESPONSE_FIELDS if dumped.get(name) is not None}
    return {KEY: {"response": head, "parts": entries, "text_digest": _digest(text)}}


def _says_more(part: Mapping[str, Any]) -> bool:
    return bool(set(part) - {"part_kind", "tool_call_id"})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _response(message: Message, provider: str | None) -> NativeResponse:
    text = text_of_content(message.get("content"))
    calls = calls_of(message)
    kept = (message.get("native") or {}).get(KEY)
    if isinstance(kept, Mapping):
        try:
            if provider is None or kept["response"].get("provider_name") in (None, provider):
                return _rebuilt(kept, text, calls)
        except (ValidationError, KeyError, TypeError, AttributeError):
            pass  # written by another version of the model layer: text and calls still go out whole
    plain: list[Any] = [TextPart(text)] if text else []
    return NativeResponse(parts=[*plain, *(_call_part(call) for call in calls)])


def _rebuilt(kept: Mapping[str, Any], text: str, calls: Sequence[ToolCall]) -> NativeResponse:
    """The provider's parts in their order, filled from the message as it stands now.

    Where the text is no longer the model's own, its thinking is left out: it may repeat what was taken out.
    """
    changed = _digest(text) != kept.get("text_digest")
    pending = {call.id: call for call in calls}
    parts: list[dict[str, Any]] = []
    written = 0
    for entry in kept["parts"]:
        part = dict(entry["part"])
        if "text" in entry:
            end = len(text) if changed else written + entry["text"]
            if end > written:
                parts.append({**part, "content": text[written:end]})
            written = end
        elif "call" in entry:
            call = pending.pop(entry["call"], None)
            if call is not None:
                parts.append({**part, **_call_fields(call)})
        elif not (changed and part["part_kind"] == "thinking"):
            parts.append(part)
    if written < len(text):
        parts.insert(0, {"part_kind": "text", "content": text[written:]})
    parts.extend({"part_kind": "tool-call", "tool_call_id": call.id, **_call_fields(call)} for call in pending.values())
    (response,) = ModelMessagesTypeAdapter.validate_python([{"kind": "response", **kept["response"], "parts": parts}])
    if not isinstance(response, NativeResponse):
        raise TypeError
    return response


def _call_fields(call: ToolCall) -> dict[str, Any]:
    return {"tool_name": call.name, "args": call.raw if call.raw is not None else call.arguments}


def _call_part(call: ToolCall) -> ToolCallPart:
    return ToolCallPart(call.name, call.raw if call.raw is not None else call.arguments, tool_call_id=call.id)


def _request_part(message: Message, names: Mapping[str, str]) -> ModelRequestPart:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        return SystemPromptPart(text_of_content(content))
    if role == "user":
        return UserPromptPart(content if isinstance(content, str) else list(_user_content(content or ())))
    if role == "tool":
        call_id = str(message.get("tool_call_id") or "")
        name = message.get("name") or names.get(call_id) or "tool"
        return ToolReturnPart(str(name), text_of_content(content), tool_call_id=call_id)
    raise ModelError(f"A message has the unknown role {role!r}.", category="bad_request")


def _user_content(parts: Iterable[Any]) -> Iterable[UserContent]:
    for part in parts:
        if isinstance(part, str):
            yield part
            continue
        yield _content_part(part)
        mark = part.get("cache_control")
        if mark:
            yield CachePoint(ttl="1h" if isinstance(mark, Mapping) and mark.get("ttl") == "1h" else "5m")


def _content_part(part: Mapping[str, Any]) -> UserContent:
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "image_url":
        given = part.get("image_url")
        url = given.get("url") if isinstance(given, Mapping) else given
        detail = given.get("detail") if isinstance(given, Mapping) else None
        metadata = {"detail": detail} if detail else None
        return _from_data_url(url, metadata) or ImageUrl(str(url), vendor_metadata=metadata)
    if kind == "input_audio":
        given = part.get("input_audio") or {}
        return BinaryContent(_decoded(given.get("data")), media_type=f"audio/{given.get('format', 'wav')}")
    if kind == "file":
        given = part.get("file") or {}
        url = given.get("file_data") or given.get("url")
        return _from_data_url(url, None) or DocumentUrl(str(url))
    raise ModelError(
        f"A content part of type {kind!r} is not known; known are text, image_url, input_audio and file.",
        category="bad_request",
    )


def _from_data_url(url: object, metadata: dict[str, Any] | None) -> BinaryContent | None:
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    head, _, data = url[5:].partition(",")
    return BinaryContent(_decoded(data), media_type=head.partition(";")[0] or "text/plain", vendor_metadata=metadata)


def _decoded(data: object) -> bytes:
    try:
        return base64.b64decode(str(data), validate=True)
    except binascii.Error:
        raise ModelError("A content part holds data that is not base64.", category="bad_request") from None
