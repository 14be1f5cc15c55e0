"""The demo's MCP servers, over the real client of the MCP SDK and real sockets."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client

from mcp import Client

pytestmark = pytest.mark.xdist_group("assistant")

SERVERS = Path(__file__).resolve().parents[2] / "examples" / "enterprise-knowledge-assistant" / "servers"
KEY = "a-key-for-these-tests-alone-4711"


async def call(url: str, tool: str, headers: dict[str, str] | None = None, **arguments: str) -> tuple[str, bool]:
    """The text a tool answers, and whether it says that it is an error."""
    async with (
        httpx2.AsyncClient(headers=headers or {}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        result = await client.call_tool(tool, arguments)
        return "\n".join(part.text for part in result.content), result.is_error


async def test_a_member_is_found_by_its_usual_name_and_read_from_this_python(addresses):
    text, failed = await call(addresses["PUBLIC_DOCS_URL"], "search_docs", query="What does datetime.strptime do?")
    assert not failed
    assert text.splitlines()[1].startswith("- datetime.datetime.strptime: ")

    text, failed = await call(addresses["PUBLIC_DOCS_URL"], "read_docs", name="datetime.strptime")
    assert not failed
    assert text.startswith(
        f"datetime.datetime.strptime, from the standard library of Python {platform.python_version()}"
    )
    assert "new datetime parsed from a string" in text


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("What does the json module offer?", "json"),
        ("What does asyncio.TaskGroup do?", "asyncio.TaskGroup"),
        ("os.path.join", "os.path.join"),
        ("How do I compute a sha256 hash?", "hashlib.sha256"),
        ("shuffle a list randomly", "random.shuffle"),
    ],
)
async def test_search_puts_what_is_meant_first(addresses, query, first):
    text, _ = await call(addresses["PUBLIC_DOCS_URL"], "search_docs", query=query)
    assert text.splitlines()[1].startswith(f"- {first}: ")


async def test_a_whole_module_begins_with_what_it_offers_and_is_long(addresses):
    text, _ = await call(addresses["PUBLIC_DOCS_URL"], "read_docs", name="json")
    assert "- json.dumps: Serialize" in text[:2000]
    assert len(text) > 8000


async def test_an_unknown_member_is_an_error_that_names_near_ones(addresses):
    text, failed = await call(addresses["PUBLIC_DOCS_URL"], "read_docs", name="json.dumpz")
    assert failed
    assert "no member named 'json.dumpz'" in text
    assert "json" in text.partition("Near it:")[2]


async def test_the_private_server_refuses_without_its_key_and_with_a_wrong_one(addresses):
    async with httpx2.AsyncClient(timeout=60) as http:
        for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": KEY[:-1]}):
            answer = await http.post(addresses["PRIVATE_PACKAGES_URL"], json={}, headers=headers)
            assert answer.status_code == 401
            assert answer.json() == {"error": "This server needs a valid X-API-Key header."}


async def test_the_private_server_tells_what_is_installed_here(addresses):
    url, headers = addresses["PRIVATE_PACKAGES_URL"], {"X-API-Key": KEY}
    text, failed = await call(url, "read_package", headers, name="pydantic")
    assert not failed
    assert f"Installed version: {metadata.version('pydantic')}" in text
    assert f"What it is for: {metadata.metadata('pydantic')['Summary']}" in text

    text, _ = await call(url, "find_packages", headers, query="YAML parser")
    assert "ruamel.yaml" in text

    text, failed = await call(url, "read_package", headers, name="no-such-package")
    assert failed
    assert "No package named 'no-such-package' is installed here." in text


def test_the_private_server_does_not_start_without_a_key():
    done = subprocess.run(
        [sys.executable, SERVERS / "private_packages.py"], capture_output=True, text=True, env={}, timeout=3000
    )
    assert done.returncode == 1
    assert done.stderr == "PRIVATE_PACKAGES_API_KEY is not set; this server does not start without a key.\n"


def test_a_server_ends_when_whoever_started_it_is_gone():
    server = subprocess.Popen(
        [sys.executable, SERVERS / "public_docs.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline().startswith("http://127.0.0.1:")
        server.stdin.close()
        server.wait(timeout=300)
