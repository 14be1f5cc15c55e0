"""What is read from a file: values, variables, places, warnings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent_engine.spec.document import parse_document
from agent_engine.spec.load import examine_text, load_system
from agent_engine.spec.problems import did_you_mean
from agent_engine.spec.system import KEYLESS, PROVIDERS

BASE = "system: {name: x}\nagents: {a: {}}\ngraph: {a: }\n"


def test_variables_are_filled_where_the_file_may_use_them_and_nowhere_else() -> None:
    text = (
        BASE
        + """
defaults:
  model:
    provider: openai
    name: "${M:-small}"
    base_url: "http://${H}/v1"
    fallback: {provider: openai, name: "${M}"}
mcps:
  web: {url: "http://${H}:${P:-80}/mcp"}
  local: {command: "${CMD:-python3}", args: ["-m", "${MOD}"], cwd: "${D:-.}"}
tools: {t: "Costs ${NOTHING}."}
hooks: {before_tool: [{command: 'echo "${NOT_OURS}"'}]}
"""
    )
    loaded, problems = examine_text(text, "agents.yaml", environ={"H": "host", "M": "big", "MOD": "srv", "P": ""})
    assert [one for one in problems if one.severity == "error"] == []
    assert loaded is not None
    model = loaded.system.defaults.model
    assert model is not None
    assert (model.name, model.base_url, model.fallback[0].name) == ("big", "http://host/v1", "big")
    assert loaded.system.mcps["web"].url == "http://host:80/mcp"
    local = loaded.system.mcps["local"]
    assert (local.command, local.args, local.cwd) == ("python3", ["-m", "srv"], ".")
    assert loaded.system.tools["t"].description == "Costs ${NOTHING}."
    assert loaded.data["mcps"]["web"]["url"] == "http://${H}:${P:-80}/mcp"


def test_every_reading_of_resolvers_in_the_table_is_understood() -> None:
    for resolvers, scope in (
        ("{r: shared}", "shared"),
        ("{r: agent}", "agent"),
        ("{r: {scope: shared}}", "shared"),
        ("{r: [a]}", "agent"),
        ("[r]", "agent"),
    ):
        loaded, problems = examine_text(f"{BASE}resolvers: {resolvers}\n", "agents.yaml")
        assert problems == []
        assert loaded is not None
        assert loaded.system.resolvers["r"].scope == scope


def test_what_is_not_reached_or_used_is_a_warning_and_the_file_still_loads(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    agents = "system: {name: x}\nagents:\n  a: {}\n  b: {tools: [u]}\n"
    file.write_text(agents + "tools:\n  t: T.\n  u: U.\nmcps: {m: {command: c}}\ngraph: {a: }\n")
    loaded = load_system(file)
    assert [(one.line, one.path, one.severity) for one in loaded.warnings] == [
        (4, "agents.b", "warning"),
        (6, "tools.t", "warning"),
        (7, "tools.u", "warning"),
        (8, "mcps.m", "warning"),
    ]
    assert str(loaded.warnings[0]).endswith(
        "agents.yaml:4:3 warning: agents.b: 'b' is not in the graph, so nothing reaches it"
    )


def test_an_id_that_is_too_long_for_the_name_of_a_tool_is_a_warning() -> None:
    _, problems = examine_text(f"{BASE}tools:\n  {'t' * 65}: T.\n", "agents.yaml")
    assert [one.severity for one in problems] == ["warning", "warning"]
    assert "an id of 65 characters" in problems[0].message + problems[1].message


def test_one_id_may_stand_under_several_parents() -> None:
    text = """
system: {name: x}
agents: {leaf: {description: L.}}
orchestrators:
  top: {prompts: {orchestrator: r.md}}
  left: {prompts: {orchestrator: r.md}}
  right: {prompts: {orchestrator: r.md}}
graph: {top: {left: {leaf: }, right: {leaf: , left: {leaf: }}}}
"""
    _, problems = examine_text(text, "/nowhere/agents.yaml", files=False)
    assert problems == []


def test_scalars_follow_yaml_1_2() -> None:
    text = "{a: yes, b: 012, c: 0o17, d: 1_000, e: 2020-01-01, f: 12e03, g: .5, h: ~, i: !!str 5, j: 0x1F, k: +5}"
    text = text[:-1] + ", l: -.inf, m: on}"
    assert parse_document(text).data == {
        "a": "yes", "b": 12, "c": 15, "d": "1_000", "e": "2020-01-01", "f": 12000.0, "g": 0.5, "h": None, "i": "5",
        "j": 31, "k": 5, "l": float("-inf"), "m": "on",
    }  # fmt: skip


def test_positions_lead_to_values_and_keys() -> None:
    places = parse_document("a:\n  - b: 1\n    c:  2\n").positions
    assert places.of(("a", 0, "c")) == (3, 9)
    assert places.of_key(("a", 0, "c")) == (3, 5)
    assert places.of_key(("a", 0, "missing")) == (2, 5)
    assert places.of(("a", 7)) == (1, 1)
    assert places.has(("a", 0, "b"))
    assert not places.has(("b",))


def test_the_nearest_name_wins_over_a_list_of_all() -> None:
    assert did_you_mean("before-tool", ["before_tool", "after_tool"]) == "; did you mean 'before_tool'?"
    assert did_you_mean("zzz", ["a", "b"]) == "; use one of: a, b"
    assert did_you_mean("zzz", []) == ""


def test_the_providers_are_those_that_the_model_layer_knows() -> None:
    from agent_engine.models import providers

    others = [name for name in PROVIDERS if name not in providers.PROVIDERS]
    assert set(providers.PROVIDERS) <= set(PROVIDERS)
    assert set(others) == {"offline", "scripted", "gemini", "google-gla", "google-vertex"}
    assert all(providers.canonical(name) in providers.PROVIDERS for name in others if name not in KEYLESS)


def test_neither_the_package_nor_a_refused_file_loads_what_is_heavy() -> None:
    code = "import sys, agent_engine.spec, agent_engine.runtime.hooks, agent_engine.runtime.engine\n"
    code += "assert not {'pydantic', 'ruamel', 'tomlkit', 'libcst', 'mcp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "name", ["load_system", "json_schema", "check_project", "System", "SpecError", "Problem", "Loaded"]
)
def test_the_names_of_the_package_are_there(name: str) -> None:
    import agent_engine.spec as package

    assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="it offers"):
        _ = package.nothing  # type: ignore[attr-defined]  # what the test is about
