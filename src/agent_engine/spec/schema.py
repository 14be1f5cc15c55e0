"""The published JSON Schema of ``agents.yaml``.

Made from the typed models, plus what they cannot say: which keys go together, the events, the graph. It accepts every
file that the loader accepts; references, files, duplicates, cycles and secrets are the loader's alone.
"""

from __future__ import annotations

from typing import Any

from agent_engine.spec.system import ID_PATTERN, KEYLESS

Schema = dict[str, Any]


def json_schema() -> Schema:
    """The schema (draft 2020-12) as JSON-ready data."""
    from agent_engine.spec.system import System

    schema = System.model_json_schema(mode="validation")
    _as_strict(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "agents.yaml"
    schema["description"] = "A system of agents, its tools, servers, prompts and hooks."
    definitions: Schema = schema["$defs"]
    definitions["Id"] = {"type": "string", "pattern": ID_PATTERN}
    definitions["Graph"] = _graph()
    properties: Schema = schema["properties"]
    properties["graph"] = {
        "type": "object",
        "description": "Nested ids with one root; a leaf is empty.",
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": {"$ref": "#/$defs/Id"},
        "additionalProperties": {"$ref": "#/$defs/Graph"},
    }
    properties["hooks"] = _hooks(definitions)
    schema["anyOf"] = [
        {"required": [section], "properties": {section: {"minProperties": 1}}}
        for section in ("agents", "orchestrators")
    ]
    _together(definitions)
    return schema


def _as_strict(node: Any) -> None:
    """As strict as the loader: an empty value is a fault everywhere but in the graph, and every key of a mapping of ids
    is an id."""
    if isinstance(node, dict):
        choices = node.get("anyOf")
        if isinstance(choices, list) and {"type": "null"} in choices:
            rest = [choice for choice in choices if choice != {"type": "null"}]
            del node["anyOf"]
            node.update(rest[0] if len(rest) == 1 else {"anyOf": rest})
        if "default" in node and node["default"] is None:
            del node["default"]
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            _as_strict(value)
    elif isinstance(node, list):
        for value in node:
            _as_strict(value)


def _graph() -> Schema:
    return {
        "title": "Graph",
        "anyOf": [
            {"type": "null"},
            {"type": "array", "maxItems": 0},
            {
                "type": "object",
                "propertyNames": {"$ref": "#/$defs/Id"},
                "additionalProperties": {"$ref": "#/$defs/Graph"},
            },
        ],
    }


def _hooks(definitions: Schema) -> Schema:
    """One property an event; where an event has no target, its entries take no matcher."""
    from agent_engine.spec.events import event_names, old_names, target_of

    entry = definitions["HookEntry"]
    commands = [{"required": ["command"]}, {"required": ["args"]}]
    entry["oneOf"] = [
        {"required": ["plugin", "method"]},
        {"required": ["ref"]},
        *commands,
        {"required": ["url"]},
    ]
    entry["dependentRequired"] = {"plugin": ["method"], "method": ["plugin"]}
    entry["dependentSchemas"] = {key: {"anyOf": commands} for key in ("env", "pass_env")}
    for way in ("ref", "command", "args", "url"):
        others = [{"required": [key]} for key in ("plugin", "method")]
        entry["dependentSchemas"][way] = {"not": {"anyOf": others}}
    with_target = {"type": "array", "items": {"$ref": "#/$defs/HookEntry"}}
    bare = {"allOf": [{"$ref": "#/$defs/HookEntry"}, {"not": {"required": ["matcher"]}}]}
    without = {"type": "array", "items": bare}
    names = [*event_names(), *old_names()]
    return {
        "type": "object",
        "description": "Event to a list of hooks, which run in this order.",
        "properties": {name: with_target if target_of(name) is not None else without for name in names},
        "additionalProperties": False,
    }


def _together(definitions: Schema) -> None:
    """Keys that need or exclude one another."""
    server = definitions["McpSpec"]
    server["oneOf"] = [{"required": ["url"]}, {"required": ["command"]}]
    server["dependentSchemas"] = {key: {"required": ["command"]} for key in ("args", "env", "pass_env", "cwd")}
    server["dependentSchemas"] |= {key: {"required": ["url"]} for key in ("tool_tags", "tool_tag_transport")}
    keyless = {"properties": {"provider": {"enum": [name for name in KEYLESS if name != "scripted"]}}}
    for name in ("ModelSpec", "ModelChoice"):
        definitions[name]["if"] = {"required": ["provider"], "not": keyless}
        definitions[name]["then"] = {"required": ["name"]}
