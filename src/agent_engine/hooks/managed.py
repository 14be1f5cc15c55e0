"""The contexts of the managed points, and what a managed hook is called with.

All are frozen. What a hook must use, such as ``inbound_access_token`` or a header's value, is a plain ``str`` when it
is asked for by name; every way to show the object as a whole (repr, str, ``to_dict``, ``dataclasses.asdict``, JSON)
shows ``***``, and none can be pickled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from agent_engine.hooks.payloads import ATOMS, Copied, private_copy

MASK = "***"

_T = TypeVar("_T")
_C = TypeVar("_C", bound="Context")
_SECRET_WORDS = (
    "authorization",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "credential",
    "api_key",
    "apikey",
    "api-key",
    "signature",
)


class _Masked(str):
    """What generic code sees in the place of a secret: ``***``. A constructor that is given one takes the real value
    out of it."""

    real: Any

    def __new__(cls, real: Any) -> _Masked:
        new = super().__new__(cls, MASK)
        new.real = real
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        return MASK

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (MASK,))


class _SecretName(str):
    """The name of a secret field as ``dataclasses.fields`` gives it. Asked for under this name a context answers
    masked, which is how ``asdict`` and ``astuple`` see nothing while ``replace`` keeps the value."""

    __slots__ = ()


def masked(value: Any, key: object = "") -> Any:
    """``value`` for showing: values under keys that sound like a credential are ``***``."""
    if isinstance(value, Mapping):
        return {name: masked(item, name) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item, key) for item in value]
    sounds_secret = isinstance(key, str) and any(word in key.lower() for word in _SECRET_WORDS)
    return MASK if sounds_secret and value is not None and not isinstance(value, bool) else value


class Headers(dict[str, str]):
    """Headers of one request: a real dict whose repr shows names only."""

    def __repr__(self) -> str:
        return repr(dict.fromkeys(self, MASK))

    __str__ = __repr__

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("Headers of a request are not pickled: they hold credentials")

    def __copy__(self) -> Headers:
        return Headers(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Headers:
        return Headers(dict.fromkeys(self, MASK))

    def copy(self) -> Headers:
        """A copy that masks itself, too."""
        return Headers(self)


class Context(Copied):
    """Base of the contexts: masked when shown, never pickled, changed by making another."""

    __slots__ = ()
    _secret: ClassVar[frozenset[str]] = frozenset()
    _changes: ClassVar[frozenset[str]] = frozenset()
    _containers: ClassVar[tuple[str, ...]] = ()

    def _fields(self) -> tuple[str, ...]:
        return context_fields(type(self))

    def to_dict(self) -> dict[str, Any]:
        """The fields, for showing: secrets are ``***``."""
        return {name: self._shown(name) for name in self._fields()}

    def _shown(self, name: str) -> Any:
        value = getattr(self, name)
        if isinstance(value, Context):
            return value.to_dict()
        if isinstance(value, Headers):
            return dict.fromkeys(value, MASK)
        if name in self._secret:
            return MASK if value else value
        return masked(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={self._printed(name)}' for name in self._fields())})"

    def _printed(self, name: str) -> str:
        value = getattr(self, name)
        if isinstance(value, Context):
            return repr(value)
        shown = self._shown(name)
        if name == "url" and isinstance(shown, str) and "?" in shown:
            shown = f"{shown.partition('?')[0]}?{MASK}"  # a query may hold a key
        return repr(shown)

    __str__ = __repr__

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"{type(self).__name__} is not pickled: it can hold credentials; keep its ids instead")

    def __copy__(self: _C) -> _C:
        return self

    def __deepcopy__(self: _C, memo: dict[int, Any]) -> _C:
        return self._copy()

    def _copy(self: _C) -> _C:
        """A private copy: its containers, and those of a context in it, are shared with nobody."""
        new = object.__new__(type(self))
        read, assign = object.__getattribute__, object.__setattr__
        for name in context_fields(type(self)):
            value = read(self, name)
            assign(new, name, value if type(value) in ATOMS else private_copy(value))
        return new

    def _with(self: _C, **changes: Any) -> _C:
        values = {name: getattr(self, name) for name in self._fields()}
        values.update(changes)
        return type(self)(**values)


def _context(cls: type[_C]) -> type[_C]:
    """Wire a dataclass so that its secret fields are masked for generic code."""
    if cls._secret:
        known = cls.__dataclass_fields__  # type: ignore[attr-defined]  # every context is a dataclass
        for secret in cls._secret:
            known[secret].name = _SecretName(secret)
        # Some serialisers, pydantic's for one, ask under the names that are the keys here.
        named = {_SecretName(name) if name in cls._secret else name: one for name, one in known.items()}
        cls.__dataclass_fields__ = named  # type: ignore[attr-defined]

        def __getattribute__(self: Any, name: str) -> Any:
            value = object.__getattribute__(self, name)
            return _Masked(value) if type(name) is _SecretName and value else value

        cls.__getattribute__ = __getattribute__  # type: ignore[method-assign]
    return cls


def _real(value: Any) -> Any:
    return value.real if type(value) is _Masked else value


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuthContext(Context):
    """Who calls, and with what rights. Every field has a default; an unknown caller is ``AuthContext()``."""

    user_id: str | None = None
    organization_id: str | None = None
    inbound_access_token: str | None = None
    scopes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    _secret: ClassVar[frozenset[str]] = frozenset({"inbound_access_token"})
    _containers: ClassVar[tuple[str, ...]] = ("metadata",)

    def __post_init__(self) -> None:
        token = object.__getattribute__(self, "inbound_access_token")
        object.__setattr__(self, "inbound_access_token", _real(token))
        object.__setattr__(self, "scopes", tuple(self.scopes))
        object.__setattr__(self, "roles", tuple(self.roles))

    def replace(self, **changes: Any) -> AuthContext:
        """A copy with some fields changed."""
        return self._with(**changes)


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunContext(Context):
    """The identity of one run. An empty ``run_id`` is filled by the engine, and never changes afterwards."""

    run_id: str = ""
    conversation_id: str | None = None
    user_id: str | None = None
    organization_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    auth_context: AuthContext = field(default_factory=AuthContext)

    _changes: ClassVar[frozenset[str]] = frozenset(
        {"conversation_id", "user_id", "organization_id", "metadata", "auth_context"}
    )
    _containers: ClassVar[tuple[str, ...]] = ("metadata",)

    def __post_init__(self) -> None:
        if self.auth_context is None:
            object.__setattr__(self, "auth_context", AuthContext())

    def replace(self, **changes: Any) -> RunContext:
        """A copy with some fields changed."""
        return self._with(**changes)

    def __replace__(self, **changes: Any) -> RunContext:
        return self._with(**changes)


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineContext(Context):
    """The engine at its start and stop."""

    system_name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    _containers: ClassVar[tuple[str, ...]] = ("metadata",)


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunEndContext(Context):
    """A safe summary of a run that succeeded: no prompt, no answer."""

    run_id: str = ""
    system_name: str = ""
    status: str = "succeeded"
    error_type: str | None = None
    visited: tuple[str, ...] = ()
    used_tool_count: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)

    _containers: ClassVar[tuple[str, ...]] = ("metadata",)


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ToolRequestContext(Context):
    """A tool call that is about to happen, without its arguments. ``provider`` is ``local`` or ``mcp``."""

    agent_id: str = ""
    tool_name: str = ""
    provider: str = "local"
    server_id: str | None = None
    call_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    _containers: ClassVar[tuple[str, ...]] = ("metadata",)


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ToolCallContext(Context):
    """A tool call that has ended. ``error`` is a safe sentence, never the exception's own text."""

    agent_id: str = ""
    tool_name: str = ""
    provider: str = "local"
    server_id: str | None = None
    call_id: str | None = None
    status: str = "succeeded"
    latency_ms: float | None = None
    error: str | None = None
    error_type: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    _containers: ClassVar[tuple[str, ...]] = ("metadata",)


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ToolResultContext(Context):
    """A tool's result as text, before it reaches the model. Trusted code sees it; it never logs the body."""

    agent_id: str = ""
    tool_name: str = ""
    provider: str = "local"
    result: str = ""
    server_id: str | None = None
    call_id: str | None = None
    latency_ms: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    _changes: ClassVar[frozenset[str]] = frozenset({"result"})
    _containers: ClassVar[tuple[str, ...]] = ("metadata",)

    def with_result(self, result: str) -> ToolResultContext:
        """The same call with another result text."""
        return self._with(result=result)

    def _shown(self, name: str) -> Any:
        if name == "result":
            return (
                f"<{len(self.result)} characters>"
                if isinstance(self.result, str)
                else f"<{type(self.result).__name__}>"
            )
        return Context._shown(self, name)


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class McpRequestContext(Context):
    """One request to an MCP server. ``url`` is exactly the one requested, query included; ``headers`` start empty."""

    server_id: str = ""
    url: str = ""
    operation: str = ""
    tool_name: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    body_sha256: str | None = None
    attempt: int = 1
    metadata: dict[str, Any] = field(default_factory=dict)

    _secret: ClassVar[frozenset[str]] = frozenset({"headers"})
    _changes: ClassVar[frozenset[str]] = frozenset({"headers"})
    _containers: ClassVar[tuple[str, ...]] = ("headers", "metadata")

    def __post_init__(self) -> None:
        headers = _real(object.__getattribute__(self, "headers"))
        object.__setattr__(self, "headers", headers if isinstance(headers, Headers) else Headers(headers))

    def with_headers(self, headers: Mapping[str, str]) -> McpRequestContext:
        """The same request with ``headers`` added to those it has; a name given again, in any case, is replaced."""
        named = {name.lower() for name in headers}
        kept = {name: value for name, value in self.headers.items() if name.lower() not in named}
        return self._with(headers=Headers({**kept, **headers}))


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class McpResponseContext(Context):
    """One response of an MCP server, without its body; ``status_code`` is None where there was none."""

    server_id: str = ""
    url: str = ""
    status_code: int | None = None
    operation: str = ""
    tool_name: str | None = None
    latency_ms: float | None = None
    status: str = "ok"
    error_type: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    _containers: ClassVar[tuple[str, ...]] = ("metadata",)


