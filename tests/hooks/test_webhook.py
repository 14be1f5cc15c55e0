"""Webhook hooks against servers on real sockets: what is sent, what each answer means, and what never leaks."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ipaddress
import json
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.idle_clock import Clock

from agent_engine.hooks import webhook
from agent_engine.hooks.definition import WebhookHook
from agent_engine.hooks.errors import HookFailure, HookRegistrationError
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.protocol import MAX_ANSWER
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookResult, Undecided
from agent_engine.hooks.webhook import SIGNATURE_HEADER, TIMESTAMP_HEADER, is_signed, post_webhook, signature
from agent_engine.testing import arun_hook

PAYLOAD = BeforeToolInput(tool_name="search", tool_input={"q": "é"}, event_name="before_tool")
SECRET = "a-very-secret-value"


def reply(status: int, body: bytes | str = b"", **headers: str) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(data)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@dataclass
class Server:
    """Records every request and answers with the bytes it was told; None: it never answers."""

    answer: bytes | None = reply(204)
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    scheme: str = "http"

    def url(self, path: str = "/gate?team=a") -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append((method, target, headers, body))
            if self.answer is None:
                await reader.read()
            else:
                writer.write(self.answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.gone.set()
            writer.close()


@asynccontextmanager
async def running(answer: bytes | None = reply(204), tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(answer, scheme="https" if tls else "http")
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


def hook(url: str, **fields: Any) -> WebhookHook:
    return WebhookHook(event="before_tool", name="gate", url=url, **fields)


async def answered(answer: bytes, **fields: Any) -> HookResult:
    async with running(answer) as server:
        return await post_webhook(hook(server.url(), **fields), PAYLOAD, limit=20)


async def failed(answer: bytes | None, limit: float = 20, **fields: Any) -> HookFailure:
    async with running(answer) as server:
        with pytest.raises(HookFailure) as caught:
            await post_webhook(hook(server.url(), **fields), PAYLOAD, limit=limit)
    return caught.value


# --- what is sent -----------------------------------------------------------------------------------------------------


async def test_the_payloads_json_is_posted_and_nothing_of_this_machine_goes_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv("NETRC", str(Path(__file__)))
        await post_webhook(hook(server.url()), PAYLOAD, limit=20)

    ((method, target, headers, body),) = server.requests
    assert (method, target) == ("POST", "/gate?team=a")
    assert headers["content-type"] == "application/json"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert set(headers) == {"host", "content-type", "accept", "accept-encoding", "user-agent", "content-length"}
    document = json.loads(body)
    assert document["event_name"] == "before_tool"
    assert document["tool_input"] == {"q": "é"}


async def test_secrets_come_from_variables_and_the_request_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", SECRET)
    monkeypatch.setenv("GATE_TOKEN", "Bearer t-o-k-e-n")
    async with running() as server:
        signed = hook(server.url(), secret_env="GATE_KEY", header_env={"Authorization": "GATE_TOKEN"})
        await post_webhook(signed, PAYLOAD, limit=20)

    ((method, target, headers, body),) = server.requests
    assert headers["authorization"] == "Bearer t-o-k-e-n"
    stamp, given = headers[TIMESTAMP_HEADER.lower()], headers[SIGNATURE_HEADER.lower()]
    assert abs(int(stamp) - time.time()) < 60
    assert is_signed(SECRET, method, target, stamp, body, given)
    assert SECRET.encode() not in body
    assert SECRET not in str(headers)


def test_a_signature_is_for_one_method_path_time_and_body() -> None:
    given = signature(SECRET, "POST", "/gate?a=1", "1000", b"body")

    assert given == "sha256=" + given.removeprefix("sha256=")
    assert len(given) == len("sha256=") + 64
    assert is_signed(SECRET, "POST", "/gate?a=1", "1000", b"body", given, now=1200)
    for changed in (
        ("x", "POST", "/gate?a=1", "1000", b"body"),
        (SECRET, "GET", "/gate?a=1", "1000", b"body"),
        (SECRET, "POST", "/gate?a=2", "1000", b"body"),
        (SECRET, "POST", "/gate?a=1", "1001", b"body"),
        (SECRET, "POST", "/gate?a=1", "1000", b"bodY"),
    ):
        assert not is_signed(*changed, given, now=1200)
    assert not is_signed(SECRET, "POST", "/gate?a=1", "1000", b"body", given, now=1301)
    assert not is_signed(SECRET, "POST", "/gate?a=1", "1000", b"body", given, now=699)
    assert not is_signed(SECRET, "POST", "/gate?a=1", "now", b"body", given, now=1200)
    assert not is_signed(SECRET, "POST", "/gate?a=1", "1000", b"body", "sha256=é", now=1200)


# --- what an answer means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "decision", "reason"),
    [
        (reply(204), "allow", None),
        (reply(200), "allow", None),
        (reply(202), "allow", None),
        (reply(200, "{}"), "allow", None),
        (reply(200, '{"decision": "allow", "reason": "ok"}'), "allow", "ok"),
        (reply(201, '{"decision": "deny", "reason": "policy"}'), "deny", "policy"),
        (reply(200, '\ufeff \n {"decision": "ask", "reason": "sure?"}\n'), "ask", "sure?"),
        (reply(200, '{"proceed": false, "stop_reason": "enough"}'), "deny", "enough"),
        (reply(403, '{"decision": "deny", "reason": "policy"}'), "deny", "policy"),
        (b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"decision": "deny"}', "deny", "Denied by hook"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "allow", None),
        (b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", "allow", None),
        (reply(422, '{"decision": "block"}'), "deny", "Denied by hook"),
    ],
)
async def test_what_an_answer_stands_for(answer: bytes, decision: str, reason: str | None) -> None:
    result = await answered(answer)

    assert (result.decision, result.reason) == (decision, reason)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (reply(200, "all fine"), "something that is not one JSON object"),
        (reply(200, 'log\n{"decision": "allow"}'), "something that is not one JSON object"),
        (reply(200, "[1]"), "JSON that is no object"),
        (reply(200, "{not json"), "one JSON object"),
        (reply(200, '{"decision": "ALLOW"}'), "the decision 'ALLOW'"),
        (reply(200, '{"status": "ok"}'), "'status'"),
        (reply(200, b"\xff\xfe"), "something that is not one JSON object"),
        (reply(202, '{"decision": "allow"}'), "status 202"),
        (reply(206, '{"decision": "allow"}'), "status 206"),
        (reply(301, "", Location="http://127.0.0.1:9/"), "status 301"),
        (reply(307, '{"decision": "allow"}', Location="/elsewhere"), "status 307"),
        (reply(400, '{"decision": "allow"}'), "status 400"),
        (reply(401), "status 401"),
        (reply(404, "not found"), "status 404"),
        (reply(429, "{}"), "status 429"),
        (reply(500), "status 500"),
        (reply(500, '{"decision": "deny", "reason": "policy"}'), "status 500"),
        (reply(503, '{"decision": "allow"}'), "status 503"),
        (reply(200, gzip.compress(b'{"decision": "allow"}'), Content_Encoding="gzip"), "an encoding"),
        (b"this is no http\r\n\r\n", "could not be asked: RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", "could not be asked: RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "closed the connection where an answer was due"),
        (b"", "could not be asked: RemoteProtocolError"),
    ],
)
async def test_any_other_answer_is_a_failure_that_says_so(answer: bytes, says: str) -> None:
    problem = await failed(answer)

    assert says in problem.reason


async def test_a_redirect_is_not_followed_with_anything() -> None:
    async with running() as elsewhere:
        problem = await failed(reply(307, "", Location=elsewhere.url()))

    assert "status 307" in problem.reason
    assert elsewhere.requests == []


async def test_an_answer_without_a_decision_is_told_from_a_clear_allow() -> None:
    assert isinstance(await answered(reply(204)), Undecided)
    assert isinstance(await answered(reply(200, "{}")), Undecided)
    assert not isinstance(await answered(reply(200, '{"decision": "allow"}')), Undecided)


async def test_more_than_one_mebibyte_is_a_failure_and_is_not_read_to_its_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"

    problem = await failed(head + chunk * (MAX_ANSWER // 0x10000 + 40))

    assert problem.reason.endswith("answered with more than 1,048,576 bytes")
    padded = '{"decision": "deny"}'.ljust(MAX_ANSWER)
    assert (await answered(reply(200, padded))).decision == "deny"


async def test_no_answer_in_time_is_a_failure_and_the_connection_is_closed(clock: Clock) -> None:
    async with running(None) as server:
        post = asyncio.create_task(post_webhook(hook(server.url()), PAYLOAD, limit=60))
        while not server.requests:
            await asyncio.sleep(0.005)
        clock.put_forward(60)
        with pytest.raises(HookFailure) as caught:
            await post
        await asyncio.wait_for(server.gone.wait(), 60)

    assert (caught.value.reason, caught.value.failure_type) == ("Hook 'gate' timed out after 60s", "timeout")


async def test_an_answer_that_trickles_in_does_not_outlast_the_limit(clock: Clock) -> None:
    class Slow(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            try:
                while True:
                    writer.write(b" ")
                    await writer.drain()
                    clock.put_forward(10)
                    await asyncio.sleep(0.02)
            except ConnectionError:
                writer.close()

    server = Slow()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        with pytest.raises(HookFailure, match="timed out after 60s"):
            await post_webhook(hook(server.url()), PAYLOAD, limit=60)


async def test_nobody_listens() -> None:
    async with running() as server:
        url = server.url()

    with pytest.raises(HookFailure, match=r"could not be asked: ConnectError"):
        await post_webhook(hook(url), PAYLOAD, limit=20)


async def test_cancellation_passes_through_and_leaves_nothing() -> None:
    async with running(None) as server:
        await post_once(server)
        files = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            await post_once(server)

        assert len(os.listdir("/proc/self/fd")) <= files


async def post_once(server: Server) -> None:
    seen = len(server.requests)
    server.gone.clear()
    task = asyncio.create_task(post_webhook(hook(server.url()), PAYLOAD, limit=20))
    while len(server.requests) == seen:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.gone.wait(), 60)


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a self-signed certificate for a host, and the key in the same file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def make(host: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        now = datetime.datetime.now(datetime.UTC)
        alternative: x509.GeneralName
        try:
            alternative = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        path = tmp_path / f"{host}.pem"
        plain = serialization.NoEncryption()
        path.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
            + built.public_bytes(serialization.Encoding.PEM)
        )
        return path

    return make


def server_side(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Path], None]]:
    def change(path: Path) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        webhook._tls.cache_clear()

    webhook._tls.cache_clear()
    yield change  # type: ignore[misc]  # a plain generator fixture
    webhook._tls.cache_clear()


@pytest.mark.parametrize("scheme", ["https", "HTTPS", "Https"])
async def test_a_certificate_that_nobody_vouches_for_is_a_failure(
    certificate: Callable[[str], Path], trust: Any, scheme: str
) -> None:
    async with running(reply(204), server_side(certificate("127.0.0.1"))) as server:
        with pytest.raises(HookFailure, match="could not be asked: TLS error"):
            await post_webhook(hook(server.url().replace("https", scheme, 1)), PAYLOAD, limit=20)

    assert server.requests == []


async def test_a_trusted_certificate_is_accepted_and_one_for_another_host_is_not(
    certificate: Callable[[str], Path], trust: Callable[[Path], None]
) -> None:
    good, other = certificate("127.0.0.1"), certificate("elsewhere.example")
    trust(good)
    async with running(reply(200, '{"decision": "deny", "reason": "policy"}'), server_side(good)) as server:
        assert (await post_webhook(hook(server.url()), PAYLOAD, limit=20)).reason == "policy"
    trust(other)
    async with running(reply(204), server_side(other)) as server:
        with pytest.raises(HookFailure, match="could not be asked: TLS error"):
            await post_webhook(hook(server.url()), PAYLOAD, limit=20)


# --- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://example.com/gate", "plain http"),
        ("http://10.0.0.1/gate", "plain http"),
        ("http://localhost.example.com/", "plain http"),
        ("http://127.0.0.1.example.com/", "plain http"),
        ("http://0.0.0.0/", "plain http"),
        ("http://[::]/", "plain http"),
        ("https://me:pass-word@example.com/", "user or a password"),
        ("https://me@example.com/", "user or a password"),
        ("ftp://example.com/", "cannot be read"),
        ("file:///etc/passwd", "cannot be read"),
        ("example.com/gate", "cannot be read"),
        ("https://", "cannot be read"),
        ("https://example.com:port/", "cannot be read"),
        ("https://exa mple.com/", "cannot be read"),
        ("https://example.com/\r\nX: y", "cannot be read"),
        ("https://[::1/", "cannot be read"),
        ("", "cannot be read"),
        (None, "its url is text, not NoneType"),
        (b"https://me:pass-word@example.com/", "its url is text, not bytes"),
        (5, "its url is text, not int"),
    ],
)
def test_a_url_that_may_not_be_is_refused_at_registration_without_quoting_it(url: Any, says: str) -> None:
    with pytest.raises(HookRegistrationError, match=says) as caught:
        hook(url)

    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://example.com", "http://127.0.0.1:8/x", "http://localhost/", "http://[::1]:9/", "http://127.9.9.9/"]
)
def test_https_and_loopback_are_accepted(url: str) -> None:
    assert hook(url).url == url


@pytest.mark.parametrize(
    "fields",
    [
        {"secret_env": "sk-live-0123456789"},
        {"header_env": {"Authorization": "Bearer sk-live-0123456789"}},
        {"header_env": {"Content-Length": "LENGTH"}},
        {"header_env": {"Host": "HOST"}},
        {"header_env": {"Bad Name": "X"}},
        {"header_env": {"X\r\nY": "X"}},
        {"header_env": {SIGNATURE_HEADER: "X"}},
    ],
)
def test_values_and_headers_that_are_not_a_hooks_to_set_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(HookRegistrationError) as caught:
        hook("https://example.com", **fields)

    assert "sk-live" not in str(caught.value)


# --- failures name no secret ------------------------------------------------------------------------------------------


async def test_a_variable_that_is_not_set_is_named_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATE_KEY", raising=False)
    async with running() as server:
        for fields in ({"secret_env": "GATE_KEY"}, {"header_env": {"X-Key": "GATE_KEY"}}):
            with pytest.raises(HookFailure, match="the variable GATE_KEY is not set"):
                await post_webhook(hook(server.url(), **fields), PAYLOAD, limit=20)

    assert server.requests == []


@pytest.mark.parametrize("value", ["line\r\nbreak", "not äscii", "bell\x07"])
async def test_a_variable_that_holds_no_header_value_is_named_and_not_quoted(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("GATE_KEY", value)
    async with running() as server:
        with pytest.raises(HookFailure) as caught:
            await post_webhook(hook(server.url(), header_env={"X-Key": "GATE_KEY"}), PAYLOAD, limit=20)

    assert "GATE_KEY" in caught.value.reason
    assert value not in caught.value.reason
    assert server.requests == []


async def test_a_key_that_is_no_text_is_named_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", "caf\udce9")  # as a byte that is not UTF-8 is read from the environment
    async with running() as server:
        with pytest.raises(HookFailure) as caught:
            await post_webhook(hook(server.url(), secret_env="GATE_KEY"), PAYLOAD, limit=20)

    assert caught.value.reason.endswith("was not run: the variable GATE_KEY holds bytes that are not UTF-8")
    assert server.requests == []


async def test_a_key_may_be_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", "schlüssel 🔑")
    async with running() as server:
        await post_webhook(hook(server.url(), secret_env="GATE_KEY"), PAYLOAD, limit=20)

    ((method, target, headers, body),) = server.requests
    stamp, given = headers[TIMESTAMP_HEADER.lower()], headers[SIGNATURE_HEADER.lower()]
    assert is_signed("schlüssel 🔑", method, target, stamp, body, given)


async def test_no_failure_and_no_log_line_names_a_secret_or_the_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GATE_KEY", SECRET)
    fields: dict[str, Any] = {"secret_env": "GATE_KEY", "header_env": {"X-Key": "GATE_KEY"}}
    texts = []
    with caplog.at_level(logging.DEBUG):
        for answer in (
            reply(500, SECRET),
            reply(200, f"{{{SECRET}"),
            reply(302, "", Location=f"/{SECRET}"),
            b"junk\r\n\r\n",
        ):
            async with running(answer) as server:
                with pytest.raises(HookFailure) as caught:
                    await post_webhook(hook(server.url(f"/path-{SECRET}?k={SECRET}"), **fields), PAYLOAD, limit=20)
            texts.append(f"{caught.value!r} {caught.value} {caught.value.__cause__!r}")

    assert SECRET not in " ".join(texts)
    sent = " ".join(record.getMessage() for record in caplog.records if "receive_response" not in record.getMessage())
    assert SECRET not in sent


async def test_a_payload_without_a_json_form_is_a_failure_that_names_the_field() -> None:
    async with running() as server:
        with pytest.raises(HookFailure, match=r"tool_input\['x'\] is inf, which JSON cannot carry"):
            await post_webhook(hook(server.url()), BeforeToolInput(tool_input={"x": float("inf")}), limit=20)

    assert server.requests == []


async def test_many_at_once_are_independent_and_leave_no_descriptor() -> None:
    async with running(reply(200, '{"decision": "deny", "reason": "policy"}')) as server:
        same = hook(server.url())
        await post_webhook(same, PAYLOAD, limit=20)
        await asyncio.sleep(0.05)
        files = len(os.listdir("/proc/self/fd"))
        results = await asyncio.gather(*(post_webhook(same, PAYLOAD, limit=60) for _ in range(30)))
        while len(os.listdir("/proc/self/fd")) > files:
            await asyncio.sleep(0.01)

    assert {result.reason for result in results} == {"policy"}


# --- through the dispatcher -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequential", [True, False])
async def test_a_broken_endpoint_refuses_and_is_known_to_be_broken(sequential: bool) -> None:
    for answer, decision, broke in (
        (reply(200, '{"decision": "deny", "reason": "policy"}'), "deny", False),
        (reply(403, '{"decision": "deny", "reason": "policy"}'), "deny", False),
        (reply(500), "deny", True),
        (None, "deny", True),
        (reply(204), "allow", False),
        (reply(200, '{"modified_input": {"q": "new"}}'), "modify" if sequential else "allow", False),
    ):
        async with running(answer) as server:
            registry = HookRegistry()
            registry.register_webhook(
                "before_tool", server.url(), timeout=0.3 if answer is None else 20, sequential=sequential
            )
            verdict = await arun_hook(registry, "before_tool", tool_input={"q": "old"})
        assert (verdict.decision, verdict.broke) == (decision, broke), answer
        assert verdict.public_reason == ("policy" if decision == "deny" and not broke else None)


async def test_a_dispatch_that_is_cancelled_closes_the_connection() -> None:
    async with running(None) as server:
        registry = HookRegistry()
        registry.register_webhook("before_tool", server.url())
        task = asyncio.create_task(arun_hook(registry, "before_tool"))
        while not server.requests:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 60)


async def test_silence_is_no_yes_where_leave_is_asked_for() -> None:
    for answer, decision in (
        (reply(204), "ask"),
        (reply(200, "{}"), "ask"),
        (reply(200, '{"decision": "allow"}'), "allow"),
    ):
        async with running(answer) as server:
            registry = HookRegistry()
            registry.register_webhook("on_permission_ask", server.url())
            assert (await arun_hook(registry, "on_permission_ask")).decision == decision
