"""No credential stands in the file: not by its form, and not beside a key that names one."""

from __future__ import annotations

from agent_engine.spec.checks.context import Check
from agent_engine.spec.compose import DocPath
from agent_engine.spec.secrets import credential_in, looks_random, secret_key

_ADVICE = "keep it in the environment, and read it there in a hook or tool"


def run(check: Check) -> None:
    for path, text in check.texts():
        kind = credential_in(text) or _beside_key(check, path, text)
        if kind is not None:
            check.note(path, f"this looks like {kind}; secrets do not stand in the file: {_advice(path)}")


def _beside_key(check: Check, path: DocPath, text: str) -> str | None:
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    if "env" in path[:-1] and secret_key(key):
        plain = len(text) >= 4 and not any(char.isspace() for char in text) and "${" not in text
        return (
            f"a value for {key}" if plain and not text.isdigit() and text.casefold() not in ("true", "false") else None
        )
    if secret_key(key) and looks_random(text):
        return f"a value for {key}"
    option = _option_before(check, path)
    if option is not None and secret_key(option) and looks_random(text, shortest=8):
        return f"a value for {option}"
    return None


def _option_before(check: Check, path: DocPath) -> str | None:
    """``--api-key`` where the text follows it in a list of arguments."""
    if len(path) < 2 or path[-2] != "args" or not isinstance(path[-1], int) or path[-1] == 0:
        return None
    node: object = check.data
    for part in path[:-1]:
        node = node[part] if isinstance(node, (dict, list)) else None  # type: ignore[index]  # the path leads here
    before = node[path[-1] - 1] if isinstance(node, list) else None
    return before.lstrip("-") if isinstance(before, str) and before.startswith("-") else None


def _advice(path: DocPath) -> str:
    if path[0] == "mcps" and "env" in path:
        return "name the variable under pass_env instead"
    if path[0] == "hooks":
        return "read it from the environment in the hook, or name the variable under pass_env"
    if path[0] == "mcps":
        return "return it as a header from a hook at before_mcp_request, or name its variable under pass_env"
    return _ADVICE
