"""What can go wrong with an MCP server, in sentences that a person or a model can read.

No text here ever carries the text of a cause, a header's value, or more of an address than its origin.
"""

from __future__ import annotations

from typing import Literal

from agent_engine.tools.base import ToolError

Kind = Literal[
    "unreachable",
    "unauthorized",
    "redirected",
    "refused",
    "too_large",
    "timed_out",
    "status",
    "protocol",
    "lost",
    "tool",
]


class McpError(Exception):
    """Something about an MCP server; ``server_id`` says which."""

    def __init__(self, server_id: str, text: str) -> None:
        super().__init__(text)
        self.server_id = server_id


class McpServerError(McpError):
    """A server that could not be reached, listed or read; the text says which one and what to do."""


class McpToolError(McpError, ToolError):
    """A call to an MCP server that failed. The text is written for the model.

    ``kind`` says what went wrong; ``code`` is the JSON-RPC code where the server answered with one.
    """

    def __init__(self, server_id: str, text: str, kind: Kind = "tool", *, code: int | None = None) -> None:
        super().__init__(server_id, text)
        self.kind: Kind = kind
        self.code = code


def unreachable(server_id: str, where: str, error_type: str) -> McpToolError:
    return McpToolError(
        server_id, f"MCP server '{server_id}' at {where} cannot be reached ({error_type}).", "unreachable"
    )


def lost(server_id: str, where: str, error_type: str) -> McpToolError:
    return McpToolError(
        server_id,
        f"The connection to MCP server '{server_id}' at {where} was lost before it answered ({error_type}).",
        "lost",
    )


def unauthorized(server_id: str, where: str, asked: bool) -> McpToolError:
    advice = (
        "what the before_mcp_request hooks sent was refused, also when they were asked once more"
        if asked
        else "no before_mcp_request hook is registered for it; register one that sets its credentials"
    )
    return McpToolError(
        server_id, f"MCP server '{server_id}' at {where} answered 401 Unauthorized: {advice}.", "unauthorized"
    )


_OF_STATUS = {
    403: ": what the before_mcp_request hooks sent is not enough for it",
    **dict.fromkeys((404, 405, 501), ": no MCP server seems to be there; look at the path of its url"),
}


def answered(server_id: str, where: str, status: int) -> McpToolError:
    text = f"MCP server '{server_id}' at {where} answered {status}{_OF_STATUS.get(status, '')}."
    return McpToolError(server_id, text, "status")


def redirected(server_id: str, where: str, status: int, target: str) -> McpToolError:
    return McpToolError(
        server_id,
        f"MCP server '{server_id}' at {where} answered {status} and points to {target}. Redirects are not followed, so "
        "that no credential reaches another address; declare that address as the server's url if it is the right one.",
        "redirected",
    )


def blocked(server_id: str, reason: str | None) -> McpToolError:
    text = f"A request to MCP server '{server_id}' was blocked by security policy."
    return McpToolError(server_id, f"{text} Reason: {reason}" if reason else text, "refused")


def too_large(server_id: str, limit: int) -> McpToolError:
    return McpToolError(
        server_id,
        f"The answer of MCP server '{server_id}' is larger than the {limit:,} bytes that are allowed.",
        "too_large",
    )


def timed_out(server_id: str, operation: str, seconds: float) -> McpToolError:
    return McpToolError(
        server_id, f"MCP server '{server_id}' did not answer {operation} within {seconds:g} s.", "timed_out"
    )
