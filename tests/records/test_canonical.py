"""Canonical JSON and digests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.build import payload

from agent_engine.hooks.managed import AuthContext, McpRequestContext, RunContext
from agent_engine.records import canonical as module
from agent_engine.records.canonical import NoDigest, canonical, digest, is_large, payload_form, pieces

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_the_whole_and_the_piecewise_form_are_one(value: Any) -> None:
    assert "".join(pieces(value)) == canonical(value)


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=6))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    shuffled = dict(sorted(value.items(), key=lambda item: item[1]))
    assert digest(value) == digest(shuffled)
    assert canonical(value) == json.dumps(value, sort_keys=True, separators=(",", ":"))


def test_a_large_value_has_the_digest_of_its_canonical_json() -> None:
    value = {"text": "ü" * 200_000, "rows": [{"n": n, "t": "x" * 10} for n in range(5000)], "t": ("a", 1)}
    assert is_large(value)
    whole = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert digest(value) == sha256(whole.encode()).hexdigest()


@pytest.mark.parametrize("large", [False, True])
def test_odd_values_have_a_digest_or_a_reason(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(module, "_LARGE", 1)

    @dataclass
    class Point:
        x: int
        when: datetime

    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    good = [
        b"bytes",
        datetime.now(UTC),
        Decimal("1.5"),
        2**70,
        "\ud800",
        {1: 2},
        Point(1, datetime.now(UTC)),
        "x" * 300,
    ]
    for value in good:
        assert len(digest({"v": value})) == 64
    for value in (cycle, deep, float("nan"), float("inf"), object(), {"a": {object(): 1}}):
        with pytest.raises(NoDigest):
            digest({"v": value})


def test_where_and_when_are_no_part_of_a_payloads_digest() -> None:
    one, other = payload(q="x"), payload(q="x")
    assert one.timestamp != ""
    assert digest(payload_form("before_tool", one)) == digest(payload_form("before_tool", other))
    assert digest(payload_form("before_tool", one)) != digest(payload_form("before_tool", payload(q="y")))


def test_secrets_of_a_context_reach_neither_digest_form_nor_payload() -> None:
    context = RunContext(run_id="r", auth_context=AuthContext(inbound_access_token="Bearer abc"))
    request = McpRequestContext(server_id="s", url="http://x", headers={"Authorization": "Bearer abc"})
    for value in (context, request):
        assert "abc" not in canonical(payload_form("on_run_start", value))
    assert canonical(payload_form("on_run_error", ValueError("Bearer abc"))) == (
        '{"error_type":"ValueError","event":"on_run_error"}'
    )
