"""The layout is the architecture: an import points down the list of folders, never up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import agent_engine

PACKAGE = Path(agent_engine.__file__).parent
ORDER = [
    "cli",
    "server",
    "testing",
    "agent",
    "batteries",
    "runtime",
    "spec",
    "plugins",
    "mcp",
    "tools",
    "models",
    "memory",
    "records",
    "hooks",
]
KERNEL_ALONE = "hooks"


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for name in names:
            parts = name.split(".")
            if parts[0] == "agent_engine" and len(parts) > 1 and parts[1] in ORDER:
                yield node.lineno, parts[1]


def _folder(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_folder_has_its_place() -> None:
    found = {_folder(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert found == set(ORDER)


def test_no_import_points_upwards() -> None:
    upward = [
        f"{path.relative_to(PACKAGE)}:{line} imports {target}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if _folder(path) in ORDER
        for line, target in _imports(path)
        if ORDER.index(target) < ORDER.index(_folder(path))
    ]
    assert upward == []


def test_the_kernel_imports_nothing_of_the_package() -> None:
    foreign = [
        f"{path.name}:{line} imports {target}"
        for path in sorted((PACKAGE / KERNEL_ALONE).rglob("*.py"))
        for line, target in _imports(path)
        if target != KERNEL_ALONE
    ]
    assert foreign == []
