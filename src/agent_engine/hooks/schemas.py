"""JSON Schemas (2020-12) of what goes into a hook and what comes out of it.

One payload schema for each event and one for decisions. They hold for Python hooks (``payload.to_dict()``, a returned
dict), for command hooks (standard input and output) and for webhooks (request and response body) alike.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from agent_engine.hooks.events import CATALOGUE, HookEvent, event_of
from agent_engine.hooks.managed import Context
from agent_engine.hooks.payloads import payload_type

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    Any: {},
}


def payload_schema(event: str | HookEvent) -> Schema:
    """The schema of one event's payload in its JSON form.

    Raises:
        ValueError: there is no such event.
    """
    event = event_of(event)
    spec = CATALOGUE[event]
    if event is HookEvent.ON_RUN_ERROR:
        title, properties, required = (
            "RunError",
            {"error_type": _PLAIN[str], "error_message": _PLAIN[str]},
            ["error_type"],
        )
    else:
        title, properties = spec.payload, _properties(payload_type(event))
        required = list(properties)
    changes = f" A hook may change: {', '.join(sorted(spec.changes))}." if spec.changes else ""
    return {
        "$schema": DIALECT,
        "$id": f"urn:agent-engine:payload:{event}",
        "title": title,
        "description": f"Fires at {event}.{changes}",
        "type": "object",
        "properties": {**properties, "event_name": {"const": event.value}},
        "required": ["event_name", *(name for name in required if name != "event_name")],
    }


def decision_schema() -> Schema:
    """The schema of a verdict: the object that a hook may return, print, or answer with."""
    text, flag, changes = {"type": ["string", "null"]}, {"type": ["boolean", "null"]}, {"type": ["object", "null"]}
    properties: Schema = {
        "decision": {"enum": ["allow", "modify", "ask", "deny", "block"]},
        "reason": text,
        "modified_input": {**changes, "description": "Fields to change; at before_tool, arguments of the tool."},
        "modified_data": {**changes, "description": "Another name of modified_input."},
        "additional_context": text,
        "suppress_output": flag,
        "system_message": text,
        "proceed": {**flag, "description": "false is a deny, with stop_reason."},
        "stop_reason": text,
    }
    return {
        "$schema": DIALECT,
        "$id": "urn:agent-engine:decision",
        "title": "Decision",
        "description": "Without a decision it is an allow, and may hold no other key than these.",
        "type": "object",
        "properties": properties,
        "not": {"required": ["modified_input", "modified_data"]},
        "if": {"not": {"required": ["decision"]}},
        "then": {"propertyNames": {"enum": list(properties)}},
    }


def all_schemas() -> dict[str, Schema]:
    """Every schema under the name of a file for it: ``payload/before_tool.json``, ``decision.json``."""
    named = {f"payload/{event.value}.json": payload_schema(event) for event in CATALOGUE}
    return {**named, "decision.json": decision_schema()}


def _properties(kind: type[Any]) -> Schema:
    hints = typing.get_type_hints(kind)
    return {str(one.name): _schema(hints[str(one.name)]) for one in fields(kind)}


def _schema(hint: Any) -> Schema:
    """The schema of one annotation, as the JSON form writes its values."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [_schema(one) for one in arguments]
        if all(set(one) == {"type"} for one in options):
            return {"type": [one["type"] for one in options]}
        return {"anyOf": options}
    if origin in (list, tuple):
        return {"type": "array", "items": _schema(arguments[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if isinstance(hint, type) and issubclass(hint, Context):
        return {"type": "object", "properties": _properties(hint), "required": list(_properties(hint))}
    raise TypeError(f"a payload has a field of type {hint!r}, which has no schema")
