"""The offline model: deterministic, without key or weights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from agent_engine.models.base import Message, ModelResponse, ModelSettings, ToolDefinition
from agent_engine.models.messages import text_of_content


class OfflineModel:
    """Chooses tools by their words and answers with what they returned."""

    provider = "offline"

    def __init__(self, name: str = "offline") -> None:
        self.name = name

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> ModelResponse:
        return ModelResponse(text_of_content(messages[-1].get("content")) if messages else "")

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> AsyncIterator[str | ModelResponse]:
        response = await self.request(messages, tools, settings)
        yield response.text
        yield response
