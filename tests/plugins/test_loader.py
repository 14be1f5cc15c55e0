"""The Python behind a system is loaded under a name of its own, meets its own modules, and leaves nothing behind."""

from __future__ import annotations

import gc
import logging
import sys
import textwrap
import traceback
from pathlib import Path

import pytest

from agent_engine.plugins.loader import HOME, LoadError, PluginSpace


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


def test_two_systems_with_the_same_module_names_each_run_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, plugins__state=f"NAME = {name!r}\nseen = []\n")
        write(
            tmp_path / name,
            plugins__hooks__a="""
            from plugins.state import NAME, seen

            def get():
                seen.append(1)
                return NAME, len(seen)
            """,
        )
    one, two = PluginSpace(tmp_path / "one"), PluginSpace(tmp_path / "two")
    try:
        assert one.load("plugins.hooks.a:get")() == ("one", 1)
        assert two.load("plugins.hooks.a:get")() == ("two", 1)
        assert one.load("plugins.hooks.a:get")() == ("one", 2)
    finally:
        one.close()
        two.close()


@pytest.mark.parametrize(
    "statement",
    [
        "from plugins.state import VALUE",
        "from plugins.state import VALUE as VALUE",
        "import plugins.state\nVALUE = plugins.state.VALUE",
        "import plugins.state as st\nVALUE = st.VALUE",
        "import json, plugins.state, os as system\nVALUE = plugins.state.VALUE; json.dumps; system.sep",
        "from plugins import state\nVALUE = state.VALUE",
        "from .. import state\nVALUE = state.VALUE",
        "from ..state import VALUE",
        "import plugins\nimport plugins.state\nVALUE = plugins.state.VALUE",
        "def get():\n    from plugins.state import VALUE\n    return VALUE\nVALUE = get()",
        "def get():\n    import plugins.state\n    return plugins.state.VALUE\nVALUE = get()",
        "class Box:\n    import plugins.state\n    VALUE = plugins.state.VALUE\nVALUE = Box.VALUE",
        "if True: import plugins.state; VALUE = plugins.state.VALUE",
        "from plugins.state import *",
        "import importlib\nVALUE = importlib.import_module('plugins.state').VALUE",
        "from importlib import import_module\nname = 'plugins.' + 'state'\nVALUE = import_module(name).VALUE",
        "from importlib import import_module\nVALUE = import_module('..state', __package__).VALUE",
    ],
)
def test_every_way_to_import_a_sibling_meets_the_systems_own_module(project: Path, statement: str) -> None:
    write(project, plugins__state="VALUE = object()\n", plugins__hooks__a=statement + "\n")
    space = PluginSpace(project)
    try:
        assert space.load("plugins.hooks.a:VALUE") is space.load("plugins.state:VALUE")
        assert "plugins" not in sys.modules
    finally:
        space.close()


def test_import_roots_serve_this_system_alone_and_sys_path_stays(project: Path) -> None:
    write(
        project,
        lib__rates__table="RATE = 3\n",
        plugins__tools__price="from rates.table import RATE\nimport shared_thing\n",
    )
    write(project, lib__shared_thing="from rates import table\n")
    before = list(sys.path)
    space, other = PluginSpace(project, ["lib"]), PluginSpace(project)
    try:
        assert space.load("plugins.tools.price:RATE") == 3
        assert space.load("plugins.tools.price:shared_thing.table.RATE") == 3
        with pytest.raises(LoadError, match=r"imports 'rates', which is not installed at plugins/tools/price.py:1"):
            other.load("plugins.tools.price:RATE")
    finally:
        space.close()
        other.close()
    assert sys.path == before
    assert not {"rates", "shared_thing"} & set(sys.modules)


def test_a_folder_never_takes_the_place_of_the_standard_library_or_an_installed_package(project: Path) -> None:
    write(project, json="VALUE = 1\n", plugins__a="import json, pydantic\ndumps = json.dumps\n")
    (project / "pydantic").mkdir()
    space = PluginSpace(project)
    try:
        assert space.load("plugins.a:dumps")([1]) == "[1]"
        assert hasattr(space.load("plugins.a:pydantic"), "BaseModel")
    finally:
        space.close()


def test_dataclasses_and_pydantic_models_with_forward_references_work(project: Path) -> None:
    write(
        project,
        plugins__models="""
        from __future__ import annotations
        from dataclasses import dataclass, field
        from typing import Optional
        import typing
        from pydantic import BaseModel
        import plugins.models

        @dataclass(slots=True)
        class Point:
            x: int = 0
            next: Optional["Point"] = None

        class Tree(BaseModel):
            point: Point
            kids: list[Tree] = []

        def check():
            assert plugins.models.Tree is Tree
            return Tree.model_validate({"point": {"x": 1}, "kids": [{"point": {"x": 2}}]}).kids[0].point.x
        HINTS = typing.get_type_hints(Point)
        """,
    )
    space = PluginSpace(project)
    try:
        assert space.load("plugins.models:check")() == 2
        assert space.load("plugins.models:HINTS")["x"] is int
    finally:
        space.close()


