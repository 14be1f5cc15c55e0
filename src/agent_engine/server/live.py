"""What pages follow while it happens: the store growing, and the text of answers on their way."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.records.query import RecordReader

_LOOK_S = 0.25
_MOST_TEXT = 200_000
_REMEMBERED = 200


@dataclass(slots=True)
class Answer:
    """The text of one run's answer so far. ``changed`` is set, and replaced, whenever it grows, ends or gives way."""

    text: str = ""
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Live:
    """One for a server. The store is looked at only while somebody follows it."""

    def __init__(self, reader: RecordReader | None) -> None:
        self._reader = reader
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._followers = 0
        self._grown = asyncio.Event()
        self._looker: asyncio.Task[None] | None = None
        self._seq = -1
        self._closing = False

    # -- answers ------------------------------------------------------------------------------------------------------

    def begin(self, run_id: str) -> None:
        """A run of this server begins, or goes on after it waited."""
        before = self._answers.get(run_id)
        self._answers[run_id] = Answer()
        self._answers.move_to_end(run_id)
        if before is not None:
            before.tell()
        while len(self._answers) > _REMEMBERED:
            _, forgotten = self._answers.popitem(last=False)
            forgotten.tell()

    def text(self, run_id: str, piece: str) -> None:
        answer = self._answers.get(run_id)
        if answer is not None and len(answer.text) < _MOST_TEXT:
            answer.text += piece
            answer.tell()

    def end(self, run_id: str) -> None:
        answer = self._answers.get(run_id)
        if answer is not None:
            answer.ended = True
            answer.tell()

    async def whole(self, run_id: str) -> None:
        """Wait until an answer is whole: it passes the hooks at the edge when its run has ended."""
        while (answer := self._answers.get(run_id)) is not None and not answer.ended:
            await answer.changed.wait()

    def answer(self, run_id: str) -> Answer | None:
        """The answer of a run of this server, while it is remembered."""
        return self._answers.get(run_id)

    # -- the store ----------------------------------------------------------------------------------------------------

    async def grown(self) -> AsyncIterator[None]:
        """One item each time the store has grown, whoever writes to it. Ends when the server stops."""
        with self._following():
            while not self._closing:
                event = self._grown
                await event.wait()
                if not self._closing:
                    yield

    async def close(self) -> None:
        """Let everybody who follows go."""
        self._closing = True
        self._announce()
        for answer in self._answers.values():
            answer.ended = True
            answer.tell()
        if self._looker is not None:
            self._looker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looker

    @property
    def closing(self) -> bool:
        return self._closing

    @contextlib.contextmanager
    def _following(self) -> Iterator[None]:
        self._followers += 1
        if self._looker is None and self._reader is not None:
            self._looker = asyncio.get_running_loop().create_task(self._look(self._reader.last_seq))
        try:
            yield
        finally:
            self._followers -= 1
            if self._followers == 0 and self._looker is not None:
                self._looker.cancel()
                self._looker = None

    async def _look(self, last_seq: Callable[[], int]) -> None:
        while True:
            try:
                seq = await asyncio.to_thread(last_seq)
            except Exception:  # noqa: BLE001 - a store that is away for a moment; the next look may find it
                seq = self._seq
            if seq != self._seq:
                self._seq = seq
                self._announce()
            await asyncio.sleep(_LOOK_S)

    def _announce(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()
