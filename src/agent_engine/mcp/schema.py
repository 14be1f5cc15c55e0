"""Checking values against the JSON Schemas that servers give for arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_PLAIN_KEYS = frozenset(("$schema", "title", "description", "default", "examples", "deprecated"))
_OBJECT_KEYS = _PLAIN_KEYS | {"type", "properties", "required"}
_IS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}


class SchemaCheck:
    """A schema, ready to check values.

    A schema of plain properties is checked without a validator, which costs a hundredth; whatever does not pass there,
    and every other schema, goes to jsonschema. A schema that is none itself accepts everything.
    """

    __slots__ = ("_plain", "_schema", "_validator")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._plain = _plain(schema)
        self._validator: Any = None

    def problems(self, value: object) -> list[str]:
        """What is wrong, a sentence each; nothing where the schema refers to what it does not hold."""
        if self._plain is not None and self._plain(value):
            return []
        from referencing.exceptions import Unresolvable

        if self._validator is None:
            self._validator = _validator(self._schema)
        found: list[str] = []
        try:
            for error in self._validator.iter_errors(value):
                where = ".".join(str(step) for step in error.absolute_path)
                found.append(f"{where}: {error.message[:300]}" if where else error.message[:300])
        except (Unresolvable, RecursionError):
            return []
        return found


def _plain(schema: Mapping[str, Any]) -> Callable[[Any], bool] | None:
    """A check for an object whose properties have one plain type each; None for any other schema."""
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or not schema.keys() <= _OBJECT_KEYS or not isinstance(properties, Mapping):
        return None
    kinds: dict[str, Callable[[Any], bool]] = {}
    for name, rule in properties.items():
        if not isinstance(rule, Mapping) or not rule.keys() <= _PLAIN_KEYS | {"type"}:
            return None
        kind = _IS.get(rule["type"]) if isinstance(rule.get("type"), str) else None
        if kind is None:
            return None
        kinds[name] = kind
    required = schema.get("required", ())
    if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
        return None

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or any(name not in value for name in required):
            return False
        return all(kind(value[name]) for name, kind in kinds.items() if name in value)

    return fits


def _validator(schema: Mapping[str, Any]) -> Any:
    """A validator of jsonschema.

    Patterns are the server's to check: a regular expression from outside could hold up the whole process.
    """
    from jsonschema import SchemaError  # type: ignore[import-untyped]  # the library has no types
    from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]  # the same
    from referencing import Registry

    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError:
        schema = {}
    return extend(kind, {"pattern": None})(schema, registry=Registry())
