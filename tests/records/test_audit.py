"""An audit log: whoever lacks the key cannot edit, drop or move an entry unseen."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from tests.records.build import AT, hook_run, payload, record, run, tool_step

from agent_engine.records.audit import ChainCheck, Head, body_of, code
from agent_engine.records.connect import engine_for
from agent_engine.records.journal import HookRan
from agent_engine.records.settings import AUDIT_KEY, RecordsError
from agent_engine.records.verify import head, verify

KEY = {AUDIT_KEY: "a long random text"}
SIGNED = KEY[AUDIT_KEY].encode()


async def _fill(address: str, name: str = "r1", **settings: object) -> None:
    hooks = [hook_run(decision="deny", before=payload(q="x")), hook_run("other", before=payload(q="y"))]
    steps = tool_step(name, hooks=hooks, outcome="refused", refused_by="guard")
    await record(address, run(name, steps), audit=True, environ=KEY, **settings)


def _tamper(address: str, *statements: str) -> None:
    """What somebody with the database's password can do: also drop the guard against slips."""
    engine = engine_for(address)
    with engine.connect().execution_options(writing=True) as connection, connection.begin():
        if engine.dialect.name == "sqlite":
            connection.execute(text("DROP TRIGGER record_chain_no_update"))
            connection.execute(text("DROP TRIGGER record_chain_no_delete"))
        else:
            connection.execute(text("DROP TRIGGER record_chain_append_only ON record_chain"))
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


async def test_an_untouched_log_holds_over_several_openings(any_address: str) -> None:
    await _fill(any_address)
    first = head(any_address)
    await _fill(any_address, "r2", capture=frozenset({"before_tool"}))
    found = verify(any_address, SIGNED, Head.parse(str(first)))
    assert found.problems == []
    assert found.head == head(any_address)
    assert found.head.seq > first.seq


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE record_chain SET body = replace(body, 'deny', 'allow') WHERE kind = 'hook'", "was changed"),
        ("DELETE FROM record_chain WHERE seq = 4", "entry 4 is missing before entry 5"),
        ("UPDATE record_chain SET seq = 1000 - seq WHERE seq IN (4, 5)", "missing|out of order"),
        ("UPDATE record_hook_runs SET decision = 'allow'", "was changed in the tables .decision."),
        ("DELETE FROM record_hook_runs WHERE decision = 'deny'", "was removed from the tables"),
        ("UPDATE record_steps SET outcome = 'ran'", "was changed in the tables .outcome."),
        ("UPDATE record_runs SET user_id = 'bob'", "run r1 was changed in the tables .user_id."),
        ("DELETE FROM record_steps WHERE kind = 'tool'", "was removed from the tables|changed"),
        ("UPDATE record_hooks SET policy = 'warn'", "was changed in the tables .policy."),
        ("UPDATE record_payloads SET body = '{}'", "payload 'before' of entry"),
        ("UPDATE record_chain SET kind = 'lost' WHERE kind = 'hook'", "was changed .its kind."),
        ("UPDATE record_runs SET usage = '{}'", "run r1 was changed in the tables .usage."),
        ("UPDATE record_runs SET denied = 0", "run r1 was changed in the tables .denied."),
        (
            "UPDATE record_runs SET duration_ms = 1, ended_at = 2",
            "changed in the tables .*ended_at.*duration_ms|.*duration",
        ),
        ("UPDATE record_steps SET duration_ms = 1", "was changed in the tables .duration_ms."),
        ("UPDATE record_steps SET opened = '{}' WHERE kind = 'tool'", "was changed in the tables .opened."),
        (
            "DELETE FROM record_facets WHERE facet = 'decision'",
            "run r1 is found by was changed .decision deny was removed",
        ),
        ("UPDATE record_facets SET value = 'other' WHERE facet = 'tool'", "tool other was put in"),
        ("UPDATE record_coverage SET n = n + 1 WHERE kind = 'tool'", "the count of steps tool search"),
        ("DELETE FROM record_coverage", "the count of steps"),
        ("UPDATE record_hook_stats SET n = n - 1 WHERE decision = 'deny'", "the count of 'deny' of hook guard"),
        ("DELETE FROM record_hook_stats", "the count of"),
        ("INSERT INTO record_marks VALUES (3, 'lost', 1.0, 7, NULL, NULL)", "the mark 'lost' of entry 3 stands in"),
        ("INSERT INTO record_payloads VALUES (1, 'before', '{}', NULL)", "payload 'before' of entry 1"),
    ],
)
async def test_a_change_by_someone_without_the_key_is_found(address: str, change: str, says: str) -> None:
    await _fill(address, capture=frozenset({"*"}))
    _tamper(address, change)
    with pytest.raises(AssertionError, match=says):
        assert verify(address, SIGNED).problems == []


async def test_a_log_with_gaps_of_its_own_holds(any_address: str) -> None:
    whole = run("r1", tool_step("r1", hooks=[hook_run(decision="deny")], outcome="refused", refused_by="guard"))
    again = run("r1", tool_step("r1", "t2", outcome="waiting"), tool_step("r1", "t3"), at=AT + 5)
    outside = [replace(entry, run_id="") for entry in tool_step("", "boot") if not isinstance(entry, HookRan)]
    await record(any_address, [*whole[2:], *again, *outside, *whole[3:4]], audit=True, environ=KEY)
    assert verify(any_address, SIGNED).problems == []
    await _fill(any_address, "r2")
    assert verify(any_address, SIGNED).problems == []


