"""Where hooks are registered. Safe from any thread, and from inside a hook: readers get snapshots."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from agent_engine.hooks.definition import CommandHook, FunctionHook, HookDefinition, WebhookHook
from agent_engine.hooks.errors import HookRegistrationError
from agent_engine.hooks.events import HookEvent, event_of
from agent_engine.hooks.matcher import Target

if TYPE_CHECKING:
    from os import PathLike

    from agent_engine.hooks.scope import HookScope

DEFAULT_TIMEOUT = 60.0
"""Seconds a hook may take where neither it, its runner nor its registry says otherwise."""

_F = TypeVar("_F", bound=Callable[..., Any])
_NONE: tuple[HookDefinition, ...] = ()


class Clock:
    """Tells in one look whether any registry of the process has changed: ``now`` is another number after a change."""

    __slots__ = ("_numbers", "now")

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.now = 0

    def tick(self) -> None:
        """Something has changed."""
        # Every number is given out once. Two threads may set theirs in either order; neither leaves a number behind
        # that somebody had read before.
        self.now = next(self._numbers)


clock = Clock()


def limit_of(seconds: object) -> float:
    """A limit as it is to be used. Raises ValueError where it is none."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise ValueError(f"The limit of hooks is a number of seconds above 0, not {seconds!r}")
    return float(seconds)


def _switched(hook: HookDefinition, enabled: bool) -> HookDefinition:
    """A copy, for the same hook may be registered elsewhere, and is not switched there."""
    new = copy.copy(hook)
    new.enabled = enabled
    return new


def order(hook: HookDefinition) -> tuple[int, int]:
    """The sort key of hooks: priority, then registration order."""
    return (hook.priority, hook.seq)


@dataclasses.dataclass(slots=True, eq=False)
class _Block:
    """A ``with temporarily(...)`` that is open: its hook, and the one that had its id before."""

    hook: HookDefinition
    below: HookDefinition | None


_alive: weakref.WeakSet[HookRegistry] = weakref.WeakSet()
"""Every registry, for the child of a fork."""


