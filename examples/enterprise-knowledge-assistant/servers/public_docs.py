"""A public MCP server: the documentation of the Python standard library that runs it, found and read by member."""

from __future__ import annotations

import importlib
import inspect
import os.path
import pkgutil
import platform
import pydoc
import re
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from loopback import serve
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from ranking import Found, Index, entry

# Importing these does something (opens a browser, prints, needs a screen), or they are no library.
_NOT_IMPORTED = """
antigravity distutils ensurepip idlelib lib2to3 msilib msvcrt nt ntpath posixpath sitecustomize test this tkinter turtle
turtledemo usercustomize winreg winsound
"""
NOT_IMPORTED = frozenset(_NOT_IMPORTED.split())
PYTHON = f"Python {platform.python_version()}"

server = MCPServer(
    "public_docs", log_level="WARNING", instructions=f"The documentation of the standard library of {PYTHON}."
)


@server.tool(structured_output=False)
def search_docs(query: str) -> str:
    """Search the Python standard library for modules, classes and functions, and get their names, best match first.

    Args:
        query: what to look for: a name such as datetime.strptime, or words such as parse a date string
    """
    found = index().best(query)
    if not found:
        return f"Nothing in the standard library of {PYTHON} matches {query!r}. Try a name, such as json.dumps."
    lines = [f"- {one.name}: {one.summary}" if one.summary else f"- {one.name}" for one in found]
    return "\n".join([f"Members of the standard library of {PYTHON} that match, best first:", *lines])


@server.tool(structured_output=False)
def read_docs(name: str) -> str:
    """Read the documentation of one module, class or function of the Python standard library.

    Args:
        name: the dotted name of the member, such as json.dumps, or of a whole module, such as json
    """
    wanted = name.strip().strip("`").removesuffix("()")
    full_name = resolve(wanted)
    if full_name is None:
        near = ", ".join(one.name for one in index().best(wanted, limit=5))
        hint = f" Near it: {near}." if near else ""
        raise ToolError(f"The standard library of {PYTHON} has no member named {wanted!r}.{hint}")
    value = pydoc.locate(full_name)
    text = pydoc.render_doc(value, title="%s", renderer=pydoc.plaintext).strip()
    overview = overview_of(value) if isinstance(value, ModuleType) else ""
    return f"{full_name}, from the standard library of {PYTHON}\n\n{overview}{text}"


def resolve(name: str) -> str | None:
    """The full dotted name of a member: the name itself where it is one, else the best match that ends like it."""
    top = name.partition(".")[0]
    if top in modules() and pydoc.locate(name) is not None:
        return name
    last = name.rpartition(".")[2].lower()
    return next((one.name for one in index().best(name, limit=3) if one.name.rpartition(".")[2].lower() == last), None)


def overview_of(module: ModuleType) -> str:
    """What a module offers, a line a member: its whole text is long, and its members are what people look for."""
    name = module.__name__
    lines = [
        f"- {one.name}: {one.summary}" for one, _ in members(name, module) if one.name.count(".") == name.count(".") + 1
    ]
    return "\n".join([f"What {name} offers:", *lines, "", ""]) if lines else ""


@cache
def index() -> Index:
    """Every member under its shortest name: asyncio.TaskGroup, and not asyncio.taskgroups.TaskGroup as well."""
    seen: set[int] = set()
    kept = []
    for name, module in sorted(modules().items(), key=lambda pair: (pair[0].count("."), pair[0])):
        for found, value in members(name, module):
            if id(value) not in seen:
                seen.add(id(value))
                kept.append(found)
    return Index(kept)


@cache
def modules() -> dict[str, ModuleType]:
    """Every public module of the standard library that can be imported here, packages' modules included."""
    found: dict[str, ModuleType] = {"os.path": os.path}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(sys.stdlib_module_names - NOT_IMPORTED):
            for one in _import_public(name):
                found[one.__name__] = one
    return found


def _import_public(name: str) -> Iterator[ModuleType]:
    if any(part.startswith("_") for part in name.split(".")) or name.endswith((".tests", ".test", ".idle_test")):
        return
    try:
        module = importlib.import_module(name)
    except ImportError:
        return  # not built for this system, such as a module of another platform
    yield module
    for child in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield from _import_public(f"{name}.{child.name}")


def members(module_name: str, module: ModuleType) -> Iterator[tuple[Found, object]]:
    """The module itself, its public functions and classes, and the public methods of those classes."""
    yield entry(module_name, first_sentence(module)), module
    for name, value in sorted(vars(module).items()):
        if not _is_public(module, name, value):
            continue
        yield entry(f"{module_name}.{name}", first_sentence(value)), value
        if inspect.isclass(value):
            for method, function in sorted(vars(value).items()):
                if not method.startswith("_") and (
                    callable(function) or isinstance(function, classmethod | staticmethod)
                ):
                    yield entry(f"{module_name}.{name}.{method}", first_sentence(getattr(value, method))), function


def _is_public(module: ModuleType, name: str, value: object) -> bool:
    if name.startswith("_") or isinstance(value, ModuleType) or not callable(value):
        return False
    if name in getattr(module, "__all__", ()):
        return True
    home = getattr(value, "__module__", None) or module.__name__
    # A package's own parts are members too (asyncio.TaskGroup), and so are those that a module's C half defines.
    return home.startswith(module.__name__ + ".") or (
        not hasattr(module, "__all__") and home.lstrip("_").split(".")[0] == module.__name__.split(".")[0]
    )


def first_sentence(value: object) -> str:
    """The first sentence of the documentation, without the bare signature that some built-in functions begin with."""
    kept: list[str] = []
    for line in (line.strip() for line in (inspect.getdoc(value) or "").splitlines()):
        if not line and kept:
            break
        if line and not (line.endswith(")") and " " not in line.partition("(")[0]):
            kept.append(line)
        if line.endswith("."):
            break
    text = " ".join(kept)
    return re.split(r"(?<=[.])\s+(?=[A-Z])", text, maxsplit=1)[0][:200]


if __name__ == "__main__":
    index()
    serve(server.streamable_http_app(json_response=True))
