"""A run that stops for a person: the signal that carries its frames upwards, and the document they make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_engine.runtime.approvals import ToolApproval


class Waiting(BaseException):
    """Nobody can answer now: the frames on the way up are kept and the run stops.

    No error, and no Exception, so that code between the ask and the run (a wrapper, a tool) does not take it for one.

    Args:
        asks: the questions below this point.
        frame: what it takes to go on from here; JSON-ready.
    """

    def __init__(self, asks: Sequence[ToolApproval], frame: dict[str, Any]) -> None:
        super().__init__("waiting for an approval")
        self.asks = tuple(asks)
        self.frame = frame


def digest_of(arguments: Mapping[str, Any]) -> str:
    """The digest that a yes is bound to: SHA-256 of the arguments, keys sorted."""
    from agent_engine.tools.result import plain

    try:
        text = json.dumps(arguments, sort_keys=True, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(plain(dict(arguments)), sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
