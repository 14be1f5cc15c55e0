"""generate writes what is missing, adds to what people wrote, and changes nothing the second time."""

from __future__ import annotations

import ast
import difflib
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from agent_engine.hooks.events import CATALOGUE
from agent_engine.hooks.managed import HookInvocation, McpRequestContext
from agent_engine.plugins.loader import PluginSpace
from agent_engine.plugins.manifest import read_manifest
from agent_engine.spec.check import check_project
from agent_engine.spec.generate import generate
from agent_engine.spec.markers import PROMPT_MARKER, STUB_MARKER
from agent_engine.spec.problems import SpecError
from agent_engine.spec.stubs import hook_method
from agent_engine.testing import invocation

YAML = """
system: {name: demo}
agents:
  docs:
    description: Answers.
    tools: [search, look-up]
    prompts: {system: prompts/docs/system.md, user: prompts/docs/user.md}
    resolvers: [today, ticket]
  ops: {description: Works., protected: true, tools: [restart], prompts: {system: prompts/ops/system.md}}
orchestrators:
  router: {prompts: {orchestrator: prompts/router/orchestrator.md}}
tools:
  search: Searches.
  look-up: {description: Looks., approval: required}
  restart: Restarts.
resolvers: {today: shared, ticket: agent}
hooks:
  on_engine_start: [{plugin: research_hooks, method: validate_environment}]
  before_mcp_request: [{plugin: research_hooks, method: inject_auth}]
  on_run_error: [{plugin: research_hooks, method: record}]
  before_tool: [{ref: "plugins.extra:gate"}, {command: "true"}]
graph: {router: {docs: , ops: }}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "agents.yaml"
    path.write_text(YAML)
    return path


def texts(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): file.read_bytes().decode()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }


def fill_in(folder: Path) -> None:
    """What a person does: write the prompts and the stubs."""
    for file in folder.rglob("*.md"):
        file.write_text(file.read_text().replace(PROMPT_MARKER + "\n", ""))
    for file in folder.rglob("*.py"):
        file.write_text(file.read_text().replace(f'raise NotImplementedError("{STUB_MARKER}")', "return None"))


def errors(path: Path) -> list[str]:
    return [str(problem) for problem in check_project(path) if problem.severity == "error"]


def only_additions(before: str, after: str) -> bool:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return not [line for line in lines if line.startswith("- ")]


def test_everything_that_is_missing_is_made_and_a_second_run_changes_nothing(project: Path) -> None:
    made = generate(project)
    assert {str(change.path.relative_to(project.parent)) for change in made} == set(texts(project.parent)) - {
        "agents.yaml"
    }
    assert all(change.kind == "created" for change in made)
    before = texts(project.parent)
    assert generate(project) == []
    assert texts(project.parent) == before
    manifest = read_manifest(project.parent)
    assert manifest.hooks["research_hooks"].ref == "plugins.hooks.research_hooks:ResearchHooksHook"
    assert manifest.tools["look-up"].ref == "plugins.tools.look_up:look_up"
    assert manifest.resolvers["docs"].ref == "plugins.resolvers.docs:Resolver"
    for name, text in before.items():
        if name.endswith(".py"):
            ast.parse(text)
            assert max(map(len, text.splitlines())) <= 120


def test_what_was_generated_is_reported_until_it_is_written_and_then_validates(project: Path) -> None:
    generate(project)
    found = errors(project)
    assert sum("generated marker" in line for line in found) == 4
    assert sum("still the generated stub" in line for line in found) == 10
    fill_in(project.parent)
    assert errors(project) == []
    assert generate(project) == []


def test_generated_code_can_be_imported(project: Path) -> None:
    generate(project)
    space = PluginSpace(project.parent)
    try:
        event = HookInvocation(hook_point="before_mcp_request", payload=McpRequestContext())
        for ref, args in {
            "plugins.resolvers.docs:Resolver.today": (None, None),
            "plugins.access:AccessResolver.can_access": (None, None, "docs"),
            "plugins.tools.look_up:look_up": ("words",),
            "plugins.hooks.research_hooks:ResearchHooksHook.inject_auth": (None, event),
        }.items():
            with pytest.raises(NotImplementedError, match="not written yet"):
                space.load(ref)(*args).send(None)
    finally:
        space.close()


def test_the_stub_of_every_event_names_what_it_gets_and_what_it_may_answer() -> None:
    assert "event: HookInvocation) -> HookResult | None:" in hook_method("before_tool", "gate").source
    assert "event.payload_as(BeforeToolInput)" in hook_method("before_tool", "gate").source
    for event in CATALOGUE:
        stub = hook_method(event.value, "gate", function=True)
        names = {name: getattr(import_module(home), name) for home, name in stub.imports}
        with pytest.raises(NotImplementedError):
            scope = {**names, "__builtins__": __builtins__}
            exec(stub.source, scope)
            scope["gate"](invocation(event)).send(None)


HAND_WRITTEN = '''\
"""My hooks."""
import os   # the environment

from agent_engine.runtime.hooks import HookInvocation


class ResearchHooksHook:
    """Mine."""

    LIMIT = 3 # odd   spacing stays

    async def validate_environment( self, event ):
        # my comment
        assert os.environ   # here too

    if True:
        def record(self, event): return None


def helper(): return 1   # after the class
'''


def test_missing_methods_are_added_to_a_class_that_people_wrote_and_no_line_of_theirs_changes(project: Path) -> None:
    file = project.parent / "plugins/hooks/research_hooks.py"
    file.parent.mkdir(parents=True)
    file.write_text(HAND_WRITTEN)
    change = next(change for change in generate(project) if change.path == file)
    assert (change.kind, change.what) == ("extended", "ResearchHooksHook.inject_auth")
    after = file.read_text()
    assert only_additions(HAND_WRITTEN, after)
    assert after.count("async def inject_auth") == 1
    assert after.count("def record") == 1
    assert "from agent_engine.runtime.hooks import McpRequestContext\n" in after
    space = PluginSpace(project.parent)
    try:
        space.load("plugins.hooks.research_hooks:ResearchHooksHook.inject_auth")
        assert space.load("plugins.hooks.research_hooks:helper")() == 1
    finally:
        space.close()


@pytest.mark.parametrize(
    "source",
    [
        "class Base:\n    record = inject_auth = len\nclass ResearchHooksHook(Base):\n    validate_environment = len\n",
        "from plugins.hooks.base import Base\n\nclass ResearchHooksHook(Base):\n    validate_environment = len\n",
        "from .base import Base\n\nclass ResearchHooksHook(Base):\n    validate_environment = len\n",
        "from ..hooks.base import Base as B\n\nclass ResearchHooksHook(B):\n    validate_environment = len\n",
        "from somewhere.else_ import Base\n\nclass ResearchHooksHook(Base): ...\n",
        "from plugins.hooks.base import Base as ResearchHooksHook\n",
        "class ResearchHooksHook:\n    validate_environment = inject_auth = record = lambda self, event: None\n",
    ],
)
def test_a_method_that_a_class_inherits_or_binds_is_not_made_again(project: Path, source: str) -> None:
    folder = project.parent / "plugins/hooks"
    folder.mkdir(parents=True)
    (folder / "base.py").write_text(
        "class Base:\n    def inject_auth(self, event): ...\n    def record(self, event): ...\n"
    )
    file = folder / "research_hooks.py"
    file.write_text(source)
    generate(project)
    assert file.read_text() == source


@pytest.mark.parametrize(
    "before",
    [
        "class ResearchHooksHook: ...\n",
        "class ResearchHooksHook:\n    pass",
        "class ResearchHooksHook:\n\tdef record(self, event):\n\t\treturn None\n",
        "class ResearchHooksHook:\r\n    def record(self, event):\r\n        return None\r\n",
        "X = 1\n",
        "",
        "# a comment alone\n",
        '"""doc"""\n',
        "#!/usr/bin/env python\nfrom __future__ import annotations\nimport os\nclass ResearchHooksHook:\n  two = 2\n",
    ],
)
def test_files_of_every_form_are_added_to_and_stay_python(project: Path, before: str) -> None:
    file = project.parent / "plugins/hooks/research_hooks.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(before.encode())
    generate(project)
    after = file.read_bytes().decode()
    tree = ast.parse(after)
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    methods = [node.name for node in cls.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert sorted(methods) == ["inject_auth", "record", "validate_environment"]
    if "\r\n" in before:
        assert after.count("\n") == after.count("\r\n")
    if not before.endswith("..." + "\n"):
        assert only_additions(before, after)
    assert generate(project) == []
    space = PluginSpace(project.parent)
    try:
        space.load("plugins.hooks.research_hooks:ResearchHooksHook")
    finally:
        space.close()


TOML = """\
# Our plugins; ordered by hand.
[tools]   # tools first
search = "plugins.mine:find"  # moved

