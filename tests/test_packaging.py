"""What the distribution promises: its metadata, its light import, pinned versions, and files for a bare machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_distribution_installs_the_command_and_its_types():
    scripts = {one.name: one.value for one in metadata.entry_points(group="console_scripts")}
    assert scripts["agentctl"] == "agent_engine.cli.main:main"
    assert (ROOT / "src" / "agent_engine" / "py.typed").exists()
    assert metadata.version("agent-engine") == __import__("agent_engine").__version__


def test_importing_the_package_imports_no_library():
    code = (
        "import sys, agent_engine, agent_engine.hooks\nprint(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=3000, check=True)
    loaded = set(re.findall(r"'([^']+)'", done.stdout))
    for heavy in ("pydantic", "mcp", "httpx2", "sqlalchemy", "rich", "typer", "ruamel", "yaml", "anyio"):
        assert heavy not in loaded


def test_constraints_pin_every_dependency_and_name_no_index():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in pins)
    names = {normal(line.partition("==")[0]) for line in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["test"]]
    for requirement in [*wanted, *project["dependency-groups"]["check"]]:
        assert normal(re.split(r"[<>=\[;! ]", requirement)[0]) in names, requirement
    assert "agent-engine" not in names


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=3000, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"agent_engine", "agent_engine-0.1.0.dist-info"}
    assert "agent_engine/py.typed" in names


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_script_of_continuous_integration_can_run_and_its_packages_are_names():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True, timeout=300)
    lines = [line.partition("#")[0].strip() for line in (ROOT / ".ci" / "apt.txt").read_text().splitlines()]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9+.-]*", line) for line in lines if line)


def test_make_names_its_targets_and_says_what_is_missing():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
    for target in ("demo", "test", "check", "bench", "mutants"):
        assert f"make {target} " in said
    command = ["make", "--no-print-directory", "VENV=.venv-none", "PYTHON=", ".venv-none/bin/python"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "Agent Engine needs Python 3.11, 3.12 or 3.13, and found none on PATH." in done.stdout
