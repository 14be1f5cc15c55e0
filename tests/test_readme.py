"""Every snippet of the README and the quick start runs: files are written, Python is executed, commands are called."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from jsonschema import Draft202012Validator

from agent_engine.spec.load import examine_text
from agent_engine.spec.schema import json_schema

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "docs/quickstart.md", "docs/agents.md", "docs/mcp.md", "docs/records.md", "docs/server.md"]
REFERENCE = "docs/agents_yaml.md"
# A block of text here is what the command above it says.
SAYS = ("docs/agents.md", "docs/mcp.md")
# These go on with the system that the quick start builds.
AFTER_QUICKSTART = ("docs/records.md", "docs/server.md")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^# (\S+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The path that a block's first line names, where the block is a file."""
        found = _FILE.match(self.text)
        return found[1] if found else None

    def write(self, folder: Path) -> None:
        assert self.file is not None
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        # In Markdown a line with a # is a heading, and belongs to the file.
        path.write_text(_FILE.sub("", self.text) if self.language == "md" else self.text, encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "AGENT_ENGINE_MODEL": "offline", "COLUMNS": "120"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_of_a_page_runs(page, tmp_path):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    if page in AFTER_QUICKSTART:
        for block in blocks_of("docs/quickstart.md"):
            if block.file is not None:
                block.write(tmp_path)
        run(["agentctl", "generate", "agents.yaml"], tmp_path)
    for block in blocks_of(page):
        if block.file is not None:
            block.write(tmp_path)
        elif block.language == "python":
            done = run([sys.executable, "-c", block.text], tmp_path)
            assert done.returncode == 0, done.stderr
        elif block.language == "console":
            for line in block.text.splitlines():
                if line.startswith("$ make "):
                    assert shlex.split(line)[2] in targets
                elif line.startswith("$ "):
                    done = run(shlex.split(line[2:]), tmp_path)
                    assert done.returncode == 0, (line, done.stdout, done.stderr)
                    assert "Traceback" not in done.stderr
        else:
            assert block.language == "text", f"{page} has a {block.language} block that no test runs"
            assert page not in SAYS or block.text in done.stdout + done.stderr


def snippet(page: str, beginning: str) -> str:
    return next(block.text for block in blocks_of(page) if block.text.startswith(beginning))


def test_the_python_snippet_prints_the_reason(tmp_path):
    done = run([sys.executable, "-c", snippet("README.md", "from agent_engine import Agent")], tmp_path)
    assert "the note plan is kept for the record" in done.stdout


def test_the_yaml_snippet_answers_and_shows_its_audit_line(tmp_path):
    for block in blocks_of("README.md"):
        if block.file is not None:
            block.write(tmp_path)
    done = run(["agentctl", "run", "--config", "agents.yaml", "--message", "What is the current time?"], tmp_path)
    assert re.search(r"It is \d\d:\d\d in UTC", done.stdout), done.stdout + done.stderr
    assert "log audit: user=somebody tool=current_time status=succeeded" in done.stderr
    assert "hook on_run_start · audit.note_the_caller: modify (user_id)" in done.stderr


def test_the_server_answers_what_its_page_sends_with_curl(tmp_path):
    for block in blocks_of("docs/quickstart.md"):
        if block.file is not None:
            block.write(tmp_path)
    assert run(["agentctl", "generate", "agents.yaml"], tmp_path).returncode == 0
    lines = [line for line in snippet("docs/server.md", "curl ").splitlines() if line.startswith("curl ")]
    command = [sys.executable, "-m", "agent_engine.cli.main", "serve", "--config", "agents.yaml", "--port", "0"]
    environ = {**os.environ, "AGENT_ENGINE_MODEL": "offline"}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://\S+", server.stderr.readline())[0]
            said = [answer_to(shlex.split(line.replace("http://127.0.0.1:8090", address))) for line in lines]
        finally:
            server.terminate()
    assert "Order A-17 is shipped." in said[0]
    assert "order A-17 has left the house" in said[1]
    assert "event: final" in said[1]
    assert said[2].startswith('{"runs":[')  # a run is there as soon as its records are written


def answer_to(curl: list[str]) -> str:
    """What a curl command would print: urllib asks in its place, which is there wherever Python is."""
    url = next(word for word in curl if word.startswith("http"))
    headers = dict(curl[i + 1].split(": ", 1) for i, word in enumerate(curl) if word == "-H")
    body = curl[curl.index("-d") + 1].encode() if "-d" in curl else None
    with urlopen(Request(url, body, headers), timeout=300) as answer:
        return answer.read().decode()


def test_the_command_snippet_decides_by_its_exit_code(tmp_path):
    from agent_engine.hooks import BeforeToolInput, HookRegistry, HookRunner

    (tmp_path / "office_hours.sh").write_text(snippet("README.md", "# office_hours.sh"), encoding="utf-8")
    (tmp_path / "hooks.yaml").write_text(snippet("README.md", "# hooks.yaml"), encoding="utf-8")
    registry = HookRegistry.from_yaml(tmp_path / "hooks.yaml")
    payload = BeforeToolInput(tool_name="current_time", tool_input={})

    allowed = HookRunner(registry, cwd=str(tmp_path)).execute_sync("before_tool", payload, target="current_time")
    assert not HookRunner.is_blocked(allowed)

    closed = (tmp_path / "office_hours.sh").read_text(encoding="utf-8").replace("-gt 7", "-gt 0")
    (tmp_path / "office_hours.sh").write_text(closed, encoding="utf-8")
    refused = HookRunner(registry, cwd=str(tmp_path)).execute_sync("before_tool", payload, target="current_time")
    assert HookRunner.get_blocking_reason(refused) == "this tool rests today"


def test_the_picture_of_the_account_names_real_hooks():
    picture = snippet("README.md", "enterprise-knowledge-assistant")
    example = (ROOT / "examples" / "enterprise-knowledge-assistant" / "agents.yaml").read_text(encoding="utf-8")
    named = re.findall(r"hook (\w+) · ([\w.]+)", picture)
    assert len(named) >= 4
    for event, hook in named:
        assert f"  {event}:" in example or hook == "redact_keys"
        assert hook.rpartition(".")[2] in example or hook == "redact_keys"


def test_the_reference_of_the_file_says_what_is_so(tmp_path):
    """Commands end with the code they name (else 0) and say the text below them; pieces of YAML fit into its system."""
    said, pieces = "", []
    for block in blocks_of(REFERENCE):
        if block.file is not None:
            block.write(tmp_path)
        elif block.language == "yaml":
            pieces.append(block.text)
        elif block.language == "python":
            done = run([sys.executable, "-c", block.text], tmp_path)
            said = done.stdout + done.stderr
        elif block.language == "console":
            for line in block.text.splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                waiting = re.search(r"^(?:Run )?([0-9a-f]{32}) ", said, re.MULTILINE)
                done = run([waiting[1] if word == "RUN" and waiting else word for word in words], tmp_path)
                said = done.stdout + done.stderr
                assert done.returncode == int((re.findall(r"# exit code (\d)", line) or ["0"])[0]), (line, said)
        else:
            assert block.language == "text"
            assert block.text in said
    whole = (tmp_path / "agents.yaml").read_text(encoding="utf-8")
    accepts = Draft202012Validator(json_schema()).is_valid
    for piece in pieces:
        text = with_piece(whole, piece)
        loaded, problems = examine_text(text, tmp_path / "agents.yaml", environ={})
        assert loaded is not None, problems
        assert [str(one) for one in problems if one.severity == "error"] == [], piece
        assert accepts(loaded.data), piece


def with_piece(whole: str, piece: str) -> str:
    """A file with the top-level keys of ``piece`` in the place of its own."""
    parts = re.split(r"^(?=\w+:)", whole, flags=re.MULTILINE)
    for part in re.split(r"^(?=\w+:)", piece, flags=re.MULTILINE)[1:]:
        key = part.partition(":")[0]
        kept = [one for one in parts if not one.startswith(f"{key}:")]
        parts = [*kept, part if part.endswith("\n") else f"{part}\n"]
    return "".join(parts)


@pytest.mark.parametrize("page", [*PAGES, REFERENCE, "CONTRIBUTING.md", "docs/index.md"])
def test_every_link_leads_to_a_file(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
