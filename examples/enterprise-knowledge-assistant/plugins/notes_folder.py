"""The notes: Markdown files in one folder. A note's title is its file name without the ending."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(os.environ.get("NOTES_FOLDER") or Path(__file__).resolve().parent.parent / "notes")


def titles() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.md"))


def find(title: str) -> Path:
    """The file of a note, its title with blanks and capitals if need be; FileNotFoundError lists the titles."""
    wanted = title.strip().strip("'\"`").lower().removesuffix(".md").replace(" ", "-").replace("_", "-")
    for name in titles():
        if name.lower() == wanted:
            return FOLDER / f"{name}.md"
    raise FileNotFoundError(f"There is no note titled {title!r}. The notes are: {', '.join(titles())}.")