def test_a_traceback_shows_the_real_file_and_line(project: Path) -> None:
    write(project, plugins__a="import plugins.a\n\n\ndef fail():\n    raise KeyError('x')\n")
    space = PluginSpace(project)
    try:
        with pytest.raises(KeyError) as caught:
            space.load("plugins.a:fail")()
        frame = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (Path(frame.filename), frame.lineno, frame.line) == (project / "plugins/a.py", 5, "raise KeyError('x')")
    finally:
        space.close()


@pytest.mark.parametrize(
    ("source", "ref", "message"),
    [
        ("X = 1", "plugins.a:Y", "plugins.a has no 'Y'"),
        ("class AuditHook: ...", "plugins.a:AuditHok", "plugins.a has no 'AuditHok'; did you mean 'AuditHook'?"),
        ("class A:\n    def run(self): ...", "plugins.a:A.rn", "A has no 'rn'; did you mean 'run'?"),
        ("def (", "plugins.a:Y", "plugins/a.py:1 is not valid Python"),
        ("raise ValueError('s3cret')", "plugins.a:Y", "importing it raised ValueError at plugins/a.py:1"),
        ("import no_such_thing", "plugins.a:Y", "it imports 'no_such_thing', which is not installed at plugins/a.py:1"),
        ("import plugins.nope", "plugins.a:Y", "it imports 'plugins.nope', which is not installed at plugins/a.py:1"),
        ("", "plugins.b:Y", "there is no file plugins/b.py beside agents.yaml; agentctl generate makes it"),
        (
            "",
            "nowhere_at_all:Y",
            "there is no module 'nowhere_at_all'; install it, or name its folder under plugins.import_roots",
        ),
        ("", "plugins.a", "write it as module:attribute"),
        ("", "plugins/a.py:X", "write it as module:attribute"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_sentence_without_the_causes_text(
    project: Path, source: str, ref: str, message: str
) -> None:
    write(project, plugins__a=source + "\n")
    space = PluginSpace(project)
    try:
        with pytest.raises(LoadError) as caught:
            space.load(ref)
        assert message in str(caught.value)
        assert "s3cret" not in str(caught.value)
    finally:
        space.close()


def test_a_hundred_systems_leave_no_module_logger_or_finder(project: Path) -> None:
    write(
        project,
        plugins__a="""
        import logging
        from pydantic import BaseModel
        logger = logging.getLogger(__name__)

        class Box(BaseModel):
            x: int
        """,
    )

    def build() -> None:
        space = PluginSpace(project)
        space.load("plugins.a:Box")(x=1)
        space.close()

    build()
    gc.collect()
    modules, finders = set(sys.modules), list(sys.meta_path)
    for _ in range(100):
        build()
    gc.collect()
    new = [sys.modules[name] for name in set(sys.modules) - modules]  # of a thread of another test, it may be
    assert not [one for one in new if str(getattr(one, "__file__", None) or project).startswith(str(project))]
    assert sys.meta_path == finders
    assert not [name for name in sys.modules if name.startswith(HOME)]
    assert not [name for name in logging.Logger.manager.loggerDict if name.startswith(HOME)]
    classes = [one for one in gc.get_objects() if isinstance(one, type) and one.__name__ == "Box"]
    assert not [one for one in classes if str(one.__module__).startswith(HOME)]


def test_the_file_that_is_looked_at_is_the_file_that_is_loaded(project: Path) -> None:
    (project / "plugins" / "twice").mkdir(parents=True)
    (project / "plugins" / "twice" / "__init__.py").write_text("WHICH = 'package'\n")
    (project / "plugins" / "twice.py").write_text("WHICH = 'module'\n")
    space = PluginSpace(project)
    try:
        module = space.module("plugins.twice")
        assert (module.WHICH, module.__file__) == ("package", str(space.find_file("plugins.twice")))
    finally:
        space.close()


def test_after_close_nothing_loads_and_closing_twice_is_nothing(project: Path) -> None:
    write(project, plugins__a="def get():\n    return 7\n")
    space = PluginSpace(project)
    get = space.load("plugins.a:get")
    space.close()
    space.close()
    assert get() == 7
    with pytest.raises(LoadError, match="the system it belongs to is closed"):
        space.load("plugins.a:get")


def test_source_with_an_encoding_cookie_is_read_by_it(project: Path) -> None:
    (project / "plugins").mkdir()
    (project / "plugins/a.py").write_bytes("# -*- coding: latin-1 -*-\nNAME = 'Zoë'\n".encode("latin-1"))
    space = PluginSpace(project)
    try:
        assert space.load("plugins.a:NAME") == "Zoë"
    finally:
        space.close()


def test_hooks_that_a_systems_modules_registered_for_everyone_leave_when_it_closes(tmp_path):
    from agent_engine.hooks import HookRegistry, get_default_registry, set_default_registry

    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "rules.py").write_text(
        "from agent_engine.hooks import add_hook\n\n\n@add_hook('before_tool')\ndef keep(event):\n    return 'kept'\n"
    )
    before = get_default_registry()
    set_default_registry(HookRegistry())
    try:
        for _ in range(3):
            space = PluginSpace(tmp_path)
            space.module("plugins.rules")
            assert len(get_default_registry()) == 1
            space.close()
            assert len(get_default_registry()) == 0
    finally:
        set_default_registry(before)
