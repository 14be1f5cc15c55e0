"""Importing the Python behind one system, apart from every other system in the process.

Each system gets a package of its own under a private name, ``agent_engine_systems.s<N>``; its ``plugins`` and import
roots are loaded below it. ``import plugins.x`` and ``from plugins.x import y`` inside those files are compiled as
imports of the private name, so that each system meets its own code. Nothing is put on ``sys.path``; closing takes every
module out again.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

HOME = "agent_engine_systems"
_PRIVATE = "__private_name__"
_REF = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_NEVER_LOCAL = frozenset(sys.stdlib_module_names) | {"agent_engine", HOME}


class LoadError(Exception):
    """A module or attribute that cannot be had. ``reason`` never holds the text of another exception."""

    def __init__(self, ref: str, reason: str) -> None:
        self.ref = ref
        self.reason = reason
        super().__init__(f"'{ref}' cannot be loaded: {reason}")

    def __reduce__(self) -> tuple[type[LoadError], tuple[str, str]]:
        return (type(self), (self.ref, self.reason))


def is_ref(text: str) -> bool:
    """Whether the text has the form ``module:attribute`` (dots allowed on both sides)."""
    return _REF.match(text) is not None


class PluginSpace:
    """The modules of one system. ``folder`` holds ``plugins/``; ``import_roots`` are relative to it."""

    def __init__(self, folder: str | Path, import_roots: Sequence[str | Path] = ()) -> None:
        self.folder = Path(folder).resolve()
        self.roots = [self.folder, *(self.folder / root for root in import_roots)]
        self.package = f"{HOME}.s{next(_NUMBERS)}"
        self.closed = False
        self._local: dict[str, bool] = {}
        _FINDER.add(self)

    def owns(self, name: str) -> bool:
        """Whether the top-level module ``name`` belongs to this system rather than to the interpreter's path."""
        known = self._local.get(name)
        if known is None:
            known = name == "plugins" or (name not in _NEVER_LOCAL and self._is_local(name))
            self._local[name] = known
        return known

    def _is_local(self, name: str) -> bool:
        for root in self.roots:
            base = root / name
            if base.with_suffix(".py").is_file() or (base / "__init__.py").is_file():
                return True
            if base.is_dir() and root is not self.folder and any(base.rglob("*.py")) and not _importable(name):
                return True
        return False

    def private_name(self, name: Any) -> Any:
        """The name under which a module is loaded: the private one where it belongs to this system."""
        top = name.partition(".")[0] if isinstance(name, str) else ""
        return f"{self.package}.{name}" if top and self.owns(top) else name

    def module(self, name: str) -> ModuleType:
        """Import a module by the name that the system's own files use. Raises LoadError."""
        return self._import(name, name)

    def _import(self, name: str, ref: str) -> ModuleType:
        if self.closed:
            raise LoadError(ref, "the system it belongs to is closed")
        private = self.private_name(name)
        try:
            return importlib.import_module(private)
        except ModuleNotFoundError as exc:
            missing = str(exc.name or "").removeprefix(f"{self.package}.")
            if name == missing or name.startswith(f"{missing}."):
                raise LoadError(ref, self._absent(name, missing)) from exc
            where = _where(exc, self.folder)
            raise LoadError(ref, f"it imports '{missing}', which is not installed{where}") from exc
        except SyntaxError as exc:
            place = f"{_relative(exc.filename, self.folder)}:{exc.lineno}"
            raise LoadError(ref, f"{place} is not valid Python ({exc.msg})") from exc
        except (Exception, SystemExit) as exc:  # a module may raise anything while it is imported
            raise LoadError(ref, f"importing it raised {type(exc).__name__}{_where(exc, self.folder)}") from exc

    def _absent(self, name: str, missing: str) -> str:
        if name.partition(".")[0] == "plugins":
            return f"there is no file {name.replace('.', '/')}.py beside agents.yaml; agentctl generate makes it"
        return f"there is no module '{missing}'; install it, or name its folder under plugins.import_roots"

    def load(self, ref: str) -> Any:
        """The object that ``module:attribute`` names. Raises LoadError."""
        if not is_ref(ref):
            raise LoadError(ref, "write it as module:attribute, for example plugins.hooks.audit:AuditHook")
        module_name, _, attributes = ref.partition(":")
        value: Any = self._import(module_name, ref)
        for attribute in attributes.split("."):
            try:
                value = getattr(value, attribute)
            except AttributeError:
                from agent_engine.plugins.problems import did_you_mean

                owner = module_name if isinstance(value, ModuleType) else getattr(value, "__name__", "it")
                public = [name for name in dir(value) if not name.startswith("_")]
                raise LoadError(ref, f"{owner} has no '{attribute}'{did_you_mean(attribute, public)}") from None
        return value

    def find_file(self, name: str) -> Path | None:
        """The file that a module of this system is loaded from, or None. Imports nothing."""
        relative = Path(*name.split("."))
        for root in self.roots:
            for candidate in (root / relative / "__init__.py", root / relative.with_suffix(".py")):
                if candidate.is_file():
                    return candidate
        return None

    def close(self) -> None:
        """Forget every module of this system. Further loading is an error; objects in use stay as they are."""
        if self.closed:
            return
        self.closed = True
        _FINDER.remove(self)
        _forget_hooks(self.package)
        inner = f"{self.package}."
        for name in [name for name in list(sys.modules) if name == self.package or name.startswith(inner)]:
            sys.modules.pop(name, None)
        home = sys.modules.get(HOME)
        if home is not None:
            home.__dict__.pop(self.package.rpartition(".")[2], None)
        _forget_loggers(self.package)

    def find_spec(self, fullname: str) -> importlib.machinery.ModuleSpec | None:
        """The spec of a private name: the package itself, a file, a package, or a folder without ``__init__.py``."""
        if fullname == self.package:
            return _folder_spec(fullname, [])
        relative = Path(*fullname.removeprefix(f"{self.package}.").split("."))
        folders: list[str] = []
        for root in self.roots:
            base = root / relative
            init, source = base / "__init__.py", base.with_name(f"{base.name}.py")
            if init.is_file():
                loader = _Loader(fullname, str(init), self)
                return importlib.util.spec_from_file_location(
                    fullname, init, loader=loader, submodule_search_locations=[str(base)]
                )
            if source.is_file():
                return importlib.util.spec_from_file_location(
                    fullname, source, loader=_Loader(fullname, str(source), self)
                )
            if base.is_dir():
                folders.append(str(base))
        return _folder_spec(fullname, folders) if folders else None


