"""The text of a message that may be text or content parts."""

from __future__ import annotations

from typing import Any

from agent_engine.models.messages import text_of_content


def text_of_message(message: str | list[Any]) -> str:
    """The text a hook sees of a message."""
    return message if isinstance(message, str) else text_of_content(message)


def with_text(message: str | list[Any], text: str) -> str | list[Any]:
    """The message with another text; parts that are no text stay."""
    if isinstance(message, str):
        return text
    others = [part for part in message if not (isinstance(part, str) or (isinstance(part, dict) and "text" in part))]
    return [{"type": "text", "text": text}, *others]
