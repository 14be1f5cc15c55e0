"""A plain function, method or callable object becomes a tool."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

from agent_engine.tools.base import Tool, ToolInvocation
from agent_engine.tools.schema import Shape, refuse_star_arguments

F = TypeVar("F", bound=Callable[..., Any])
_SETTLED = frozenset({str, int, float, bool, dict, list, type(None)})
_ATTRIBUTE = "__agent_engine_tool__"
Approval = Literal["required"] | bool | None

_named: dict[str, dict[tuple[str, str], Tool]] = {}
"""Tools made with ``@tool``: name -> where the function was defined -> tool."""


class FunctionTool(Tool):
    """A tool whose body is a Python callable.

    A sync body runs in a worker thread, an async one on the loop. A generator, sync or async, is drained: what it
    yields is progress, and its result is what it returns or, if that is nothing, what it yielded last.
    """

    __slots__ = ("_on_loop", "_shape", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        approval: Approval = None,
        retries: int = 0,
    ) -> None:
        if not callable(function):
            raise TypeError(f"A tool is made from something that can be called, not from {function!r}.")
        super().__init__(
            name or name_of(function), description, approval=_approval(approval), retries=_retries(retries)
        )
        refuse_star_arguments(function, self.name)
        self.function = function
        self._shape: Shape | None = None
        # Whether the body is a coroutine function; worked out at the first call.
        self._on_loop: bool | None = None

    @property
    def description(self) -> str:
        if self._description is None:
            self._description = self.shape.description
        return self._description

    @property
    def parameters(self) -> dict[str, Any]:
        if self._parameters is None:
            self._parameters = self.shape.schema()
        return self._parameters

    @property
    def shape(self) -> Shape:
        """The function's parameters, read once."""
        if self._shape is None:
            self._shape = Shape(self.function, self.name)
        return self._shape

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.shape.validate(arguments)

    async def invoke(self, arguments: dict[str, Any], call: ToolInvocation) -> Any:
        from agent_engine.tools.body import is_coroutine_function, run_body, settled

        positional, named = self.shape.bind(arguments)
        if self._on_loop is None:
            self._on_loop = is_coroutine_function(self.function)
        if not self._on_loop:
            return await run_body(self.function, positional, named, call)
        value = await self.function(*positional, **named)
        return value if type(value) in _SETTLED else await settled(value, call)

    def bound_to(self, function: Callable[..., Any]) -> FunctionTool:
        """The same tool with another callable as its body: a method bound to its object."""
        copy = FunctionTool(function, name=self.name, description=self._description, approval=self.approval)
        copy.retries = self.retries
        return copy


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, approval: Approval = None, retries: int = 0
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = None,
    retries: int = 0,
) -> F | Callable[[F], F]:
    """Make a function a tool that an agent can name: ``Agent(tools=["its_name"])``. The function stays as it is.

    Args:
        name: what the model calls it; by default the function's own name.
        description: what the model reads; by default the docstring's text.
        approval: ``"required"`` where each call needs a person's yes.
        retries: how often a body that raised is run again.
    """

    def decorate(target: F) -> F:
        made = FunctionTool(target, name=name, description=description, approval=approval, retries=retries)
        _remember(target, made)
        if not _in_class_body(target):
            home = (getattr(target, "__module__", "") or "", getattr(target, "__qualname__", made.name))
            _named.setdefault(made.name, {})[home] = made
        return target

    return decorate if function is None else decorate(function)


def tool_of(value: object) -> Tool:
    """The tool that a value stands for: a Tool as it is, a callable's own (the same one each time for a function),
    or the one made with ``@tool`` under that name.

    Raises:
        ValueError: for an unknown or ambiguous name.
        TypeError: for anything that is no tool and cannot be called.
    """
    if isinstance(value, Tool):
        return value
    if isinstance(value, str):
        return tool_named(value)
    if not callable(value):
        raise TypeError(
            f"A tool is a function, an object that can be called, a Tool or a tool's name, not {type(value).__name__}."
        )
    known = getattr(value, _ATTRIBUTE, None)
    if isinstance(known, FunctionTool):
        if known.function is value:
            return known
        if inspect.ismethod(value) and known.function is value.__func__:
            return known.bound_to(value)
    made = FunctionTool(value)
    _remember(value, made)
    return made


def tool_named(name: str) -> Tool:
    """The tool made with ``@tool`` under this name. Raises ValueError for an unknown or ambiguous one."""
    homes = _named.get(name)
    if not homes:
        import difflib

        near = difflib.get_close_matches(name, _named, n=1)
        known = ", ".join(sorted(_named)) or "none yet"
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"Unknown tool '{name}'.{hint} Tools made with @tool: {known}.")
    if len(homes) > 1:
        where = " and ".join(sorted(f"{module}.{qualname}" for module, qualname in homes))
        raise ValueError(f"The tool name '{name}' is ambiguous: {where}. Pass the function itself.")
    return next(iter(homes.values()))


def name_of(function: Callable[..., Any]) -> str:
    """The name a callable goes by: a function's own, a partial's function's, an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"The tool made from {function!r} needs a name: tool(name=…).")
    return name


def _remember(function: Callable[..., Any], made: Tool) -> None:
    if inspect.isfunction(function):
        setattr(function, _ATTRIBUTE, made)


def _in_class_body(function: Callable[..., Any]) -> bool:
    return inspect.isfunction(function) and "." in function.__qualname__.rpartition("<locals>.")[2]


def _approval(value: Approval) -> bool:
    if value in ("required", True):
        return True
    if value in (None, False):
        return False
    raise ValueError(f"approval is 'required' or left out, not {value!r}.")


def _retries(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"retries is a whole number from 0, not {value!r}.")
    return value
