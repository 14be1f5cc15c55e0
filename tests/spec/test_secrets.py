"""What is a credential, what is none, and what is left of one in a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.spec.load import examine_text
from agent_engine.spec.secrets import credential_in, looks_random, redact, secret_key

CREDENTIALS = "password DB_PASSWORD apiKey api_key x-api-key accessToken client_secret private-key AUTH_TOKEN"
NOT_ONE = "reset_password_tool max_tokens tokenizer token_count password_policy monkey keyboard author secretary key"


@pytest.mark.parametrize("key", CREDENTIALS.split())
def test_keys_that_name_a_credential(key: str) -> None:
    assert secret_key(key)


@pytest.mark.parametrize("key", [*NOT_ONE.split(), "TOKEN_FILE", "passport", ""])
def test_keys_that_name_none(key: str) -> None:
    assert not secret_key(key)


@pytest.mark.parametrize(
    "text",
    [
        "Resets a user's password and sends a token by mail.",
        "Uses Bearer authentication",
        "a Bearer token is needed",
        "https://example.com/path?token=",
        "https://user@example.com/",
        "postgresql://user:${PASSWORD}@localhost/db",
        "sk-1",
        "the risk-assessment-of-everything-we-do",
        "ask-anything-about-our-products",
        "eyJ is how they begin",
        "hf_hub",
        "basic training 101",
        "--token-count=1000",
        "claude-sonnet-4-5-20250929",
        "gpt-4.1-2025-04-14",
        "us.anthropic.claude-3-5-sonnet-20241022-v2:0",
        "npm_package",
        "3f786850e387550fdab836ed7e6dc881de23001b",
    ],
)
def test_text_that_is_no_credential(text: str) -> None:
    assert credential_in(text) is None


def test_an_id_such_as_reset_password_is_no_secret_anywhere() -> None:
    text = """
system: {name: demo}
agents: {a: {tools: [reset_password, api_token]}}
tools:
  reset_password: Resets the password of a user, given their e-mail address.
  api_token: {description: "Lists tokens; shows the first4 characters"}
hooks:
  before_tool: [{command: "true", matcher: "reset_password|api_token", name: token}]
graph: {a: }
"""
    _, problems = examine_text(text, "agents.yaml")
    assert [str(problem) for problem in problems] == []


@given(st.text(st.characters(categories=["Ll", "Zs"]), max_size=60))
def test_prose_is_no_credential(text: str) -> None:
    assert credential_in(text) is None
    assert not looks_random(text)


@given(st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=24, max_size=60))
def test_no_part_of_a_key_is_left(key: str) -> None:
    for text in (f"sk-ant-{key}", f"x ghp_{key} y", f"Bearer 1{key}", f"https://u:{key}@host/"):
        assert key not in redact(f"must be a number, not '{text}'")


def test_a_value_that_is_wrong_and_a_secret_is_not_shown() -> None:
    text = "system: {name: [sk-ant-REDACTED]}\nagents: {a: {auto: sk-ant-REDACTED}}\n"
    _, problems = examine_text(text + "graph: {a: ghp_abcdefghijklmnopqrstuv}\n", "agents.yaml")
    assert problems
    assert not [one for one in problems if "api03" in str(one) or "abcdefgh" in str(one)]
