"""From plain data to the typed system: every fault of shape, in words that say what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from agent_engine.plugins.problems import Problem, did_you_mean, nearest, shown
from agent_engine.spec import system as models
from agent_engine.spec.compose import DocPath, PathPart, dotted
from agent_engine.spec.document import Document
from agent_engine.spec.foreign import VALUES, advice_for

_MAX_HINTS = 200  # looking for the nearest name is dear; a file with more faults than this is another kind of file
_TRUE = frozenset(("true", "yes", "on", "y", "1"))
_FALSE = frozenset(("false", "no", "off", "n", "0"))

_SECTIONS: dict[str, tuple[str, type[BaseModel]]] = {
    "agents": ("agent", models.AgentSpec),
    "orchestrators": ("orchestrator", models.OrchestratorSpec),
    "tools": ("tool", models.ToolSpec),
    "mcps": ("mcp", models.McpSpec),
    "resolvers": ("resolver", models.ResolverSpec),
}
_SINGLE: dict[str, tuple[str, type[BaseModel]]] = {
    "system": ("system", models.SystemInfo),
    "defaults": ("defaults", models.Defaults),
    "plugins": ("plugins", models.Plugins),
    "execution": ("execution", models.Execution),
}
_EXAMPLES = {
    "system": "{name: my-system}",
    "graph": "{my_agent: }",
    "name": "my-name",
    "provider": "offline",
    "description": "What it is for.",
    "prompts": "{orchestrator: prompts/ID/orchestrator.md}",
    "orchestrator": "prompts/ID/orchestrator.md",
    "scope": "shared",
    "param_name": "tags",
    "type": "header",
}
_MAPPINGS = {
    "agents": "a mapping of id to agent: `agents: {my_agent: {description: …}}`",
    "orchestrators": "a mapping of id to orchestrator: `orchestrators: {router: {prompts: …}}`",
    "tools": "a mapping of id to tool: `tools: {search: {description: …}}`",
    "mcps": "a mapping of id to server: `mcps: {docs: {url: …}}`",
    "hooks": "a mapping of event to a list of entries: `hooks: {before_tool_call: [{plugin: …, method: …}]}`",
    "graph": "nested ids with one root: `graph: {router: {docs: }}`",
    "model": "a mapping: `model: {provider: anthropic, name: …}`",
    "prompts": "a mapping: `prompts: {system: prompts/ID/system.md}`",
}


def block_at(loc: Sequence[PathPart]) -> tuple[str, type[BaseModel] | None]:
    """The kind of block that stands at a path, and its model."""
    kind, model = "top", models.System  # type: tuple[str, type[BaseModel] | None]
    if not loc:
        return kind, model
    head, rest = loc[0], list(loc[1:])
    if head in _SINGLE:
        kind, model = _SINGLE[str(head)]
    elif head in _SECTIONS and rest:
        kind, model = _SECTIONS[str(head)]
        rest.pop(0)
    elif head == "hooks" and len(rest) >= 2:
        kind, model = "hook", models.HookEntry
        del rest[:2]
    else:
        return "", None
    for part in rest:
        if isinstance(part, int):
            continue
        if part == "model":
            kind, model = "model", models.ModelSpec
        elif part == "fallback":
            kind, model = "fallback", models.ModelChoice
        elif part == "prompts" and kind in ("agent", "orchestrator"):
            is_agent = kind == "agent"
            kind = "agent_prompts" if is_agent else "prompts"
            model = models.AgentPrompts if is_agent else models.OrchestratorPrompts
        elif part == "tool_tag_transport":
            kind, model = "transport", None
        elif part in ("header", "query_param") and kind == "transport":
            model = models.HeaderTransport if part == "header" else models.QueryTransport
        else:
            return "", None
    return kind, model


def read_shape(document: Document) -> tuple[models.System | None, list[Problem]]:
    """The typed system, or None with every fault of shape."""
    reader = _Reader(document)
    if not isinstance(document.data, dict):
        reader.note((), f"a mapping with system, agents and graph is expected, not {shown(document.data)}")
        return None, reader.problems
    empty = list(_empty(document.data, ()))
    for path in empty:
        reader.note(path, f"'{path[-1]}' is empty; write a value or remove it", key=True)
    try:
        result = models.System.model_validate(document.data)
    except ValidationError as exc:
        gone = [tuple(path) for path in empty]
        for error in exc.errors(include_url=False):
            loc = tuple(error["loc"])
            if not any(loc[: len(path)] == path for path in gone):
                reader.translate(loc, dict(error))
        return None, reader.problems
    return (None if empty else result), reader.problems


def _empty(value: Any, path: DocPath) -> Iterator[DocPath]:
    """Paths of nulls. In the graph an empty value is a leaf."""
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            if path or key != "graph" or inner is None:
                yield from _empty(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _empty(inner, (*path, index))


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._hints = _MAX_HINTS
        self.problems: list[Problem] = []

    def note(self, path: Sequence[PathPart], message: str, *, key: bool = False, shape: bool = True) -> None:
        positions = self._document.positions
        line, column = positions.of_key(path) if key else positions.of(path)
        self.problems.append(Problem(self._document.file, line, column, dotted(path), message, shape=shape))

    def translate(self, loc: DocPath, error: dict[str, Any]) -> None:
        """One pydantic error as a problem at its place."""
        kind = str(error["type"])
        value = error.get("input")
        context = error.get("ctx", {})
        if kind == "extra_forbidden":
            path = self._real(loc)
            return self.note(path, self._unknown_key(loc), key=True)
        if kind == "missing":
            name = str(loc[-1])
            example = _EXAMPLES.get(name, "…")
            return self.note(self._real(loc[:-1]), f"'{name}' is missing; add `{name}: {example}`", key=True)
        if loc and loc[-1] == "[key]":
            return self.note(self._real(loc[:-1]), _bad_id(loc[-2]), key=True)
        shape = kind != "finite_number"  # JSON has no such numbers, so its schemas cannot say it
        return self.note(self._real(loc), self._wrong_value(loc, kind, value, context), shape=shape)

    def _real(self, loc: DocPath) -> DocPath:
        """The path in the file: without the names of union branches and the index of a value that is no list."""
        path: list[PathPart] = []
        node: Any = self._document.data
        for part in loc:
            if isinstance(part, int):
                if not isinstance(node, list):
                    continue
                node = node[part] if part < len(node) else None
            elif isinstance(node, dict) and part in node:
                node = node[part]
            elif part in ("header", "query_param") and "tool_tag_transport" in path:
                continue
            else:
                node = None
            path.append(part)
        return tuple(path)

    def _unknown_key(self, loc: DocPath) -> str:
        key = str(loc[-1])
        kind, model = block_at(loc[:-1])
        advice = advice_for(kind, key)
        if advice is not None:
            return advice if advice.startswith("there is no") else f"'{key}' is not used here; {advice}"
        self._hints -= 1
        valid = list(model.model_fields) if model is not None and self._hints > 0 else []
        return f"unknown key '{key}'{did_you_mean(key, valid)}"

    def _wrong_value(self, loc: DocPath, kind: str, value: Any, context: dict[str, Any]) -> str:
        name = str(next((part for part in reversed(loc) if isinstance(part, str)), "it"))
        if kind in ("bool_type", "bool_parsing"):
            return _not_a_bool(name, value)
        if kind == "string_type":
            if isinstance(value, (bool, int, float)):
                return f"must be text, not {shown(value)}; put it in quotes"
            return f"must be text, not {shown(value)}"
        if kind in ("int_type", "int_from_float", "float_type", "int_parsing", "float_parsing"):
            return _not_a_number(value, whole=kind.startswith("int"))
        if kind in ("literal_error", "union_tag_invalid", "union_tag_not_found"):
            return self._not_a_choice(loc, kind, value, context)
        if kind == "list_type":
            hint = f": write `{name}: [{value}]`" if isinstance(value, str) and len(value) < 60 else ""
            if isinstance(value, dict) and loc[0] == "hooks":
                hint = ": begin the entry with `- `"
            return f"must be a list, not {shown(value)}{hint}"
        if kind in ("dict_type", "model_type", "model_attributes_type", "dict_attributes_type"):
            default = "a mapping" if len(loc) > 1 or name not in _MAPPINGS else _MAPPINGS[name]
            return f"must be {_MAPPINGS.get(name, default)}, not {shown(value)}"
        if kind == "string_pattern_mismatch":
            return (
                _bad_id(value) if context.get("pattern") == models.ID_PATTERN else f"{shown(value)} is not allowed here"
            )
        bounds = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
        if kind in bounds:
            word, bound = bounds[kind]
            return f"must be {word} {context.get(bound):g}, not {shown(value)}"
        if kind == "greater_than":
            return f"must be more than {context.get('gt'):g}, not {shown(value)}"
        if kind in ("string_too_short", "too_short"):
            return "must not be empty"
        if kind == "finite_number":
            return f"must be a finite number, not {shown(value)}"
        return f"is not allowed here ({kind.replace('_', ' ')})"

    def _not_a_choice(self, loc: DocPath, kind: str, value: Any, context: dict[str, Any]) -> str:
        block, _ = block_at(loc[:-1])
        block = "model" if block == "fallback" else block
        name = str(loc[-1])
        if kind == "union_tag_not_found":
            return "'type' is missing; write `type: header` with header_name, or `type: query_param` with param_name"
        if kind == "union_tag_invalid":
            block, name, value = "transport", "type", context.get("tag")
        choices = _choices(block, name)
        if isinstance(value, bool) or not isinstance(value, str):
            value_text = shown(value)
            hit = VALUES.get((block, name), {}).get(value_text)
        else:
            value_text = f"'{value}'" if len(value) < 60 else shown(value)
            hit = VALUES.get((block, name), {}).get(value.casefold()) or nearest(value, choices)
        end = f"; did you mean '{hit}'?" if hit else ""
        if len(choices) > 12:
            known = "" if hit else f"; known are {', '.join(choices)}"
            return f"unknown {name} {value_text}{end}{known}"
        listed = f"one of {', '.join(choices)}" if len(choices) > 1 else f"`{choices[0]}`, or absent"
        return f"must be {listed}, not {value_text}{end}"


def _choices(block: str, name: str) -> list[str]:
    choices: dict[tuple[str, str], tuple[str, ...]] = {
        ("model", "provider"): models.PROVIDERS,
        ("hook", "failure_policy"): ("fail", "deny", "warn"),
        ("tool", "approval"): ("required",),
        ("mcp", "discover"): ("build", "first_use"),
        ("resolver", "scope"): ("shared", "agent"),
        ("transport", "type"): ("header", "query_param"),
    }
    return list(choices.get((block, name)) or choices[("resolver", "scope")])


def _bad_id(value: object) -> str:
    return f"{shown(value)} is no id; use letters, digits, _ and -, and start with a letter or _"


def _not_a_bool(name: str, value: Any) -> str:
    word = str(value).casefold()
    if isinstance(value, str) and word in _TRUE | _FALSE:
        return f"must be true or false without quotes: write `{name}: {'true' if word in _TRUE else 'false'}`"
    if value in (0, 1) and isinstance(value, (int, float)):
        return f"must be true or false, not {shown(value)}: write `{name}: {'true' if value else 'false'}`"
    return f"must be true or false, not {shown(value)}"


def _not_a_number(value: Any, *, whole: bool) -> str:
    word = "a whole number" if whole else "a number"
    if isinstance(value, str):
        try:
            number = int(value) if whole else float(value)
        except ValueError:
            return f"must be {word}, not {shown(value)}"
        return f"must be {word} without quotes: write {number}"
    return f"must be {word}, not {shown(value)}"
