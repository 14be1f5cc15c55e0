"""The chain of an audit log: each entry's code covers the entry and the code of the one before.

Whoever does not hold the key cannot change, drop or swap an entry without the codes from there on being wrong. Cutting
off the tail leaves a chain that is right as far as it goes; it shows against a head (number, code) kept elsewhere.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, field
from hashlib import sha256

from agent_engine.records.facts import Fact

START = ""
"""The code before the first entry."""


def body_of(fact: Fact) -> str:
    """What is signed of an entry: its kind and values as JSON, and digests of its payloads where there are any."""
    kind, payloads, *values = fact
    if not payloads:
        return _encode([kind, *values])
    digests = {which: payload_digest(body) for which, body in payloads}
    return _encode([kind, *values, digests])


def payload_digest(body: str) -> str:
    """sha256 of a stored payload, as 64 hex digits."""
    return sha256(body.encode()).hexdigest()


def code(key: bytes, before: str, seq: int, body: str) -> str:
    """The code of entry ``seq``, 64 hex digits."""
    return hmac.digest(key, f"{before}\n{seq}\n{body}".encode(), "sha256").hex()


@dataclass(frozen=True, slots=True)
class Head:
    """Where a log ends: the number of its last entry and, in an audit log, that entry's code."""

    seq: int
    mac: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.mac}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read what ``str(head)`` wrote.

        Raises:
            ValueError: it is something else.
        """
        seq, _, mac = text.strip().partition(":")
        if not seq.isdecimal() or len(mac) not in (0, 64):
            raise ValueError(f"{text!r} is no head; `agentctl records head` prints one, such as 1042:9f2c….")
        return cls(int(seq), mac)


@dataclass(slots=True)
class Verification:
    """What `records verify` found. ``problems`` are sentences, the first ones first; none means the log holds."""

    entries: int = 0
    head: Head = field(default_factory=lambda: Head(0, START))
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems


class ChainCheck:
    """Walks a chain entry by entry, in the order of the store."""

    LIMIT = 20

    def __init__(self, key: bytes, against: Head | None = None) -> None:
        self._key = key
        self._against = against
        self._met = against is None or against.seq == 0
        self._before = START
        self.result = Verification()

    def entry(self, seq: int, body: str, mac: str) -> bool:
        """Check one entry; False where it does not fit."""
        expected = self.result.head.seq + 1
        fits = True
        if seq != expected:
            fits = False
            missing = f"entry {expected} is" if seq == expected + 1 else f"entries {expected} to {seq - 1} are"
            self.problem(f"{missing} missing before entry {seq}" if seq > expected else f"entry {seq} is out of order")
        elif not hmac.compare_digest(code(self._key, self._before, seq, body), mac):
            fits = False
            first = " (or the key is not the one it was written with)" if seq == 1 else ""
            self.problem(f"entry {seq} was changed, moved or put in later{first}")
        if self._against is not None and seq == self._against.seq:
            self._met = True
            if not hmac.compare_digest(mac, self._against.mac):
                self.problem(f"entry {seq} is not the one whose head was printed earlier")
        self._before = mac
        self.result.head = Head(seq, mac)
        self.result.entries += 1
        return fits

    def problem(self, sentence: str) -> None:
        if len(self.result.problems) < self.LIMIT:
            self.result.problems.append(sentence)

    def end(self, stored: Head | None = None) -> Verification:
        """Finish: compare with the head the store itself keeps, and with the one printed earlier."""
        last = self.result.head
        if stored is not None and (stored.seq, stored.mac) != (last.seq, last.mac):
            self.problem(f"the log ends after entry {last.seq}, but the store says it ends after entry {stored.seq}")
        if not self._met and self._against is not None:
            self.problem(f"the tail was cut: entry {self._against.seq}, whose head was printed earlier, is not there")
        return self.result


_encode = json.JSONEncoder(separators=(",", ":")).encode
