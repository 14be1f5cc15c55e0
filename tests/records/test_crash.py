"""An engine is killed in the middle of a thousand runs: the next start says where the log ends and what was open."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.records.build import record, run
from tests.records.crash_child import RUNS

from agent_engine.records.connect import is_running, process_birth
from agent_engine.records.journal import open_journal
from agent_engine.records.query import RecordReader
from agent_engine.records.settings import AUDIT_KEY, RecordSettings
from agent_engine.records.verify import head, verify
from agent_engine.records.views import RunFilter

ROOT = Path(__file__).parents[2]
ENTRIES = 12_000
"""Of the thousand runs each has opened, and called its model, by then."""


def _kill_in_the_middle(address: str, folder: Path, environ: dict[str, str], size: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.records.crash_child", address, str(folder)],
        cwd=ROOT, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "ready\n"
        try:
            with _counter(address) as entries:
                # However long that takes: on a machine that is busy with something else it was a minute once.
                while entries() < size:
                    assert child.poll() is None, "the engine ended before it was killed"
                    time.sleep(0.05)
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()


@contextmanager
def _counter(address: str) -> Iterator[Callable[[], int]]:
    """How many entries a store holds by now."""
    if address.startswith("jsonl:"):
        path = Path(address.removeprefix("jsonl:"))
        yield lambda: path.read_bytes().count(b"\n")
        return
    with RecordReader.open(address) as reader:
        yield reader.last_seq


async def test_after_kill_9_the_log_verifies_and_says_which_runs_were_open(
    any_address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {AUDIT_KEY: "k"}
    _kill_in_the_middle(any_address, tmp_path / "project", environ, ENTRIES)
    settings = RecordSettings(audit=True, environ=environ)
    journal = open_journal(any_address, settings=settings)
    assert journal is not None
    with caplog.at_level(logging.WARNING, "agent_engine.records"):
        await journal.start()
    recovery = journal.recovery  # type: ignore[attr-defined]
    await journal.stop()
    assert recovery.crashed
    assert recovery.last_seq >= ENTRIES
    names = {found.run_id for found in recovery.open_runs}
    assert names == {f"run-{number}" for number in range(RUNS)}
    assert "runs open then: 1000 (run-" in caplog.text
    assert f"ends after entry {recovery.last_seq}" in caplog.text
    found = verify(any_address, b"k")
    assert found.problems == []
    assert found.head == head(any_address)
    with RecordReader.open(any_address) as reader:
        assert [row.run_id for row in reader.runs(RunFilter(status="completed"))] == ["finished"]
        mark = next(mark for mark in reader.marks() if mark.kind == "recovered")
        assert set(mark.open_runs) == names
        assert mark.last_seq == recovery.last_seq
        assert {row.run_id for row in reader.runs(RunFilter(status="interrupted"), limit=5000)} == names


def test_a_process_that_has_ended_but_whose_parent_does_not_care_is_not_running() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = process_birth(child.pid)
    assert is_running(socket.gethostname(), child.pid, born, time.time())
    child.kill()
    # Waits for its end and leaves it unreaped: a zombie, as under a supervisor that starts the next one first.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(socket.gethostname(), child.pid, born, time.time())
    child.communicate()


async def test_a_line_cut_by_a_crash_is_taken_off_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    await record(f"jsonl:{path}", run("r1"))
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:-1]) + b'{"seq":5,"entry":"run_op')
    journal = open_journal(f"jsonl:{path}")
    assert journal is not None
    await journal.start()
    await journal.stop()
    assert journal.recovery.crashed  # type: ignore[attr-defined]
    assert journal.recovery.last_seq == len(whole) - 1  # type: ignore[attr-defined]
    with RecordReader.open(f"jsonl:{path}") as reader:
        assert [row.run_id for row in reader.runs()] == ["r1"]


async def test_a_writer_that_still_lives_is_not_taken_for_a_crash(address: str) -> None:
    first = open_journal(address, settings=RecordSettings(batch_s=0.001))
    assert first is not None
    await first.start()
    for entry in run("r1", closed=False):
        first.write(entry)
    await first.flush()  # type: ignore[attr-defined]
    second = await record(address, run("r2"))
    assert not second.recovery.crashed
    with RecordReader.open(address) as reader:
        assert [row.run_id for row in reader.runs(RunFilter(status="open"))] == ["r1"]
    await first.stop()


async def test_two_processes_do_not_write_one_file_of_lines(tmp_path: Path) -> None:
    address = f"jsonl:{tmp_path / 'r.jsonl'}"
    first = open_journal(address)
    assert first is not None
    await first.start()
    with pytest.raises(Exception, match="is being written by another process"):
        await record(address, run("r2"))
    await first.stop()
