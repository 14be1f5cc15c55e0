"""The clock of an event loop, put forward: a limit is over when a test says so, and never before."""

from __future__ import annotations

import asyncio


def put_forward(seconds: float) -> None:
    """What the running loop would do within so many seconds, it does now."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
