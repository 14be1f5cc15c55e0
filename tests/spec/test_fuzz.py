"""Mutated files: problems or a system, never a traceback; and schema and loader agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spec.corpus_reader import cases

from agent_engine.spec.check import check_project
from agent_engine.spec.document import parse_document
from agent_engine.spec.load import examine_document, examine_text
from agent_engine.spec.problems import SpecError
from agent_engine.spec.schema import json_schema

FULL = """\
# A file with everything in it.
system: {name: demo, description: "All of it."}
defaults:
  model: {provider: anthropic, name: some-model, temperature: 0.2, max_tokens: 100, top_p: 0.9, region: eu}
orchestrators:
  router:
    name: Router
    description: Routes.
    resolvers: [today]
    prompts: {orchestrator: r.md, system: s.md, user: u.md}
    model:
      provider: openai
      name: other
      base_url: http://localhost:1
      fallback: [{provider: offline}, {provider: gemini, name: x}]
agents:
  docs: &docs
    description: Answers.
    tools: [search, look-up]
    mcps: [web, local]
    resolvers: [today, ticket]
    auto: false
    prompts: {system: s.md}
  vault: {<<: *docs, description: Secret., protected: true, model: {provider: scripted, name: turns.yaml}}
tools:
  search: Searches.
  look-up: {description: Looks., approval: required}
mcps:
  web:
    url: "http://${HOST:-localhost}/mcp?x=1"
    tool_tags: [a, b]
    tool_tag_transport: {type: query_param, param_name: tags}
    discover: first_use
    required: false
    timeout: 5
  local: {command: python3, args: ["-m", "server"], env: {MODE: test}, pass_env: [TOKEN], cwd: .}
resolvers: {today: shared, ticket: {scope: agent}, other: [docs]}
hooks:
  on_engine_start: [{ref: "a.b:c"}]
  before_tool:
    - {args: ["true", "-v"], matcher: "search|look*", agents: [docs], priority: 5, env: {A: b}, pass_env: [C]}
    - {url: "https://example.com/hook", failure_policy: deny, sequential: false, timeout: 1.5, observe: true}
  before_mcp_request: [{command: "true", servers: [web]}]
  on_llm_delta: [{ref: "a:b", hold_back: 10, shadow: true}]
  before_message: [{ref: "a:b"}]
plugins: {import_roots: [lib]}
execution: {max_iterations: 5, max_tool_calls: 0, timeout_s: 1.5, max_tokens: 10, allow_duplicate_tool_calls: true}
graph:
  router:
    docs:
    vault: {}
"""
SCHEMA = jsonschema.Draft202012Validator(json_schema())
PIECES = [*"{}[]:-|>'\"#!%@?,~0\t\n ", "&x", "*docs", "<<", "null", "true", "1e999", "0x", "${X}", "...", "---"]
PIECES += ["é", "\u2028", "\u0085", "sk-ant-abcdefgh1234"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz")
    for name in ("r.md", "s.md", "u.md"):
        (root / name).write_text("Words.")
    (root / "lib").mkdir()
    return root


def judged(text: str | bytes, folder: Path) -> tuple[Any, list[Any]]:
    loaded, problems = examine_text(text, folder / "agents.yaml", environ={})
    for problem in problems:
        assert str(problem)
        assert problem.line >= 0
    if loaded is None:
        assert problems
    return loaded, problems


def test_the_file_with_everything_is_right(folder: Path) -> None:
    loaded, problems = judged(FULL, folder)
    assert loaded is not None
    assert [str(problem) for problem in problems] == []
    assert SCHEMA.is_valid(parse_document(FULL).data)


@given(st.data())
def test_a_mutated_file_never_raises(folder: Path, data: st.DataObject) -> None:
    text = FULL
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[end:]
    judged(text, folder)


@given(st.binary(max_size=200))
def test_bytes_never_raise(folder: Path, raw: bytes) -> None:
    judged(raw, folder)
    judged(FULL.encode()[:300] + raw, folder)


def test_a_file_cut_anywhere_never_raises(folder: Path) -> None:
    for cut in range(0, len(FULL), 29):
        judged(FULL[:cut], folder)


def test_shuffled_lines_never_raise(folder: Path) -> None:
    rng = random.Random(7)
    for _ in range(25):
        lines = FULL.splitlines(keepends=True)
        for _ in range(rng.randint(1, 6)):
            first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[first], lines[second] = lines[second], lines[first]
        judged("".join(lines), folder)


ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    "",
    "x",
    "a b",
    [],
    {},
    [None],
    ["x"],
    {"x": None},
    {"provider": "offline"},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        found.extend(places(one, (*path, key)))
    return found


def with_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = with_value(copy[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("part", range(4))
def test_an_odd_value_anywhere_never_raises_and_the_schema_accepts_what_the_loader_accepts(
    folder: Path, part: int
) -> None:
    document = parse_document(FULL, str(folder / "agents.yaml"))
    data = document.data
    every = [(path, value) for path in places(data) for value in ODD]
    rng = random.Random(part)
    for path, value in rng.sample(every, 250):
        document.data = with_value(data, path, value)
        document.problems.clear()
        loaded, problems = examine_document(document, folder / "agents.yaml", environ={})
        errors = [problem for problem in problems if problem.severity == "error"]
        assert loaded is not None or errors
        if loaded is not None and not errors:
            assert SCHEMA.is_valid(document.data), (path, value)
        elif any(problem.shape for problem in errors):
            assert not SCHEMA.is_valid(document.data), (path, value, [str(problem) for problem in errors])


def test_checking_a_project_never_raises(tmp_path: Path) -> None:
    for case in cases("meaning", "shapes")[::7]:
        file = tmp_path / "agents.yaml"
        file.write_text(case.text)
        assert any(problem.severity == "error" for problem in check_project(file, environ={}))


def test_an_error_survives_pickling(folder: Path) -> None:
    import pickle

    with pytest.raises(SpecError) as caught:
        parse_document("a: [")
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems
