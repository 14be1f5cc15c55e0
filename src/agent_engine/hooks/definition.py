"""A hook as it is registered: what it is for, how it runs, and who it is."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.errors import HookRegistrationError
from agent_engine.hooks.events import CATALOGUE, HookEvent, event_of
from agent_engine.hooks.matcher import Target, compile_matcher, matches

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext

FAILURE_POLICIES = ("fail", "deny", "warn")
DEFAULT_PRIORITY = 100
_numbers = itertools.count(1)


@dataclass(slots=True, kw_only=True)
class HookDefinition:
    """What every hook has, whichever way it was registered.

    ``timeout`` is in seconds, None for the registry's limit. ``sequential`` None is automatic: sequential where the
    event has something to change. ``seq`` numbers registrations over all registries; ``source`` says where the hook
    was declared. ``when`` is called with the RunContext right where the dispatcher is, on the loop or on the hook's
    thread, with no limit; where what it returns is false, the hook is not for this run.

    Raises:
        HookRegistrationError: a field makes no sense at this event; the message names the hook and the field.
    """

    id: str = ""
    event: HookEvent | str = HookEvent.BEFORE_TOOL
    matcher: str | None = None
    sequential: bool | None = None
    enabled: bool = True
    name: str = ""
    description: str = ""
    timeout: float | None = None
    priority: int = DEFAULT_PRIORITY
    failure_policy: str = "deny"
    inline: bool = False
    observe: bool = False
    hold_back: int = 0
    shadow: bool = False
    agents: tuple[str, ...] | None = None
    servers: tuple[str, ...] | None = None
    when: Callable[[RunContext], object] | None = None
    source: str = ""
    seq: int = field(default=0, compare=False)

    kind = "hook"

    def __post_init__(self) -> None:
        self.event = event_of(self.event)
        self.seq = self.seq or next(_numbers)
        self.name = self.name or self._own_name()
        self.id = self.id or f"{self.event.value}:{self.name}:{self.seq}"
        self.agents = self._names("agents")
        self.servers = self._names("servers")
        self._check()

    def matches(self, target: Target) -> bool:
        """True where the matcher is for ``target`` (a name, or several names of one thing)."""
        return matches(self.matcher, target)

    @property
    def runs_sequentially(self) -> bool:
        """The mode with the automatic one worked out."""
        return CATALOGUE[event_of(self.event)].auto_sequential if self.sequential is None else self.sequential

    def _own_name(self) -> str:
        return self.kind

    def _refuse(self, problem: str) -> HookRegistrationError:
        return HookRegistrationError(f"Hook '{self.name}' on {self.event}: {problem}")

    def _names(self, field_name: str) -> tuple[str, ...] | None:
        value = getattr(self, field_name)
        if value is None:
            return None
        names = (value,) if isinstance(value, str) else value
        if not isinstance(names, (list, tuple, set, frozenset)):
            raise self._refuse(f"{field_name} is a list of names, not {type(value).__name__}")
        for name in names:
            if not isinstance(name, str) or not name:
                given = "an empty text" if name == "" else f"a {type(name).__name__}"
                raise self._refuse(f"{field_name} is a list of names; {given} is none")
        return tuple(str(name) for name in names)

    def _mapping(self, field_name: str) -> dict[str, str]:
        value = getattr(self, field_name)
        if value is not None and not isinstance(value, Mapping):
            raise self._refuse(f"{field_name} maps names to values, it is no {type(value).__name__}")
        return dict(value or {})

    def _check(self) -> None:
        spec = CATALOGUE[event_of(self.event)]
        for text in ("id", "name", "description"):
            if not isinstance(getattr(self, text), str):
                raise self._refuse(f"{text} is text, not {type(getattr(self, text)).__name__}")
        if self.failure_policy not in FAILURE_POLICIES:
            raise self._refuse(f"failure_policy {self.failure_policy!r} is none of {', '.join(FAILURE_POLICIES)}")
        if self.matcher is not None:
            if not isinstance(self.matcher, str):
                raise self._refuse(f"matcher is text, not {type(self.matcher).__name__}")
            if spec.target is None:
                raise self._refuse("this event has no target, so a matcher would never match; leave it out")
            try:
                compile_matcher(self.matcher)
            except ValueError as error:
                raise self._refuse(str(error)) from None
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise self._refuse(f"priority is a whole number, not {self.priority!r}")
        if self.timeout is not None and not (_is_number(self.timeout) and 0 < self.timeout < float("inf")):
            raise self._refuse(f"timeout is a number of seconds above 0, not {self.timeout!r}")
        if isinstance(self.hold_back, bool) or not isinstance(self.hold_back, int) or self.hold_back < 0:
            raise self._refuse(f"hold_back is a number of characters, 0 or more, not {self.hold_back!r}")
        if self.hold_back and self.event is not HookEvent.ON_LLM_DELTA:
            raise self._refuse("hold_back is for on_llm_delta only")
        if self.when is not None:
            problem = cannot_be_called(self.when)
            if problem or is_async_callable(self.when):
                raise self._refuse(
                    f"when is a plain function of the RunContext: {problem or 'it is called, not awaited'}"
                )
        for flag in ("enabled", "inline", "observe", "shadow"):
            if not isinstance(getattr(self, flag), bool):
                raise self._refuse(f"{flag} is True or False, not {getattr(self, flag)!r}")
        if self.sequential is not None and not isinstance(self.sequential, bool):
            raise self._refuse(f"sequential is True, False or None, not {self.sequential!r}")
        for names in ("agents", "servers"):
            if getattr(self, names) == ():
                raise self._refuse(f"{names} is empty, so this hook would never run; leave it out")
        if self.servers is not None and spec.target not in ("server_id", "tool_name"):
            raise self._refuse("servers= is for MCP points and tool events only")

    def describe(self) -> dict[str, Any]:
        """A row of ``list_hooks()``."""
        return {
            "id": self.id,
            "name": self.name,
            "type": self.kind,
            "matcher": self.matcher,
            "enabled": self.enabled,
            "sequential": self.runs_sequentially,
            "priority": self.priority,
            "source": self.source,
        }


@dataclass(slots=True, kw_only=True)
class FunctionHook(HookDefinition):
    """A Python callable of one argument.

    ``is_async`` None is found out. ``managed_call`` calls it with a HookInvocation instead of the bare payload;
    ``plugin``, ``method`` and ``ref`` say which declared hook it is. With ``func=None`` it can be registered, and
    denies.
    """

    func: Callable[..., Any] | None = None
    is_async: bool | None = None
    managed_call: bool = False
    plugin: str | None = None
    method: str | None = None
    ref: str | None = None

    kind = "function"

    def _own_name(self) -> str:
        return callable_name(self.func) if self.func is not None else "function"

    def _check(self) -> None:
        HookDefinition._check(self)
        if self.func is None:
            return
        problem = cannot_be_called(self.func)
        if problem:
            raise self._refuse(problem)
        if self.is_async is not None and not isinstance(self.is_async, bool):
            raise self._refuse(f"is_async is True, False or None, not {self.is_async!r}")
        if self.is_async is None:
            self.is_async = is_async_callable(self.func)
        if self.inline and self.is_async:
            raise self._refuse("inline=True is for a short sync function; an async one runs on the loop anyway")
        if not self.source:
            self.source = source_of(self.func)


@dataclass(slots=True, kw_only=True)
class CommandHook(HookDefinition):
    """A process: the payload's JSON on its standard input, the decision from its output and exit code.

    ``args`` is a list, run without a shell; ``command`` is one shell line (``shell=True``) or a line split into
    words. ``env`` is added to a safe base environment; ``pass_env`` names further variables to inherit.
    """

    command: str | None = None
    shell: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] | None = None
    pass_env: tuple[str, ...] = ()
    cwd: str | None = None

    kind = "command"

    def _own_name(self) -> str:
        words = (self.command,) if self.args is None else self.args
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            return self.kind  # it will be refused
        from agent_engine.hooks.command import command_name

        return command_name(self)

    def _check(self) -> None:
        HookDefinition._check(self)
        if (self.args is None) == (self.command is None):
            raise self._refuse("a command hook has either command= (one line) or args= (a list)")
        if self.args is not None:
            if isinstance(self.args, str) or not self.args or not all(isinstance(word, str) for word in self.args):
                raise self._refuse("args is a list of words, the program first")
            self.args = tuple(self.args)
        elif not isinstance(self.command, str) or not self.command.strip():
            raise self._refuse("command is one line of text; a list of words is args=[…]")
        if self.inline:
            raise self._refuse("inline=True is for a short sync function, not for a process")
        if not isinstance(self.shell, bool):
            raise self._refuse(f"shell is True or False, not {self.shell!r}")
        if self.cwd is not None and not isinstance(self.cwd, (str, PathLike)):
            raise self._refuse(f"cwd is a folder, not {type(self.cwd).__name__}")
        self.env = {str(name): self._value(name, value) for name, value in self._mapping("env").items()}
        self.pass_env = self._names("pass_env") or ()
        from agent_engine.hooks.command import check_command

        _passes(self, check_command)

    def _value(self, name: object, value: object) -> str:
        if isinstance(value, str) or _is_number(value):
            return str(value)
        given = "None" if value is None else f"a {type(value).__name__}"
        raise self._refuse(f"env gives {name} as text, not as {given}")


@dataclass(slots=True, kw_only=True)
class WebhookHook(HookDefinition):
    """An HTTP endpoint that gets the payload's JSON by POST and answers with the decision.

    ``secret_env`` names the variable with the key of the HMAC signature; ``header_env`` maps header names to
    variables. Never values.
    """

    url: str = ""
    secret_env: str | None = None
    header_env: Mapping[str, str] = field(default_factory=dict)

    kind = "webhook"

    def _own_name(self) -> str:
        from urllib.parse import urlsplit

        try:
            return str(urlsplit(self.url).hostname or self.kind)
        except (ValueError, AttributeError):
            return self.kind  # it will be refused

    def _check(self) -> None:
        HookDefinition._check(self)
        self.header_env = self._mapping("header_env")
        from agent_engine.hooks.webhook import check_webhook

        _passes(self, check_webhook)


def _passes(hook: HookDefinition, check: Callable[[Any], None]) -> None:
    try:
        check(hook)
    except HookRegistrationError:
        raise
    except ValueError as problem:
        raise hook._refuse(str(problem)) from None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def callable_name(func: Callable[..., Any]) -> str:
    """What a callable is called, through partials and callable objects."""
    while isinstance(func, partial):
        func = func.func
    return getattr(func, "__name__", None) or type(func).__name__


def source_of(func: Callable[..., Any]) -> str:
    """Where a callable was written: ``file:line``, or ``module:name`` where there is no file."""
    while isinstance(func, partial):
        func = func.func
    inner = inspect.unwrap(func)
    inner = getattr(inner, "__func__", inner)
    call = getattr(type(inner), "__call__", None)  # noqa: B004 - the method itself is wanted
    code = getattr(inner, "__code__", None) or getattr(call, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"{module}:{getattr(inner, '__qualname__', type(inner).__qualname__)}"


def is_async_callable(func: Callable[..., Any]) -> bool:
    """True for async functions, partials of them and objects whose ``__call__`` is one."""
    while isinstance(func, partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004


def cannot_be_called(func: object) -> str | None:
    """Why ``func`` cannot be a hook, None where it can: it must be callable with one argument and give its answer as
    a value."""
    name = callable_name(func) if callable(func) else repr(func)[:80]
    if not callable(func):
        return f"{name} is not callable"
    inner: Any = func
    while isinstance(inner, partial):
        inner = inner.func
    for body in (inner, getattr(inner, "__call__", None)):  # noqa: B004
        if inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body):
            return f"'{name}' is a generator function, which gives no answer when called; return the decision instead"
    try:
        # What is called is the wrapper itself, which may take another number of arguments than what it wraps.
        inspect.signature(func, follow_wrapped=False).bind(object())
    except TypeError as error:
        return f"'{name}' cannot be called with one argument: {error}"
    except ValueError:  # A callable of C code without a signature: only calling it can tell.
        return None
    return None
