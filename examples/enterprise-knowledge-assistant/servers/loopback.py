"""Serve one MCP server over streamable HTTP on a free loopback port, until whoever started it is gone."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

import uvicorn
from starlette.types import ASGIApp


def serve(app: ASGIApp) -> None:
    """Bind a free port of 127.0.0.1, print the server's address as one line, and serve until stopped.

    The process ends on SIGTERM or SIGINT, and also when its standard input closes: a starter that was killed
    leaves no server behind.
    """
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    threading.Thread(target=_stop_with_starter, name="stop-with-starter", daemon=True).start()
    try:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    except BrokenPipeError:
        os._exit(0)  # the starter has gone already, and nobody is left to serve
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


def _stop_with_starter() -> None:
    if sys.stdin.isatty():
        return
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
