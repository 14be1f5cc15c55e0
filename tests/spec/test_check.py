"""check_project finds what a build would miss, and what nobody has written yet; it never runs the system."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.runtime.engine_kit import project

from agent_engine.spec.check import check_project

YAML = """
system: {name: demo}
agents:
  a: {tools: [find], prompts: {system: a.md}, resolvers: [ticket], protected: true}
tools: {find: Finds.}
resolvers: {today: shared, ticket: agent}
hooks: {before_tool: [{plugin: gate, method: check}, {ref: "plugins.more:mark"}]}
graph: {a: }
"""
FILES = {
    "a.md": "{{ today }} {{ ticket }}",
    "plugins/plugins.toml": '[hooks.plugins]\ngate = "plugins.hooks.gate:GateHook"\n',
    "plugins/hooks/gate.py": "class GateHook:\n    def check(self, event): ...\n",
    "plugins/more.py": "def mark(event): ...\n",
    "plugins/tools/find.py": "def find(query: str) -> str:\n    return query\n",
    "plugins/resolvers/shared.py": "class SharedResolver:\n    def today(self, ctx): ...\n",
    "plugins/resolvers/a.py": """
    from plugins.resolvers.shared import SharedResolver

    class Resolver(SharedResolver):
        def ticket(self, ctx): ...
    """,
    "plugins/access.py": "class AccessResolver:\n    def can_access(self, ctx, node_id): ...\n",
}


def problems(folder: Path, files: dict[str, str | None]) -> list[str]:
    kept = {name: text for name, text in {**FILES, **files}.items() if text is not None}
    path = project(folder, YAML, kept)
    return [str(one).replace(f"{folder}/", "") for one in check_project(path)]


def test_a_whole_project_has_none_and_leaves_nothing_imported(tmp_path: Path) -> None:
    before = set(sys.modules)
    assert problems(tmp_path, {}) == []
    assert not [name for name in set(sys.modules) - before if "plugins.hooks.gate" in name]


GATE, MORE = "plugins/hooks/gate.py", "plugins/more.py"
MISSING: list[tuple[str, str | None, str, str]] = [
    ("plugins/tools/find.py", None, "agents.yaml:4", "there is no file plugins/tools/find.py"),
    ("plugins/tools/find.py", "def fnd(): ...\n", "agents.yaml:4", "plugins/tools/find.py has no 'find'"),
    ("plugins/tools/find.py", "def find(:\n", "plugins/tools/find.py:1", "not valid Python"),
    ("plugins/resolvers/a.py", None, "agents.yaml:5", "the Resolver of 'a' has no method 'ticket'"),
    ("plugins/resolvers/shared.py", "class SharedResolver: ...\n", "agents.yaml:5", "has no method 'today'"),
    ("plugins/access.py", None, "agents.yaml:3", "needs the class AccessResolver"),
    (GATE, None, "agents.yaml:6", "there is no file plugins/hooks/gate.py"),
    (GATE, "class GateHook: ...\n", "agents.yaml:6", "GateHook has no method 'check'"),
    (GATE, "1 / 0\n", "agents.yaml:6", "importing it raised ZeroDivisionError at plugins/hooks/gate.py:1"),
    (GATE, "import sys\nsys.exit(0)\n", "agents.yaml:6", "raised SystemExit at plugins/hooks/gate.py:2"),
    (GATE, "class GateHook:\n    def __init__(self): raise SystemExit\n", "agents.yaml:6", "raised SystemExit"),
    (GATE, "import no_such_thing\n", "agents.yaml:6", "imports 'no_such_thing', which is not installed"),
    (MORE, "mark = 3\n", "agents.yaml:6", "a function of one argument is expected"),
    (MORE, "def mark(): ...\n", "agents.yaml:6", "it must take one argument"),
    (MORE, "def mark(event):\n    yield 1\n", "agents.yaml:6", "is a generator function"),
    ("plugins/plugins.toml", "", "agents.yaml:6", "not in [hooks.plugins]"),
    ("a.md", "{{ tody }}", "a.md:1:1 agents.a.prompts.system", "{{ tody }} is no resolver; did you mean 'today'?"),
]


@pytest.mark.parametrize(("file", "text", "place", "words"), MISSING)
def test_what_is_missing_is_told_where_a_person_mends_it(
    tmp_path: Path, file: str, text: str | None, place: str, words: str
) -> None:
    found = problems(tmp_path, {file: text})
    assert any(one.startswith(place) and words in one for one in found), found


def test_the_manifests_own_path_is_told_at_its_line(tmp_path: Path) -> None:
    text = FILES["plugins/plugins.toml"] + '\n[tools]\nfind = "plugins.elsewhere:find"\n'
    (one,) = problems(tmp_path, {"plugins/plugins.toml": text})
    assert one.startswith("plugins/plugins.toml:5:1 tools.find: there is no file plugins/elsewhere.py")


def test_a_resolver_with_a_class_of_its_own_serves_its_name(tmp_path: Path) -> None:
    text = FILES["plugins/plugins.toml"] + '\n[resolvers]\nticket = "plugins.tickets:Tickets"\n'
    files = {"plugins/plugins.toml": text, "plugins/resolvers/a.py": None}
    assert problems(tmp_path, {**files, "plugins/tickets.py": "class Tickets:\n    def ticket(self, ctx): ...\n"}) == []


def test_methods_of_bases_in_other_files_count(tmp_path: Path) -> None:
    base = "class Base:\n    def ticket(self, ctx): ...\n"
    own = "from plugins.base import Base as B\nfrom plugins.resolvers.shared import SharedResolver\n"
    own += "\nclass Resolver(B, SharedResolver): ...\n"
    assert problems(tmp_path, {"plugins/base.py": base, "plugins/resolvers/a.py": own}) == []
    assert problems(tmp_path, {"plugins/base.py": "class Base: ...\n", "plugins/resolvers/a.py": own}) != []


def test_an_error_of_the_file_does_not_hide_those_of_the_code(tmp_path: Path) -> None:
    path = project(tmp_path, YAML.replace("tools: [find]", "tools: [fnd]"), {**FILES, "plugins/more.py": ""})
    found = [str(one) for one in check_project(path)]
    assert any("did you mean 'find'" in one for one in found)
    assert any("plugins.more has no 'mark'" in one for one in found)


def test_problems_come_in_the_order_of_the_file_and_each_once(tmp_path: Path) -> None:
    more = "hooks:\n  before_tool:\n    - {plugin: gone, method: a}\n    - {plugin: gone, method: b}\n"
    yaml = YAML.replace('hooks: {before_tool: [{plugin: gate, method: check}, {ref: "plugins.more:mark"}]}\n', "")
    path = project(tmp_path, yaml + more, {**FILES, "plugins/tools/find.py": "", "a.md": "{{ tody }}"})
    found = check_project(path)
    assert [(one.line, one.path) for one in found if one.file == str(path)] == [
        (4, "tools.find"),
        (9, "hooks.before_tool[0].plugin"),
    ]
    assert [one.line for one in found if one.file != str(path)] == [1]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("hooks: {before_tool: [{args: [./gate.sh, -q]}]}", "there is no program './gate.sh' beside the file"),
        ("hooks: {before_tool: [{command: bin/gate.sh -q}]}", "there is no program 'bin/gate.sh' beside the file"),
        ("hooks: {before_tool: [{command: ./a.md}]}", "'./a.md' is no program that may be run; try chmod +x"),
        ("mcps: {m: {command: ./server}}", "there is no program './server' beside the file"),
        (
            "mcps: {m: {command: python3 server.py}}",
            "'python3 server.py' is the name of one program here; write `command: python3` and the rest under args",
        ),
        ("mcps: {m: {command: python3, cwd: nowhere}}", "there is no folder 'nowhere' beside the file"),
        ("hooks: {before_tool: [{command: 'true || ./gate.sh'}]}", ""),
        ("hooks: {before_tool: [{command: $HOME/gate.sh}]}", ""),
        ("mcps: {m: {command: python3, cwd: plugins}}", ""),
    ],
)
def test_a_program_that_is_not_there_is_a_warning(tmp_path: Path, entry: str, words: str) -> None:
    yaml = "system: {name: demo}\nagents: {a: {mcps: [m]}}\ngraph: {a: }\n" + entry
    yaml = yaml if "mcps: {" in entry else yaml.replace("{mcps: [m]}", "{}")
    found = check_project(project(tmp_path, yaml, {"a.md": "text", "plugins/x.py": ""}))
    assert [one.message for one in found] == ([words] if words else [])
    assert all(one.severity == "warning" for one in found)


def test_a_manifest_that_cannot_be_read_is_the_only_problem(tmp_path: Path) -> None:
    for open_end in ("x = [", "x = [\n"):
        (one,) = problems(tmp_path, {"plugins/plugins.toml": FILES["plugins/plugins.toml"] + open_end})
        assert one.endswith("not valid TOML: Unexpected end of file")


def test_a_file_that_may_not_be_read_is_a_problem_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def forbidden(path: Path) -> bytes:
        if path.name in ("access.py", "find.py"):
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    found = problems(tmp_path, {"a.md": "{{ tody }}"})
    assert "plugins/access.py: cannot be read: Permission denied" in found
    assert "plugins/tools/find.py: cannot be read: Permission denied" in found
    assert any("did you mean 'today'" in one for one in found)
    assert len(found) == 3
