"""A kit for people who write hooks: build a payload, run a hook on it, and say what must have come of it.

>>> from agent_engine.testing import assert_denied, payload, run_hook
>>> assert_denied(run_hook(block_delete, "before_tool", tool_name="delete_file"), "not allowed")

pytest finds the fixture ``isolated_hooks`` by itself: a process-wide registry for one test alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.hooks.events import HookEvent
    from agent_engine.hooks.managed import HookInvocation, RunContext
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.result import Verdict

__all__ = [
    "Recorder",
    "arun_hook",
    "assert_allowed",
    "assert_asked",
    "assert_denied",
    "assert_modified",
    "fresh_default_registry",
    "invocation",
    "payload",
    "run_hook",
]

_WHOSE = {"session_id": "test-session", "run_id": "test-run", "agent_name": "test-agent"}


def payload(event: str | HookEvent, **fields: Any) -> Any:
    """The payload of any event, as the engine would build it: ``payload("before_tool", tool_name="search")``.

    What is not given has its default; session, run and agent are ``test-session``, ``test-run`` and ``test-agent``. At
    ``on_run_error`` it is the exception given as ``error``.

    Raises:
        ValueError: there is no such event.
        TypeError: the event's payload has no such field (the message lists those it has), or a field that hooks may
            change is of the wrong kind.
    """
    from agent_engine.hooks.events import event_of
    from agent_engine.hooks.managed import context_fields
    from agent_engine.hooks.payloads import HookInput, check_fields, payload_type

    event = event_of(event)
    kind = payload_type(event)
    if issubclass(kind, BaseException):
        error = fields.pop("error", None)
        known: tuple[str, ...] = ("error",)
    else:
        known = context_fields(kind)
    strange = sorted(set(fields) - set(known))
    if strange:
        raise TypeError(f"The payload of {event} has no field {strange[0]!r}; it has {', '.join(known)}")
    if issubclass(kind, BaseException):
        return error if error is not None else RuntimeError("an error for a test")
    check_fields(event, fields)
    if issubclass(kind, HookInput):
        return kind(**{"event_name": event.value, **_WHOSE, **fields})
    return kind(**{**{name: value for name, value in _WHOSE.items() if name in known}, **fields})


def invocation(event: str | HookEvent, run_context: RunContext | None = None, **fields: Any) -> HookInvocation:
    """What a method declared in YAML is called with at ``event``; ``fields`` are those of the payload."""
    from agent_engine.hooks.events import event_of
    from agent_engine.hooks.managed import HookInvocation, RunContext

    return HookInvocation(
        hook_point=event_of(event).value,
        payload=payload(event, **fields),
        run_context=run_context or RunContext(run_id=_WHOSE["run_id"]),
    )


async def arun_hook(
    hook: Callable[..., Any] | HookDefinition | HookRegistry, event: str | HookEvent, given: Any = None, **fields: Any
) -> Verdict:
    """Run a function, a hook or all hooks of a registry on one payload, and nothing else; what it comes to.

    Args:
        hook: a function (registered with the defaults), a HookDefinition of this event, or a HookRegistry.
        event: which event.
        given: the payload, or a dict of its fields; None builds it from ``fields``.
        fields: fields of the payload, and of a function's registration as ``register_sequential=True`` and the like.

    Returns:
        The Verdict; its ``payload`` is the payload with every edit that counts.

    Raises:
        ValueError: there is no such event, or the hook is for another one.
        TypeError: ``given`` is no payload of this event, or something that is given would be ignored.
    """
    from agent_engine.hooks.events import CATALOGUE, event_of
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.result import Verdict
    from agent_engine.hooks.runner import build_payload
    from agent_engine.hooks.scope import HookScope, Site

    event = event_of(event)
    options = {name.removeprefix("register_"): fields.pop(name) for name in [*fields] if name.startswith("register_")}
    if options and not callable(hook):
        raise TypeError(
            f"register_{next(iter(options))} is for a function; a {type(hook).__name__} is registered already"
        )
    if fields and given is not None:
        raise TypeError(f"{next(iter(fields))} would be ignored beside a payload; name all fields there, or give none")
    built = build_payload(event, given) if given is not None else payload(event, **fields)
    if isinstance(hook, HookRegistry):
        registry = hook
    else:
        registry = HookRegistry()
        registry.register_function(event, hook, **options) if callable(hook) else registry.register(hook)
        if not registry.has_hooks(event):
            raise ValueError(f"This hook does not listen to {event}: it is switched off, or for another event")
    target = CATALOGUE[event].target
    plan = HookScope(registry, with_default=False).plan(
        event,
        (getattr(built, target, None) or None) if target else None,
        agent=getattr(built, "agent_name", None) or getattr(built, "agent_id", None) or None,
        server=getattr(built, "server_id", None),
    )
    return Verdict("allow", built) if plan is None else await plan.dispatch(built, Site())


def run_hook(
    hook: Callable[..., Any] | HookDefinition | HookRegistry, event: str | HookEvent, given: Any = None, **fields: Any
) -> Verdict:
    """``arun_hook`` for tests that are not async."""
    from agent_engine.hooks.portal import run_sync

    return run_sync(lambda: arun_hook(hook, event, given, **fields))


Outcome = "Verdict | HookResult | HookExecutionResult | Sequence[HookExecutionResult]"


def assert_denied(outcome: Any, reason: str | None = None) -> str:
    """Fail unless ``outcome`` (a Verdict, a HookResult, or rows of ``fire_hook``) refuses the step; gives the reason.

    ``reason`` is text that the reason must hold.
    """
    return _assert_decided("a deny", ("deny", "block"), outcome, reason)


def assert_asked(outcome: Any, reason: str | None = None) -> str:
    """Fail unless ``outcome`` leaves the step to a person; gives the reason, which must hold ``reason``."""
    return _assert_decided("an ask", ("ask",), outcome, reason)


def _assert_decided(what: str, decisions: tuple[str, ...], outcome: Any, reason: str | None) -> str:
    reasons = [said or "" for decision, said, _ in _decisions(outcome) if decision in decisions]
    _check(bool(reasons), f"expected {what}, got {_told(outcome)}")
    said = next((one for one in reasons if one), "")
    if reason is not None:
        _check(any(reason in one for one in reasons), f"expected {what} with {reason!r} in its reason, got {said!r}")
    return said


def assert_allowed(outcome: Any) -> None:
    """Fail unless ``outcome`` lets the step through, changed or not."""
    allowed = all(decision in ("allow", "modify") for decision, _, _ in _decisions(outcome))
    _check(allowed, f"expected an allow, got {_told(outcome)}")


def assert_modified(outcome: Any, **changes: Any) -> None:
    """Fail unless ``outcome`` lets the step through with exactly these values: fields, or arguments at a tool."""
    assert_allowed(outcome)
    found: dict[str, Any] = {}
    for _, _, changed in _decisions(outcome):
        found.update(changed)
    _check(
        bool(found),
        f"expected a change, got {_told(outcome)}; what a parallel hook changes is discarded: register it with"
        " sequential=True (of a function: register_sequential=True)",
    )
    for name, value in changes.items():
        _check(name in found, f"expected {name!r} to be changed; what was changed or is there: {sorted(found)}")
        _check(found[name] == value, f"expected {name} to be {value!r}, got {found[name]!r}")


def _check(holds: bool, expected: str) -> None:
    """An assertion that pytest adds nothing to."""
    if not holds:
        raise AssertionError(expected)


class Recorder:
    """A hook that remembers what it saw and lets everything through.

    >>> recorder = Recorder().attach(registry, "before_tool", "after_tool")
    >>> recorder.events
    ['before_tool', 'after_tool']
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def attach(self, registry: HookRegistry | None = None, *events: str | HookEvent, **keywords: Any) -> Recorder:
        """Listen on a registry (None: the process-wide one) to these events (none: to all); gives itself back."""
        from agent_engine.hooks.events import CATALOGUE, event_of
        from agent_engine.hooks.registry import get_default_registry

        where = registry if registry is not None else get_default_registry()
        if isinstance(where, str):
            raise TypeError(
                f"attach() takes the registry first, None for the process-wide one: attach(None, {where!r})"
            )
        for event in events or tuple(CATALOGUE):
            name = event_of(event).value
            options = {"name": f"recorder.{name}", "inline": True, **keywords}
            where.register_function(name, self._listener(name), **options)
        return self

    @property
    def events(self) -> list[str]:
        """The names of the events, in the order they were seen."""
        return [event for event, _ in self.calls]

    @property
    def payloads(self) -> list[Any]:
        """The payloads, in the order they were seen."""
        return [seen for _, seen in self.calls]

    def of(self, event: str | HookEvent) -> list[Any]:
        """The payloads of one event."""
        from agent_engine.hooks.events import event_of

        return [seen for name, seen in self.calls if name == event_of(event)]

    def clear(self) -> None:
        """Forget everything."""
        self.calls.clear()

    def _listener(self, event: str) -> Callable[[Any], Any]:
        from agent_engine.hooks.folding import copy_of

        def listen(seen: Any) -> Any:
            self.calls.append((event, copy_of(seen)))
            return seen

        return listen


