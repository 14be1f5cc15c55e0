"""Values for the prompts of the notes agent."""

from __future__ import annotations

from typing import Any

from plugins.notes_folder import titles
from plugins.resolvers.shared import SharedResolver


class Resolver(SharedResolver):
    async def note_titles(self, ctx: Any) -> str:
        return ", ".join(titles()) or "no note yet"
