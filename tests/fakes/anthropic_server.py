"""A fake server of the Messages protocol, with thinking blocks and their signatures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

from tests.fakes.http_server import Answer, FakeServer, Received


def thinking(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def tool_use(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


class FakeAnthropic(FakeServer):
    """Each request takes the next list of content blocks as its answer."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self._answers = list(answers)
        self._lock = threading.Lock()
        super().__init__(self._answer)

    def __enter__(self) -> FakeAnthropic:
        super().__enter__()
        return self

    def _answer(self, received: Received) -> Answer:
        with self._lock:
            blocks = self._answers.pop(0)
        reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
        usage = {"input_tokens": 11, "output_tokens": 7, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 0}
        whole = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-fake",
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }
        if received.body.get("stream"):
            return Answer(events=_stream(whole, blocks, reason))
        return Answer(body=json.dumps(whole).encode())


def _stream(whole: dict[str, Any], blocks: list[dict[str, Any]], reason: str) -> Iterator[str]:
    yield _event({"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}})
    for index, block in enumerate(blocks):
        yield _event({"type": "content_block_start", "index": index, "content_block": _EMPTY[block["type"]](block)})
        for delta in _DELTAS[block["type"]](block):
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    yield _event(
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 7},
        }
    )
    yield _event({"type": "message_stop"})


_EMPTY: dict[str, Any] = {
    "text": lambda block: {"type": "text", "text": ""},
    "thinking": lambda block: {"type": "thinking", "thinking": "", "signature": ""},
    "tool_use": lambda block: {**block, "input": {}},
}
_DELTAS: dict[str, Any] = {
    "text": lambda block: [{"type": "text_delta", "text": block["text"]}],
    "thinking": lambda block: [
        {"type": "thinking_delta", "thinking": block["thinking"]},
        {"type": "signature_delta", "signature": block["signature"]},
    ],
    "tool_use": lambda block: [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}],
}


def _event(data: dict[str, Any]) -> str:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"
