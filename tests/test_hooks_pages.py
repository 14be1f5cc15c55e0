"""The pages on hooks: every snippet runs, every link leads somewhere, and that of events is what the catalogue says."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agent_engine.cli.main import main as agentctl
from agent_engine.hooks.events import CATALOGUE
from agent_engine.testing import fresh_default_registry

DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^# (\S+\.\w+)\n")


def test_every_snippet_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_ENGINE_MODEL", "offline")
    blocks = _BLOCK.findall((DOCS / "hooks.md").read_text("utf-8"))
    assert len(blocks) > 20
    printed = ""
    for language, text in blocks:
        named = _FILE.match(text)
        if named is not None:
            (tmp_path / named[1]).write_text(text, "utf-8")
        elif language == "python":
            with fresh_default_registry():
                exec(compile(text, f"hooks.md: {text[:60]!r}", "exec"), {"__name__": "snippet"})
            printed = capsys.readouterr().out
        elif language == "console":
            for line in text.splitlines():
                command = shlex.split(line.removeprefix("$ "))
                if command[0] == "agentctl":
                    monkeypatch.setattr(sys, "argv", command)
                    with fresh_default_registry(), pytest.raises(SystemExit) as ended:
                        agentctl()
                    assert ended.value.code in (0, None), (line, capsys.readouterr())
                else:
                    called(command, tmp_path)
        else:
            assert (language, text) == ("text", printed), "a text block is what the snippet before it prints"


def called(command: list[str], folder: Path) -> None:
    assert command[0] == "python"
    ran = subprocess.run([sys.executable, *command[1:]], cwd=folder, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, (command, ran.stdout, ran.stderr)


@pytest.mark.parametrize("page", ["hooks.md", "events.md"])
def test_every_link_leads_to_a_page_or_a_heading(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        else:
            assert (DOCS / target).is_file(), target


def test_the_page_of_events_is_written_from_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("docs_events", DOCS / "events.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.main(["--check"]) == 0, capsys.readouterr().err
    page = module.render()
    assert all(f"### {event}\n" in page for event in CATALOGUE)
