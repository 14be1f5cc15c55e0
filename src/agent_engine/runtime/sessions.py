"""Sessions of a host: which conversations are open here, what was granted in them, and their end."""

from __future__ import annotations


class Sessions:
    """The open sessions of one Host."""

    def __init__(self, host: object) -> None:
        self.host = host
