"""A private MCP server: metadata and documentation of the packages installed here, for whoever has its key."""

from __future__ import annotations

import hmac
import os
import re
import sys
from functools import cache
from importlib import metadata

from loopback import serve
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from ranking import Index, entry
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

KEY_VARIABLE = "PRIVATE_PACKAGES_API_KEY"

server = MCPServer(
    "private_packages", log_level="WARNING", instructions="The packages that are installed on this machine."
)


@server.tool(structured_output=False)
def find_packages(query: str) -> str:
    """Find installed packages by what they are for, and get their names and versions, best match first.

    Args:
        query: a package name, or words that say what it is for
    """
    found = index().best(query)
    if not found:
        return f"No installed package matches {query!r}."
    return "\n".join(["Installed packages that match, best first:", *(f"- {one.name}: {one.summary}" for one in found)])


@server.tool(structured_output=False)
def read_package(name: str) -> str:
    """Read about one installed package: its version, what it is for, what it needs, and its README.

    Args:
        name: the package's name, such as pydantic
    """
    wanted = name.strip().strip("`")
    found = packages().get(_normal(wanted))
    if found is None:
        near = ", ".join(one.name for one in index().best(wanted, limit=5))
        hint = f" Near it: {near}." if near else ""
        raise ToolError(f"No package named {wanted!r} is installed here.{hint}")
    about = found.metadata
    fields = [
        ("Package", about["Name"]),
        ("Installed version", found.version),
        ("What it is for", about.get("Summary") or "it does not say"),
        ("Licence", about.get("License-Expression") or _one_line(about.get("License"))),
        ("Needs Python", about.get("Requires-Python")),
        ("Needs packages", ", ".join(sorted(_needed(found))) or "none"),
    ]
    head = "\n".join(f"{label}: {value}" for label, value in fields if value)
    readme = str(about.get("Description") or about.get_payload() or "").strip()
    return f"{head}\n\nREADME of {about['Name']}\n\n{readme}" if readme else head


@cache
def packages() -> dict[str, metadata.Distribution]:
    return {_normal(found.metadata["Name"]): found for found in metadata.distributions() if found.metadata["Name"]}


@cache
def index() -> Index:
    return Index(
        entry(found.metadata["Name"], f"version {found.version}. {found.metadata.get('Summary') or ''}".strip())
        for found in packages().values()
    )


def _needed(found: metadata.Distribution) -> set[str]:
    """Names of what a package needs; what only an extra needs is left out."""
    return {re.split(r"[\s<>=!~;\[(]", one, maxsplit=1)[0] for one in found.requires or () if "extra ==" not in one}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _one_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0][:80]


class RequireKey:
    """Refuse every request without the right ``X-API-Key`` header, before the MCP server sees it."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self.key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"x-api-key", b"")
            if not hmac.compare_digest(given, self.key):
                refusal = JSONResponse({"error": "This server needs a valid X-API-Key header."}, status_code=401)
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)


if __name__ == "__main__":
    secret = os.environ.get(KEY_VARIABLE)
    if not secret:
        sys.exit(f"{KEY_VARIABLE} is not set; this server does not start without a key.")
    index()
    serve(RequireKey(server.streamable_http_app(json_response=True), secret))
