"""The engine's own model protocol: messages in the chat shape go in, one :class:`ModelResponse` comes out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from agent_engine.memory.message import Message as Message


@dataclass(slots=True)
class ToolCall:
    """A tool call as the model made it.

    ``raw`` and ``error`` are set where the arguments, as sent, were no JSON object: then ``arguments`` is empty,
    ``raw`` is the text and ``error`` says what is wrong with it.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    raw: str | None = None
    error: str | None = None


@dataclass(slots=True)
class Usage:
    """Tokens of one or several model calls. ``details`` holds what else a provider counts, by its own names."""

    input_tokens: int = 0
    output_tokens: int = 0
    details: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        details = self.details
        if other.details:
            details = dict(details)
            for key, count in other.details.items():
                details[key] = details.get(key, 0) + count
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, dict(details))


@dataclass(slots=True)
class ModelSettings:
    """Settings of one call. None leaves the choice to the provider; ``extra`` is handed to its adapter as it is."""

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ToolDefinition:
    """What the model reads about a tool. ``parameters`` is the JSON Schema of its arguments object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(slots=True)
class ModelResponse:
    """One answer of a model.

    ``finish_reason`` is ``stop``, ``tool_calls``, ``length``, ``content_filter`` or ``error``. ``native`` holds the
    provider's own parts as JSON-ready data; whoever stores the assistant message puts it under its ``native`` key.
    """

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    native: Mapping[str, Any] | None = None


@runtime_checkable
class Model(Protocol):
    """Anything that answers messages. ``name`` and ``provider`` identify it in records and to matchers.

    A failed call raises :class:`~agent_engine.models.errors.ModelError`; any other exception counts as one that
    is not worth a second try.
    """

    name: str
    provider: str

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> ModelResponse:
        """Answer once. The messages and tools are the caller's: read them, never change them."""
        ...

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> AsyncIterator[str | ModelResponse]:
        """Text as it comes, then exactly one whole ModelResponse as the last item."""
        ...


async def close_model(model: object) -> None:
    """Close what a model holds open, where it has an ``aclose``."""
    closing = getattr(model, "aclose", None)
    if closing is not None:
        await closing()
