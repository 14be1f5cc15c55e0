"""The proof of identities holds on the oldest SDK that the project allows, too; all other tests run on the newest.

The oldest SDK is installed once into a cache, beside the newest, with nothing that it depends on.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agent-engine-tests"


def oldest_allowed() -> str:
    """The lower bound on the SDK in pyproject.toml, in full."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [bound] = [entry for entry in project["dependencies"] if re.match(r"mcp[><=~ ]", entry)]
    found = re.search(r">=\s*([\d.]+)", bound)
    assert found is not None, bound
    return ".".join([*found[1].split("."), "0", "0"][:3])


def installed(version: str) -> Path:
    """A folder with that version of the SDK and of its types."""
    folder = CACHE / f"mcp-{version}-py{sys.version_info.major}.{sys.version_info.minor}"
    if not (folder / "complete").exists():
        what = [f"mcp=={version}", f"mcp-types=={version}"]
        pip = [sys.executable, "-m", "pip"] if find_spec("pip") else ["uv", "pip"]
        command = [*pip, "install", "--quiet", "--no-deps", "--target", str(folder), *what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        (folder / "complete").touch()
    return folder


def test_the_newest_sdk_is_the_one_that_is_installed_here() -> None:
    pinned = re.search(r"^mcp==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert importlib.metadata.version("mcp") == pinned[1].strip()


def test_identities_are_kept_apart_on_the_oldest_sdk() -> None:
    version = oldest_allowed()
    environment = os.environ | {
        "PYTHONPATH": str(installed(version)),
        "AGENT_ENGINE_TEST_MCP_VERSION": version,
    }
    names = "fifty or three_runs or share_a_session or passes_to or was_asked_for"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/mcp/test_identity.py", "-k", names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert re.search(r"\b8 passed\b", done.stdout), done.stdout[-500:]
