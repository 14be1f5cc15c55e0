"""Running hooks from outside a step: fire_hook for whoever announces an event, HookRunner for whoever drives hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

from agent_engine.hooks.events import CATALOGUE, HookEvent, event_of
from agent_engine.hooks.matcher import Target
from agent_engine.hooks.nesting import Nested, around
from agent_engine.hooks.payloads import HookInput, check_fields, payload_type, private_copy
from agent_engine.hooks.portal import run_sync
from agent_engine.hooks.registry import HookRegistry, get_default_registry, limit_of
from agent_engine.hooks.result import HookExecutionResult, HookResult
from agent_engine.hooks.scope import HookScope, default_scope
from agent_engine.hooks.site import Site

__all__ = ["MOST_NESTED", "HookRunner", "afire_hook", "build_payload", "fire_hook"]

MOST_NESTED = 16
"""How many events may be fired inside one another: a hook that fires what it listens to must come to an end."""


def fire_hook(
    event: HookEvent | str, data: Any = None, *, target: Target = None, registry: HookRegistry | None = None
) -> list[HookExecutionResult]:
    """Announce an event, so that its subscribers run; works inside a running loop, too, and returns when they are done.

    Args:
        event: a member, its value, an old name or a member's name.
        data: a dict of the payload's fields, which is copied; keys that are no fields go to ``extra``. Or the payload
            itself: sequential hooks edit it where its event has something to change, so fire it once at a time.
        target: what matchers are tried against; None takes it from the payload.
        registry: whose hooks run; None is the process-wide registry.

    Returns:
        A row for each hook that ran; a subscriber's failure is a row, never an exception. [] where nobody subscribed.

    Raises:
        ValueError: no such event.
        TypeError: ``data`` is nothing that a payload can be made of.
    """
    member = event_of(event)
    scope = _scope(registry)
    if not scope.hooks(member):
        return []
    return run_sync(lambda: _fire(scope, member, data, target, Site()))


async def afire_hook(
    event: HookEvent | str, data: Any = None, *, target: Target = None, registry: HookRegistry | None = None
) -> list[HookExecutionResult]:
    """The async twin of ``fire_hook``."""
    member = event_of(event)
    scope = _scope(registry)
    if not scope.hooks(member):
        return []
    return await _fire(scope, member, data, target, Site())


class HookRunner:
    """Runs the hooks of a registry on payloads that a caller brings.

    Args:
        registry: whose hooks run; None is the process-wide registry.
        default_timeout: seconds for hooks without a limit of their own; None leaves it to the registry.
        cwd: the folder that command hooks run in; None is the process's.

    Raises:
        ValueError: ``default_timeout`` is no number of seconds above 0.
    """

    def __init__(
        self, registry: HookRegistry | None = None, default_timeout: float | None = None, cwd: str | None = None
    ) -> None:
        self.registry = get_default_registry() if registry is None else _registry(registry)
        self.default_timeout = None if default_timeout is None else limit_of(default_timeout)
        self.cwd = cwd
        self._scope = HookScope(self.registry, with_default=False, runner_timeout=default_timeout)

    async def execute(
        self, event: HookEvent | str, payload: Any = None, target: Target = None
    ) -> list[HookExecutionResult]:
        """Run the hooks of ``event``; a row for each that ran, a failure among them. Arguments as for ``fire_hook``."""
        member = event_of(event)
        if not self._scope.hooks(member):
            return []
        return await _fire(self._scope, member, payload, target, Site(cwd=self.cwd))

    execute_async = execute

    def execute_sync(
        self, event: HookEvent | str, payload: Any = None, target: Target = None
    ) -> list[HookExecutionResult]:
        """The same for a caller that cannot await; works inside a running loop, too."""
        member = event_of(event)
        if not self._scope.hooks(member):
            return []
        return run_sync(lambda: self.execute(member, payload, target))

    @staticmethod
    def is_blocked(results: Iterable[HookExecutionResult]) -> bool:
        """True where a hook refused, asked, or broke in a way that refuses."""
        return any(row.output is not None and row.output.is_denied() for row in results)

    @staticmethod
    def get_blocking_reason(results: Iterable[HookExecutionResult]) -> str | None:
        """The reason of the strictest refusal, the first one of its kind; None where nobody refused."""
        refused = [row.output for row in results if row.output is not None and row.output.is_denied()]
        if not refused:
            return None
        denied = [output for output in refused if output.decision != "ask"]
        return (denied or refused)[0].reason or "Denied by hook"

    @staticmethod
    def aggregate_context(results: Iterable[HookExecutionResult]) -> str:
        """The additional context of all hooks, in their order, a line each."""
        texts = [row.output.additional_context for row in results if row.output is not None]
        return "\n".join(text for text in texts if text)

    @staticmethod
    def _parse_command_output(stdout: str, stderr: str, exit_code: int) -> HookResult:
        """What a command's output and exit code decide; see the exit code table."""
        from agent_engine.hooks.protocol import parse_command_output

        return parse_command_output(stdout, stderr, exit_code)


