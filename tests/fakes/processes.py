"""Which processes a test has started, and all that they started, wherever they have got to."""

from __future__ import annotations

import asyncio
from pathlib import Path


def processes_of(marker: str) -> set[int]:
    """The live processes whose environment has the marker: a server, and all that it started."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


async def none_left(marker: str) -> None:
    """Wait until there is none. What has been killed is gone as soon as a busy machine comes to it."""
    async with asyncio.timeout(60):
        while processes_of(marker):
            await asyncio.sleep(0.01)
