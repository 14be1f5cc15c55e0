"""A fake server of the Chat Completions protocol: scripted answers over a real socket.

    with FakeOpenAI(says("Hello."), calls(("add", {"a": 1})), fails(429, retry_after=2)) as fake:
        model = model_from(Spec("openai", "any", base_url=fake.base_url), {"OPENAI_API_KEY": "k"})

Each request takes the next answer, and the last one again when they have run out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.fakes.http_server import Answer, FakeServer, Received

Reply = Callable[[Received], Answer]


def says(*chunks: str, finish_reason: str = "stop", **extra: Any) -> Reply:
    """A text answer; streamed in these chunks where the request asks for a stream."""
    return _completion({"content": "".join(chunks)}, [{"content": chunk} for chunk in chunks], finish_reason, extra)


def calls(*wanted: tuple[str, dict[str, Any] | str], text: str | None = None) -> Reply:
    """An answer that calls tools: (name, arguments), arguments as a dict or as the very text to send."""
    entries = []
    for number, (name, arguments) in enumerate(wanted, 1):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        entries.append({"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": written}})
    deltas: list[dict[str, Any]] = [{"content": text}] if text else []
    for index, entry in enumerate(entries):
        function = entry["function"]
        assert isinstance(function, dict)
        written, half = function["arguments"], len(function["arguments"]) // 2
        opening = {**entry, "index": index, "function": {"name": function["name"], "arguments": written[:half]}}
        deltas.append({"tool_calls": [opening]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": written[half:]}}]})
    return _completion({"content": text, "tool_calls": entries}, deltas, "tool_calls", {})


def fails(status: int, *, text: str = "the provider's own words", retry_after: float | str | None = None) -> Reply:
    """An error answer in the protocol's shape."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    body = json.dumps({"error": {"message": text, "type": "server_error", "code": None}}).encode()
    return lambda received: Answer(status, body, headers=headers)


def garbage(body: bytes = b"<html>no JSON</html>", content_type: str = "application/json") -> Reply:
    return lambda received: Answer(200, body, content_type)


def hangs(until: threading.Event | None = None) -> Reply:
    """No answer until the event is set, or the server closes."""
    waiting = until or threading.Event()
    return lambda received: Answer(200, b"{}", hold=waiting)


def cuts(*chunks: str) -> Reply:
    """A stream whose connection drops after these chunks."""

    def reply(received: Received) -> Answer:
        return Answer(events=[_event({"content": chunk}, None) for chunk in chunks], cut=True)

    return reply


class FakeOpenAI(FakeServer):
    """The server. ``received`` holds every request; ``base_url`` is what a client is given."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self._lock = threading.Lock()
        super().__init__(self._answer)

    @property
    def base_url(self) -> str:
        return f"{self.address}/v1"

    def __enter__(self) -> FakeOpenAI:
        super().__enter__()
        return self

    def _answer(self, received: Received) -> Answer:
        with self._lock:
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return reply(received)


def _completion(message: dict[str, Any], deltas: list[dict[str, Any]], reason: str, extra: dict[str, Any]) -> Reply:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

    def reply(received: Received) -> Answer:
        if isinstance(received.body, dict) and received.body.get("stream"):
            return Answer(events=_stream(deltas, reason, usage))
        choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message, **extra}}
        whole = {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": usage}
        return Answer(body=json.dumps(whole).encode())

    return reply


_HEAD = {"id": "chatcmpl-1", "created": 1700000000, "model": "fake-model"}


def _stream(deltas: list[dict[str, Any]], reason: str, usage: dict[str, int]) -> Iterator[str]:
    yield _event({"role": "assistant", "content": ""}, None)
    for delta in deltas:
        yield _event(delta, None)
    yield _event({}, reason)
    yield f"data: {json.dumps({**_HEAD, 'object': 'chat.completion.chunk', 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def _event(delta: dict[str, Any], reason: str | None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return f"data: {json.dumps({**_HEAD, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
