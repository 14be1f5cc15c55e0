"""``check_project``: everything the loader checks, and the Python behind the file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent_engine.hooks.errors import HookLoadError, HookRegistrationError
from agent_engine.plugins.loader import LoadError, PluginSpace
from agent_engine.plugins.manifest import Manifest, read_manifest
from agent_engine.plugins.problems import Problem
from agent_engine.spec.checks.prompts import used_resolvers
from agent_engine.spec.classes import Sources, bound_names
from agent_engine.spec.code import resolver_places, tool_ref
from agent_engine.spec.load import Loaded, examine, in_order
from agent_engine.spec.markers import STUB_MARKER
from agent_engine.spec.system import python_name

_GENERATE = "agentctl generate makes it"


def check_project(path: str | Path, *, environ: Mapping[str, str] | None = None) -> list[Problem]:
    """All problems of a project, offline: the file, its hooks (they are imported) and stubs not filled in.

    ``severity`` tells errors from warnings. Never raises for a fault of the project.
    """
    loaded, problems = examine(path, environ=environ)
    if loaded is None:
        return problems
    manifest = read_manifest(loaded.folder)
    space = PluginSpace(loaded.folder, loaded.system.plugins.import_roots)
    try:
        project = _Project(loaded, manifest, space)
        project.tools()
        project.resolvers()
        project.access()
        project.hooks({problem.path for problem in problems if problem.severity == "error"})
        project.stubs()
    finally:
        space.close()
    return in_order([*problems, *project.problems])


class _Project:
    def __init__(self, loaded: Loaded, manifest: Manifest, space: PluginSpace) -> None:
        self.loaded = loaded
        self.manifest = manifest
        self.space = space
        self.problems: list[Problem] = []
        self._sources = Sources(space.find_file)
        self._broken: set[Path] = set()

    def _note(self, path: tuple[str | int, ...], name: str, message: str) -> None:
        line, column = self.loaded.positions.of_key(path)
        self.problems.append(Problem(str(self.loaded.path), line, column, name, message))

    def _note_entry(self, table: str, key: str, path: tuple[str | int, ...], message: str) -> None:
        """At the manifest's line where it names the code, at the file's line where a rule does."""
        entry = self.manifest.table(table).get(key)
        if entry is not None:
            self.problems.append(Problem(str(self.manifest.path), entry.line, entry.column, f"{table}.{key}", message))
        else:
            self._note(path, f"{table}.{key}", message)

    def _tree(self, path: Path) -> ast.Module | None:
        """The syntax tree of a file; None, and one problem, where it is no Python or cannot be read."""
        try:
            return self._sources.tree(path)
        except (SyntaxError, ValueError, RecursionError) as exc:
            line, column = getattr(exc, "lineno", None) or 1, getattr(exc, "offset", None) or 1
            problem = Problem(
                str(path), line, column, "", f"not valid Python: {getattr(exc, 'msg', type(exc).__name__)}"
            )
        except OSError as exc:
            problem = Problem(str(path), 0, 0, "", f"cannot be read: {exc.strerror or type(exc).__name__}")
        if path not in self._broken:
            self._broken.add(path)
            self.problems.append(problem)
        return None

    def _has(self, ref: str, *names: str) -> str | None:
        """What is wrong with code that is looked at but not imported; None where nothing is."""
        module, _, attribute = ref.partition(":")
        file = self.space.find_file(module)
        if file is None:
            if module.partition(".")[0] == "plugins":
                return f"there is no file {module.replace('.', '/')}.py; {_GENERATE}"
            return None  # code of an installed package; the build will tell
        tree = self._tree(file)
        if tree is None or "." in attribute:
            return None
        if attribute not in set(bound_names(tree.body)):
            return f"{_shown(file, self.loaded.folder)} has no '{attribute}'; {_GENERATE}"
        return None

    def tools(self) -> None:
        for tool in self.loaded.system.tools:
            problem = self._has(tool_ref(self.manifest, tool))
            if problem is not None:
                self._note_entry("tools", tool, ("tools", tool), problem)

    def resolvers(self) -> None:
        """Each name that a prompt uses is a method of a class that is there."""
        system = self.loaded.system
        for node_id in (*system.orchestrators, *system.agents):
            for name in used_resolvers(self.loaded, node_id):
                places = list(resolver_places(self.manifest, self.space, name, node_id))
                if not any(self._has_method(ref, method) for ref, method in places):
                    owner = (
                        "SharedResolver" if system.resolvers[name].scope == "shared" else f"the Resolver of '{node_id}'"
                    )
                    what = f"{owner} has no method '{python_name(name)}'; {_GENERATE}"
                    self._note(("resolvers", name), f"resolvers.{name}", what)

    def _has_method(self, ref: str, method: str) -> bool:
        """Whether a class has a method; where that cannot be seen from its source, the build will tell."""
        module, _, cls = ref.partition(":")
        file = self.space.find_file(module)
        if file is None:
            return module.partition(".")[0] != "plugins"
        tree = self._tree(file)
        if tree is None:
            return True  # no Python, which is told already
        try:
            found = self._sources.class_names(file, cls)
        except (OSError, SyntaxError, ValueError, RecursionError):
            return True  # a base is in a file that is no Python, or cannot be read
        if found is None:
            return cls in set(bound_names(tree.body))
        return method in found[0] or not found[1]

    def access(self) -> None:
        system = self.loaded.system
        nodes = [*system.orchestrators.items(), *system.agents.items()]
        protected = [name for name, spec in nodes if spec.protected]
        if protected and not self._has_method("plugins.access:AccessResolver", "can_access"):
            section = "orchestrators" if protected[0] in system.orchestrators else "agents"
            what = f"plugins/access.py needs the class AccessResolver with can_access(self, ctx, node_id); {_GENERATE}"
            self._note((section, protected[0], "protected"), f"{section}.{protected[0]}.protected", what)

    def hooks(self, broken: set[str]) -> None:
        """Import every hook, as a build does; each that cannot be loaded is one problem."""
        from agent_engine.spec.hooks import PluginInstances, definition

        plugins = PluginInstances(self.space, self.manifest)
        told: set[tuple[str, str]] = set()
        for event, entries in self.loaded.system.hooks.items():
            for index, entry in enumerate(entries):
                path = ("hooks", event, index)
                name = f"hooks.{event}[{index}]"
                if f"hooks.{event}" in broken or any(one.startswith(name) for one in broken):
                    continue
                if entry.plugin is not None and entry.plugin not in self.manifest.hooks:
                    continue  # told once, where it is first named
                try:
                    definition(event, entry, folder=self.loaded.folder, source="", plugins=plugins, space=self.space)
                except HookLoadError as exc:
                    if (exc.ref, exc.reason) not in told:  # a class is told once, where it is first needed
                        self._note(path, name, f"{exc.ref} cannot be loaded: {exc.reason}")
                    told.add((exc.ref, exc.reason))
                except (HookRegistrationError, LoadError) as exc:
                    self._note(path, name, str(exc))

    def stubs(self) -> None:
        """Generated stubs that nobody has written, in every file below plugins."""
        folder = self.loaded.folder / "plugins"
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else ():
            if "__pycache__" in file.parts or not file.is_file():
                continue
            if not _holds_stub(file):
                continue
            tree = self._tree(file)
            for name, line, column in _unwritten(tree) if tree is not None else ():
                what = f"'{name}' is still the generated stub; write it"
                self.problems.append(Problem(str(file), line, column, "", what))


def _shown(file: Path, folder: Path) -> str:
    try:
        return str(file.relative_to(folder.resolve()))
    except ValueError:
        return str(file)


def _holds_stub(file: Path) -> bool:
    try:
        return STUB_MARKER.encode() in file.read_bytes()
    except OSError:
        return True  # told where its tree is asked for


def _unwritten(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    """(name, line, column) of each function whose body raises with the stub's mark."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for statement in node.body:
            if isinstance(statement, ast.Raise) and any(
                isinstance(part, ast.Constant) and part.value == STUB_MARKER for part in ast.walk(statement)
            ):
                yield node.name, node.lineno, node.col_offset + 1