def build_payload(event: HookEvent, data: Any = None) -> Any:
    """The payload of ``event``: as given, or made of a dict of its fields. Keys that are no fields go to ``extra``.

    Raises:
        TypeError: ``data`` is something else, or a field is of the wrong kind that hooks may change or matchers are
            tried against; the message says which.
    """
    payload, attribute = _built(event, data), CATALOGUE[event].target
    target = None if attribute is None else getattr(payload, attribute, None)
    if target is not None and not isinstance(target, str):
        raise TypeError(f"{attribute} at {event} is text, not {_kind(target)}")
    return payload


def _built(event: HookEvent, data: Any) -> Any:
    kind = payload_type(event)
    if isinstance(data, kind):
        return data
    if data is None and kind is not BaseException:
        return kind()
    if not isinstance(data, Mapping) or kind is BaseException:
        raise TypeError(f"The payload of {event} is a {kind.__name__} or a dict of its fields, not {_kind(data)}")
    names = {field.name for field in dataclasses.fields(kind)}
    fields = {str(key): private_copy(value) for key, value in data.items() if str(key) in names}
    check_fields(event, fields)
    rest = {str(key): private_copy(value) for key, value in data.items() if str(key) not in names}
    if not rest:
        return kind(**fields)
    home = "extra" if issubclass(kind, HookInput) else "metadata"
    fields[home] = {**rest, **(fields.get(home) or {})}
    return kind(**fields)


async def _fire(scope: HookScope, event: HookEvent, data: Any, target: Target, site: Site) -> list[HookExecutionResult]:
    payload = build_payload(event, data)
    target = _names(target)
    if target is None:
        attribute = CATALOGUE[event].target
        target = None if attribute is None else getattr(payload, attribute, None) or None
    agent = getattr(payload, "agent_name", None) or getattr(payload, "agent_id", None) or None
    plan = scope.plan(event, target, agent=agent, server=getattr(payload, "server_id", None))
    if plan is None:
        return []
    with _under_way(event):
        return (await plan.dispatch_rows(payload, site))[1]


def _names(target: object) -> Target:
    if target is None or isinstance(target, str):
        return target
    if isinstance(target, list | tuple) and all(isinstance(name, str) for name in target):
        return tuple(target)
    raise TypeError(f"target is a name, or several names of one thing, not {_kind(target)}")


_firing: ContextVar[Nested | None] = ContextVar("agent_engine_firing", default=None)


@contextmanager
def _under_way(event: HookEvent) -> Iterator[None]:
    """Raises RecursionError where too many are under way around it. In threads and tasks Python itself would not."""
    above = _firing.get()
    outer = around(above)
    if len(outer) >= MOST_NESTED:
        raise RecursionError(
            f"{event} was not fired: {len(outer)} events are being fired inside one another already; a hook that fires"
            " the event it listens to never ends"
        )
    chain = [Nested(None), *outer]
    for inner, one in pairwise(chain):
        inner.above = one
    chain[-1].above = None  # what has ended is forgotten
    _firing.set(chain[0])
    try:
        yield
    finally:
        chain[0].over = True
        _firing.set(above)


def _scope(registry: HookRegistry | None) -> HookScope:
    if registry is None:
        return default_scope()
    _registry(registry)
    if registry._scope is None:
        registry._scope = HookScope(registry, with_default=False)
    return registry._scope


def _registry(given: object) -> HookRegistry:
    if not isinstance(given, HookRegistry):
        raise TypeError(f"registry is a HookRegistry, not {_kind(given)}")
    return given


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