[other]
"""


def test_the_manifest_keeps_its_comments_order_and_own_paths(project: Path) -> None:
    file = project.parent / "plugins/plugins.toml"
    file.parent.mkdir()
    file.write_text(TOML.replace("\n[other]\n", ""))
    (file.parent / "mine.py").write_text("import re\n\nvalue = 1\n")
    generate(project)
    after = file.read_text()
    assert only_additions(TOML.replace("\n[other]\n", ""), after)
    assert 'search = "plugins.mine:find"  # moved' in after
    assert "def find(query: str)" in (file.parent / "mine.py").read_text()
    assert not (file.parent / "tools/search.py").exists()
    manifest = read_manifest(project.parent)
    assert manifest.problems == []
    assert list(manifest.tools) == ["search", "look-up", "restart"]
    assert generate(project) == []


def test_a_wrong_manifest_or_a_broken_file_stops_it_before_anything_is_written(project: Path) -> None:
    folder = project.parent / "plugins"
    folder.mkdir()
    (folder / "plugins.toml").write_text(TOML)
    with pytest.raises(SpecError, match="unknown table 'other'"):
        generate(project)
    (folder / "plugins.toml").unlink()
    (folder / "access.py").write_text("class AccessResolver(\n")
    with pytest.raises(SpecError, match="not valid Python"):
        generate(project)
    assert set(texts(project.parent)) == {"agents.yaml", "plugins/access.py"}


def test_prompts_are_never_overwritten_and_force_writes_stubs_anew(project: Path) -> None:
    generate(project)
    fill_in(project.parent)
    before = texts(project.parent)
    changes = generate(project, force=True)
    after = texts(project.parent)
    assert {change.kind for change in changes} == {"replaced"}
    assert {name for name in before if before[name] != after[name]} == {name for name in before if name.endswith(".py")}
    assert generate(project, force=True) == []


def test_modes_choose_the_nodes(project: Path) -> None:
    made = {str(change.path.relative_to(project.parent)) for change in generate(project, "child", "ops")}
    assert made == {
        "prompts/ops/system.md",
        "plugins/tools/restart.py",
        "plugins/resolvers/shared.py",
        "plugins/plugins.toml",
    }
    made = {str(change.path.relative_to(project.parent)) for change in generate(project, "children")}
    assert "plugins/resolvers/docs.py" in made
    assert "prompts/docs/user.md" in made
    assert not [name for name in made if "router" in name or "hooks" in name or "access" in name]
    generate(project)
    assert generate(project) == []
    with pytest.raises(ValueError, match="needs the id"):
        generate(project, "child")
    with pytest.raises(ValueError, match="did you mean 'docs'"):
        generate(project, "child", "dcos")
    with pytest.raises(ValueError, match="unknown mode"):
        generate(project, "some")  # type: ignore[arg-type]  # what the test is about


def test_a_file_with_errors_is_not_generated_for(project: Path) -> None:
    project.write_text(YAML.replace("tools: [restart]", "tools: [restrt]"))
    with pytest.raises(SpecError, match="did you mean 'restart'"):
        generate(project)
    assert set(texts(project.parent)) == {"agents.yaml"}


def test_three_runs_with_hand_edits_and_a_growing_file_end_in_a_project_that_validates(project: Path) -> None:
    generate(project)
    fill_in(project.parent)
    for step in range(3):
        file = project.parent / "plugins/hooks/research_hooks.py"
        file.write_text(file.read_text() + f"\n\nEDIT_{step} = {step}  # by hand\n")
        text = project.read_text()
        text = text.replace(
            "hooks:\n",
            f"hooks:\n  on_run_end: [{{plugin: research_hooks, method: end_{step}}}]\n" if step == 0 else "hooks:\n",
        )
        text = text.replace("today: shared,", f"value{step}: shared, today: shared,")
        text = text.replace("tools:\n  search", f"tools:\n  tool-{step}: Does.\n  search")
        project.write_text(text)
        before = texts(project.parent)
        generate(project)
        after = texts(project.parent)
        assert all(only_additions(before[name], after[name]) for name in before)
        assert f"EDIT_{step} = {step}  # by hand" in after["plugins/hooks/research_hooks.py"]
        fill_in(project.parent)
    assert errors(project) == []
    space = PluginSpace(project.parent)
    try:
        assert space.load("plugins.hooks.research_hooks:EDIT_0") == 0
        space.load("plugins.hooks.research_hooks:ResearchHooksHook.end_0")
        space.load("plugins.resolvers.shared:SharedResolver.value2")
    finally:
        space.close()


def test_permissions_of_a_file_that_is_added_to_stay(project: Path) -> None:
    file = project.parent / "plugins/hooks/research_hooks.py"
    file.parent.mkdir(parents=True)
    file.write_text("class ResearchHooksHook:\n    pass\n")
    file.chmod(0o600)
    generate(project)
    assert file.stat().st_mode & 0o777 == 0o600


def test_ids_that_are_words_of_python_get_another_name(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(
        textwrap.dedent("""
        system: {name: demo}
        agents: {class: {tools: [import]}}
        tools: {import: Imports.}
        graph: {class: }
        """)
    )
    generate(path)
    fill_in(tmp_path)
    assert "def import_(" in (tmp_path / "plugins/tools/import_.py").read_text()
    assert errors(path) == []


def test_a_script_that_is_still_to_be_written_does_not_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(YAML.replace('{command: "true"}', '{args: [python3, gate.py]}, {command: "sh gate.sh"}'))
    assert generate(path) != []
    assert generate(path) == []
    assert any("cannot open its script 'gate.py'" in one for one in errors(path))


def test_a_file_that_is_reached_by_a_link_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(YAML)
    (tmp_path / "shared.toml").write_text("# for two systems\n")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "plugins.toml").symlink_to("../shared.toml")
    generate(path)
    assert (tmp_path / "plugins" / "plugins.toml").is_symlink()
    assert "research_hooks" in (tmp_path / "shared.toml").read_text()


def test_a_place_that_cannot_be_written_is_one_problem(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(YAML)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "tools").write_text("a file where the folder belongs")
    with pytest.raises(SpecError, match="cannot be written"):
        generate(path)
