"""What a tool's answer is to the engine: text as text, structured content as JSON, anything else as parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_engine.mcp.errors import McpToolError

if TYPE_CHECKING:
    from mcp_types import CallToolResult

MAX_ERROR_TEXT = 4000
"""Characters of an error that a model gets to read."""


def value_of(server_id: str, result: CallToolResult) -> Any:
    """The value of a result.

    Text alone is that text (several blocks, one a line); structured content is that JSON; images, audio and resources
    make it a list of parts: ``{"type": "text", "text"}``, ``{"type": "image" | "audio", "mime_type", "data"}`` with
    base64, ``{"type": "resource", "uri", "mime_type", "text" | "data"}``, ``{"type": "link", "uri", "name"}`` and
    ``{"type": "json", "value"}`` for structured content beside them.

    Raises:
        McpToolError: the result is marked as an error.
    """
    texts = [block.text for block in result.content if block.type == "text"]
    if result.is_error:
        text = "\n".join(texts)[:MAX_ERROR_TEXT] or "The tool reported an error and did not say which."
        raise McpToolError(server_id, text, "tool")
    structured = result.structured_content
    if len(texts) == len(result.content):
        text = "\n".join(texts)
        if structured is None or structured == {"result": text}:
            return text
        return structured
    parts = [_part(block) for block in result.content]
    if structured is not None:
        parts.append({"type": "json", "value": structured})
    return parts


def _part(block: Any) -> dict[str, Any]:
    match block.type:
        case "text":
            return {"type": "text", "text": block.text}
        case "image" | "audio":
            return {"type": block.type, "mime_type": block.mime_type, "data": block.data}
        case "resource":
            return {"type": "resource", **contents_of(block.resource)}
        case _:
            link = {"type": "link", "uri": str(block.uri), "name": block.name, "mime_type": block.mime_type}
            return {key: value for key, value in link.items() if value is not None}


def contents_of(contents: Any) -> dict[str, Any]:
    """The contents of a resource: its address, its kind, and its text or (base64) data."""
    found: dict[str, Any] = {"uri": str(contents.uri)}
    if contents.mime_type is not None:
        found["mime_type"] = contents.mime_type
    blob = getattr(contents, "blob", None)
    found.update({"text": contents.text} if blob is None else {"data": blob})
    return found


def plain(model: Any) -> dict[str, Any]:
    """A description the server gave (a resource, a prompt) as JSON-ready data."""
    dumped: dict[str, Any] = model.model_dump(mode="json", exclude_none=True)
    return dumped
