"""``${NAME}``: where it is filled, and that it can be."""

from __future__ import annotations

from agent_engine.spec.checks.context import Check
from agent_engine.spec.compose import DocPath
from agent_engine.spec.variables import BROKEN, VARIABLE, is_filled

_FREE_TEXT = ("description", "command", "args", "matcher")


def run(check: Check) -> None:
    for path, text in check.texts():
        if "${" not in text:
            continue
        if is_filled(path):
            _filled(check, path, text)
        elif VARIABLE.search(text) and not _is_free(path):
            check.note(path, _advice(path))


def _filled(check: Check, path: DocPath, text: str) -> None:
    for match in VARIABLE.finditer(text):
        name, default = match.group("name"), match.group("default")
        if default is None and name not in check.environ:
            check.note(path, f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    broken = BROKEN.search(VARIABLE.sub("", text))
    if broken is not None:
        check.note(path, "a variable is written ${NAME} or ${NAME:-default}")


def _is_free(path: DocPath) -> bool:
    """Descriptions are prose, and a hook's command is the shell's own to expand."""
    return path[-1] in _FREE_TEXT or (path[0] == "hooks" and "args" in path) or path[0] == "tools"


def _advice(path: DocPath) -> str:
    where = (
        "variables are filled in url, command, args and cwd of mcps, and in a model's name and base_url, nowhere else"
    )
    if path[0] in ("mcps", "hooks") and "env" in path:
        return f"{where}; let the process inherit it: name it under pass_env"
    return where
