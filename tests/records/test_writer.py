"""Entries are taken at once, written in order, never lost in silence, and memory is bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from psycopg import errors
from tests.records.build import AT, hook_run, payload, record, run, tool_step

from agent_engine.records.facts import Fact, as_dict
from agent_engine.records.journal import Journals, MemoryJournal, RunOpened, new_id, open_journal
from agent_engine.records.query import RecordReader
from agent_engine.records.settings import RecordsError, RecordSettings
from agent_engine.records.sink import Recovery
from agent_engine.records.writer import StoreJournal, _is_about_data

ROOT = Path(__file__).parents[2]


class Gate:
    """A store that waits to be let on, and can be down or refuse entries."""

    def __init__(self) -> None:
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.entered = threading.Event()
        """Set when entries have been handed over."""
        self.down = False
        self.tried = threading.Event()
        self.refuses: str | None = None
        self.facts: list[Fact] = []
        self.closed = False

    def open(self) -> Recovery:
        return Recovery()

    def write(self, facts: Sequence[Fact]) -> int:
        self.entered.set()
        self.open_gate.wait(60)
        if self.down:
            self.tried.set()
            raise ConnectionError("password=secret")
        if self.refuses is not None and any(self.refuses in fact for fact in facts):
            raise ValueError("not to my liking")
        self.facts += facts
        return len(self.facts)

    def tidy(self) -> None:
        return None

    def reopen(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True


def _journal(gate: Gate, **settings: object) -> StoreJournal:
    return StoreJournal(lambda: gate, RecordSettings(batch_s=0.001, **settings), "gate")  # type: ignore[arg-type]


def _opened(number: int) -> RunOpened:
    return RunOpened(f"r{number}", None, None, None, None, AT)


async def _hold(gate: Gate, journal: StoreJournal) -> None:
    """Let the writer stand before a closed gate with one entry in hand: what is written now waits behind it."""
    gate.entered.clear()
    gate.open_gate.clear()
    journal.write(_opened(0))
    assert await asyncio.to_thread(gate.entered.wait, 60)


async def test_a_clean_stop_loses_nothing_and_keeps_the_order() -> None:
    gate = Gate()
    journal = _journal(gate)
    for number in range(5000):
        journal.write(_opened(number))
    await journal.stop()
    assert [as_dict(fact)["run_id"] for fact in gate.facts] == [f"r{number}" for number in range(5000)]
    assert gate.closed


async def test_writing_returns_at_once_and_a_full_journal_asks_runs_to_wait() -> None:
    gate = Gate()
    gate.open_gate.clear()
    journal = _journal(gate, queue=10)
    await journal.start()
    number = 0
    while not journal.full:
        journal.write(_opened(number))
        number += 1
        await asyncio.sleep(0)
    waiting = asyncio.ensure_future(journal.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.open_gate.set()
    await asyncio.wait_for(waiting, 60)
    assert not journal.full
    await journal.stop()
    assert len(gate.facts) == number


async def test_beyond_the_hard_limit_entries_are_counted_and_the_log_says_where() -> None:
    gate = Gate()
    gate.open_gate.clear()
    journal = _journal(gate, queue=5)
    await journal.start()
    for number in range(200):
        journal.write(_opened(number))
    lost = journal.status.lost
    assert lost > 0
    gate.open_gate.set()
    await journal.stop()
    kept = [fact for fact in gate.facts if fact[0] == "run_opened"]
    marks = [as_dict(fact)["count"] for fact in gate.facts if fact[0] == "lost"]
    assert len(kept) + sum(marks) == 200
    assert sum(marks) == lost


async def test_captured_payloads_lower_the_limit_so_that_memory_stays_bounded() -> None:
    gate = Gate()
    journal = _journal(gate, capture=frozenset({"*"}))
    await journal.start()
    big = hook_run(before=payload(text="x" * 2_000_000))
    for entry in run("r1", tool_step("r1", hooks=[big] * 20)):
        journal.write(entry)
    await journal.flush()
    await _hold(gate, journal)
    for number in range(100):
        journal.write(_opened(number))
    assert journal.full
    gate.open_gate.set()
    await journal.stop()


async def test_a_store_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    gate.down = True
    journal = _journal(gate)
    await journal.start()
    with caplog.at_level(logging.WARNING):
        journal.write(_opened(1))
        await asyncio.to_thread(gate.tried.wait, 60)
        journal.write(_opened(2))
        gate.down = False
        await asyncio.wait_for(journal.flush(), 60)
    assert [as_dict(fact)["run_id"] for fact in gate.facts] == ["r1", "r2"]
    assert journal.status.lost == 0
    assert journal.status.problem is None
    assert "secret" not in caplog.text
    await journal.stop()


async def test_a_store_that_stays_away_makes_the_stop_say_how_many_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.records.writer._STOP_S", 0.1)
    gate = Gate()
    gate.down = True
    journal = _journal(gate)
    for number in range(3):
        journal.write(_opened(number))
    with pytest.raises(RecordsError, match="3 entries could not be written to gate"):
        await journal.stop()


async def test_one_entry_that_a_store_refuses_does_not_hold_up_the_others() -> None:
    gate = Gate()
    gate.refuses = "r7"
    journal = _journal(gate)
    for number in range(20):
        journal.write(_opened(number))
    await journal.flush()
    await journal.stop()
    assert [as_dict(fact)["run_id"] for fact in gate.facts if fact[0] == "run_opened"] == [
        f"r{number}" for number in range(20) if number != 7
    ]
    assert [as_dict(fact)["count"] for fact in gate.facts if fact[0] == "lost"] == [1]


async def test_several_journals_get_every_entry_and_ask_for_what_any_of_them_wants(tmp_path: Path) -> None:
    memory = MemoryJournal()
    journals = open_journal([memory, f"sqlite:{tmp_path / 'r.db'}"])
    assert isinstance(journals, Journals)
    assert journals.wants_payloads
    await journals.start()
    for entry in run("r1", tool_step("r1", hooks=[hook_run()])):
        journals.write(entry)
    await journals.stop()
    with RecordReader.open(f"sqlite:{tmp_path / 'r.db'}") as reader:
        (found,) = reader.records()
    assert [entry.record_id for entry in memory.entries if hasattr(entry, "record_id")] == [found.record_id]


def test_a_program_that_just_ends_still_writes_everything_out(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from agent_engine.records.journal import open_journal\n"
        "from tests.records.build import run\n"
        "journal = open_journal(sys.argv[1])\n"
        "for number in range(300):\n"
        "    for entry in run(f'r{number}'):\n"
        "        journal.write(entry)\n"
    )
    address = f"sqlite:{tmp_path / 'r.db'}"
    subprocess.run([sys.executable, "-c", program, address], check=True, cwd=ROOT, env={**os.environ}, timeout=300)
    with RecordReader.open(address) as reader:
        assert len(reader.runs(limit=1000)) == 300
    journal_after = asyncio.run(record(address, []))
    assert not journal_after.recovery.crashed


def test_many_loops_and_threads_write_to_one_journal(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}"
    journal = open_journal(address)
    assert isinstance(journal, StoreJournal)

    async def work(worker: int) -> None:
        for number in range(50):
            for entry in run(f"{worker}-{number}", tool_step(f"{worker}-{number}")):
                journal.write(entry)
            await asyncio.sleep(0)
        await journal.flush()

    threads = [threading.Thread(target=lambda worker=worker: asyncio.run(work(worker))) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    with RecordReader.open(address) as reader:
        assert len(reader.runs(limit=1000)) == 200
        assert {row.steps for row in reader.runs(limit=1000)} == {2}


class Bug(BaseException):
    """What no handler in the writer expects."""


class Breaking(Gate):
    """A store whose second write breaks in a way nobody thought of."""

    breaks = True

    def write(self, facts: Sequence[Fact]) -> int:
        if self.facts and self.breaks:
            self.entered.set()
            self.open_gate.wait(60)
            raise Bug("password=secret")
        return super().write(facts)


async def _broken(caplog: pytest.LogCaptureFixture) -> tuple[StoreJournal, Breaking]:
    """A journal whose writer has died with one entry in hand and 100 behind it, while others waited for it."""
    gate = Breaking()
    journal = _journal(gate, queue=10)
    await journal.start()
    journal.write(_opened(0))
    await journal.flush()
    await _hold(gate, journal)
    for number in range(100):
        journal.write(_opened(number))
    waits = [asyncio.ensure_future(journal.flush()), asyncio.ensure_future(journal.room())]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waits)
    with caplog.at_level(logging.ERROR):
        gate.open_gate.set()
        await asyncio.wait_for(asyncio.gather(*waits), 60)
    return journal, gate


async def test_a_writer_that_breaks_lets_everybody_go_and_counts_what_was_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, _ = await _broken(caplog)
    assert "its writer broke (Bug); 101 entries are lost so far" in caplog.text
    assert "secret" not in caplog.text
    journal.write(_opened(7))
    assert (journal.status.waiting, journal.status.lost, journal.full) == (0, 102, False)
    assert "broke" in str(journal.status.problem)
    await asyncio.wait_for(asyncio.gather(journal.flush(), journal.room()), 60)
    with pytest.raises(RecordsError, match="102 entries could not be written to gate"):
        await asyncio.wait_for(journal.stop(), 60)
    await journal.stop()


async def test_a_writer_that_broke_can_be_started_again_and_the_log_says_what_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, gate = await _broken(caplog)
    gate.facts.clear()
    gate.breaks = False
    await journal.start()
    journal.write(_opened(9))
    await journal.stop()
    assert [fact[0] for fact in gate.facts] == ["lost", "run_opened"]
    assert as_dict(gate.facts[0])["count"] == 101


@pytest.mark.parametrize("sync", [False, True])
def test_a_program_ends_although_its_writer_broke(sync: bool) -> None:
    journal = _journal(Breaking())
    journal._gather = _break  # type: ignore[method-assign]  # any place outside the guarded ones
    journal.write(_opened(1))
    with pytest.raises(RecordsError, match="1 entries could not be written"):
        if sync:
            journal.close()
        else:
            asyncio.run(asyncio.wait_for(journal.stop(), 60))


def _break() -> None:
    raise Bug


async def test_a_store_that_never_answers_does_not_hold_up_the_stop_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_engine.records.writer._STUCK_S", 0.05)
    gate = Gate()
    gate.open_gate.clear()
    journal = _journal(gate)
    await journal.start()
    for number in range(3):
        journal.write(_opened(number))
    with pytest.raises(RecordsError, match="3 entries could not be written to gate"):
        await journal.stop()
    gate.open_gate.set()


async def test_where_no_thread_can_be_had_runs_go_on_and_the_stop_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    journal = _journal(Gate())
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(threading.Thread, "start", refuse)
        journal.write(_opened(1))
    assert "its writer broke (RuntimeError)" in caplog.text
    with pytest.raises(RecordsError, match="cannot be opened"):
        await journal.start()


def test_a_forked_process_leaves_its_parents_log_alone_and_says_so(any_address: str) -> None:
    program = (
        "import os, sys, asyncio\n"
        "from agent_engine.records.journal import open_journal\n"
        "from agent_engine.records.settings import RecordsError\n"
        "from tests.records.build import run\n"
        "def put(journal, name):\n"
        "    for entry in run(name): journal.write(entry)\n"
        "def end(journal):\n"
        "    asyncio.run(asyncio.wait_for(journal.stop(), 30))\n"
        "journal, unused = open_journal(sys.argv[1]), open_journal(sys.argv[2])\n"
        "asyncio.run(journal.start())\n"
        "put(journal, 'before')\n"
        "child = os.fork()\n"
        "put(journal, 'child' if child == 0 else 'parent')\n"
        "if child == 0:\n"
        "    put(unused, 'own')\n"
        "    end(unused)\n"
        "    try:\n"
        "        end(journal)\n"
        "    except RecordsError as error:\n"
        "        assert '4 entries could not be written' in str(error)\n"
        "        os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "end(journal)\n"
    )
    kind, _, where = any_address.partition(":")
    own = f"{kind}:{where}.own" if kind in ("sqlite", "jsonl") else any_address
    done = subprocess.run(
        [sys.executable, "-c", program, any_address, own],
        cwd=ROOT, env={**os.environ}, timeout=300, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was opened before this process was forked") == 1
    found = set()
    for address in {any_address, own}:
        with RecordReader.open(address) as reader:
            found |= {row.run_id for row in reader.runs()}
    assert found == {"before", "parent", "own"}


@pytest.mark.parametrize(
    ("error", "about_data"),
    [
        (errors.UndefinedTable("x"), False),
        (errors.InsufficientPrivilege("x"), False),
        (errors.DataError("x"), True),
        (errors.NumericValueOutOfRange("x"), True),
        (errors.UniqueViolation("x"), True),
        (errors.AdminShutdown("x"), False),
        (sqlite3.OperationalError("database or disk is full"), False),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), True),
    ],
)
def test_only_what_is_about_the_data_makes_an_entry_be_left_out(error: Exception, about_data: bool) -> None:
    assert _is_about_data(error) is about_data


async def test_digests_can_be_turned_off(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}?digests=off"
    journal = open_journal(address)
    assert journal is not None
    assert not journal.wants_payloads
    await record(address, run("r1", tool_step("r1", hooks=[hook_run(before=payload(q="x"))])))
    with RecordReader.open(address) as reader:
        assert reader.records()[0].before_digest is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_gives_out_other_ids() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert theirs.partition("-")[0] != new_id().partition("-")[0]
