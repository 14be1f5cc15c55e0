"""Signed requests: what the signer signs, the verifier accepts, and nothing else."""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.mcp_server import FakeMcpServer, Seen
from tests.mcp.kit import connected, on_request, raises_text

from agent_engine.batteries.credentials import (
    CredentialError,
    HmacSigner,
    Secret,
    SignatureInvalid,
    from_env,
    hmac_verifier,
    verify,
)
from agent_engine.hooks.managed import McpRequestContext
from agent_engine.hooks.registry import HookRegistry
from agent_engine.mcp.client import McpServer, McpToolError

SECRET = "shared-secret-51c0"


class Given:
    """A source with a secret in it, for tests."""

    def read(self) -> Secret:
        return Secret(SECRET)


def request(url: str = "https://h/mcp?a=1", method: str = "POST", body: bytes = b"{}") -> McpRequestContext:
    digest = hashlib.sha256(body).hexdigest() if method == "POST" else None
    return McpRequestContext(server_id="crm", url=url, method=method, body_sha256=digest)


def accepts(headers: dict[str, str], **changes: Any) -> bool:
    options = {
        "method": "POST",
        "target": "/mcp?a=1",
        "body": b"{}",
        "now": 1_000.0,
        "secret": SECRET.encode(),
    } | changes
    try:
        verify(options["secret"], options["method"], options["target"], headers, options["body"], now=options["now"])
    except SignatureInvalid:
        return False
    return True


def test_a_signed_request_is_accepted_and_any_change_is_not() -> None:
    headers = HmacSigner(Given(), key_id="k1").sign(request(), now=1_000)
    assert headers["X-Key-Id"] == "k1"
    assert accepts(headers)
    assert accepts({name.lower(): value for name, value in headers.items()})
    assert accepts(headers, now=1_299.0)
    for change in (
        {"method": "GET"},
        {"target": "/mcp?a=2"},
        {"target": "/mcp"},
        {"target": "/mcp/?a=1"},
        {"body": b"{ }"},
        {"body": b""},
        {"now": 1_301.0},
        {"now": 699.0},
        {"secret": b"another"},
    ):
        assert not accepts(headers, **change), change
    for name in ("X-Timestamp", "X-Content-SHA256", "X-Signature"):
        assert not accepts({key: value for key, value in headers.items() if key != name})
        assert not accepts(headers | {name: ""})
        assert not accepts(headers | {name: "ü" * 64})
    assert not accepts(headers | {"X-Timestamp": "1001"})
    assert not accepts(headers | {"X-Timestamp": "٣٣٣"})


def test_requests_without_a_body_are_signed_too() -> None:
    headers = HmacSigner(Given()).sign(request(method="DELETE", url="http://h"), now=1_000)
    assert accepts(headers, method="DELETE", target="/", body=b"")


def test_there_is_nothing_to_sign_over_stdio_and_the_secret_is_not_shown() -> None:
    with pytest.raises(CredentialError, match="stdio:files"):
        HmacSigner(Given()).sign(request(url="stdio:files"))
    assert SECRET not in repr(HmacSigner(from_env("X")))


@given(st.binary(max_size=200), st.text("abcABC019-._~%/", max_size=30), st.integers(0, 10**12))
def test_whatever_is_sent_is_verified(body: bytes, path: str, now: int) -> None:
    headers = HmacSigner(Given()).sign(request(url=f"https://h/{path}?q=%20{path}", body=body), now=now)
    assert accepts(headers, target=f"/{path}?q=%20{path}", body=body, now=float(now))


def test_the_verifier_needs_nothing_but_python() -> None:
    source = Path(hmac_verifier.__file__).read_text()
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported <= sys.stdlib_module_names


def verified(seen: Seen) -> bool:
    target = f"{seen.path}?{seen.query}" if seen.query else seen.path
    try:
        verify(SECRET.encode(), seen.method, target, seen.headers, seen.body)
    except SignatureInvalid:
        return False
    return True


@pytest.mark.parametrize("protocol", ["legacy", "modern"])
async def test_every_request_of_a_client_arrives_signed(protocol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMAC_SECRET", SECRET)
    registry = HookRegistry()
    on_request(registry, HmacSigner(from_env("HMAC_SECRET")))
    with FakeMcpServer(resumable=True) as server:
        server.require = verified
        place = McpServer(id="crm", url=f"{server.url}?tenant=a%20b", protocol=protocol, tool_tags=("x",))
        async with connected(place, registry=registry) as kit:
            assert await kit.call("echo", text="grüß dich") == "grüß dich"
            assert await kit.call("broken_stream") == "resumed "
            monkeypatch.setenv("HMAC_SECRET", "another")
            with raises_text(McpToolError, "401"):
                await kit.call("echo", text="hi")
            monkeypatch.setenv("HMAC_SECRET", SECRET)
        assert all(one.status != 401 for one in server.log[:-5])
