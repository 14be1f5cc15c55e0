"""The folders are a list from top to bottom, and an import points down it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "agent_engine"
ORDER = (
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
)


def imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import that can run; what only a type checker reads is left out."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.lineno, node.module
    elif isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def test_every_folder_has_its_place() -> None:
    found = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__"} == set(ORDER)


def test_no_import_points_up() -> None:
    wrong = []
    for file in sorted(SOURCE.rglob("*.py")):
        own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for line, module in imports(ast.parse(file.read_bytes())):
            package, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            if package == "agent_engine" and other in ORDER and own in ORDER and ORDER.index(other) < ORDER.index(own):
                wrong.append(f"{file.relative_to(SOURCE)}:{line} imports {module}")
    assert wrong == []
