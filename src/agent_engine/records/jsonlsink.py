"""A store that is one file of JSON lines: an entry a line, appended, never rewritten."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from agent_engine.records import audit
from agent_engine.records.facts import FIELDS, HEAD, Fact, as_dict
from agent_engine.records.settings import RecordsError, RecordSettings
from agent_engine.records.sink import OpenRun, Recovery, StoreGone, same_file

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]  # the lock is left out there

_BEGINNING = b'{"seq":'
_encode = json.JSONEncoder(separators=(",", ":")).encode


class JsonlSink:
    """Appends to one file, which one process at a time may have open."""

    def __init__(self, path: Path, settings: RecordSettings) -> None:
        self._path = path
        if settings.ttl is not None:
            raise RecordsError(
                "A JSON lines file is only appended to, so payloads in it cannot expire; use sqlite: for a ttl."
            )
        self._key = settings.audit_key()
        self._file: BinaryIO | None = None
        self._seq = 0
        self._mac = audit.START
        self._size = 0

    def open(self) -> Recovery:
        """Open the file, cut off a last line that was not finished, and see which runs were open.

        Raises:
            RecordsError: it cannot be opened, another process has it open, or it is an audit log and this is none (or
                the other way round).
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise RecordsError(f"The store {self._path} cannot be opened: {error.strerror}.") from error
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._opened = os.fstat(descriptor)
        if not stat.S_ISREG(self._opened.st_mode):
            self._file.close()
            raise RecordsError(f"The store {self._path} is no regular file; records need one, or use sqlite:.")
        self._lock()
        recovery = self._read_back()
        if recovery.crashed:
            runs = [run.run_id for run in recovery.open_runs]
            self.write([("recovered", (), time.time(), recovery.last_seq, _encode(runs))])
        return recovery

    def write(self, facts: Sequence[Fact]) -> int:
        if self._file is None:
            raise RecordsError(f"The store {self._path} is not open.")
        if not same_file(self._path, self._opened):
            raise StoreGone(str(self._path))
        seq, mac, lines = self._seq, self._mac, []
        for fact in facts:
            seq += 1
            kind, payloads = fact[:HEAD]
            line = {"seq": seq, "entry": kind, **as_dict(fact)}
            if payloads:
                line["payloads"] = {which: json.loads(body) for which, body in payloads}
            if self._key is not None:
                mac = line["mac"] = audit.code(self._key, mac, seq, audit.body_of(fact))
            lines.append(_encode(line))
        data = ("\n".join(lines) + "\n").encode("ascii")
        self._append(data)
        self._seq, self._mac, self._size = seq, mac, self._size + len(data)
        return seq

    def tidy(self) -> None:
        return None

    def reopen(self) -> None:
        if self._file is not None and same_file(self._path, self._opened):
            return
        self._let_go()
        self._seq, self._mac, self._size = 0, audit.START, 0
        self.open()

    def close(self) -> None:
        if self._file is not None:
            try:
                self.write([("stopped", (), time.time())])
            finally:
                self._let_go()

    def _let_go(self) -> None:
        if self._file is None:
            return
        if fcntl is not None and not self._file.closed:
            # Closing alone does not: a process that is being started may hold a copy.
            fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)
        self._file.close()
        self._file = None

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        view, start = memoryview(data), self._size
        try:
            while view:
                written = self._file.write(view)
                view = view[written or 0 :]
            if self._key is not None:
                os.fsync(self._file.fileno())
        except OSError:
            # All or nothing: a batch that is tried again must not stand there twice.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), start)
            raise

    def _lock(self) -> None:
        if fcntl is None or self._file is None:
            return
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise RecordsError(
                f"The store {self._path} is being written by another process; give each its own file, or use sqlite:."
            ) from error

    def _read_back(self) -> Recovery:
        whole = complete_size(self._path)
        self._size = whole
        last: dict[str, Any] | None = None
        open_runs: dict[str, OpenRun] = {}
        for line in read_lines(self._path):
            last = line
            if line["entry"] == "run_opened":
                open_runs[line["run_id"]] = OpenRun(line["run_id"], line["system"], line["at"])
            elif line["entry"] == "run_closed":
                open_runs.pop(line["run_id"], None)
            elif line["entry"] == "recovered":
                open_runs.clear()
        self._cut_off(whole)
        if last is None:
            return Recovery()
        self._seq, self._mac = last["seq"], last.get("mac", audit.START)
        if ("mac" in last) != (self._key is not None):
            raise RecordsError(
                f"{self._path} is an audit log; open it with audit=on and its key."
                if "mac" in last
                else f"{self._path} holds records that are not chained; begin an audit log in a file of its own."
            )
        if last["entry"] == "stopped":
            return Recovery(last_seq=self._seq)
        return Recovery(True, self._seq, self._path.stat().st_mtime, tuple(open_runs.values()))

    def _cut_off(self, whole: int) -> None:
        """Take off a last line that was not finished; but no line of a file that is something else."""
        with self._path.open("rb") as file:
            file.seek(whole)
            begun = file.read(len(_BEGINNING)).strip(b"\0")
        if not _BEGINNING.startswith(begun):
            raise RecordsError(f"{self._path} is no log of records; name a file of its own.")
        os.truncate(self._path, whole)


def read_lines(path: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """The entries of a file, from byte ``start`` on; a last line that is not finished is left out.

    Raises:
        RecordsError: a line that is no entry; the message says which.
    """
    with path.open("rb") as file:
        file.seek(start)
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if not isinstance(entry, dict) or "seq" not in entry or entry.get("entry") not in FIELDS:
                raise RecordsError(f"{path}:{number}: this is no entry of a log of records.")
            yield entry


def fact_of(entry: dict[str, Any]) -> Fact:
    """The fact a line was written from."""
    payloads = tuple((which, _encode(body)) for which, body in entry.get("payloads", {}).items())
    return entry["entry"], payloads, *(entry.get(name) for name in FIELDS[entry["entry"]])


def complete_size(path: Path) -> int:
    """Bytes up to the end of the last finished line."""
    size = path.stat().st_size
    with path.open("rb") as file:
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            at = file.read(end - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
    return 0
