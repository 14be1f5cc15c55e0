"""Every bad file gives its problem at its line, and never a traceback."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from tests.spec.corpus_reader import Case, cases

from agent_engine.spec.document import parse_document
from agent_engine.spec.load import examine, examine_text
from agent_engine.spec.problems import Problem, SpecError
from agent_engine.spec.schema import json_schema

CASES = cases()
SCHEMA = jsonschema.Draft202012Validator(json_schema())
ENVIRON = {"HOME": "/home/someone"}


def errors_of(text: str | bytes, folder: Path) -> list[Problem]:
    loaded, problems = examine_text(text, folder / "agents.yaml", environ=ENVIRON)
    errors = [problem for problem in problems if problem.severity == "error"]
    assert errors or loaded is not None
    return errors


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len(CASES) >= 150
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.expected for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_file_gives_the_expected_problem_at_the_expected_line(case: Case, tmp_path: Path) -> None:
    errors = errors_of(case.text, tmp_path)
    for line, words in case.expected:
        assert any(one.line == line and words in one.message for one in errors), "\n".join(map(str, errors))
    for one in errors:
        assert str(one).startswith(f"{one.file}:{one.line}:{one.column} ")
        assert one.line >= 1
        assert one.column >= 1
        assert "\n" not in one.message


@pytest.mark.parametrize("case", [case for case in CASES if case.shape], ids=lambda case: case.name)
def test_the_schema_refuses_every_fault_of_shape(case: Case) -> None:
    assert not SCHEMA.is_valid(parse_document(case.text).data)


@pytest.mark.parametrize("case", cases("meaning"), ids=lambda case: case.name)
def test_what_the_schema_refuses_too_is_marked_as_shape(case: Case, tmp_path: Path) -> None:
    document = parse_document(case.text)
    problems = errors_of(case.text, tmp_path)
    if not SCHEMA.is_valid(document.data):
        assert any(one.shape for one in problems) or document.problems


def test_the_secret_cases_never_show_the_secret(tmp_path: Path) -> None:
    for case in cases("meaning"):
        if case.name.startswith("secret"):
            for problem in errors_of(case.text, tmp_path):
                for secret in ("abc123def456", "hunter2", "a8f7d9e2c4b1", "AKIAIOSFODNN7EXAMPLE", "abcdefghijklmnop"):
                    assert secret not in str(problem)


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    text = "".join(case.text for case in cases("shapes") if case.name.startswith("hooks: policy"))
    assert len(errors_of(text, tmp_path)) >= 3
    file = tmp_path / "agents.yaml"
    file.write_text("agents: {a: {auto: 'no', tols: []}}\nsystem: 3\ngraph: {b: }\nhooks: {x: []}\n")
    _, problems = examine(file)
    assert [(one.line, one.path) for one in problems] == [
        (1, "agents.a.auto"),
        (1, "agents.a.tols"),
        (2, "system"),
        (3, "graph.b"),
        (4, "hooks.x"),
    ]


def refused(raw: bytes | str) -> Problem:
    with pytest.raises(SpecError) as caught:
        parse_document(raw)
    return caught.value.problems[-1]


def test_bytes_that_are_not_utf8_are_named_with_their_place() -> None:
    problem = refused(b"system: {name: x}\nagents: {a: {name: caf\xe9}}\n")
    assert (problem.line, problem.column) == (2, 23)
    assert "byte 0xe9 is not UTF-8" in problem.message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le"])
def test_other_encodings_are_refused(encoding: str) -> None:
    assert refused("system: {name: x}\n".encode(encoding)).line == 1


def test_a_byte_order_mark_is_no_fault() -> None:
    assert parse_document(b"\xef\xbb\xbfsystem: {name: x}\n").data == {"system": {"name": "x"}}


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\x7f", "\ufffe"])
def test_control_characters_are_named(character: str) -> None:
    problem = refused(f"system:\n  name: a{character}b\n")
    assert (problem.line, problem.column) == (2, 10)
    assert f"U+{ord(character):04X}" in problem.message


def test_a_lone_surrogate_is_refused() -> None:
    assert "U+D800" in refused("system: {name: \ud800}").message


def test_a_file_over_the_limit_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_bytes(b"# " + b"x" * (200 * 1024))
    assert "over 128 KiB" in examine(file)[1][0].message
    assert "over 128 KiB" in refused("é" * (70 * 1024)).message


@pytest.mark.parametrize(
    "text",
    ["[" * 1000, "{a: " * 1000, "- " * 1000, "".join(f"{' ' * depth}a:\n" for depth in range(200)), "a: " + "[" * 65],
)
def test_deep_nesting_is_refused(text: str) -> None:
    assert "deeper than 64" in refused(text).message


def test_depth_through_aliases_is_refused() -> None:
    levels = ["a0: &a0 " + "[" * 40 + "]" * 40, "a1: " + "[" * 40 + "*a0" + "]" * 40]
    problem = refused("\n".join(levels))
    assert (problem.line, "deeper than 64" in problem.message) == (2, True)


def test_an_alias_bomb_is_refused_before_it_is_expanded() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{level}: &l{level} [" + ", ".join([f"*l{level - 1}"] * 10) + "]" for level in range(1, 12)]
    problem = refused("\n".join(lines))
    assert problem.line <= 5
    assert "more than 10,000 values" in problem.message


def test_a_bomb_of_merge_keys_is_refused() -> None:
    lines = ["m0: &m0 {" + ", ".join(f"k{i}: {i}" for i in range(50)) + "}"]
    lines += [f"m{i}: &m{i} {{<<: [" + ", ".join([f"*m{i - 1}"] * 10) + "]}" for i in range(1, 8)]
    assert "more than 10,000 values" in refused("\n".join(lines)).message


def test_many_values_are_refused() -> None:
    assert "more than 10,000 values" in refused("[" + "1, " * 10_001 + "]").message


def test_aliases_and_merge_keys_are_read(tmp_path: Path) -> None:
    text = """