class HookRegistry:
    """A set of hooks by event.

    ``version`` goes up with every change, so that whoever compiled a plan from this registry knows when to do it
    again. A registry made with ``platform=True`` takes priorities below 0 and lets nothing be removed or disabled
    once it is sealed.
    """

    def __init__(self, enabled: bool = True, *, platform: bool = False) -> None:
        self._lock = threading.RLock()
        self._hooks: dict[HookEvent, tuple[HookDefinition, ...]] = {}
        self._events: dict[str, HookEvent] = {}
        self._enabled = enabled
        self._timeout: float | None = None
        self._platform = platform
        self._sealed = False
        self._scope: HookScope | None = None
        self._blocks: list[_Block] = []
        self.version = 0
        _alive.add(self)

    # Registration

    def register(self, hook: HookDefinition) -> str:
        """Add ``hook`` and give its id; a hook whose id is taken replaces the one that has it.

        Raises:
            HookRegistrationError: the hook makes no sense as it is; the message says what to change.
        """
        if not isinstance(hook, HookDefinition):
            raise HookRegistrationError(
                f"register() takes a FunctionHook, CommandHook or WebhookHook, not {type(hook).__name__}; "
                "for a function there is register_function()"
            )
        if hook.priority < 0 and not self._platform:
            raise HookRegistrationError(
                f"Hook '{hook.name}' on {hook.event}: priorities below 0 are for Engine(platform_hooks=[...]) only; "
                "use 0 or more"
            )
        event = event_of(hook.event)
        with self._lock:
            if self._sealed:
                raise HookRegistrationError(
                    "Platform hooks are fixed when the engine is made; pass them to Engine(platform_hooks=[...])"
                )
            if self._events.get(hook.id, event) is not event:
                self._drop(hook.id)
            if self._platform:
                hook = copy.copy(hook)  # whoever holds the one that was given cannot change it any more
            # One assignment: a reader sees the hook that is replaced or the one that replaces it, never neither.
            others = (old for old in self._hooks.get(event, _NONE) if old.id != hook.id)
            self._hooks[event] = tuple(sorted((*others, hook), key=order))
            self._events[hook.id] = event
            self._changed()
        return hook.id

    def register_function(
        self,
        event: HookEvent | str,
        func: Callable[..., Any] | None,
        matcher: str | None = None,
        name: str | None = None,
        description: str | None = None,
        sequential: bool | None = None,
        timeout: float | None = None,
        is_async: bool | None = None,
        priority: int = 100,
        **keywords: Any,
    ) -> str:
        """Register a callable of one argument, the payload; see HookDefinition for the other keywords."""
        return self.register(
            FunctionHook(
                event=event,
                func=func,
                matcher=matcher,
                name=name or "",
                description=description or "",
                sequential=sequential,
                timeout=timeout,
                is_async=is_async,
                priority=priority,
                **keywords,
            )
        )

    def register_command(
        self,
        event: HookEvent | str,
        command: str | None = None,
        matcher: str | None = None,
        name: str | None = None,
        description: str | None = None,
        sequential: bool | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        shell: bool = True,
        priority: int = 100,
        args: Sequence[str] | None = None,
        pass_env: Sequence[str] = (),
        **keywords: Any,
    ) -> str:
        """Register a process that reads the payload's JSON and answers with its output and exit code."""
        keywords.setdefault("source", _caller())
        return self.register(
            CommandHook(
                event=event,
                command=command,
                matcher=matcher,
                name=name or "",
                description=description or "",
                sequential=sequential,
                timeout=timeout,
                env=env or {},
                shell=shell,
                priority=priority,
                args=args if args is None else (args if isinstance(args, str) else tuple(args)),  # type: ignore[arg-type]  # checked there
                pass_env=pass_env,  # type: ignore[arg-type]  # likewise
                **keywords,
            )
        )

    def register_webhook(
        self,
        event: HookEvent | str,
        url: str,
        *,
        secret_env: str | None = None,
        header_env: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> str:
        """Register an HTTP endpoint; ``secret_env`` and ``header_env`` name environment variables, never values."""
        keywords.setdefault("source", _caller())
        return self.register(
            WebhookHook(event=event, url=url, secret_env=secret_env, header_env=header_env or {}, **keywords)
        )

    def on(
        self,
        event: HookEvent | str,
        matcher: str | None = None,
        sequential: bool | None = None,
        timeout: float | None = None,
        priority: int = 100,
        **keywords: Any,
    ) -> Callable[[_F], _F]:
        """A decorator that registers the function and returns it unchanged; ``hook_id_of`` finds its id."""
        if callable(event):
            raise TypeError(
                "Name the event that the function is for: add_hook('before_tool'), registry.on('before_tool')"
            )
        event = event_of(event)  # told here, and not first where a function is decorated

        def register(func: _F) -> _F:
            self.register_function(
                event, func, matcher=matcher, sequential=sequential, timeout=timeout, priority=priority, **keywords
            )
            return func

        return register

    def hook_id_of(self, func: Callable[..., Any]) -> str | None:
        """The id under which ``func`` was registered last; None where it is not."""
        found = [hook for hook in self._all() if isinstance(hook, FunctionHook) and hook.func == func]
        return max(found, key=lambda hook: hook.seq).id if found else None

    def unregister(self, hook_id: str) -> bool:
        """Remove a hook; False where there is none of that id."""
        with self._lock:
            if self._platform or not self._drop(hook_id):
                return False
            self._changed()
            return True

    def clear(self, event: HookEvent | str | None = None) -> None:
        """Remove all hooks, or those of one event."""
        if self._platform:
            raise HookRegistrationError("Platform hooks cannot be removed")
        with self._lock:
            kept = None if event is None else event_of(event)
            for hook in self._all():
                if kept is None or hook.event is kept:
                    self._drop(hook.id)
            self._changed()

    @contextmanager
    def temporarily(
        self, event: HookEvent | str | HookDefinition, func: Callable[..., Any] | None = None, **keywords: Any
    ) -> Iterator[str]:
        """A hook for the length of a ``with`` block; gives its id. A hook whose id it takes comes back afterwards.

        Blocks may overlap in any way, in one thread or several, also with one and the same hook.
        """
        given = event if isinstance(event, HookDefinition) else FunctionHook(event=event, func=func, **keywords)
        hook = dataclasses.replace(given, seq=0)  # a copy with a number of its own: each block ends its own hook
        with self._lock:
            block = _Block(hook, self._find(hook.id))
            self.register(hook)
            self._blocks.append(block)
        try:
            yield hook.id
        finally:
            with self._lock:
                self._blocks.remove(block)
                self._uncover(block)

    def enable_hook(self, hook_id: str) -> bool:
        """Let a hook run again; False where there is none of that id."""
        return self._switch(hook_id, True)

    def disable_hook(self, hook_id: str) -> bool:
        """Keep a hook from running without removing it; False where there is none of that id."""
        return self._switch(hook_id, False)

    # Reading

    def get_hooks(self, event: HookEvent | str, target: Target = None) -> list[HookDefinition]:
        """The enabled hooks of ``event`` in the order they run; with ``target``, those whose matcher is for it."""
        if not self._enabled:
            return []
        hooks = self._hooks.get(event_of(event), _NONE)
        return [hook for hook in hooks if hook.enabled and (target is None or hook.matches(target))]

    def has_hooks(self, event: HookEvent | str) -> bool:
        """True where an enabled hook listens to ``event``."""
        return self._enabled and any(hook.enabled for hook in self._hooks.get(event_of(event), _NONE))

    def list_hooks(self) -> dict[str, list[dict[str, Any]]]:
        """Every hook, by event, in the order they run."""
        return {event.value: [hook.describe() for hook in hooks] for event, hooks in self._snapshot().items() if hooks}

    def set_global_timeout(self, seconds: float) -> None:
        """The limit of hooks that have none of their own, in seconds."""
        limit = limit_of(seconds)
        with self._lock:
            self._timeout = limit
            self._changed()

    @property
    def own_timeout(self) -> float | None:
        """What ``set_global_timeout`` set, None before."""
        return self._timeout

    @property
    def enabled(self) -> bool:
        """False where the whole registry is switched off."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        if self._platform and not value:
            raise HookRegistrationError("Platform hooks cannot be disabled")
        with self._lock:
            self._enabled = value
            self._changed()

    @classmethod
    def from_yaml(cls, path: str | PathLike[str]) -> HookRegistry:
        """The hooks under ``hooks:`` of a declared system, for use with an Agent."""
        from importlib import import_module

        registry: HookRegistry = import_module("agent_engine.spec.hooks").registry_from_yaml(Path(path))
        return registry

    def __len__(self) -> int:
        return sum(len(hooks) for hooks in self._snapshot().values())

    def __bool__(self) -> bool:
        return True

    # Inside

    def seal(self) -> None:
        """Fix a platform registry as it is."""
        self._sealed = True

    def events(self) -> set[HookEvent]:
        """The events that an enabled hook listens to."""
        return {event for event in self._snapshot() if self.hooks_of(event)}

    def hooks_of(self, event: HookEvent) -> tuple[HookDefinition, ...]:
        """The enabled hooks of a member, in order; a snapshot."""
        if not self._enabled:
            return _NONE
        return tuple(hook for hook in self._hooks.get(event, _NONE) if hook.enabled)

    def _uncover(self, block: _Block) -> None:
        """Put what was there before in the place of a temporary hook, which another one may cover by now."""
        hook, below = block.hook, block.below
        there = self._find(hook.id)
        if there is None or there.seq != hook.seq:  # covered, replaced for good, or removed
            for other in self._blocks:
                if other.below is not None and other.below.seq == hook.seq:
                    other.below = below
        elif below is None:
            self.unregister(hook.id)
        else:
            self.register(below)

    def _changed(self) -> None:
        self.version += 1
        clock.tick()

    def _snapshot(self) -> dict[HookEvent, tuple[HookDefinition, ...]]:
        with self._lock:
            return dict(self._hooks)

    def _all(self) -> list[HookDefinition]:
        return [hook for hooks in self._snapshot().values() for hook in hooks]

    def _find(self, hook_id: str) -> HookDefinition | None:
        event = self._events.get(hook_id)
        hooks = _NONE if event is None else self._hooks.get(event, _NONE)
        return next((hook for hook in hooks if hook.id == hook_id), None)

    def _drop(self, hook_id: str) -> bool:
        event = self._events.pop(hook_id, None)
        if event is None:
            return False
        left = tuple(hook for hook in self._hooks[event] if hook.id != hook_id)
        if left:
            self._hooks[event] = left
        else:
            del self._hooks[event]
        return True

    def _switch(self, hook_id: str, enabled: bool) -> bool:
        with self._lock:
            event = self._events.get(hook_id)
            if event is None or self._platform:
                return False
            self._hooks[event] = tuple(
                _switched(hook, enabled) if hook.id == hook_id else hook for hook in self._hooks[event]
            )
            self._changed()
            return True


def _after_fork() -> None:
    """A lock that another thread of the parent held would never be given back here."""
    for registry in tuple(_alive):
        registry._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_default = HookRegistry()


def get_default_registry() -> HookRegistry:
    """The process-wide registry: its hooks fire in every engine and agent."""
    return _default


def set_default_registry(registry: HookRegistry) -> None:
    """Put another registry in the place of the process-wide one."""
    global _default
    if not isinstance(registry, HookRegistry):
        raise TypeError(f"The default registry is a HookRegistry, not {type(registry).__name__}")
    _default = registry
    clock.tick()


@overload
def add_hook(
    event: HookEvent | str,
    callback: None = None,
    priority: int = 100,
    matcher: str | None = None,
    **keywords: Any,
) -> Callable[[_F], _F]: ...
@overload
def add_hook(
    event: HookEvent | str,
    callback: Callable[..., Any],
    priority: int = 100,
    matcher: str | None = None,
    **keywords: Any,
) -> str: ...
def add_hook(
    event: HookEvent | str,
    callback: Callable[..., Any] | None = None,
    priority: int = 100,
    matcher: str | None = None,
    **keywords: Any,
) -> str | Callable[[_F], _F]:
    """Register a callback on the process-wide registry.

    With a callback it gives the hook's id; without, it is a decorator that returns the function unchanged.
    """
    if callback is None:
        return get_default_registry().on(event, matcher=matcher, priority=priority, **keywords)
    return get_default_registry().register_function(event, callback, matcher=matcher, priority=priority, **keywords)


def remove_hook(hook_id: str) -> bool:
    """Remove a hook from the process-wide registry; False where there is none of that id."""
    return get_default_registry().unregister(hook_id)


def has_hook(event: HookEvent | str) -> bool:
    """True where a hook of the process-wide registry listens to ``event``."""
    return get_default_registry().has_hooks(event)


def _caller() -> str:
    """Where the registration was written: the first frame outside this package's hooks."""
    frame = sys._getframe(1)
    here = str(Path(__file__).parent)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(here):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