def _forget_hooks(package: str) -> None:
    """What the system's modules registered process-wide while they were imported (``@add_hook``) leaves with them."""
    from agent_engine.hooks.definition import FunctionHook
    from agent_engine.hooks.events import HookEvent
    from agent_engine.hooks.registry import get_default_registry

    registry = get_default_registry()
    for event in HookEvent:
        for hook in registry.get_hooks(event):
            module = getattr(hook.func, "__module__", None) if isinstance(hook, FunctionHook) else None
            if module is not None and f"{module}.".startswith(f"{package}."):
                registry.unregister(hook.id)


def _importable(name: str) -> bool:
    """Whether the interpreter's own path has such a package; a mere folder never stands in its way."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _forget_loggers(package: str) -> None:
    """Loggers named after a module outlive it otherwise; the place holder of their common parent knows them too."""
    loggers = logging.Logger.manager.loggerDict
    parent = loggers.get(HOME)
    for name in [name for name in list(loggers) if name == package or name.startswith(f"{package}.")]:
        logger = loggers.pop(name, None)
        if isinstance(parent, logging.PlaceHolder) and isinstance(logger, logging.Logger):
            parent.loggerMap.pop(logger, None)
    if isinstance(parent, logging.PlaceHolder) and not parent.loggerMap:
        loggers.pop(HOME, None)


def _folder_spec(name: str, folders: list[str]) -> importlib.machinery.ModuleSpec:
    spec = importlib.machinery.ModuleSpec(name, _FolderLoader(), is_package=True)
    spec.submodule_search_locations = folders
    return spec


class _FolderLoader(importlib.abc.Loader):
    """A package that has no file of its own."""

    def exec_module(self, module: ModuleType) -> None:
        return None


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a file with the imports of its own system bent to the private names; keeps no bytecode."""

    def __init__(self, fullname: str, path: str, space: PluginSpace) -> None:
        super().__init__(fullname, path)
        self._space = space

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = parse_source(self.get_data(path), path)
        tree = ast.fix_missing_locations(_Rename(self._space).visit(tree))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[_PRIVATE] = self._space.private_name
        super().exec_module(module)


