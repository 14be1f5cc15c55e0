"""validate, inspect, generate and schema: what works without running anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from agent_engine.cli.state import state_path
from agent_engine.records.settings import default_store

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SYSTEM = """\
system:
  name: shop
agents:
  clerk:
    description: Looks after orders.
    tools: [order_status]
tools:
  order_status: Tell the status of an order.
hooks:
  before_tool:
    - plugin: rules
      method: keep
graph:
  clerk: {}
"""


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "agents.yaml"
    path.write_text(SYSTEM, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["starter", "enterprise-knowledge-assistant"])
def test_the_examples_validate(agentctl, name):
    done = agentctl("validate", EXAMPLES / name / "agents.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("agents.yaml: no problem found\n")


def test_validate_names_every_problem_with_its_line(agentctl, shop):
    shop.write_text(SYSTEM.replace("before_tool:", "before_tol:").replace("[order_status]", "[order_state]"))
    done = agentctl("validate", shop)
    assert done.code == 1
    assert f"{shop}:10:3 hooks.before_tol: " in done.err
    assert "did you mean 'before_tool'?" in done.err
    assert f"{shop}:6:" in done.err
    assert "did you mean 'order_status'?" in done.err
    assert done.err.rstrip().splitlines()[-1].startswith(f"{shop}: ")


def test_validate_tells_machines_the_same(agentctl, shop):
    shop.write_text(SYSTEM.replace("before_tool:", "before_tol:"))
    done = agentctl("validate", shop, "--json")
    assert done.code == 1
    (problem,) = [one for one in json.loads(done.out) if one["path"] == "hooks.before_tol"]
    assert (problem["line"], problem["column"], problem["severity"]) == (10, 3, "error")


def test_generate_writes_what_is_missing_once_and_stubs_are_found_until_they_are_written(agentctl, shop):
    done = agentctl("generate", shop)
    assert done.code == 0
    assert "plugins/hooks/rules.py" in done.out.replace("\\", "/")
    assert agentctl("generate", shop).out == "Nothing is missing.\n"

    done = agentctl("validate", shop)
    assert done.code == 1
    assert "order_status" in done.err
    assert "keep" in done.err


def test_generate_for_one_node_needs_its_name(agentctl, shop):
    assert agentctl("generate", shop, "--mode", "child").code == 2
    assert agentctl("generate", shop, "--agent", "clerk").code == 2
    done = agentctl("generate", shop, "--mode", "child", "--agent", "clark")
    assert done.code == 2
    assert "clerk" in done.err


def test_inspect_shows_the_graph_and_the_hooks_with_where_they_were_declared(agentctl):
    done = agentctl("inspect", EXAMPLES / "enterprise-knowledge-assistant" / "agents.yaml")
    assert done.code == 0
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert "├── python_docs  agent · offline  mcp public_docs" in lines
    assert "└── operations  agent · offline · protected  machine_report" in lines
    declared = {line.split()[1]: line.split()[-1] for line in lines if line.startswith(("before_", "after_"))}
    assert declared["research_hooks.inject_private_key"].startswith("agents.yaml:")
    assert declared["redact_keys"].startswith("plugins/tools/read_note.py:")


def test_inspect_tells_machines_the_same(agentctl):
    done = agentctl("inspect", EXAMPLES / "starter" / "agents.yaml", "--json")
    found = json.loads(done.out)
    assert found["nodes"]["timekeeper"]["tools"] == ["current_time"]
    assert [(hook["event"], hook["name"], hook["failure_policy"]) for hook in found["hooks"]] == [
        ("after_tool_call", "audit.record_call", "warn")
    ]


def test_inspect_shows_no_secret_of_an_address(agentctl, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCS_URL", "https://docs.example/mcp?key=sk-in-the-address")
    path = tmp_path / "agents.yaml"
    path.write_text(
        "system: {name: s}\nagents:\n  a: {description: Reads., mcps: [docs]}\n"
        "mcps:\n  docs: {url: '${DOCS_URL}'}\ngraph: {a: {}}\n"
    )
    for flags in ((), ("--json",)):
        done = agentctl("inspect", path, *flags)
        assert done.code == 0, done.err
        assert "https://docs.example/mcp" in done.out
        assert "sk-in-the-address" not in done.out


def test_the_schema_accepts_the_examples(agentctl):
    schema = json.loads(agentctl("schema").out)
    for path in EXAMPLES.glob("*/agents.yaml"):
        jsonschema.validate(YAML(typ="safe").load(path.read_text(encoding="utf-8")), schema)


def test_the_starter_is_what_generate_writes_plus_a_few_lines(agentctl, tmp_path):
    copied = tmp_path / "starter"
    shutil.copytree(EXAMPLES / "starter", copied)
    for written in [*copied.rglob("*.py"), *copied.rglob("*.md"), *copied.rglob("*.toml")]:
        written.unlink()
    assert agentctl("generate", copied / "agents.yaml").code == 0
    made = {path.relative_to(copied) for path in copied.rglob("*") if path.is_file()}
    kept = {path.relative_to(EXAMPLES / "starter") for path in (EXAMPLES / "starter").rglob("*") if path.is_file()}
    assert made == {path for path in kept if "__pycache__" not in path.parts and ".agent_engine" not in path.parts}


def test_inspect_needs_a_file_unless_it_shows_records(agentctl, tmp_path):
    done = agentctl("inspect")
    assert done.code == 2
    assert "FILE" in done.err
    done = agentctl("inspect", "--ui", "--store", f"sqlite:{tmp_path / 'none.db'}")
    assert done.code == 1
    assert "none.db" in done.err
    assert len(done.err.splitlines()) == 1


def test_what_is_kept_stands_beside_the_file_as_it_was_named(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "real" / "agents.yaml").write_text("")
    link = tmp_path / "site" / "agents.yaml"
    link.symlink_to(tmp_path / "real" / "agents.yaml")
    assert state_path(link) == tmp_path.resolve() / "site" / ".agent_engine" / "agents.db"
    assert default_store(link) == f"sqlite:{tmp_path.resolve() / 'site' / '.agent_engine' / 'records.db'}"


def test_code_that_cannot_be_loaded_is_a_problem_of_the_files_for_every_command(agentctl, shop):
    assert agentctl("generate", shop).code == 0
    (shop.parent / "plugins" / "hooks" / "rules.py").write_text("import sys\n\nsys.exit(0)\n", encoding="utf-8")
    for command in (["validate"], ["inspect"], ["hooks", "list", "--config"], ["run", "-m", "hello", "--config"]):
        done = agentctl(*command, shop)
        assert (done.code, done.out) == (1, ""), command
        assert done.err.count("importing it raised SystemExit at plugins/hooks/rules.py:3") == 1
