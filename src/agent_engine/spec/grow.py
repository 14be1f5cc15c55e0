"""Adding what is missing to a Python file that people wrote, without touching a line of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from agent_engine.plugins.problems import Problem, SpecError
from agent_engine.spec.stubs import Stub, class_text

Has = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a module must hold: functions, and one class with its methods."""

    functions: tuple[Stub, ...] = ()
    cls: str | None = None
    base: tuple[str, str] | None = None
    methods: tuple[Stub, ...] = ()


def parse_file(path: Path) -> cst.Module:
    """The file as a syntax tree; SpecError where it is no Python."""
    try:
        return cst.parse_module(path.read_bytes())
    except cst.ParserSyntaxError as exc:
        what = "not valid Python, so nothing can be added to it; mend it first"
        raise SpecError([Problem(str(path), exc.raw_line, exc.raw_column + 1, "", what)]) from None
    except (UnicodeDecodeError, RecursionError):
        raise SpecError([Problem(str(path), 0, 0, "", "cannot be read as Python")]) from None


def grow(module: cst.Module, wanted: Wanted, has: Has) -> tuple[cst.Module, list[str]]:
    """The module with what it lacks, and the names that were added; the same module and [] where nothing was.

    ``has(class, method)`` says whether a class has a method already, its own or a base's.
    """
    added: list[str] = []
    stubs: list[Stub] = []
    names = set(bound_names(module.body))
    body = list(module.body)
    for stub in wanted.functions:
        if stub.name not in names:
            body.extend(_parsed(module, f"\n\n{stub.source}"))
            stubs.append(stub)
            added.append(stub.name)
    imports: list[tuple[str, str]] = []
    if wanted.cls is not None:
        index = _class_at(body, wanted.cls)
        if index is not None:
            node = body[index]
            assert isinstance(node, cst.ClassDef)
            missing = [stub for stub in wanted.methods if not has(wanted.cls, stub.name)]
            if missing:
                body[index] = _with_methods(module, node, missing)
                stubs.extend(missing)
                added.extend(f"{wanted.cls}.{stub.name}" for stub in missing)
        elif wanted.cls not in names:
            base = wanted.base[1] if wanted.base else None
            body.extend(_parsed(module, f"\n\n{class_text(wanted.cls, base, wanted.methods)}"))
            stubs.extend(wanted.methods)
            imports.extend([wanted.base] if wanted.base else [])
            added.append(wanted.cls)
    if not added:
        return module, []
    imports.extend(pair for stub in stubs for pair in stub.imports)
    missing_imports = [pair for pair in dict.fromkeys(imports) if pair[1] not in names]
    return module.with_changes(body=_with_imports(module, body, missing_imports)), added


def bound_names(body: Sequence[cst.CSTNode]) -> Iterator[str]:
    """Every name that these statements bind: definitions, assignments and imports, also inside if and try."""
    for node in body:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            yield node.name.value
        elif isinstance(node, cst.SimpleStatementLine):
            yield from bound_names(node.body)
        elif isinstance(node, cst.Assign):
            yield from (one.target.value for one in node.targets if isinstance(one.target, cst.Name))
        elif isinstance(node, cst.AnnAssign) and isinstance(node.target, cst.Name):
            yield node.target.value
        elif isinstance(node, (cst.Import, cst.ImportFrom)) and not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                yield alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
        elif isinstance(node, (cst.If, cst.Try, cst.Else, cst.Finally, cst.With)):
            yield from bound_names(node.body.body)
            if isinstance(node, (cst.If, cst.Try)) and node.orelse is not None:
                yield from bound_names([node.orelse])


def _class_at(body: Sequence[cst.BaseStatement | cst.SimpleStatementLine], name: str) -> int | None:
    for index, node in enumerate(body):
        if isinstance(node, cst.ClassDef) and node.name.value == name:
            return index
    return None


def _parsed(module: cst.Module, source: str) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    newline = module.default_newline
    indent = module.default_indent
    text = "".join(_reindented(line, indent) for line in source.splitlines(keepends=True)).replace("\n", newline)
    parsed = cst.parse_module(text, config=module.config_for_parsing)
    body = list(parsed.body)
    if body and parsed.header:
        body[0] = body[0].with_changes(leading_lines=[*parsed.header, *body[0].leading_lines])
    return body


def _reindented(line: str, indent: str) -> str:
    stripped = line.lstrip(" ")
    levels, rest = divmod(len(line) - len(stripped), 4)
    return indent * levels + " " * rest + stripped


def _with_methods(module: cst.Module, node: cst.ClassDef, stubs: Sequence[Stub]) -> cst.ClassDef:
    methods: list[cst.BaseStatement] = []
    for stub in stubs:
        methods.extend(_parsed(module, f"\n{stub.source}"))
    body = node.body
    if isinstance(body, cst.IndentedBlock):
        return node.with_changes(body=body.with_changes(body=[*body.body, *methods]))
    assert isinstance(body, cst.SimpleStatementSuite)  # `class A: ...` on one line
    first = cst.SimpleStatementLine(body=list(body.body))
    return node.with_changes(body=cst.IndentedBlock(body=[first, *methods]))


def _with_imports(
    module: cst.Module,
    body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement],
    imports: Sequence[tuple[str, str]],
) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    """The body with import lines of their own after the last import, so that no line of the file changes."""
    if not imports:
        return body
    grouped: dict[str, list[str]] = {}
    for source, name in imports:
        grouped.setdefault(source, []).append(name)
    lines: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
    for source, names in grouped.items():
        lines.extend(_parsed(module, f"from {source} import {', '.join(sorted(names))}\n"))
    place = 0
    for index, node in enumerate(body):
        small = node.body if isinstance(node, cst.SimpleStatementLine) else ()
        is_docstring = index == 0 and any(isinstance(one, cst.Expr) for one in small)
        if is_docstring or any(isinstance(one, (cst.Import, cst.ImportFrom)) for one in small):
            place = index + 1
    return [*body[:place], *lines, *body[place:]]