def parse_source(source: bytes, path: str) -> ast.Module:
    """The syntax tree of a file. Raises SyntaxError; ValueError and RecursionError for odd or very deep source."""
    for _ in range(4):
        try:
            return ast.parse(source, path)
        except SystemError:
            continue  # CPython 3.11 miscounts its depth when two threads parse at once; the text is not at fault
    return ast.parse(source, path)


class _Rename(ast.NodeTransformer):
    def __init__(self, space: PluginSpace) -> None:
        self._space = space

    def visit_Import(self, node: ast.Import) -> ast.stmt | list[ast.stmt]:
        if not any(self._space.owns(alias.name.partition(".")[0]) for alias in node.names):
            return node
        statements: list[ast.stmt] = []
        for alias in node.names:
            top = alias.name.partition(".")[0]
            private = self._space.private_name(alias.name)
            if private == alias.name:
                pieces = [alias]
            elif alias.asname is not None:
                pieces = [ast.alias(private, alias.asname)]
            else:  # `import a.b` loads a.b and binds a: two statements under the private name
                pieces = [ast.alias(private, top), ast.alias(self._space.private_name(top), top)]
            statements.extend(ast.copy_location(ast.Import([ast.copy_location(one, alias)]), node) for one in pieces)
        return statements

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """``importlib.import_module(name)``: the name is looked up when the call is made."""
        self.generic_visit(node)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "import_module" and node.args and not isinstance(node.args[0], ast.Starred):
            private = ast.Name(_PRIVATE, ast.Load())
            node.args[0] = ast.copy_location(ast.Call(private, [node.args[0]], []), node.args[0])
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if node.level == 0 and node.module is not None:
            node.module = self._space.private_name(node.module)
        return node


class _Finder(importlib.abc.MetaPathFinder):
    """Finds private names, and only those. It stands in ``sys.meta_path`` while any system is open."""

    def __init__(self) -> None:
        self._spaces: dict[str, PluginSpace] = {}
        self._lock = threading.Lock()

    def add(self, space: PluginSpace) -> None:
        with self._lock:
            self._spaces[space.package] = space
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)

    def remove(self, space: PluginSpace) -> None:
        with self._lock:
            self._spaces.pop(space.package, None)
            if not self._spaces and self in sys.meta_path:
                sys.meta_path.remove(self)
                sys.modules.pop(HOME, None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(HOME):
            return None
        if fullname == HOME:
            return _folder_spec(fullname, [])
        space = self._spaces.get(".".join(fullname.split(".", 2)[:2]))
        return space.find_spec(fullname) if space is not None else None


def _relative(filename: str | None, folder: Path) -> str:
    if not filename:
        return "a file"
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else filename


def _where(exc: BaseException, folder: Path) -> str:
    """`` at plugins/hooks/audit.py:12``: the innermost line of the system's own files, or nothing."""
    inside = str(folder) + os.sep
    lines = [frame for frame in traceback.extract_tb(exc.__traceback__) if frame.filename.startswith(inside)]
    return f" at {_relative(lines[-1].filename, folder)}:{lines[-1].lineno}" if lines else ""


_NUMBERS = itertools.count(1)
_FINDER = _Finder()