system: {name: x}
defaults: {model: &model {provider: offline, temperature: 0.5}}
agents:
  a: &base {description: A., model: *model}
  b: {<<: *base, description: B.}
orchestrators: {r: {prompts: {orchestrator: r.md}}}
graph: {r: {a: , b: }}
"""
    (tmp_path / "r.md").write_text("Choose.")
    loaded, problems = examine_text(text, tmp_path / "agents.yaml")
    assert problems == []
    assert loaded is not None
    assert loaded.system.agents["b"].description == "B."
    assert loaded.system.agents["b"].model == loaded.system.agents["a"].model


def test_a_graph_with_faults_says_nothing_of_what_it_does_not_reach(tmp_path: Path) -> None:
    text = "system: {name: s}\nagents: {a: {tools: [t]}}\ntools: {t: A tool.}\n"
    for graph in ("", "graph: {b: }\n", "graph: {a: [b]}\n"):
        _, problems = examine_text(text + graph, tmp_path / "agents.yaml")
        assert len(problems) == 1, problems
    _, problems = examine_text(text.replace("tools: [t]", "") + "graph: {a: }\n", tmp_path / "agents.yaml")
    assert [one.path for one in problems] == ["tools.t"]


def test_missing_and_unreadable_files_are_problems(tmp_path: Path) -> None:
    assert str(examine(tmp_path / "no.yaml")[1][0]) == f"{tmp_path}/no.yaml: there is no such file"
    assert "cannot be read" in str(examine(tmp_path)[1][0])
    assert "cannot be read" in str(examine(tmp_path / "a\0b")[1][0])


def test_a_message_stays_on_one_line_and_short_whatever_a_key_holds(tmp_path: Path) -> None:
    keys = ['"a\\nb\\e[31m"', '"' + "x" * 5000 + '"', '"\\u202e"']
    for key in keys:
        for text in (f"{key}: 1\n", f"agents: {{{key}: {{}}}}\n", f"hooks: {{{key}: []}}\n"):
            for problem in errors_of(text, tmp_path):
                assert str(problem).isprintable()
                assert len(problem.message) < 1000
