"""What ``hooks=`` of an Agent or an Engine may be, read into its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.registry import HookRegistry
from agent_engine.runtime.options import kind

if TYPE_CHECKING:
    from agent_engine.hooks.middleware import MiddlewareChain

KEYS = ("on_step", "on_tool_call", "middleware", "registry", "inherit_default")


@dataclass(frozen=True, slots=True)
class GivenHooks:
    """Hooks as an application hands them over."""

    registry: HookRegistry | None = None
    middleware: MiddlewareChain | None = None
    on_step: Callable[[Any], Any] | None = None
    on_tool_call: Callable[[Any], Any] | None = None
    inherit_default: bool = True


def read_hooks(value: object) -> GivenHooks:
    """Read HooksConfig, a dict of its keys, a HookRegistry, a list of middleware, or None.

    Raises:
        TypeError: anything else; the message lists what is possible.
    """
    if value is None:
        return GivenHooks()
    if isinstance(value, HookRegistry):
        return GivenHooks(registry=value)
    if isinstance(value, (list, tuple)):
        return GivenHooks(middleware=_chain(value))
    if isinstance(value, Mapping):
        unknown = [str(key) for key in value if key not in KEYS]
        if unknown:
            raise TypeError(f"hooks has no key {', '.join(map(repr, unknown))}; it takes {', '.join(KEYS)}")
        return _parts(dict(value))
    if not isinstance(value, type) and all(hasattr(value, key) for key in KEYS):
        return _parts({key: getattr(value, key) for key in KEYS})
    raise TypeError(
        "hooks takes a HooksConfig, a dict of its keys "
        f"({', '.join(KEYS)}), a HookRegistry or a list of middleware, not {kind(value)}"
    )


def _parts(values: dict[str, Any]) -> GivenHooks:
    registry = values.get("registry")
    if registry is not None and not isinstance(registry, HookRegistry):
        raise TypeError(f"hooks: registry is a HookRegistry, not {kind(registry)}")
    for key in ("on_step", "on_tool_call"):
        if values.get(key) is not None and not callable(values[key]):
            raise TypeError(f"hooks: {key} is a function of one argument, not {type(values[key]).__name__}")
    middleware = values.get("middleware")
    if not (middleware is None or isinstance(middleware, (list, tuple))):
        raise TypeError(f"hooks: middleware is a list of functions with a middleware decorator, not {kind(middleware)}")
    inherits = values.get("inherit_default", True)
    if not isinstance(inherits, bool):
        raise TypeError(f"hooks: inherit_default is True or False, not {inherits!r}")
    return GivenHooks(
        registry,
        _chain(middleware) if middleware else None,
        values.get("on_step"),
        values.get("on_tool_call"),
        inherits,
    )


def _chain(middleware: Any) -> MiddlewareChain | None:
    from agent_engine.hooks.middleware import MiddlewareChain

    return MiddlewareChain(list(middleware)) if middleware else None
