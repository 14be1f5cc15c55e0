"""The tool current_time."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo


def current_time(zone: str = "UTC") -> str:
    """Tell the time.

    Args:
        zone: an IANA time zone, such as Europe/Vienna
    """
    return f"It is {datetime.now(ZoneInfo(zone)):%H:%M on %A, %d %B %Y} in {zone}."
