"""Payloads are stored only where that was chosen, after redaction, for as long as was said."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.records.build import hook_run, payload, record, run, tool_step

from agent_engine.records.journal import open_journal
from agent_engine.records.query import RecordReader
from agent_engine.records.settings import RecordsError, RecordSettings, split_address

SECRET = "sk-planted-token-42"


def _hide(event: str, body: Any) -> Any:
    return json.loads(json.dumps(body).replace(SECRET, "[hidden]"))


def _everything(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.iterdir() if file.is_file())


async def test_without_the_choice_no_payload_reaches_the_disk(tmp_path: Path) -> None:
    for address in (f"sqlite:{tmp_path / 'r.db'}", f"jsonl:{tmp_path / 'r.jsonl'}"):
        asked = {"payload": {"asked": {"q": SECRET}}}
        step = tool_step(
            "r1", hooks=[hook_run(before=payload(q=SECRET), after=payload(q=SECRET))], opened=asked, closed=asked
        )
        await record(address, run("r1", step))
    assert SECRET.encode() not in _everything(tmp_path)


async def test_only_the_events_that_were_chosen_are_stored(any_address: str) -> None:
    hooks = [
        hook_run("one", before=payload(q="1"), after=payload(q="2")),
        hook_run("two", event="after_tool", before=payload(q="3")),
    ]
    step = tool_step(
        "r1", hooks=hooks, opened={"payload": {"asked": {"q": "1"}}},
        closed={"payload": {"used": {"q": "2"}, "result": "answer"}},
    )  # fmt: skip
    await record(any_address, run("r1", step), capture=frozenset({"before_tool"}))
    with RecordReader.open(any_address) as reader:
        one, two = reader.records(after=0)
        stored = reader.payloads_of(one.seq)
        assert stored["before"]["tool_input"] == {"q": "1"}
        assert stored["after"]["tool_input"] == {"q": "2"}
        assert reader.payloads_of(two.seq) == {}
        detail = reader.run("r1")
    assert detail is not None
    (tool,) = [step for step in detail.steps if step.kind == "tool"]
    assert tool.payloads == {"asked": {"q": "1"}, "used": {"q": "2"}}
    assert tool.closed["result_digest"]


async def test_redaction_comes_before_the_disk(tmp_path: Path) -> None:
    for address in (f"sqlite:{tmp_path / 'r.db'}", f"jsonl:{tmp_path / 'r.jsonl'}"):
        step = tool_step("r1", hooks=[hook_run(before=payload(q=SECRET))], opened={"payload": {"asked": {"q": SECRET}}})
        await record(address, run("r1", step), capture=frozenset({"*"}), redact=_hide)
        with RecordReader.open(address) as reader:
            assert reader.payloads_of(reader.records()[0].seq)["before"]["tool_input"] == {"q": "[hidden]"}
    assert SECRET.encode() not in _everything(tmp_path)


@pytest.mark.parametrize("problem", ["raises", "none", "unwritable"])
async def test_a_redaction_that_fails_stores_nothing_of_the_payload(tmp_path: Path, problem: str) -> None:
    def redact(event: str, body: Any) -> Any:
        if problem == "raises":
            raise RuntimeError(SECRET)
        return None if problem == "none" else {SECRET: object()}

    address = f"sqlite:{tmp_path / 'r.db'}"
    step = tool_step("r1", hooks=[hook_run(before=payload(q=SECRET))])
    await record(address, run("r1", step), capture=frozenset({"*"}), redact=redact)
    assert SECRET.encode() not in _everything(tmp_path)


async def test_payloads_go_when_their_time_has_come(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.records.writer._TIDY_S", 3600.0)
    old = hook_run(before=payload(q="old"), started_at=time.time() - 7200)
    new = hook_run(before=payload(q="new"), started_at=time.time())
    await record(address, run("r1", tool_step("r1", hooks=[old, new])), capture=frozenset({"*"}), ttl=3600.0)
    with RecordReader.open(address) as reader:
        first, second = reader.records(after=0)
        assert reader.payloads_of(first.seq) == {}
        assert reader.payloads_of(second.seq)["before"]["tool_input"] == {"q": "new"}
        assert len(_stored(reader)) == 2, "the writer looks when it opens a store, and then now and then"
    journal = open_journal(address, settings=RecordSettings(ttl=3600.0))
    assert journal is not None
    await journal.start()
    with RecordReader.open(address) as reader:
        async with asyncio.timeout(60):
            while len(_stored(reader)) > 1:
                await asyncio.sleep(0.01)
        (left,) = _stored(reader)
    await journal.stop()
    assert "new" in left


def _stored(reader: RecordReader) -> list[str]:
    with reader.engine.connect() as connection:
        return [body for (body,) in connection.exec_driver_sql("SELECT body FROM record_payloads")]


async def test_a_file_of_lines_cannot_promise_a_time_to_live(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="cannot expire"):
        await record(f"jsonl:{tmp_path / 'r.jsonl'}", [], ttl=60.0)


def test_an_address_carries_its_options() -> None:
    base, settings = split_address(
        "sqlite:a b.db?capture=before_tool,after_message&ttl=7d&digests=off&audit=on&reason=80"
    )
    assert base == "sqlite:a b.db"
    assert settings.capture == {"before_tool", "message_sending"}
    assert (settings.ttl, settings.digests, settings.audit, settings.reason) == (604800.0, False, True, 80)
    base, settings = split_address("postgresql://u:p@h/d?sslmode=require&capture=*")
    assert base == "postgresql://u:p@h/d?sslmode=require"
    assert settings.captures("before_llm")


@pytest.mark.parametrize(
    "options",
    ["capture=before_tol", "ttl=soon", "digests=maybe", "queue=0", "redact=nowhere:it", "redact=json:__name__", "x=1"],
)
def test_a_bad_option_is_refused(options: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        split_address(f"sqlite:r.db?{options}")
