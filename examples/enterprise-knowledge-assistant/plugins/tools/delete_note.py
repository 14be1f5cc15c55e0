from __future__ import annotations

from plugins.notes_folder import find


def delete_note(title: str) -> str:
    """Delete one note.

    Args:
        title: the note's title, such as onboarding
    """
    path = find(title)
    path.unlink()
    return f"The note {path.stem} is deleted."
