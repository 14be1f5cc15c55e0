"""``generate``: the stubs, manifest entries and prompts that a declared system still lacks.

Everything is planned before anything is written. Files that people edited keep every line; a second run changes
nothing.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agent_engine.plugins.loader import is_ref
from agent_engine.plugins.manifest import MANIFEST, Manifest, read_manifest
from agent_engine.plugins.problems import Problem, SpecError, did_you_mean
from agent_engine.spec import stubs
from agent_engine.spec.classes import Sources
from agent_engine.spec.load import Loaded, examine
from agent_engine.spec.system import AgentSpec, OrchestratorSpec, python_name
from agent_engine.spec.template import names_in

Mode = Literal["all", "children", "child"]
MODES = ("all", "children", "child")


@dataclass(frozen=True, slots=True)
class Change:
    """One file that ``generate`` made or added to. ``what`` says in a few words what is new in it."""

    path: Path
    kind: Literal["created", "extended", "replaced"]
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}: {self.what}"


def generate(path: str | Path, mode: Mode = "all", agent: str | None = None, force: bool = False) -> list[Change]:
    """Write what is missing and return what was written; [] when nothing was.

    ``mode``: ``all``; ``children`` (prompts, tools and resolvers of every node but the root); ``child`` (those of the
    node ``agent``). ``force`` writes generated Python files anew, hand-written code in them included; prompts are
    never overwritten. Raises SpecError where the file or a file to add to is wrong; ValueError for a mode or agent that
    does not exist.
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode '{mode}'{did_you_mean(mode, MODES)}")
    loaded, problems = examine(path, files=False)
    errors = [problem for problem in problems if problem.severity == "error"]
    if loaded is None or errors:
        raise SpecError(errors or problems)
    nodes = [*loaded.system.orchestrators, *loaded.system.agents]
    if mode == "child":
        if agent is None:
            raise ValueError("mode 'child' needs the id of an agent")
        if agent not in nodes:
            raise ValueError(f"no agent or orchestrator is called '{agent}'{did_you_mean(agent, nodes)}")
        nodes = [agent]
    elif mode == "children":
        nodes = [node for node in nodes if node != loaded.system.root]
    plan = _Plan(loaded, read_manifest(loaded.folder), force)
    if plan.manifest.problems:
        raise SpecError(plan.manifest.problems)
    for node in nodes:
        plan.prompts(node)
    tools = loaded.system.tools if mode == "all" else _tools_of(loaded, nodes)
    for tool in tools:
        plan.tool(tool)
    plan.resolvers(nodes)
    if mode == "all":
        plan.access()
        plan.hooks()
    return plan.write()


def _tools_of(loaded: Loaded, nodes: list[str]) -> list[str]:
    agents = [loaded.system.agents[node] for node in nodes if node in loaded.system.agents]
    return [tool for tool in loaded.system.tools if any(tool in agent.tools for agent in agents)]


@dataclass(slots=True)
class _File:
    """A Python file to be: what it must hold, and how it reads when it is new."""

    doc: str
    functions: dict[str, stubs.Stub] = field(default_factory=dict)
    classes: dict[str, dict[str, stubs.Stub]] = field(default_factory=dict)
    bases: dict[str, tuple[str, str]] = field(default_factory=dict)


