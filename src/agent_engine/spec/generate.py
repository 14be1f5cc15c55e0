"""``generate``: the stubs, manifest entries and prompts that a declared system still lacks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Mode = Literal["all", "children", "child"]


@dataclass(frozen=True, slots=True)
class Change:
    """One file that ``generate`` made or added to. ``what`` says in a few words what is new in it."""

    path: Path
    kind: Literal["created", "extended", "replaced"]
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}: {self.what}"


def generate(path: str | Path, mode: Mode = "all", agent: str | None = None, force: bool = False) -> list[Change]:
    """Write what is missing and return what was written; [] when nothing was.

    ``mode``: ``all``, ``children`` (everything but the root's own files) or ``child`` (the node ``agent`` alone).
    ``force`` writes generated files anew, hand-written text in them included; prompts are never overwritten.
    Raises SpecError where the file itself is wrong; ValueError for a mode or agent that does not exist.
    """
    raise NotImplementedError
