"""What the file may say about events, read from the catalogue of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.hooks.events import HookEvent

ON_CONFIG = (
    "on_config is for hooks that exist before the file is read: it cannot stand under hooks and is registered in Python"
)


def old_names() -> Mapping[str, str]:
    """Old name → event, as the catalogue has them."""
    from agent_engine.hooks.events import OLD_NAMES

    return OLD_NAMES


def event_names() -> list[str]:
    """Every event that may be a key under ``hooks``, in the order of the catalogue."""
    from agent_engine.hooks.events import HookEvent

    return [event.value for event in HookEvent if event.value != "on_config"]


def hook_event(name: str) -> HookEvent | None:
    """The event of a key under ``hooks`` (old names included); None where there is none."""
    from agent_engine.hooks.events import HookEvent

    value = old_names().get(name, name)
    return next((event for event in HookEvent if event.value == value), None)


def target_of(name: str) -> str | None:
    """The payload field that a matcher of this event is tried against, or None."""
    from agent_engine.hooks.events import CATALOGUE

    event = hook_event(name)
    return CATALOGUE[event].target if event is not None else None