@contextmanager
def fresh_default_registry() -> Iterator[HookRegistry]:
    """An empty process-wide registry for the length of a ``with`` block; the one before comes back."""
    from agent_engine.hooks.registry import HookRegistry, get_default_registry, set_default_registry

    before, fresh = get_default_registry(), HookRegistry()
    set_default_registry(fresh)
    try:
        yield fresh
    finally:
        set_default_registry(before)


def _decisions(outcome: Any) -> list[tuple[str, str | None, dict[str, Any]]]:
    """(decision, reason, what is changed) of whatever tells about a hook."""
    if isinstance(outcome, list | tuple):
        return [row for one in outcome for row in _decisions(one)]
    if hasattr(outcome, "output") and hasattr(outcome, "hook_id"):
        if outcome.output is None:
            return [("allow", outcome.error, {})]  # it broke without a say, under warn or as an observer
        return _decisions(outcome.output)
    if hasattr(outcome, "modified_input"):
        return [(outcome.decision, outcome.reason, dict(outcome.modified_input or {}))]
    if hasattr(outcome, "payload") and hasattr(outcome, "decision"):
        return [(outcome.decision, outcome.reason, _fields_of(outcome.payload) if outcome.changed else {})]
    raise TypeError(f"expected a Verdict, a HookResult or rows of fire_hook, not a {type(outcome).__name__}")


def _fields_of(built: Any) -> dict[str, Any]:
    from agent_engine.hooks.managed import context_fields

    named = {name: getattr(built, name) for name in context_fields(type(built))}
    arguments = named.get("tool_input")
    return {**(arguments if isinstance(arguments, dict) else {}), **named}


def _told(outcome: Any) -> str:
    told = [f"{decision} ({reason})" if reason else decision for decision, reason, _ in _decisions(outcome)]
    return ", ".join(told) or "nothing: no hook ran"


if "pytest" in sys.modules:  # as pytest's own plugin, never the other way round
    import pytest

    @pytest.fixture
    def isolated_hooks() -> Iterator[HookRegistry]:
        """The process-wide registry of this test alone, empty at its start; add_hook and every engine use it."""
        with fresh_default_registry() as registry:
            yield registry
