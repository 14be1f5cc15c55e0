from __future__ import annotations

from plugins.notes_folder import titles


def list_notes() -> str:
    """List the titles of all notes."""
    return "\n".join(["Titles of the notes:", *(f"- {title}" for title in titles())])
