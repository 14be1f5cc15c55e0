"""Libraries that log addresses, headers or messages are kept quiet below a warning."""

from __future__ import annotations

import logging

NOISY = ("httpx2", "httpcore2", "mcp")


def quieten() -> None:
    """Raise the level of the loggers whose lower levels show addresses, session ids, headers and arguments."""
    for name in NOISY:
        logger = logging.getLogger(name)
        if logger.level < logging.WARNING:
            logger.setLevel(logging.WARNING)
