"""generate on every example, again and again with hand edits between: additions alone, and a project that validates."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

import pytest

from agent_engine.spec.check import check_project
from agent_engine.spec.generate import generate
from agent_engine.spec.markers import PROMPT_MARKER, STUB_MARKER

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/agents.yaml"))


def texts(folder: Path) -> dict[Path, str]:
    files = [file for file in folder.rglob("*") if file.suffix in (".py", ".md", ".toml", ".yaml")]
    return {file: file.read_bytes().decode() for file in files}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.parent.name)
def test_three_rounds_with_hand_edits(example: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(example.parent, folder, ignore=shutil.ignore_patterns("__pycache__", ".agent_engine"))
    path = folder / "agents.yaml"
    untouched = texts(folder)
    generate(path)
    assert all(texts(folder)[file] == text for file, text in untouched.items() if file.suffix != ".toml")
    for step in range(3):
        for file in (folder / "plugins").rglob("*.py"):
            file.write_text(file.read_text() + f"\n\nEDIT_{step} = {step}  # by hand\n")
        text = path.read_text()
        head, tools, rest = text.partition("\ntools:\n")
        assert tools, "an example has tools"
        path.write_text(f"{head}{tools}  added_{step}: Added later.\n{rest}")
        before = texts(folder)
        generate(path)
        after = texts(folder)
        for file, old in before.items():
            lost = [line for line in difflib.ndiff(old.splitlines(), after[file].splitlines()) if line.startswith("- ")]
            assert not lost, (file, lost)
        assert generate(path) == []
        for file in (folder / "plugins").rglob("*.py"):
            file.write_text(file.read_text().replace(f'raise NotImplementedError("{STUB_MARKER}")', "return query"))
        for file in folder.rglob("*.md"):
            file.write_text(file.read_text().replace(PROMPT_MARKER + "\n", ""))
    assert [str(problem) for problem in check_project(path) if problem.severity == "error"] == []