class _Plan:
    def __init__(self, loaded: Loaded, manifest: Manifest, force: bool) -> None:
        self.loaded = loaded
        self.manifest = manifest
        self.force = force
        self._python: dict[Path, _File] = {}
        self._sources = Sources(self._find)
        self._texts: dict[Path, str] = {}
        self._entries: dict[str, dict[str, str]] = {"hooks.plugins": {}, "tools": {}, "resolvers": {}}

    def prompts(self, node: str) -> None:
        spec = self.loaded.system.node(node)
        for kind in ("system", "orchestrator", "user"):
            name = getattr(spec.prompts, kind, None)
            if name is not None and not (self.loaded.folder / name).exists():
                title = spec.name or node
                values = self._names_for(node, spec)
                self._texts[self.loaded.folder / name] = stubs.prompt_text(
                    title, spec.description or "", values, kind=kind
                )

    def _names_for(self, node: str, spec: OrchestratorSpec | AgentSpec) -> list[str]:
        resolvers = self.loaded.system.resolvers
        return [name for name, one in resolvers.items() if name in spec.resolvers or node in one.agents]

    def tool(self, tool: str) -> None:
        entry = self.manifest.tools.get(tool)
        name = python_name(tool)
        ref = entry.ref if entry is not None else f"plugins.tools.{name}:{name}"
        if entry is None:
            self._entries["tools"][tool] = ref
        self._function(ref, stubs.tool_function(tool), f"The tool {tool}.")

    def resolvers(self, nodes: list[str]) -> None:
        system = self.loaded.system
        if not system.resolvers:
            return
        shared = [name for name, spec in system.resolvers.items() if spec.scope == "shared"]
        base = self._class("resolvers", "shared", "plugins.resolvers.shared:SharedResolver")
        methods = [stubs.resolver_method(name) for name in shared if not self._own_class(name)]
        self._methods(base, methods, "Values that every node's prompts may use.")
        for node in nodes:
            own = [name for name in self._used_by(node) if system.resolvers[name].scope == "agent"]
            own = [name for name in own if not self._own_class(name)]
            if own:
                ref = self._class("resolvers", node, f"plugins.resolvers.{python_name(node)}:Resolver")
                pair = (base.partition(":")[0], base.partition(":")[2])
                methods = [stubs.resolver_method(name) for name in own]
                self._methods(ref, methods, f"Values for the prompts of {node}.", base=pair)

    def _own_class(self, resolver: str) -> bool:
        """Whether the manifest gives this resolver a class of its own (an entry by the resolver's id)."""
        nodes = (*self.loaded.system.agents, *self.loaded.system.orchestrators, "shared")
        return resolver in self.manifest.resolvers and resolver not in nodes

    def _used_by(self, node: str) -> list[str]:
        """Resolvers that the node lists, that name it, or that its prompts use already."""
        spec = self.loaded.system.node(node)
        used = set(self._names_for(node, spec))
        for kind in ("system", "orchestrator", "user"):
            name = getattr(spec.prompts, kind, None)
            file = self.loaded.folder / name if name is not None else None
            if file is not None and file.is_file():
                used |= {found.name for found in names_in(file.read_text("utf-8", "replace"))}
        return [name for name in self.loaded.system.resolvers if name in used]

    def access(self) -> None:
        system = self.loaded.system
        if any(spec.protected for spec in (*system.agents.values(), *system.orchestrators.values())):
            doc = "Who may use the protected nodes."
            self._methods("plugins.access:AccessResolver", [stubs.access_method()], doc)

    def hooks(self) -> None:
        for event, entries in self.loaded.system.hooks.items():
            for entry in entries:
                if entry.plugin is not None and entry.method is not None:
                    default = f"plugins.hooks.{python_name(entry.plugin)}:{stubs.class_name(entry.plugin)}"
                    ref = self._class("hooks.plugins", entry.plugin, default)
                    self._methods(ref, [stubs.hook_method(event, entry.method)], f"The hook plugin {entry.plugin}.")
                elif entry.ref is not None and is_ref(entry.ref):
                    name = entry.ref.partition(":")[2]
                    if "." not in name:
                        stub = stubs.hook_method(event, name, function=True)
                        self._function(entry.ref, stub, "Hooks of this system.")

    def _class(self, table: str, key: str, default: str) -> str:
        entry = self.manifest.table(table).get(key)
        if entry is not None:
            return entry.ref
        self._entries[table][key] = default
        return default

    def _file(self, ref: str, doc: str) -> _File | None:
        """The file of a ref below ``plugins``; None for code that lives elsewhere."""
        module = ref.partition(":")[0]
        if module.partition(".")[0] != "plugins" or "." not in module:
            return None
        path = self.loaded.folder / Path(*module.split(".")).with_suffix(".py")
        package = self.loaded.folder / Path(*module.split(".")) / "__init__.py"
        return self._python.setdefault(package if package.is_file() else path, _File(doc))

    def _function(self, ref: str, stub: stubs.Stub, doc: str) -> None:
        file = self._file(ref, doc)
        if file is not None and "." not in ref.partition(":")[2]:
            named = ref.partition(":")[2]
            source = stub.source.replace(f"def {stub.name}(", f"def {named}(", 1)
            file.functions.setdefault(named, stubs.Stub(named, source, stub.imports))

    def _methods(self, ref: str, methods: list[stubs.Stub], doc: str, base: tuple[str, str] | None = None) -> None:
        file = self._file(ref, doc)
        name = ref.partition(":")[2]
        if file is not None and "." not in name:
            known = file.classes.setdefault(name, {})
            for method in methods:
                known.setdefault(method.name, method)
            if base is not None:
                file.bases[name] = base

    def write(self) -> list[Change]:
        """Plan every text first, then write them all."""
        planned: list[tuple[Path, str, Change]] = []
        for path, text in self._texts.items():
            planned.append((path, text, Change(path, "created", "a prompt to be written")))
        for path, file in self._python.items():
            change = self._python_change(path, file)
            if change is not None:
                planned.append(change)
        entries = self._manifest_change()
        if entries is not None:
            planned.append(entries)
        for path, text, _ in planned:
            try:
                _write(path, text)
            except OSError as exc:
                what = f"cannot be written: {exc.strerror or type(exc).__name__}"
                raise SpecError([Problem(str(path), 0, 0, "", what)]) from exc
        return [change for _, _, change in planned]

    def _python_change(self, path: Path, file: _File) -> tuple[Path, str, Change] | None:
        fresh = self._fresh(file)
        names = ", ".join([*file.functions, *file.classes])
        if not path.exists():
            return path, fresh, Change(path, "created", names)
        if self.force:
            same = path.read_text("utf-8", "replace") == fresh
            return None if same else (path, fresh, Change(path, "replaced", names))
        from agent_engine.spec import grow

        before = tree = grow.parse_file(path)
        added: list[str] = []
        wanted = [grow.Wanted(functions=tuple(file.functions.values()))]
        for name, methods in file.classes.items():
            wanted.append(grow.Wanted(cls=name, base=file.bases.get(name), methods=tuple(methods.values())))
        for one in wanted:
            tree, names_added = grow.grow(tree, one, lambda cls, method: self._has(path, cls, method))
            added.extend(names_added)
        if tree is before:
            return None
        return path, tree.code, Change(path, "extended", ", ".join(added))

    def _fresh(self, file: _File) -> str:
        classes = list(file.classes.items())
        first = classes[0] if classes else None
        bases = [file.bases[name] for name, _ in classes if name in file.bases]
        text = stubs.module_text(
            file.doc,
            functions=list(file.functions.values()),
            cls=first[0] if first else None,
            base=file.bases[first[0]][1] if first and first[0] in file.bases else None,
            methods=list(first[1].values()) if first else (),
            imports=[
                *bases,
                *(pair for _, methods in classes[1:] for stub in methods.values() for pair in stub.imports),
            ],
        )
        for name, methods in classes[1:]:
            base = file.bases[name][1] if name in file.bases else None
            text += f"\n\n{stubs.class_text(name, base, list(methods.values()))}"
        return text

    def _has(self, path: Path, cls: str, method: str) -> bool:
        """Whether a class has a method; a base that cannot be looked into may have it, so it counts as had."""
        try:
            found = self._sources.class_names(path, cls)
        except (SyntaxError, ValueError, RecursionError):
            return True
        return found is None or method in found[0] or not found[1]

    def _find(self, module: str) -> Path | None:
        if module.partition(".")[0] != "plugins":
            return None
        path = self.loaded.folder / Path(*module.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None

    def _manifest_change(self) -> tuple[Path, str, Change] | None:
        missing = {table: entries for table, entries in self._entries.items() if entries}
        if not missing:
            return None
        path = self.loaded.folder / MANIFEST
        text = path.read_bytes().decode("utf-8-sig") if self.manifest.exists else ""
        new = _with_entries(text, missing)
        names = ", ".join(key for entries in missing.values() for key in entries)
        return path, new, Change(path, "extended" if self.manifest.exists else "created", names)


def _with_entries(text: str, missing: dict[str, dict[str, str]]) -> str:
    import tomlkit
    from tomlkit.items import Table

    document = tomlkit.parse(text)
    for table, entries in missing.items():
        target: Any = document
        for part in table.split("."):
            if part not in target:
                target[part] = tomlkit.table(is_super_table=part == "hooks")
            target = target[part]
        if not isinstance(target, dict):
            raise SpecError([Problem(MANIFEST, 0, 0, table, "a table is expected")])
        for key, ref in entries.items():
            target[key] = ref
        if isinstance(target, Table) and text == "":
            target.add(tomlkit.nl())
    return tomlkit.dumps(document).rstrip("\n") + "\n" if not text else tomlkit.dumps(document)


def _write(path: Path, text: str) -> None:
    """Write a whole file or nothing of it; a link to it, and permissions of a file that exists, stay."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
