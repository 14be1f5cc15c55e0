"""The offline model, deterministic, without key or weights: it chooses tools by words and quotes what they return."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence

from agent_engine.models.base import Message, ModelResponse, ModelSettings, ToolDefinition, Usage
from agent_engine.models.messages import text_of_content

SIGNATURE = (
    "(This is the offline model: it picks tools by the words of the question and quotes what they return;"
    " it writes nothing of its own.)"
)
NOTHING = "I found nothing that answers this."


class OfflineModel:
    """Answers from tools alone.

    It ranks the tools on offer against the question (BM25 over names, descriptions and parameters), fills the
    parameters from the question and the schema, follows what a result leads to, and answers with the passages that fit
    best and the calls they came from. It makes at most four calls for a question, and never the same one twice. Equal
    transcripts get equal answers.
    """

    provider: str = "offline"

    def __init__(self, name: str = "offline") -> None:
        self.name = name

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> ModelResponse:
        response = _respond(messages, tools)
        read = sum(len(text_of_content(message.get("content"))) for message in messages)
        written = len(response.text) + sum(len(json.dumps(call.arguments)) for call in response.tool_calls)
        response.usage = Usage(read // 4 + 1, written // 4 + 1)
        return response

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> AsyncIterator[str | ModelResponse]:
        response = await self.request(messages, tools, settings)
        for word in re.findall(r"\S+\s*|\s+", response.text):
            yield word
        yield response


def _respond(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> ModelResponse:
    question = next((text_of_content(m.get("content")) for m in reversed(messages) if m.get("role") == "user"), "")
    if not question.strip():
        return ModelResponse(f"There is no question to answer. {SIGNATURE}")
    if not tools and messages[-1].get("role") == "user":
        found = _shortened(question) or f"{NOTHING} I have no tool that I could ask."
        return ModelResponse(f"{found}\n\n{SIGNATURE}")
    from agent_engine.models.offline_state import Conversation

    conversation = Conversation(messages, tools)
    call = conversation.next_call()
    if call is not None:
        return ModelResponse(tool_calls=(call,), finish_reason="tool_calls")
    return ModelResponse("\n\n".join([*conversation.answer(), SIGNATURE]))


def _shortened(text: str) -> str | None:
    """A long message that asks for a summary: the first line of each of its paragraphs."""
    if len(text) < 400 or not any(word in text[:200].lower() for word in ("summar", "shorten", "condense")):
        return None
    first_lines = [block.strip().splitlines()[0] for block in text.split("\n\n") if block.strip()]
    return "\n".join(line[:200] for line in first_lines)[:1500]