async def test_two_swapped_entries_are_found(address: str) -> None:
    await _fill(address)
    _tamper(
        address,
        "UPDATE record_chain SET seq = -4 WHERE seq = 4",
        "UPDATE record_chain SET seq = 4 WHERE seq = 5",
        "UPDATE record_chain SET seq = 5 WHERE seq = -4",
    )
    assert "entry 4 was changed, moved or put in later" in verify(address, SIGNED).problems


async def test_a_cut_tail_shows_against_a_head_printed_earlier(any_address: str, tmp_path: Path) -> None:
    await _fill(any_address)
    printed = str(head(any_address))
    last = Head.parse(printed).seq
    if any_address.startswith("jsonl:"):
        path = tmp_path / "records.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    else:
        keep = last - 2
        _tamper(
            any_address,
            f"DELETE FROM record_chain WHERE seq > {keep}",
            f"UPDATE record_heads SET seq = {keep}, mac = (SELECT mac FROM record_chain WHERE seq = {keep})",
            "UPDATE record_runs SET status = 'open', ended_at = NULL, duration_ms = NULL, usage = NULL",
            "UPDATE record_steps SET outcome = 'open', status = NULL, duration_ms = NULL WHERE kind = 'agent'",
            "DELETE FROM record_coverage WHERE kind = 'agent'",
        )
    assert verify(any_address, SIGNED).problems == []
    (problem,) = verify(any_address, SIGNED, Head.parse(printed)).problems
    assert problem == f"the tail was cut: entry {last}, whose head was printed earlier, is not there"


async def test_the_head_of_another_log_is_not_taken_for_this_one(tmp_path: Path) -> None:
    one, other = f"sqlite:{tmp_path / 'a.db'}", f"sqlite:{tmp_path / 'b.db'}"
    await _fill(one)
    await _fill(other, "r9")
    assert "not the one whose head" in verify(one, SIGNED, head(other)).problems[0]


async def test_a_wrong_key_is_named_as_a_possible_cause(any_address: str) -> None:
    await _fill(any_address)
    assert "or the key is not the one" in verify(any_address, b"another").problems[0]


async def test_a_line_of_a_file_cannot_be_edited(tmp_path: Path) -> None:
    address = f"jsonl:{tmp_path / 'r.jsonl'}"
    await _fill(address, capture=frozenset({"before_tool"}))
    path = tmp_path / "r.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for index, line in enumerate(lines):
        for old, new in (('"deny"', '"allow"'), ('"q":"x"', '"q":"z"')):
            if old in line:
                path.write_text("".join([*lines[:index], line.replace(old, new), *lines[index + 1 :]]))
                assert f"entry {index + 1} was changed" in verify(address, SIGNED).problems[0]
    path.write_text("".join(lines[:3] + lines[4:]))
    assert "missing" in verify(address, SIGNED).problems[0]


async def test_an_audit_log_and_a_plain_log_do_not_mix(any_address: str) -> None:
    await _fill(any_address)
    with pytest.raises(RecordsError, match="is an audit log; open it with audit=on"):
        await record(any_address, run("r2"))
    assert verify(any_address, SIGNED).problems == []


async def test_a_plain_log_does_not_become_an_audit_log(any_address: str) -> None:
    await record(any_address, run("r1"))
    with pytest.raises(RecordsError, match="not chained"):
        await _fill(any_address)
    with pytest.raises(RecordsError, match="is no audit log"):
        verify(any_address, SIGNED)


async def test_an_audit_log_without_a_key_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="AGENT_ENGINE_AUDIT_KEY"):
        await record(f"sqlite:{tmp_path / 'a.db'}", [], audit=True, environ={})


async def test_the_chain_is_append_only_for_a_slip_of_the_hand(tmp_path: Path) -> None:
    await _fill(f"sqlite:{tmp_path / 'a.db'}")
    with sqlite3.connect(tmp_path / "a.db") as connection:
        for statement in ("UPDATE record_chain SET mac = ''", "DELETE FROM record_chain"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    connection.close()


@given(
    values=st.lists(st.one_of(st.text(max_size=20), st.integers(), st.none(), st.booleans()), max_size=5),
    edit=st.integers(min_value=0),
)
def test_any_single_edit_of_any_entry_breaks_the_chain(values: list[object], edit: int) -> None:
    key, before, entries = b"key", "", []
    for seq, value in enumerate([*values, "end"], 1):
        body = body_of(("hook", (), value))
        before = code(key, before, seq, body)
        entries.append((seq, body, before))
    at = edit % len(entries)
    seq, body, mac = entries[at]
    entries[at] = (seq, json.dumps([*json.loads(body), "more"]), mac)
    check = ChainCheck(key)
    for entry in entries:
        check.entry(*entry)
    assert not check.end().holds


@pytest.mark.parametrize("text_", ["", "12", "x:y", "12:abc", "-1:" + "0" * 64])
def test_what_is_no_head_is_refused(text_: str) -> None:
    if text_ == "12":
        assert Head.parse(text_) == Head(12, "")
        return
    with pytest.raises(ValueError, match="is no head"):
        Head.parse(text_)
