"""What a store must be able to do for the writer, and what it says when it is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent_engine.records.facts import Fact


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that had not ended when its process did."""

    run_id: str
    system: str | None
    started_at: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a store was found: whether a writer ended without closing it, where the log ends, which runs were open."""

    crashed: bool = False
    last_seq: int = 0
    last_at: float | None = None
    open_runs: tuple[OpenRun, ...] = field(default=())

    def sentence(self) -> str:
        """One line for a log: after which record the log ends, and which runs were open."""
        if not self.crashed:
            return f"The log ends after entry {self.last_seq}; it was closed cleanly."
        names = ", ".join(run.run_id for run in self.open_runs[:20]) or "none"
        more = f" and {len(self.open_runs) - 20} more" if len(self.open_runs) > 20 else ""
        return (
            f"A writer ended without closing the log, which ends after entry {self.last_seq}; "
            f"runs open then: {len(self.open_runs)} ({names}{more})."
        )


class StoreGone(Exception):
    """The file of a store was removed or replaced while it was open; what is written to it now nobody would find."""


def same_file(path: Path, opened: os.stat_result) -> bool:
    """Whether the file that was opened still stands at its place."""
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


class Sink(Protocol):
    """A place facts are written to, from one thread."""

    def open(self) -> Recovery:
        """Make it ready. Raises RecordsError where that cannot be."""

    def write(self, facts: Sequence[Fact]) -> int:
        """Write all of them or none, in order; returns the number of the last entry."""

    def tidy(self) -> None:
        """Remove what has outlived its time; called now and then."""

    def reopen(self) -> None:
        """Connect again after a failed write, to a new store where the old one is gone."""

    def close(self) -> None:
        """Say that this writer stopped cleanly, and let go."""
