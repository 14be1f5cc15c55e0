"""The Tool: what the model reads about it, how its arguments are checked, and its body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from agent_engine.models.base import ToolDefinition

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.scope import HookScope


class ArgumentsInvalid(ValueError):
    """Arguments that do not fit a tool. The text is written for the model: it says what to send instead."""


class ToolError(Exception):
    """A tool that failed in a way the model should read: its text is meant for the model."""


@dataclass(slots=True)
class ToolInvocation:
    """Everything a tool body may need to know about the call it serves; passed by value with each call."""

    run_context: RunContext
    agent: str | None = None
    call_id: str = ""
    scope: HookScope | None = None
    journal: Any = None
    step_id: str | None = None
    run: Any = None
    progress: Callable[[object], object] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Tool:
    """A tool. Kinds of tools subclass it; what is costly to know is worked out when it is first asked for.

    Attributes:
        name: the name the model calls.
        provider: ``local`` or ``mcp``.
        server_id: the MCP server, for tools of one.
        approval: whether each call needs a person's yes.
        retries: how often a body that raised is run again.
        aliases: further names that matchers are tried against.
        ends: its body ends when it is cancelled; any other is given up after a grace.
    """

    ends: ClassVar[bool] = False

    __slots__ = (
        "__weakref__",
        "_description",
        "_parameters",
        "aliases",
        "approval",
        "name",
        "provider",
        "retries",
        "server_id",
    )

    def __init__(
        self,
        name: str,
        description: str | None = None,
        parameters: dict[str, Any] | None = None,
        *,
        provider: str = "local",
        server_id: str | None = None,
        approval: bool = False,
        retries: int = 0,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.provider = provider
        self.server_id = server_id
        self.approval = approval
        self.retries = retries
        self.aliases = aliases
        self._description = description
        self._parameters = parameters

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def description(self) -> str:
        """What the model reads about the tool."""
        return self._description or ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments object. Shared: copy it before changing it."""
        if self._parameters is None:
            self._parameters = {"type": "object", "properties": {}, "additionalProperties": False}
        return self._parameters

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(self.name, self.description, self.parameters)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments as the model or a hook gave them and return the values to hand to :meth:`invoke`.

        Raises:
            ArgumentsInvalid: with a text that the model can read.
        """
        return dict(arguments)

    async def invoke(self, arguments: dict[str, Any], call: ToolInvocation) -> Any:
        """Run the body on validated arguments and return its own object. Called at the tool door alone."""
        raise NotImplementedError(f"{type(self).__name__} has no body")


ToolBody = Callable[[dict[str, Any], ToolInvocation], Awaitable[Any]]


class CallableTool(Tool):
    """A tool whose body is a given coroutine function and whose schema is given: agents as tools, ready-made tools."""

    __slots__ = ("_body", "_check")

    def __init__(
        self,
        name: str,
        description: str,
        parameters: dict[str, Any],
        body: ToolBody,
        *,
        check: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, description, parameters, **options)
        self._body = body
        self._check = check

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if self._check is not None:
            return self._check(arguments)
        return check_schema(self.name, self.parameters, arguments)

    async def invoke(self, arguments: dict[str, Any], call: ToolInvocation) -> Any:
        return await self._body(arguments, call)


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


def check_schema(tool_name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check an arguments object against the top level of a JSON Schema: names, required ones, plain types, enums.

    Raises:
        ArgumentsInvalid: with every problem found, written for the model.
    """
    properties: Mapping[str, Any] = schema.get("properties") or {}
    problems = [
        f"{name}: required argument is missing" for name in schema.get("required") or () if name not in arguments
    ]
    for name, value in arguments.items():
        rule = properties.get(name)
        if rule is None:
            if schema.get("additionalProperties") in (False, None):
                problems.append(f"{name}: unknown argument")
            continue
        wanted = rule.get("type") if isinstance(rule, Mapping) else None
        kinds = [wanted] if isinstance(wanted, str) else list(wanted or ())
        if kinds and not any(_is_a(value, kind) for kind in kinds):
            problems.append(f"{name}: must be of type {' or '.join(kinds)}, not {type(value).__name__}")
        elif isinstance(rule, Mapping) and "enum" in rule and value not in rule["enum"]:
            problems.append(f"{name}: must be one of {', '.join(map(repr, rule['enum']))}")
    if problems:
        raise ArgumentsInvalid(invalid_text(tool_name, problems, list(properties)))
    return dict(arguments)


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, (object,)))


def invalid_text(tool_name: str, problems: list[str], takes: list[str]) -> str:
    """The one form in which a model reads that its arguments do not fit."""
    shown = problems[:10]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more")
    known = ", ".join(takes) if takes else "no arguments"
    return f"Invalid arguments for tool '{tool_name}': {'; '.join(shown)}. It takes: {known}."
