"""The one stream of facts about runs: what opened, what closed, what each hook decided.

Whoever runs something writes entries; decision records, OpenTelemetry, the account that ``agentctl run`` prints and the
inspector are all readers of this stream. Writing is an append: it never raises and never waits.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from agent_engine.hooks.result import HookRun
    from agent_engine.records.settings import RecordSettings

_process = secrets.token_hex(5)
_counter = count(1)


def new_id() -> str:
    """An id for a step or a record that no other process has, for a tenth of what a UUID costs."""
    return f"{_process}-{next(_counter):x}"


def _another_process() -> None:
    global _process
    _process = secrets.token_hex(5)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_another_process)

StepKind: TypeAlias = Literal["agent", "model", "tool", "mcp", "session", "engine"]
Outcome: TypeAlias = Literal["ran", "refused", "declined", "failed", "withheld", "waiting", "cancelled"]


@dataclass(slots=True)
class RunOpened:
    """A request has come in. ``at`` is seconds since the epoch; ``generation`` names the configuration in force."""

    run_id: str
    system: str | None
    session_id: str | None
    user_id: str | None
    organization_id: str | None
    at: float
    message_digest: str | None = None
    generation: str | None = None


@dataclass(slots=True)
class RunClosed:
    """The request has ended; ``status`` is completed, failed, blocked, cancelled or waiting."""

    run_id: str
    status: str
    error_type: str | None
    at: float
    duration_ms: float
    usage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StepOpened:
    """One step of a run begins: a turn of an agent, a model call, a tool call, an MCP request.

    ``detail`` holds safe metadata only (call_id, server_id, provider, attempt, model …). Under the key ``payload`` it
    may carry a dict of values (``asked``: the arguments as the model sent them) when the journal's ``wants_payloads``
    is true; they must be copies that nobody changes afterwards.
    """

    run_id: str
    step_id: str
    parent_id: str | None
    kind: StepKind
    name: str
    agent: str | None
    at: float
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StepClosed:
    """What became of a step.

    ``outcome``: ran; refused (by the hook named in ``refused_by``); declined (a person said no to an ask); failed (its
    own error, or a hook's failure: ``refused_by`` names the hook then); withheld (it ran and its result was refused);
    waiting; cancelled. ``unheard`` are the events this step passed at which something could have listened and nothing
    did. ``detail["payload"]`` may hold ``used`` (the arguments the body got) and ``result``, as in :class:`StepOpened`.
    """

    run_id: str
    step_id: str
    status: str
    error_type: str | None
    outcome: Outcome
    refused_by: str | None
    reason: str | None
    duration_ms: float
    detail: Mapping[str, Any] = field(default_factory=dict)
    unheard: Sequence[str] = ()


@dataclass(slots=True)
class HookRan:
    """One hook ran once at a step. ``step_id`` is None outside any step, ``run_id`` is None outside any run.

    ``record_id`` names the decision record in every store and on the trace's span.
    """

    run_id: str | None
    step_id: str | None
    agent: str | None
    run: HookRun
    record_id: str = field(default_factory=new_id)


Entry: TypeAlias = RunOpened | RunClosed | StepOpened | StepClosed | HookRan


@runtime_checkable
class Journal(Protocol):
    """Takes entries in order.

    ``wants_payloads``: hook runs should carry copies of the payload before and after (for digests or capture).
    ``full``: the journal asks writers to wait: ``if journal.full: await journal.room()`` at the start of a step.
    Entries that are written all the same are still taken, up to a second, hard limit; past that they are counted as
    lost, and the log says where and how many.
    """

    @property
    def wants_payloads(self) -> bool: ...

    @property
    def full(self) -> bool: ...

    def write(self, entry: Entry) -> None:
        """Take one entry; never raises, never blocks. The entry must not be changed afterwards."""

    async def room(self) -> None:
        """Wait until the journal is not full any more."""

    async def start(self) -> None:
        """Get ready to take entries (open a store). Starting twice is harmless."""

    async def stop(self) -> None:
        """Write out everything taken so far and close. Stopping twice is harmless."""


class Journals:
    """Several journals as one; each gets every entry, in order."""

    def __init__(self, journals: Iterable[Journal]) -> None:
        self.members: tuple[Journal, ...] = tuple(journals)

    @property
    def wants_payloads(self) -> bool:
        return any(member.wants_payloads for member in self.members)

    @property
    def full(self) -> bool:
        return any(member.full for member in self.members)

    def write(self, entry: Entry) -> None:
        for member in self.members:
            member.write(entry)

    async def room(self) -> None:
        for member in self.members:
            if member.full:
                await member.room()

    async def start(self) -> None:
        for member in self.members:
            await member.start()

    async def stop(self) -> None:
        errors: list[Exception] = []
        for member in self.members:
            try:
                await member.stop()
            except Exception as error:  # noqa: BLE001 - the others must still be stopped; raised below
                errors.append(error)
        if errors:
            raise errors[0]


class MemoryJournal:
    """Keeps the last ``limit`` entries in memory; for tests, and for looking at a run right after it."""

    def __init__(self, limit: int = 100_000, *, wants_payloads: bool = False) -> None:
        self.entries: deque[Entry] = deque(maxlen=limit)
        self._wants_payloads = wants_payloads

    @property
    def wants_payloads(self) -> bool:
        return self._wants_payloads

    @property
    def full(self) -> bool:
        return False

    def write(self, entry: Entry) -> None:
        self.entries.append(entry)

    async def room(self) -> None:
        return None

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    def hook_runs(self) -> list[HookRun]:
        """All hook runs kept, in order."""
        return [entry.run for entry in self.entries if isinstance(entry, HookRan)]


class CallbackJournal:
    """Hands each entry to a function, for readers that follow a run while it happens (a live page, a progress line)."""

    def __init__(self, callback: Callable[[Entry], None]) -> None:
        self._callback = callback

    @property
    def wants_payloads(self) -> bool:
        return False

    @property
    def full(self) -> bool:
        return False

    def write(self, entry: Entry) -> None:
        try:
            self._callback(entry)
        except Exception as error:  # noqa: BLE001 - a reader's fault must not reach the run
            _report_reader(error)

    async def room(self) -> None:
        return None

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None


def open_journal(
    where: str | Journal | Iterable[str | Journal] | None, *, settings: RecordSettings | None = None
) -> Journal | None:
    """The journal for an address, a journal, or several of either.

    Addresses: ``memory``, ``jsonl:PATH``, ``sqlite:PATH``, ``postgresql://USER@HOST/DATABASE``, ``otel``; ``none`` and
    None give None, and then nothing is built or written anywhere. Options may follow a ``?`` (see
    :class:`RecordSettings`), for example ``sqlite:records.db?capture=before_tool&ttl=7d``.

    Raises:
        ValueError: an unknown address or option; the message lists what there is.
    """
    if where is None:
        return None
    if isinstance(where, str):
        return _from_address(where, settings)
    if isinstance(where, Journal):
        return where
    opened = [journal for item in where if (journal := open_journal(item, settings=settings)) is not None]
    if not opened:
        return None
    return opened[0] if len(opened) == 1 else Journals(opened)


def _from_address(address: str, settings: RecordSettings | None) -> Journal | None:
    if address in ("none", ""):
        return None
    if address == "memory":
        return MemoryJournal()
    if address == "otel":
        from agent_engine.records.otel import OtelJournal

        return OtelJournal()
    from agent_engine.records.store import open_store_journal

    return open_store_journal(address, settings)


def _report_reader(error: Exception) -> None:
    import logging

    logging.getLogger("agent_engine.records").warning("A reader of the journal failed: %s", type(error).__name__)
