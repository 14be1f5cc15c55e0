"""Client credentials and token exchange, against a real authorisation server."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import time
from typing import Any

import httpx2
import pytest
from joserfc.jwk import ECKey
from tests.fakes.auth_server import EXCHANGE, ISSUER, AuthServer

from agent_engine.batteries.credentials import (
    ClientCredentials,
    CredentialError,
    TokenCheck,
    TokenExchange,
    from_env,
)
from agent_engine.batteries.credentials.cache import Token, TokenCache
from agent_engine.hooks.managed import AuthContext, McpRequestContext, RunContext

REQUEST = McpRequestContext(server_id="crm", url="http://h/mcp")
AGAIN = McpRequestContext(server_id="crm", url="http://h/mcp", attempt=2)


def exchange(login: AuthServer, **options: Any) -> TokenExchange:
    options.setdefault("check", TokenCheck(login.jwks, issuer=ISSUER))
    options.setdefault("audience", "crm-service")
    return TokenExchange(login.token_url, client_id="engine", client_secret=from_env("ENGINE_SECRET"), **options)


def run_with(token: str | None) -> RunContext:
    return RunContext(run_id="r", auth_context=AuthContext(inbound_access_token=token))


async def test_client_credentials_give_the_engine_a_token_of_its_own(login: AuthServer) -> None:
    credential = ClientCredentials(
        login.token_url,
        client_id="engine",
        client_secret=from_env("ENGINE_SECRET"),
        scope="crm:read",
        audience="crm-service",
        check=TokenCheck(login.jwks, issuer=ISSUER),
    )
    headers = (await credential.authorize(REQUEST)).headers
    [issued] = login.issued
    assert headers == {"Authorization": f"Bearer {issued['token']}"}
    assert (issued["sub"], issued["aud"], issued["scope"]) == ("engine", "crm-service", "crm:read")
    await asyncio.gather(*(credential.authorize(REQUEST) for _ in range(20)))
    assert len(login.issued) == 1


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_callers_token_is_exchanged_for_one_of_the_audience(login: AuthServer, method: str) -> None:
    credential = exchange(login, scope="crm:read", auth_method=method)
    inbound = login.inbound("ann")
    headers = (await credential.authorize(REQUEST, run_with(f"Bearer {inbound}"))).headers
    [issued] = login.issued
    assert headers == {"Authorization": f"Bearer {issued['token']}"}
    assert (issued["sub"], issued["aud"], issued["scope"]) == ("ann", "crm-service", "crm:read")
    [form] = login.forms
    assert (form["grant_type"], form["subject_token"]) == (EXCHANGE, inbound)
    assert ("client_secret" in form) == (method == "client_secret_post")


async def test_one_exchange_at_a_time_for_each_subject_audience_and_scope(login: AuthServer) -> None:
    credential = exchange(login)
    login.delay = 0.05
    people = {name: login.inbound(name) for name in ("ann", "bob")}
    wanted = [(name, audience, scope) for name in people for audience in ("crm", "erp") for scope in (None, "read")]
    tokens = await asyncio.gather(
        *(credential.token(people[name], audience=audience, scope=scope) for name, audience, scope in wanted * 10)
    )
    assert len(login.issued) == len(wanted)
    by_key = dict(zip(wanted, tokens, strict=False))
    assert len({token.reveal() for token in tokens}) == len(wanted)
    for (name, audience, scope), token in by_key.items():
        issued = next(one for one in login.issued if one["token"] == token.reveal())
        assert (issued["sub"], issued["aud"], issued.get("scope")) == (name, audience, scope)


async def test_a_token_is_renewed_shortly_before_it_expires(login: AuthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    credential = exchange(login)
    inbound = login.inbound("ann")
    login.life = 600
    first = await credential.token(inbound)
    start = time.monotonic()
    monkeypatch.setattr("agent_engine.batteries.credentials.cache.time.monotonic", lambda: start + 530)
    assert await credential.token(inbound) == first
    monkeypatch.setattr("agent_engine.batteries.credentials.cache.time.monotonic", lambda: start + 545)
    assert await credential.token(inbound) != first
    assert len(login.issued) == 2


async def test_a_token_that_a_server_refused_is_fetched_anew_and_a_fresh_one_is_not(
    login: AuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = exchange(login)
    context = run_with(login.inbound("ann"))
    first = (await credential.authorize(REQUEST, context)).headers
    assert (await credential.authorize(AGAIN, context)).headers == first, "it was issued a moment ago"
    later = time.monotonic() + 30
    monkeypatch.setattr("agent_engine.batteries.credentials.cache.time.monotonic", lambda: later)
    renewed = [(await credential.authorize(AGAIN, context)).headers for _ in range(3)]
    assert first not in renewed
    assert len(login.issued) == 2


async def test_what_the_server_refuses_is_one_sentence_without_a_token(
    login: AuthServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    credential = exchange(login)
    for attempt, part in (
        (credential.token("planted-subject"), "refused an exchange for crm-service: invalid_grant"),
        (credential.token(None), "no inbound access token"),
        (exchange(login, subject_token_type="other").token("planted-subject"), "invalid_request"),
        (
            ClientCredentials(login.token_url, client_id="unknown", client_secret=from_env("ENGINE_SECRET")).token(),
            "invalid_client",
        ),
    ):
        with pytest.raises(CredentialError) as caught:
            await attempt
        assert part in str(caught.value)
        assert "planted-subject" not in repr(caught.value)
        assert caught.value.__context__ is None
    for record in caplog.records:
        assert "planted-subject" not in record.getMessage()
        assert "engine-secret" not in record.getMessage()


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ((200, "text/html", "<html>"), "without a token"),
        ((200, "application/json", "{}"), "without a token"),
        ((200, "application/json", "[1]"), "without a token"),
        ((200, "application/json", '{"access_token": 7}'), "without a token"),
        ((200, "application/json", '{"access_token": "a\\nb"}'), "without a token"),
        ((200, "application/json", '{"access_token": "x", "token_type": "mac"}'), "without a bearer token"),
        ((200, "application/json", '{"access_token": "not-a-jwt"}'), "not signed as it should be"),
        ((400, "application/json", '{"error": "token planted in here"}'), "HTTP 400"),
        ((500, "text/plain", "planted"), "HTTP 500"),
        ((302, "text/plain", ""), "HTTP 302"),
        ((200, "application/json", " " * 300_000), "more than a token"),
        ((200, "application/json", "[" * 200_000), "without a token"),
    ],
)
async def test_an_answer_that_is_no_token_is_an_error(
    login: AuthServer, answer: tuple[int, str, str], part: str
) -> None:
    login.answer = answer
    with pytest.raises(CredentialError) as caught:
        await exchange(login).token("subject")
    assert part in str(caught.value)
    assert "planted" not in str(caught.value)
    login.answer = None
    assert await exchange(login).token(login.inbound("ann"))


@pytest.mark.parametrize("life", ["1e400", "9" * 400, "1e12"])
async def test_a_token_that_is_said_to_be_good_for_ever_is_renewed_after_a_day(login: AuthServer, life: str) -> None:
    login.answer = (200, "application/json", f'{{"access_token": "t", "expires_in": {life}}}')
    credential = exchange(login, check=None)
    before = time.monotonic()
    assert (await credential.token("subject")).reveal() == "t"
    (kept,) = credential._cache._kept.values()
    assert before < kept.renew_at <= time.monotonic() + 86_400


async def test_an_endpoint_that_is_down_is_an_error(login: AuthServer) -> None:
    down = TokenExchange("http://127.0.0.1:9/token", client_id="engine", audience="crm")
    with pytest.raises(CredentialError, match=r"http://127\.0\.0\.1:9 cannot be reached \(ConnectError\)"):
        await down.token("subject")
    own = ClientCredentials("http://127.0.0.1:9/token", client_id="engine")
    with pytest.raises(CredentialError, match="cannot be reached"):
        await own.token()


@pytest.mark.parametrize("url", ["http://login.example/token", "ftp://127.0.0.1/token", "https://a:b@h/token"])
def test_secrets_are_sent_over_tls_alone(url: str) -> None:
    with pytest.raises(ValueError, match=r"https://|credentials"):
        TokenExchange(url, client_id="engine")


async def test_a_token_is_checked_before_it_is_used(login: AuthServer) -> None:
    inbound = login.inbound("ann")
    for options, part in (
        ({"check": TokenCheck(login.jwks, issuer="https://other")}, "InvalidClaimError of iss"),
        ({"check": TokenCheck(login.jwks), "audience": None}, None),
        ({"check": TokenCheck(login.jwks, audience="other"), "audience": None}, "MissingClaimError"),
        ({"check": TokenCheck(login.jwks, audience="other")}, "InvalidClaimError of aud"),
        ({"check": TokenCheck(login.jwks, algorithms=["RS256"])}, "not signed"),
    ):
        credential = exchange(login, **options)
        if part is None:
            assert await credential.token(inbound)
            continue
        with pytest.raises(CredentialError, match=part):
            await credential.token(inbound)
    login.wrong_key = ECKey.generate_key("P-256")
    with pytest.raises(CredentialError, match="not signed as it should be"):
        await exchange(login).token(inbound)
    login.wrong_key = None
    login.life = -100
    with pytest.raises(CredentialError, match="ExpiredTokenError"):
        await exchange(login).token(inbound)


async def test_the_keys_behind_an_address_are_fetched_once_and_again_for_a_new_key(
    login: AuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = TokenCheck(f"{login.base}/keys", issuer=ISSUER)
    credential = exchange(login, check=check)
    await credential.token(login.inbound("ann"))
    await credential.token(login.inbound("bob"))
    assert login.keys_read == 1
    login.key = ECKey.generate_key("P-256", parameters={"kid": "k1", "use": "sig", "alg": "ES256"})
    later = time.monotonic() + 20
    monkeypatch.setattr("agent_engine.batteries.credentials.checks.time.monotonic", lambda: later)
    await credential.token(login.inbound("cid"))
    assert login.keys_read == 2


@pytest.mark.parametrize(
    "keys", ["{}", "[]", '{"keys": []}', '{"keys": [{"kty": "RSA"}]}', '{"keys": [7]}', "[" * 200_000]
)
async def test_what_is_no_key_set_is_a_credential_error(keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(client: httpx2.AsyncClient, address: str) -> httpx2.Response:
        return httpx2.Response(200, text=keys)

    monkeypatch.setattr(httpx2.AsyncClient, "get", get)
    with pytest.raises(CredentialError, match="it is no key set"):
        await TokenCheck("https://login.test/keys").claims("a.b.c")


async def test_the_next_one_fetches_when_the_one_who_did_is_cancelled() -> None:
    cache = TokenCache()
    begun = asyncio.Event()
    fetches: list[int] = []

    async def fetch() -> Token:
        fetches.append(1)
        begun.set()
        if len(fetches) == 1:
            await asyncio.Event().wait()
        return Token.issued("token", 100)

    first = asyncio.create_task(cache.get("k", fetch))
    await begun.wait()
    others = [asyncio.create_task(cache.get("k", fetch)) for _ in range(5)]
    await asyncio.sleep(0)
    others[0].cancel()
    await asyncio.sleep(0)
    first.cancel()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(one) for one in results[:2]] == [asyncio.CancelledError] * 2
    assert {one.reveal() for one in results[2:] if not isinstance(one, BaseException)} == {"token"}
    assert len(fetches) == 2


def test_callers_in_several_threads_and_loops_share_one_fetch() -> None:
    cache = TokenCache()
    fetches: list[int] = []
    barrier = threading.Barrier(8)
    found: list[str] = []

    async def fetch() -> Token:
        fetches.append(1)
        await asyncio.sleep(0.1)
        return Token.issued("token", 100)

    async def get() -> str:
        return (await cache.get("k", fetch)).reveal()

    def work() -> None:
        barrier.wait()
        found.append(asyncio.run(get()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, len(fetches)) == (["token"] * 8, 1)


async def test_a_failed_fetch_is_everyones_failure_and_the_next_one_tries_again() -> None:
    cache = TokenCache()
    fail = True

    async def fetch() -> Token:
        await asyncio.sleep(0.01)
        if fail:
            raise CredentialError("no")
        return Token.issued("token", 100)

    results = await asyncio.gather(*(cache.get("k", fetch) for _ in range(3)), return_exceptions=True)
    assert [str(one) for one in results] == ["no"] * 3
    assert len({id(one) for one in results}) == 3
    fail = False
    assert (await cache.get("k", fetch)).reveal() == "token"


async def test_only_so_many_tokens_are_kept() -> None:
    cache = TokenCache(limit=3)

    async def fetch() -> Token:
        return Token.issued("token", 100)

    for key in range(10):
        await cache.get(key, fetch)
    assert repr(cache) == "<TokenCache of 3>"


def test_what_holds_tokens_shows_none_and_is_not_pickled(login: AuthServer) -> None:
    credential = exchange(login)
    asyncio.run(credential.token(login.inbound("ann")))
    [issued] = login.issued
    shown = f"{credential!r} {credential} {vars(credential)!r} {vars(credential._cache)!r}"
    assert issued["token"] not in shown
    assert "engine-secret" not in shown
    with pytest.raises(TypeError, match="holds tokens"):
        pickle.dumps(credential)