@_context
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HookInvocation(Context):
    """The single argument of a managed hook: which point, whose run, and the point's payload."""

    hook_point: str = ""
    payload: Any = None
    plugin: str | None = None
    method: str | None = None
    ref: str | None = None
    run_context: RunContext | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def payload_as(self, kind: type[_T]) -> _T:
        """The payload, known to be a ``kind``.

        Raises:
            TypeError: it is something else; the message names both types.
        """
        if isinstance(self.payload, kind):
            return self.payload
        point, found = self.hook_point or "this point", type(self.payload).__name__
        raise TypeError(f"The payload at {point} is a {found}, not a {kind.__name__}")

    if not TYPE_CHECKING:  # a type checker knows the fields

        def __getattr__(self, name: str) -> Any:
            if name in self._fields() or name.startswith("_") or not hasattr(self.payload, name):
                raise AttributeError(f"HookInvocation has no {name!r}; its payload, run_context and hook_point say all")
            raise AttributeError(f"HookInvocation has no {name!r}; its payload has: write event.payload.{name}")

    def _shown(self, name: str) -> Any:
        if name == "payload":
            return f"<{type(self.payload).__name__}>"
        return Context._shown(self, name)


_names_of: dict[type[Any], tuple[str, ...]] = {}


def context_fields(kind: type[Any]) -> tuple[str, ...]:
    """The field names of a context or payload type."""
    known = _names_of.get(kind)
    if known is None:
        known = _names_of[kind] = tuple(str(one.name) for one in dataclasses.fields(kind))
    return known


RUN_CONTEXT: ContextVar[RunContext | None] = ContextVar("agent_engine_run_context", default=None)
"""The run that the current code belongs to; set by the engine."""


def current_run_context() -> RunContext | None:
    """The RunContext of the run that calls this code, None outside a run."""
    return RUN_CONTEXT.get()
