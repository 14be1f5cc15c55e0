"""Find the entries that fit a question best: BM25 over words, and exact names before everything else."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Words that say how something is asked, not what is asked for.
_STOP_WORDS = """
a about all an and are as at be by can could do does explain find for from get give has have here how i in installed
is it its library list me module of offer offers on or package please python return search show standard tell that the
there this to use used version was what what's whats when where which who why will with work works you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of an index: its dotted or plain name, and a line that says what it is."""

    name: str
    summary: str
    words: Counter[str] = field(compare=False)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without common endings; ``CamelCase``, ``snake_case`` and dots part words."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return [_stem(word) for word in re.findall(r"[a-z0-9]+", parted.lower())]


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if len(word) - len(ending) > 2 and word.endswith(ending) and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


def entry(name: str, summary: str) -> Found:
    # A name's words count three times: an entry is about its name first.
    return Found(name, summary, Counter(words_of(name) * 3 + words_of(summary)))


class Index:
    """Entries that can be searched. Built once; searching it changes nothing."""

    def __init__(self, entries: Iterable[Found]) -> None:
        self.entries: Sequence[Found] = list(entries)
        self._lengths = [sum(found.words.values()) for found in self.entries]
        self._mean = sum(self._lengths) / max(1, len(self._lengths))
        counts: Counter[str] = Counter()
        for found in self.entries:
            counts.update(found.words.keys())
        total = len(self.entries)
        self._weight = {word: math.log(1 + (total - n + 0.5) / (n + 0.5)) for word, n in counts.items()}

    def best(self, query: str, limit: int = 8) -> list[Found]:
        """The entries that fit best, best first; none where no word of the query is known."""
        asked = words_of(" ".join(word for word in query.split() if word.lower().strip("?!.,;:'\"`") not in STOP_WORDS))
        names = {name.lower() for name in re.findall(r"[A-Za-z_][\w.-]*\w", query)} - STOP_WORDS
        scored = []
        for position, found in enumerate(self.entries):
            score = self._score(position, asked) + _name_bonus(found.name.lower(), names)
            if score > 0:
                scored.append((-score, found.name.count("."), position))
        return [self.entries[position] for _, _, position in sorted(scored)[:limit]]

    def _score(self, position: int, asked: Sequence[str]) -> float:
        words, length = self.entries[position].words, self._lengths[position]
        score = 0.0
        for word in asked:
            count = words.get(word, 0)
            if count:
                score += self._weight[word] * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length / self._mean))
        return score


def _name_bonus(name: str, asked: set[str]) -> float:
    """Whole names decide: the full dotted name most, then its end (``datetime.strptime``), then its last part alone."""
    if name in asked:
        return 100.0
    if any("." in one and (name.endswith("." + one) or _skips_a_part(name, one)) for one in asked):
        return 60.0
    return 12.0 if name.rpartition(".")[2] in asked else 0.0


def _skips_a_part(name: str, asked: str) -> bool:
    """People write ``datetime.strptime`` for ``datetime.datetime.strptime``, leaving out a part in the middle."""
    first, _, last = asked.rpartition(".")
    return name.endswith("." + last) and first in name.split(".")[:-1]
