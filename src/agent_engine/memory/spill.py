"""Turns that a store could not take: kept in a file, and brought home when the store works again."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent_engine.memory.store import ConversationKey, ConversationStore, MemoryStore

if TYPE_CHECKING:
    from agent_engine.memory.message import Message

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PersistFailure:
    """What became of messages that the store did not take.

    ``error`` is the type of the failure. ``spilled`` says whether they are in the file at ``path``; if not even that
    could be written, they are held in this process.
    """

    error: str
    spilled: bool
    path: str | None


@dataclass(frozen=True, slots=True)
class Spilled:
    """One entry of a spill file. ``store`` says which store it belongs in: a file may serve several. ``tried`` is how
    long its conversation was when it was last about to be brought home; None where it never was."""

    id: str
    store: str
    key: ConversationKey
    messages: list[Message]
    tried: int | None = None


class SpillFile:
    """A file of one JSON entry a line, readable by its owner alone.

    Several threads and processes may use one: a lock file beside it keeps them apart.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def write(self, store: str, key: ConversationKey, messages: Iterable[Message]) -> None:
        """Add an entry and bring it to the disk. Raises OSError where that cannot be done."""
        entry = {"id": uuid.uuid4().hex, "at": time.time(), "store": store}
        entry.update(key=list(key), messages=list(messages))
        self._add(entry)

    def mark(self, entry_id: str, length: int) -> None:
        """Note that an entry is about to be stored behind ``length`` messages: whoever finds it here afterwards can
        tell whether it was. Raises OSError where that cannot be done."""
        self._add({"tried": entry_id, "length": length})

    def _add(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, default=repr).encode() + b"\n"
        with self._alone():
            handle = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    line = b"\n" + line  # the last writer died in the middle of its line
                while line:
                    line = line[os.write(handle, line) :]
                os.fsync(handle)
            finally:
                os.close(handle)

    def entries(self) -> list[Spilled]:
        """What is in the file, oldest first; a line that a dying process left half written is passed over."""
        tried = dict(mark for line, _ in self._lines() if (mark := _mark(line)) is not None)
        return [replace(entry, tried=tried.get(entry.id)) for _, entry in self._lines() if entry is not None]

    def remove(self, done: Iterable[str]) -> None:
        """Take entries out by their ids. What else is in the file stays, half lines too."""
        gone = set(done)
        with self._alone():
            kept = [line for line, entry in self._lines() if _id(line, entry) not in gone]
            if not kept:
                self.path.unlink(missing_ok=True)
                return
            fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
            with os.fdopen(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines(line + b"\n" for line in kept)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.path)

    def _lines(self) -> Iterator[tuple[bytes, Spilled | None]]:
        try:
            data = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return
        for line in data.splitlines():
            if line.strip():
                yield line, _entry(line)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock, contextlib.ExitStack() as stack:
            try:
                import fcntl
            except ImportError:  # a system without it: one process alone
                yield
                return
            handle = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


