"""Reads the corpus of bad files: cases, and for each the lines and words of the problems it must give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MARK = "#!"
FILLER = {"system": "system: {name: demo}", "agents": "agents: {a: {}}", "graph": "graph: {a: }"}


@dataclass(frozen=True)
class Case:
    """One bad file. ``expected`` holds (line, words of the message)."""

    group: str
    name: str
    text: str
    expected: tuple[tuple[int, str], ...]

    @property
    def shape(self) -> bool:
        return self.group == "shapes"


def cases(*groups: str) -> list[Case]:
    return [case for group in groups or ("shapes", "meaning", "yaml") for case in _read(group)]


def _read(group: str) -> list[Case]:
    parts = (CORPUS / f"{group}.txt").read_text("utf-8").split("=== ")[1:]
    found = []
    for part in parts:
        name, _, body = part.partition("\n")
        lines = body.splitlines()
        expected = tuple(_expectation(number, line) for number, line in enumerate(lines, 1) if MARK in line)
        if group != "yaml":
            kept = {line.partition(":")[0] for line in lines}
            body = body.rstrip("\n") + "\n" + "".join(f"{text}\n" for key, text in FILLER.items() if key not in kept)
        found.append(Case(group, name, body, expected))
    return found


def _expectation(number: int, line: str) -> tuple[int, str]:
    """``#! words`` expects them at this line, ``#!+1 words`` one line below."""
    text = line.partition(MARK)[2]
    if text.startswith("+1"):
        return number + 1, text[2:].strip()
    return number, text.strip()
