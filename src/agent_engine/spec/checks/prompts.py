"""Prompt files: they exist, are filled in, and name only values that are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_engine.plugins.problems import Problem, shown
from agent_engine.spec.checks.context import Check, words
from agent_engine.spec.compose import DocPath, dotted
from agent_engine.spec.markers import PROMPT_MARKER
from agent_engine.spec.template import MAX_PROMPT_BYTES, names_in, read_prompt

if TYPE_CHECKING:
    from agent_engine.spec.load import Loaded


def run(check: Check) -> None:
    for section, name, block in check.blocks("orchestrators", "agents"):
        prompts = block.get("prompts")
        if isinstance(prompts, dict):
            for key, value in prompts.items():
                if isinstance(value, str) and value and key in ("system", "user", "orchestrator"):
                    _prompt(check, name, block, value, (section, name, "prompts", key))


def usable_names(check: Check, node: str, block: dict[str, Any]) -> tuple[set[str], set[str]]:
    """(names that this node's prompts may use, declared names that it does not list)."""
    listed = {name for _, name in words(block.get("resolvers"))}
    usable: set[str] = set()
    others: set[str] = set()
    for name, spec in check.section("resolvers").items():
        scope = spec.get("scope") if isinstance(spec, dict) else "agent" if isinstance(spec, list) else spec
        named = spec if isinstance(spec, list) else spec.get("agents") if isinstance(spec, dict) else None
        nodes = {node_id for _, node_id in words(named)}
        own = node in nodes or name in listed
        fits = scope == "shared" or own or ("resolvers" not in block and not nodes)
        (usable if fits else others).add(name)
    return usable, others


def _prompt(check: Check, node: str, block: dict[str, Any], value: str, path: DocPath) -> None:
    file = check.folder / value
    name = shown(value, 80)
    try:
        text = read_prompt(file)
    except FileNotFoundError:
        check.note(
            path, f"there is no file {name} beside the file; agentctl generate makes a first one{_inline(value)}"
        )
        return
    except IsADirectoryError:
        check.note(path, f"{name} is a folder; name a Markdown file in it")
        return
    except UnicodeDecodeError:
        check.note(path, f"{name} is not UTF-8; save it as UTF-8")
        return
    except OSError as exc:
        check.note(path, f"{name} cannot be read: {exc.strerror or type(exc).__name__}")
        return
    except ValueError:
        check.note(path, f"{name} is no plain file of up to {MAX_PROMPT_BYTES // 1024} KiB")
        return
    if PROMPT_MARKER in text:
        _inside(
            check,
            file,
            text,
            text.index(PROMPT_MARKER),
            path,
            "still holds the generated marker; write the prompt and remove it",
        )
    usable, others = usable_names(check, node, block)
    if path[-1] == "user":
        usable = usable | {"message"}
    for found in names_in(text):
        if found.name in usable:
            continue
        if found.name in others:
            what = f"{{{{ {found.name} }}}} is a resolver that '{node}' does not list; add it to its resolvers"
        elif found.name == "message":
            what = "{{ message }} is for prompts.user; the model gets the message by itself"
        else:
            what = f"{{{{ {found.name} }}}} is no resolver{check.meant(found.name, usable | others)}"
        _inside(check, file, text, found.start, path, what)


def _inline(value: str) -> str:
    return "" if len(value) < 200 and "\n" not in value else "; a prompt is a file, its text does not stand in YAML"


def _inside(check: Check, file: Path, text: str, offset: int, path: DocPath, message: str) -> None:
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    check.problems.append(Problem(str(file), line, column, dotted(path), message))


def used_resolvers(loaded: Loaded, node: str) -> list[str]:
    """The declared resolvers that a node's prompts use, in the order of the file."""
    prompts = loaded.system.node(node).prompts
    used: set[str] = set()
    for kind in ("system", "orchestrator", "user"):
        name = getattr(prompts, kind, None)
        try:
            text = read_prompt(loaded.folder / name) if name is not None else ""
        except (OSError, ValueError):
            continue  # told where prompts are checked
        used |= {found.name for found in names_in(text)}
    return [name for name in loaded.system.resolvers if name in used]