class Keeper:
    """Puts turns into a store, and into a spill file while the store fails. No turn is lost, and their order stays.

    Args:
        store: where conversations belong.
        path: the spill file. By default beside a store that has a file, else under ``.agent_engine`` here. Where it
            cannot be written, the system's folder for temporary files is tried.
    """

    def __init__(self, store: ConversationStore, path: str | os.PathLike[str] | None = None) -> None:
        self.store = store
        self._label = _label(store)
        self._path = Path(path) if path is not None else _default_path(store)
        self._held: list[Spilled] = []
        self._troubled = not self._label.startswith("process:") and any(file.path.exists() for file in self._files)

    @cached_property
    def _files(self) -> list[SpillFile]:
        import tempfile  # it brings much along, and a store in memory never spills

        user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""
        spare = Path(tempfile.gettempdir()) / f"agent_engine{user}" / self._path.name
        return [SpillFile(self._path), SpillFile(spare)]

    async def load(self, key: ConversationKey) -> list[Message]:
        """The conversation, with the turns that still wait in a spill file. Raises what the store raises."""
        if self._troubled:
            await self.restore()
        messages = await self.store.load(key)
        if self._troubled:
            for entry in await self._waiting(key):
                messages.extend(entry.messages)
        return messages

    async def append(self, key: ConversationKey, messages: Sequence[Message]) -> PersistFailure | None:
        """Keep messages: None where the store has them, else what became of them."""
        error: Exception | None = None
        if self._troubled:
            await self.restore()
        if not self._troubled or not await self._waiting(key):
            try:
                await self.store.append(key, messages)
            except Exception as failed:  # noqa: BLE001 - a store of the user's own may raise anything
                error = failed
            else:
                return None
        self._troubled = True
        kind = type(error).__name__ if error is not None else "StoreError"
        for file in self._files:
            try:
                await _in_worker(file.write, self._label, key, messages)
            except OSError:
                continue
            return PersistFailure(kind, True, str(file.path))
        self._held.append(Spilled(uuid.uuid4().hex, self._label, key, [dict(message) for message in messages]))
        return PersistFailure(kind, False, None)

    async def restore(self) -> int:
        """Bring spilled turns home as far as the store takes them; how many entries that were."""
        brought = left = 0
        for file in self._files:
            entries = await self._own(file)
            done = [entry.id for entry in entries if await self._bring(entry, file)]
            if done:
                await _in_worker(file.remove, done)
            brought += len(done)
            left += len(entries) - len(done)
        held = [entry for entry in self._held if not await self._bring(entry)]
        brought += len(self._held) - len(held)
        self._held = held
        self._troubled = bool(left or held)
        return brought

    async def _bring(self, entry: Spilled, file: SpillFile | None = None) -> bool:
        try:
            there = await self.store.load(entry.key)
            # A process that died between storing and striking out leaves an entry that is home already. That the last
            # messages read the same is not enough: people say the same thing twice.
            tried = entry.tried
            if tried is not None and there[tried : tried + len(entry.messages)] == entry.messages:
                return True
            if file is not None and tried != len(there):
                with contextlib.suppress(OSError):  # twice is better than never
                    await _in_worker(file.mark, entry.id, len(there))
            await self.store.append(entry.key, entry.messages)
        except Exception:  # noqa: BLE001 - not yet; it stays where it is
            return False
        return True

    async def _waiting(self, key: ConversationKey) -> list[Spilled]:
        spilled = [entry for file in self._files for entry in await self._own(file)]
        return [entry for entry in [*spilled, *self._held] if entry.key == key]

    async def _own(self, file: SpillFile) -> list[Spilled]:
        try:
            entries = await _in_worker(file.entries)
        except OSError:
            return []  # not to be read now; nothing in it is touched
        return [entry for entry in entries if entry.store == self._label]


def _entry(line: bytes) -> Spilled | None:
    try:
        data: Any = json.loads(line)
        return Spilled(data["id"], data["store"], ConversationKey(*data["key"]), data["messages"])
    except (ValueError, KeyError, TypeError):
        return None


def _mark(line: bytes) -> tuple[str, int] | None:
    try:
        data: Any = json.loads(line)
        return str(data["tried"]), int(data["length"])
    except (ValueError, KeyError, TypeError):
        return None


def _id(line: bytes, entry: Spilled | None) -> str | None:
    """The entry that a line is, or is about."""
    if entry is not None:
        return entry.id
    mark = _mark(line)
    return mark[0] if mark is not None else None


def _default_path(store: ConversationStore) -> Path:
    file = getattr(store, "path", None)
    if isinstance(file, str) and file != ":memory:":
        return Path(f"{file}.spill.jsonl")
    return Path(".agent_engine") / "spill.jsonl"


def _label(store: ConversationStore) -> str:
    """What tells a store from others; one that lives in this process alone is like no other."""
    file = getattr(store, "path", None)
    if isinstance(file, str) and file != ":memory:":
        return f"file:{os.path.abspath(file)}"
    if file == ":memory:" or isinstance(store, MemoryStore):
        return f"process:{uuid.uuid4().hex}"
    return f"type:{type(store).__module__}.{type(store).__qualname__}"


async def _in_worker(work: Callable[..., T], *args: Any) -> T:
    from agent_engine.hooks.workers import run_in_worker

    return await run_in_worker(work, *args)
