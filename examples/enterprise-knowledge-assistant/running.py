"""The demo's two MCP servers as processes: started on free ports, and stopped whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

SERVERS = Path(__file__).resolve().parent / "servers"
KEY = "PRIVATE_PACKAGES_API_KEY"


@contextlib.contextmanager
def servers() -> Iterator[dict[str, str]]:
    """Start both MCP servers on free loopback ports; gives their addresses by the names that agents.yaml uses."""
    started: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in ("public_docs", "private_packages"):
            started[name] = start(name)
        yield {f"{name.upper()}_URL": address_of(name, process) for name, process in started.items()}
    finally:
        for process in started.values():
            stop(process)


def start(name: str) -> subprocess.Popen[str]:
    # A session of its own keeps a Ctrl-C here from reaching it twice; it ends when its standard input closes.
    environment = os.environ if name == "private_packages" else {k: v for k, v in os.environ.items() if k != KEY}
    return subprocess.Popen(
        [sys.executable, str(SERVERS / f"{name}.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def address_of(name: str, process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        raise RuntimeError(f"The server {name} ended before it was ready.")
    return address


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        close(pipe)


def close(pipe: IO[str] | None) -> None:
    if pipe is not None:
        pipe.close()
