"""Libraries that log addresses, headers or messages are kept quiet: below a warning, or for good."""

from __future__ import annotations

import logging

NOISY = ("httpx2", "httpcore2", "mcp")
SILENT = "mcp.client.streamable_http"
"""Its errors quote what a server sent; each of them reaches the caller as an error that does not."""


def quieten() -> None:
    """Raise the level of the loggers whose lower levels show addresses, session ids, headers and arguments."""
    for name in NOISY:
        logger = logging.getLogger(name)
        if logger.level < logging.WARNING:
            logger.setLevel(logging.WARNING)
    client = logging.getLogger(SILENT)
    if client.level <= logging.CRITICAL:
        client.setLevel(logging.CRITICAL + 1)
