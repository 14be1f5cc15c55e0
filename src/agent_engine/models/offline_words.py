"""Words, and which texts they fit best: BM25 over a handful of documents, and what it needs to know of English."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

# Words that carry no topic: they say how something is asked.
_FUNCTION_WORDS = """
a about actually after all also am an and any anything are as at be because been before being between both but by can
could did do does doing done each either else even ever few for from further get gets give given gives go goes going
had has have having he hello her here hers hey hi him his how i if in into is it its itself just kind kindly know let
like ll many may me might mine more most much must my myself need needs no nor not now of off on once one ones only or
other our ours out over own per please quite re really s same shall she should since so some something such t than
thank thanks that the their theirs them then there these they thing things this those through to too under until up
upon us use used uses using ve very via want was we well were what whats when where whether which while who whom whose
why will with within without would yes yet you your yours
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())

# What is asked to be done, by the words that people and tools have for it.
_ACTIONS = {
    "read": "read show open display view say says said tell tells content contents get fetch describe explain load",
    "list": "list all every enumerate overview offer offers available",
    "search": "search find look lookup query seek discover",
    "delete": "delete remove erase drop destroy discard purge trash clear unlink",
    "create": "create add new make insert append write save store compose draft register",
    "update": "update change edit modify set rename replace move correct",
    "send": "send mail email post publish notify submit message reply",
    "run": "run execute start launch invoke call trigger",
    "stop": "stop cancel kill abort terminate disable shutdown",
    "buy": "buy order pay purchase book transfer",
}
_ACTION_OF = {word: action for action, words in _ACTIONS.items() for word in words.split()}
CHANGING = frozenset({"delete", "create", "update", "send", "run", "stop", "buy"})
"""Actions that change something: a tool that does one is not used unless the question asks for it."""


def words_of(text: str) -> list[str]:
    """The words of a text: lower case, stemmed, parted at ``CamelCase``, ``snake_case`` and dots."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return [stem(word) for word in re.findall(r"[^\W_]+", parted.lower())]


def topics_of(text: str) -> list[str]:
    """The words that carry a topic, stemmed, in their order."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return [stem(word) for word in re.findall(r"[^\W_]+", parted.lower()) if word not in FUNCTION_WORDS]


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """The word without common English endings; what is left is a label, not a word."""
    for ending in ("ations", "ation", "ings", "ing", "ies", "ied", "ed", "es", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) > 2 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


def actions_of(text: str) -> set[str]:
    """The actions that a text asks for, or a tool's name and description promise."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return {_ACTION_OF[word] for word in re.findall(r"[^\W_]+", parted.lower()) if word in _ACTION_OF}


GENERAL_VERBS = frozenset(stem(word) for word in _ACTION_OF)


class Ranking:
    """Documents, each a bag of weighted words, to be scored against a query."""

    def __init__(self, documents: Sequence[Mapping[str, float]], *, length_counts: float = 0.75) -> None:
        self._documents = documents
        self._b = length_counts
        self._lengths = [sum(document.values()) for document in documents]
        self._mean = (sum(self._lengths) / len(documents) if documents else 1.0) or 1.0
        seen = Counter(word for document in documents for word in document)
        self._weight = {
            word: math.log(1 + (len(documents) - count + 0.5) / (count + 0.5)) for word, count in seen.items()
        }

    def scores(self, query: Mapping[str, float]) -> list[float]:
        """Each document's BM25 score for a query of weighted words."""
        found = []
        for document, size in zip(self._documents, self._lengths, strict=True):
            damping = 1.2 * (1 - self._b + self._b * size / self._mean)
            found.append(
                sum(
                    weight * self._weight[word] * document[word] * 2.2 / (document[word] + damping)
                    for word, weight in query.items()
                    if word in document
                )
            )
        return found


def bag(*texts: tuple[str, float]) -> Counter[str]:
    """A document of several texts, the words of each counted with its weight."""
    words: Counter[str] = Counter()
    for text, weight in texts:
        for word in topics_of(text):
            words[word] += weight  # type: ignore[assignment]  # a Counter of weights
    return words


def coverage(wanted: Iterable[str], text: str) -> float:
    """The share of the wanted words (stems) that a text has; 1.0 where none are wanted."""
    asked = set(wanted)
    if not asked:
        return 1.0
    return len(asked & set(words_of(text))) / len(asked)
