"""The package's face: every name it promises is there, for programs and for type checkers, and it is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agent_engine.hooks as hooks
from agent_engine.hooks.payloads import PAYLOADS


def test_type_checkers_see_exactly_what_there_is() -> None:
    stub = ast.parse(Path(hooks.__file__).with_suffix(".pyi").read_text())
    seen = {name.name for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert seen == {*hooks.__all__, "HookInput", *(kind.__name__ for kind in PAYLOADS.values())}
    for name in seen:
        assert getattr(hooks, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'HookRegstry'"):
        _ = hooks.HookRegstry  # type: ignore[attr-defined]  # the point of the test
    with pytest.raises(AttributeError, match="no payload type 'NoSuchInput'"):
        _ = hooks.NoSuchInput  # type: ignore[attr-defined]  # the point of the test


def test_using_hooks_loads_no_library() -> None:
    script = (
        "import sys\n"
        "from agent_engine.hooks import add_hook, fire_hook\n"
        "add_hook('before_tool', lambda payload: None)\n"
        "assert fire_hook('before_tool', {'tool_name': 't'})[0].success\n"
        "heavy = {'pydantic', 'httpx2', 'httpx', 'mcp', 'sqlalchemy', 'rich', 'typer', 'yaml', 'ruamel', 'anyio'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
        "print(sorted(name for name in sys.modules if name.startswith('agent_engine.') and '.hooks' not in name))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "[]"], done.stderr
