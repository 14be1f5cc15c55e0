"""Run events as an async stream, and holding text back until a hook has passed it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.runtime.result import RunEvent, RunResult


def stream_events(
    start: Callable[[Callable[[RunEvent], None]], Awaitable[RunResult]],
) -> AsyncIterator[RunEvent]:
    """The events of a run as they happen, the final one last; then the run's own exception, if it failed.

    Args:
        start: starts the run and hands it the ``emit`` it is given, for example
            ``lambda emit: run_request(node, message, host=host, emit=emit)``.

    Leaving the stream early cancels the run and waits until every open step is closed.
    """
    raise NotImplementedError
