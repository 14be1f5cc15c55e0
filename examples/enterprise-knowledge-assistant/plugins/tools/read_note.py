"""Reading a note, and the rule that no key leaves the notes: a hook registered from Python, beside what it guards."""

from __future__ import annotations

import re

from agent_engine.hooks import AfterToolInput, add_hook
from plugins.notes_folder import find

KEY = re.compile(r"\b(?:sk|pk|ghp|xox[abp])[-_][A-Za-z0-9_-]{16,}")


def read_note(title: str) -> str:
    """Read one note.

    Args:
        title: the note's title, such as onboarding
    """
    path = find(title)
    return f"Note {path.stem}\n\n{path.read_text(encoding='utf-8')}"


@add_hook("after_tool", matcher="read_note|search_notes", priority=10)
def redact_keys(event: AfterToolInput) -> str | None:
    """What looks like a key is taken out before the model, the history or a record gets the text."""
    text = event.tool_output
    return KEY.sub("[a key was here]", text) if isinstance(text, str) and KEY.search(text) else None
