"""The parameters of a Python callable: their JSON Schema, their checks, and how a call is bound to them."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from agent_engine.tools.base import ArgumentsInvalid, invalid_text

_LONGEST_MESSAGE = 300


class Shape:
    """What a callable takes, read from its signature, its type hints and its docstring.

    Raises:
        TypeError: for a type hint that cannot be resolved, and for a type that JSON cannot fill; the text names the
            tool and the parameter.
    """

    __slots__ = (
        "_check",
        "_described",
        "_extra",
        "_model",
        "_names",
        "_pairs",
        "_positional",
        "description",
        "tool_name",
    )

    def __init__(self, function: Callable[..., Any], tool_name: str) -> None:
        self.tool_name = tool_name
        parameters = open_parameters(function, tool_name)
        hints = _hints(function, tool_name)
        self.description, self._described = _docstring(function)
        self._names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        self._positional = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
        self._extra = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        self._model = self._build(parameters, hints)
        self._check = self._model.__pydantic_validator__.validate_python
        self._pairs = [(name, f"p{number}") for number, name in enumerate(self._names)]

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments object."""
        from pydantic.json_schema import GenerateJsonSchema

        class Untitled(GenerateJsonSchema):
            """No generated titles, which only repeat names; no warning about a default that JSON cannot hold."""

            ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as the base has it

            def field_title_should_be_set(self, schema: Any) -> bool:
                return False

        schema: dict[str, Any] = self._model.model_json_schema(schema_generator=Untitled)
        schema.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the given arguments, each of its parameter's type. What was not given stays absent.

        Raises:
            ArgumentsInvalid: with every problem, written for the model; values are not repeated in it.
        """
        from pydantic import ValidationError

        try:
            made = self._check(dict(arguments))
        except ValidationError as error:
            problems = [_problem(entry) for entry in error.errors(include_url=False, include_input=False)]
            raise ArgumentsInvalid(invalid_text(self.tool_name, problems, self._names)) from None
        except (Exception, SystemExit) as error:  # a validator of the user's own types may raise anything
            problem = f"the arguments could not be checked ({type(error).__name__})"
            raise ArgumentsInvalid(invalid_text(self.tool_name, [problem], self._names)) from error
        given, fields = made.__pydantic_fields_set__, made.__dict__
        values = {name: fields[field] for name, field in self._pairs if field in given}
        if made.__pydantic_extra__:
            values.update(made.__pydantic_extra__)
        return values

    def bind(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments for a call of the function with ``values``."""
        named = dict(values)
        if not self._positional:
            return [], named
        positional = []
        for parameter in self._positional:
            if not any(p.name in named for p in self._positional):
                break
            positional.append(named.pop(parameter.name, parameter.default))
        return positional, named

    def _build(self, parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> Any:
        from pydantic import ConfigDict

        fields: dict[str, Any] = {}
        for number, name in enumerate(self._names):
            parameter = next(p for p in parameters if p.name == name)
            fields[f"p{number}"] = self._field(parameter, hints.get(name, Any))
        if self._extra is not None:
            fields["__pydantic_extra__"] = (dict[str, hints.get(self._extra, Any)], ...)  # type: ignore[misc]  # a runtime type
        config = ConfigDict(extra="allow" if self._extra else "forbid", hide_input_in_errors=True)
        return _model(self.tool_name, fields, self._names, config)

    def _field(self, parameter: inspect.Parameter, hint: Any) -> tuple[Any, Any]:
        from pydantic import Field

        options: dict[str, Any] = {"alias": parameter.name, "validation_alias": parameter.name}
        described = self._described.get(parameter.name)
        if described and not _has_description(hint):
            options["description"] = described
        if parameter.default is not parameter.empty:
            options["default"] = parameter.default
        return hint, Field(**options)


def _model(tool_name: str, fields: dict[str, Any], names: list[str], config: Any) -> Any:
    from pydantic import create_model
    from pydantic.errors import PydanticUserError

    try:
        return create_model(f"{tool_name}_arguments", __config__=config, **fields)
    except PydanticUserError as error:
        for number, name in enumerate(names):
            try:
                create_model("probe", **{f"p{number}": fields[f"p{number}"]})
            except PydanticUserError:
                kind = getattr(fields[f"p{number}"][0], "__name__", fields[f"p{number}"][0])
                raise TypeError(
                    f"The tool '{tool_name}': the type {kind} of parameter '{name}' cannot be filled from JSON;"
                    " use plain types, dataclasses or pydantic models."
                ) from error
        raise


def open_parameters(function: Callable[..., Any], tool_name: str) -> list[inspect.Parameter]:
    """The parameters that a caller may fill: those that a partial has filled by name are closed."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(f"The tool '{tool_name}': its parameters cannot be read from {function!r}.") from error
    closed: set[str] = set()
    inner: Any = function
    while isinstance(inner, functools.partial):
        closed.update(inner.keywords)
        inner = inner.func
    found = [p for p in signature.parameters.values() if p.name not in closed]
    return [p for p in found if p.kind is not p.VAR_POSITIONAL]


def refuse_star_arguments(function: Callable[..., Any], tool_name: str) -> None:
    """Raise TypeError for a function with ``*args``; cheap enough to be done when a tool is made."""
    code = getattr(plain_function(function), "__code__", None)
    if code is not None and code.co_flags & inspect.CO_VARARGS:
        name = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        raise TypeError(
            f"The tool '{tool_name}' takes *{name}, which a model cannot fill; take a list instead: {name}: list[str]."
        )


def _hints(function: Callable[..., Any], tool_name: str) -> dict[str, Any]:
    target = plain_function(function)
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"The tool '{tool_name}': the type '{error.name}' in its signature cannot be resolved; define or import it"
            " at the top of the function's module."
        ) from error
    except TypeError as error:
        raise TypeError(f"The tool '{tool_name}': its type hints cannot be read ({type(error).__name__}).") from error


def plain_function(function: Any) -> Any:
    """The function behind a partial, a bound method, a wrapper or a callable object."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif not inspect.isroutine(function) and not inspect.isclass(function):
            function = type(function).__call__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description and the parameters' descriptions of a Google, NumPy, Sphinx or Epydoc docstring."""
    target = plain_function(function)
    own = function if not inspect.isroutine(function) and not isinstance(function, functools.partial) else None
    text = inspect.getdoc(target)
    if own is not None and type(own).__call__.__doc__ is None:
        text = inspect.getdoc(type(own))
    if not text:
        return "", {}
    from docstring_parser import ParseError, parse

    try:
        parsed = parse(text)
    except ParseError:
        return text, {}
    described = {p.arg_name.lstrip("*"): " ".join(p.description.split()) for p in parsed.params if p.description}
    parts = [part.strip() for part in (parsed.short_description, parsed.long_description) if part]
    return "\n\n".join(parts) or text, described


def _has_description(hint: Any) -> bool:
    return any(getattr(extra, "description", None) for extra in getattr(hint, "__metadata__", ()))


def _problem(entry: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in entry["loc"]) or "arguments"
    if entry["type"] == "extra_forbidden":
        return f"{where}: unknown argument"
    if entry["type"] == "missing":
        return f"{where}: required argument is missing"
    message = str(entry["msg"])
    return f"{where}: {message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + '…'}"
