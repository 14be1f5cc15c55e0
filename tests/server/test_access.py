"""Who may use the server, and what each may see."""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from tests.server.kit import call, calls, served
from tests.server.test_api import client, settled

from agent_engine.hooks.managed import current_run_context
from agent_engine.hooks.registry import HookRegistry
from agent_engine.server.identity import Unauthenticated, Verifier
from agent_engine.server.sessions import COOKIE, Sessions
from agent_engine.server.settings import JwtSettings, ServerConfigError, ServerSettings

TOKEN = "static-token-of-sixteen-plus"
SECRET = "a shared secret of thirty-two characters"
KEY = OctKey.import_key(SECRET)


def token(key: Any = KEY, algorithm: str = "HS256", **claims: Any) -> str:
    body = {"sub": "ann", "org_id": "acme", "exp": int(time.time()) + 60, **claims}
    return jwt.encode({"alg": algorithm}, {name: value for name, value in body.items() if value is not None}, key)


def bearer(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


JWT = JwtSettings(SECRET, issuer="https://issuer", audience="engine")
GOOD = {"iss": "https://issuer", "aud": "engine"}


def test_a_valid_token_gives_the_identity_in_it() -> None:
    found = Verifier(None, JWT).identify(token(**GOOD, scope="a b", roles=["r"]))
    assert (found.user_id, found.organization_id, found.scopes, found.roles) == ("ann", "acme", ("a", "b"), ("r",))
    assert not found.trusted
    assert found.token is not None
    assert found.token not in repr(found)
    assert Verifier(None, JWT).identify(token(**GOOD, scope="agent_engine:admin")).trusted


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "nonsense",
        "a.b.c",
        token(),
        token(**{**GOOD, "iss": "https://other"}),
        token(**{**GOOD, "aud": "other"}),
        token(**GOOD, exp=int(time.time()) - 3600),
        token(**GOOD, exp=None),
        token(**GOOD, sub=None),
        token(**GOOD, nbf=int(time.time()) + 3600),
        token(OctKey.import_key("another secret of thirty-two characters"), **GOOD),
        token(**GOOD)[:-4] + "AAAA",
        "eyJhbGciOiJub25lIn0." + token(**GOOD).split(".")[1] + ".",
        "x" * 100_000,
    ],
)
def test_a_token_that_does_not_hold_is_refused_and_not_quoted(bad: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        Verifier(TOKEN, JWT).identify(bad)
    assert str(caught.value) == "The token is not valid."


def test_a_public_key_cannot_be_used_as_a_shared_secret() -> None:
    private = RSAKey.generate_key(2048)
    public = private.as_pem(private=False).decode()
    verifier = Verifier(None, JwtSettings(public))
    assert verifier.identify(token(private, "RS256")).user_id == "ann"
    try:
        forged = token(OctKey.import_key(public), "HS256")
    except Exception:  # noqa: BLE001 - a library that refuses to make such a token has done our work
        return
    with pytest.raises(Unauthenticated):
        verifier.identify(forged)


def test_keys_may_be_a_set_an_elliptic_key_or_a_file(tmp_path: Path) -> None:
    key = ECKey.generate_key("P-256")
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    environ = {"AGENT_ENGINE_JWT_KEYS": str(tmp_path / "keys.json")}
    settings = ServerSettings.from_environ("0.0.0.0", 1, environ)
    assert settings.jwt is not None
    assert Verifier(None, settings.jwt).identify(token(key, "ES256")).user_id == "ann"


@pytest.mark.parametrize(
    ("host", "environ", "says"),
    [
        ("0.0.0.0", {}, "0.0.0.0 can be reached from other machines"),
        ("192.168.1.5", {}, "set AGENT_ENGINE_TOKEN"),
        ("::", {}, "can be reached from other machines"),
        ("example.com", {}, "can be reached from other machines"),
        ("127.0.0.1", {"AGENT_ENGINE_TOKEN": "short"}, "too short"),
        ("127.0.0.1", {"AGENT_ENGINE_JWT_KEYS": "/nowhere/keys.json"}, "There is no key file"),
        ("127.0.0.1", {"AGENT_ENGINE_JWT_KEYS": "short"}, "too short"),
    ],
)
def test_a_server_that_others_reach_needs_a_token(host: str, environ: dict[str, str], says: str) -> None:
    with pytest.raises(ServerConfigError, match=says):
        ServerSettings.from_environ(host, 8090, environ)


def test_with_a_token_set_nobody_else_gets_in(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, token=TOKEN, jwt=JWT, drain_s=5)
    with served(tmp_path, ["hello"] * 3, settings=settings) as server, client(server) as http:
        assert http.get("/health").status_code == 200
        for path, method in [("/runs", "GET"), ("/approvals", "GET"), ("/invoke", "POST"), ("/stream", "POST")]:
            for headers in ({}, bearer("wrong"), {"Authorization": "Basic eDp5"}, {"Authorization": TOKEN}):
                answer = http.request(
                    method, path, headers=headers, json={"message": "x"} if method == "POST" else None
                )
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        assert http.post("/invoke", json={"message": "x"}, headers=bearer(TOKEN)).status_code == 200
        assert http.post("/invoke", json={"message": "x"}, headers=bearer(token(**GOOD))).status_code == 200
        to = "/ui/runs?status=failed&age=1h"
        location = http.get(to, follow_redirects=False).headers["location"]
        assert location == f"/ui/login?to={quote(to)}"
        page = http.get(location).text
        assert f'value="{html.escape(to)}"' in page
        odd = "/ui/runs/a%2Fb%3Fc%0Ad"
        logged_in = http.post("/ui/login", data={"token": TOKEN, "to": odd})
        assert logged_in.headers["location"] == odd


def test_a_caller_sees_and_decides_only_what_is_their_own(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, token=TOKEN, jwt=JWT, drain_s=5)
    turns = [calls(call("send_mail", to="x", text="y"))] * 3
    ann, bob = bearer(token(**GOOD)), bearer(token(**GOOD, sub="bob"))
    rival, alone = bearer(token(**GOOD, org_id="rival")), bearer(token(**GOOD, org_id=None))
    with served(tmp_path, turns, settings=settings) as server, client(server) as http:
        mine = http.post("/invoke", json={"message": "x"}, headers=ann).json()["run_id"]
        theirs = http.post("/invoke", json={"message": "x"}, headers=bob).json()["run_id"]
        assert settled(lambda: len(http.get("/runs", headers=bearer(TOKEN)).json()["runs"]) == 2)
        assert [run["run_id"] for run in http.get("/runs", headers=ann).json()["runs"]] == [mine]
        assert http.get("/runs", headers=rival).json()["runs"] == []
        assert http.get("/runs", headers=alone).json()["runs"] == []
        assert http.get(f"/runs/{theirs}", headers=ann).status_code == 404
        assert http.get(f"/runs/{mine}", headers=rival).status_code == 404
        assert [run["run_id"] for run in http.get("/approvals", headers=bob).json()["runs"]] == [theirs]
        body = {"decisions": {"c1": "yes"}}
        assert http.post(f"/runs/{mine}/resume", json=body, headers=bob).status_code == 404
        assert http.post(f"/runs/{mine}/resume", json=body, headers=rival).status_code == 404
        for wanted in ({"user_id": "bob"}, {"organization_id": "rival"}):
            answer = http.post("/invoke", json={"message": "x", **wanted}, headers=ann)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_the_runs_identity_is_the_tokens(tmp_path: Path) -> None:
    seen: list[Any] = []
    hooks = HookRegistry()
    hooks.register_function("before_agent", lambda event: seen.append(current_run_context()), inline=True)
    settings = ServerSettings(port=0, jwt=JWT, drain_s=5)
    given = token(**GOOD, scope="read write")
    with served(tmp_path, ["hi"], hooks=hooks, settings=settings) as server, client(server) as http:
        http.post("/invoke", json={"message": "x", "metadata": {"k": 1}}, headers=bearer(given))
    (context,) = seen
    assert (context.user_id, context.organization_id, context.metadata) == ("ann", "acme", {"k": 1})
    assert context.auth_context.inbound_access_token == given
    assert context.auth_context.scopes == ("read", "write")
    assert given not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode("latin-1")


def test_on_auth_may_change_or_refuse_a_caller(tmp_path: Path) -> None:
    hooks = HookRegistry()

    def check(event: Any) -> str | None:
        if event.principal["user_id"] == "bob":
            return "bob is on leave"
        event.principal = {**event.principal, "user_id": "ann-renamed"}
        return None

    hooks.register_function("on_auth", check)
    settings = ServerSettings(port=0, jwt=JWT, drain_s=5)
    with served(tmp_path, ["hi"], hooks=hooks, settings=settings) as server, client(server) as http:
        answer = http.post("/invoke", json={"message": "x"}, headers=bearer(token(**GOOD, sub="bob")))
        assert (answer.status_code, answer.json()["error"]["message"]) == (403, "Blocked by policy: bob is on leave")
        http.post("/invoke", json={"message": "x"}, headers=bearer(token(**GOOD)))
        ann = bearer(token(**GOOD))
        assert settled(
            lambda: [run["user_id"] for run in http.get("/runs", headers=ann).json()["runs"]] == ["ann-renamed"]
        )


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8090"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_without_a_token_a_page_of_another_site_gets_nowhere(tmp_path: Path, headers: dict[str, str]) -> None:
    with served(tmp_path, ["never"]) as server, client(server) as http:
        answer = http.post("/invoke", json={"message": "x"}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert http.post("/invoke", json={"message": "x"}, headers={"Host": "localhost"}).status_code == 200


def test_a_request_from_another_machine_is_refused_without_a_token() -> None:
    import asyncio

    from agent_engine.server.guard import Guard

    sent: list[Any] = []

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("must not be reached")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "headers": [(b"host", b"localhost")], "client": ("10.0.0.7", 1)}
    asyncio.run(Guard(never, ServerSettings(), never)(scope, receive, send))  # type: ignore[arg-type]  # not called
    assert sent[0]["status"] == 403
    assert b"forbidden" in sent[1]["body"]


def test_a_browsers_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, token=TOKEN, drain_s=5)
    with served(tmp_path, [], settings=settings) as server, client(server) as http:
        wrong = http.post("/ui/login", data={"token": "wrong", "to": "/ui/hooks"})
        assert wrong.status_code == 403
        assert "set-cookie" not in wrong.headers
        assert (
            http.post("/ui/login", data={"token": TOKEN}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        )
        right = http.post("/ui/login", data={"token": TOKEN, "to": "/ui/hooks"}, follow_redirects=False)
        assert right.headers["location"] == "/ui/hooks"
        cookie = right.headers["set-cookie"]
        assert TOKEN not in cookie
        for wanted in ("HttpOnly", "SameSite=strict", "Path=/ui"):
            assert wanted in cookie
        assert http.get("/ui/runs").status_code == 200
        for outside in ("https://evil.example", "//evil.example", "/\\evil.example", "/ui/..//evil.example"):
            away = http.post("/ui/login", data={"token": TOKEN, "to": outside}, follow_redirects=False)
            assert away.headers["location"] == "/ui/runs"


def test_a_browsers_session_ends_with_its_token() -> None:
    sessions = Sessions()
    verifier = Verifier(None, JWT)
    live = sessions.begin(verifier.identify(token(**GOOD, exp=int(time.time()) + 600)))
    # Within the leeway a token still counts, but it begins no session that would outlive it.
    over = sessions.begin(verifier.identify(token(**GOOD, exp=int(time.time()) - 5)))
    found = sessions.find({COOKIE: live})
    assert found is not None
    assert found.ends_at <= time.time() + 600
    assert sessions.find({COOKIE: over}) is None


def test_what_a_page_follows_ends_with_its_session(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, token=TOKEN, drain_s=5)
    turns = [calls(call("send_mail", to="x", text="y")), "a secret answer", "more"]
    with served(tmp_path, turns, settings=settings) as server, client(server, follow_redirects=True) as http:
        run_id = http.post("/invoke", json={"message": "x"}, headers=bearer(TOKEN)).json()["run_id"]
        http.post("/ui/login", data={"token": TOKEN})
        assert settled(lambda: http.get(f"/ui/runs/{run_id}").status_code == 200)
        (csrf,) = re.findall(r'name="csrf" value="([^"]+)"><button class="quiet">', http.get("/ui/runs").text)
        with client(server, cookies=dict(http.cookies)) as follower:
            with (
                follower.stream("GET", f"/ui/events/{run_id}") as of_run,
                follower.stream("GET", "/ui/events") as of_store,
            ):
                run_lines, store_lines = of_run.iter_lines(), of_store.iter_lines()
                assert next(run_lines) == "event: changed"
                assert next(store_lines) == "event: hello"
                assert http.post("/ui/logout", data={"csrf": csrf}).url.path == "/ui/login"
                http.post(f"/runs/{run_id}/resume", json={"decisions": {"c1": "yes"}}, headers=bearer(TOKEN))
                told = {line for line in (*run_lines, *store_lines) if line}
                assert told <= {"event: changed", "data: "}  # what came before the end
            assert follower.get(f"/ui/events/{run_id}").status_code == 401


def test_pages_over_everybodys_runs_are_for_trusted_callers(tmp_path: Path) -> None:
    settings = ServerSettings(port=0, jwt=JWT, drain_s=5)
    with served(tmp_path, ["a", "b"], settings=settings) as server:
        runs = {}
        for name in ("ann", "bob"):
            with client(server) as http:
                given = token(**GOOD, sub=name)
                runs[name] = http.post("/invoke", json={"message": "x"}, headers=bearer(given)).json()["run_id"]
        with client(server, follow_redirects=True) as http:
            http.post("/ui/login", data={"token": token(**GOOD)})
            assert settled(lambda: runs["ann"][:12] in http.get("/ui/runs").text)
            assert runs["bob"][:12] not in http.get("/ui/runs").text
            assert http.get(f"/ui/runs/{runs['bob']}").status_code == 404
            assert http.get(f"/ui/events/{runs['bob']}").status_code == 404
            assert http.get("/ui/hooks").status_code == 403
            assert http.get("/ui/coverage").status_code == 403
