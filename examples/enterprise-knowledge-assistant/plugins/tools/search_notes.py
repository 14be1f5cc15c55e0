from __future__ import annotations

import re

from plugins.notes_folder import FOLDER, titles

# Short words and these say how something is asked, not what is asked for.
_ASKING = frozenset({"about", "does", "note", "notes", "that", "them", "there", "this", "what", "which", "with"})


def search_notes(query: str) -> str:
    """Search the notes.

    Args:
        query: the words to look for
    """
    words = {word for word in _words(query) if len(word) > 3} - _ASKING
    found = []
    for title in titles():
        lines = [line.strip() for line in (FOLDER / f"{title}.md").read_text(encoding="utf-8").splitlines()]
        hits = [line for line in lines if words & _words(line)]
        score = 2 * len(words & _words(title)) + len(words & _words(" ".join(lines)))
        if score:
            found.append((-score, title, hits[:2]))
    if not found:
        return "No note has these words."
    lines = [f"- {title}: {' / '.join(hits)}" for _, title, hits in sorted(found)]
    return "\n".join(["Notes that match, best first:", *lines])


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))
