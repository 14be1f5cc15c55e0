"""A run that stops for a person: the signal that carries its frames upwards, and the document they make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_engine.runtime.closing import close_step

if TYPE_CHECKING:
    from agent_engine.runtime.approvals import ToolApproval
    from agent_engine.runtime.state import RunState

Abandon = Callable[[BaseException], Coroutine[Any, Any, None]]


class Waiting(BaseException):
    """Nobody can answer now: the frames on the way up are kept and the run stops.

    No error, and no Exception, so that code between the ask and the run (a wrapper, a tool) does not take it for one.

    Args:
        asks: the questions below this point.
        frame: what it takes to go on from here; JSON-ready.
        abandon: the closing events of the steps that stay open, innermost first, for a run that ends all the same.
    """

    def __init__(self, asks: Sequence[ToolApproval], frame: dict[str, Any], abandon: Sequence[Abandon] = ()) -> None:
        super().__init__("waiting for an approval")
        self.asks = tuple(asks)
        self.frame = frame
        self.abandon = list(abandon)


async def abandon(state: RunState, waiting: Sequence[Waiting], error: BaseException) -> None:
    """``error`` ends a run in which steps wait for a person: they end with it."""
    steps = [step for one in waiting for step in one.abandon]
    await close_step(state, error, *(partial(step, error) for step in steps))


def digest_of(arguments: Mapping[str, Any]) -> str:
    """The digest that a yes is bound to: SHA-256 of the arguments, keys sorted."""
    from agent_engine.tools.result import plain

    try:
        text = json.dumps(arguments, sort_keys=True, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(plain(dict(arguments)), sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
