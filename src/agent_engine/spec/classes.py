"""What a Python file binds and what its classes have, bases included: read from the source, nothing imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agent_engine.plugins.loader import parse_source

FindFile = Callable[[str], Path | None]
_ROOTS = frozenset(("object", "Protocol", "ABC"))
_DEEPEST = 8


def bound_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Every name that these statements bind: definitions, assignments and imports, also inside if, try and with."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.If, ast.With, ast.Try)):
            for part in ("body", "orelse", "finalbody"):
                yield from bound_names(getattr(node, part, []))


class Sources:
    """The files of one system, each read once. ``find_file`` gives the file of a module, None for foreign ones."""

    def __init__(self, find_file: FindFile) -> None:
        self._find_file = find_file
        self._trees: dict[Path, ast.Module] = {}

    def tree(self, path: Path) -> ast.Module:
        """The syntax tree. Raises SyntaxError, ValueError or RecursionError where the file is no Python."""
        if path not in self._trees:
            self._trees[path] = parse_source(path.read_bytes(), str(path))
        return self._trees[path]

    def class_names(self, path: Path, name: str, depth: int = 0) -> tuple[set[str], bool] | None:
        """(names that the class and its bases bind, whether every base could be looked into).

        None where the file defines no such class.
        """
        tree = self.tree(path)
        node = next((one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name), None)
        if node is None:
            return None
        names, whole = set(bound_names(node.body)), True
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in _ROOTS:
                continue
            found = self._base(path, tree, base, depth + 1) if depth < _DEEPEST else None
            names |= found[0] if found is not None else set()
            whole = whole and found is not None and found[1]
        return names, whole

    def _base(self, path: Path, tree: ast.Module, base: ast.expr, depth: int) -> tuple[set[str], bool] | None:
        """The names of a base that is a class of this file, or of one that is imported by ``from … import …``."""
        if not isinstance(base, ast.Name):
            return None
        here = self.class_names(path, base.id, depth)
        if here is not None:
            return here
        for node in tree.body:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if (alias.asname or alias.name) == base.id and isinstance(node, ast.ImportFrom):
                    file = self._imported(path, node)
                    return self.class_names(file, alias.name, depth) if file is not None else None
        return None

    def _imported(self, path: Path, node: ast.ImportFrom) -> Path | None:
        if not node.level:
            return self._find_file(node.module or "")
        folder = path.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        target = folder.joinpath(*(node.module or "").split("."))
        return next((one for one in (target / "__init__.py", target.with_suffix(".py")) if one.is_file()), None)
