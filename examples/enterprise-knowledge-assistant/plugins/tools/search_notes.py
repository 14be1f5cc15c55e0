from __future__ import annotations

import re

from plugins.notes_folder import FOLDER, titles


def search_notes(query: str) -> str:
    """Search the notes.

    Args:
        query: the words to look for
    """
    words = {word for word in re.findall(r"\w+", query.lower()) if len(word) > 2}
    found = []
    for title in titles():
        lines = [line.strip() for line in (FOLDER / f"{title}.md").read_text(encoding="utf-8").splitlines()]
        hits = [line for line in lines if words & set(re.findall(r"\w+", line.lower()))]
        score = len(words & set(re.findall(r"\w+", " ".join([title, *lines]).lower())))
        if score:
            found.append((-score, title, hits[:3]))
    if not found:
        return "No note has these words."
    lines = [f"- {title}: {' / '.join(hits)}" for _, title, hits in sorted(found)]
    return "\n".join(["Notes that match, best first:", *lines])
