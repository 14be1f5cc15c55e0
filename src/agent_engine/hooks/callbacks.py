"""Calling what people register: in which context a coroutine is driven, and what a callback's return value means."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from agent_engine.hooks.events import EventSpec, HookEvent
from agent_engine.hooks.managed import Context
from agent_engine.hooks.payloads import HookInput
from agent_engine.hooks.result import STRICTNESS, HookOutput, HookResult, Undecided

__all__ = ["ALLOW", "NO_ANSWER", "Answer", "BadReturn", "Reader", "in_context", "reader_of", "refusal_text"]

T = TypeVar("T")


@types.coroutine
def in_context(context: contextvars.Context, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await ``coroutine`` inside ``context``, in the current task: ``await in_context(copy_context(), work())``.

    What it sets stays in ``context``. The task stays the same one, so time limits, task groups and cancellation work
    as ever. ``context`` must not be entered elsewhere meanwhile.
    """
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        try:
            awaited = context.run(step, given)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a StopIteration's value has no type
        try:
            given = yield awaited
            step = coroutine.send
        except GeneratorExit:
            context.run(coroutine.close)
            raise
        except BaseException as thrown:  # noqa: BLE001 - thrown on into the coroutine
            step, given = coroutine.throw, thrown


@dataclass(slots=True)
class Answer:
    """What one callback said, in one shape.

    ``decision`` is allow, ask or deny; at ``on_permission_ask`` also ``none``, no answer. ``changes`` are the fields
    (at ``before_tool`` the arguments) it names; ``replaced`` is the context that a managed hook gave in the place of
    its own.
    """

    decision: str
    reason: str | None = None
    changes: Mapping[str, Any] | None = None
    replaced: Any = None
    additional_context: str | None = None
    suppress_output: bool = False
    system_message: str | None = None


class BadReturn(ValueError):
    """A callback returned something that is no answer; the text says what, and what is allowed."""


ALLOW: Final = Answer("allow")
"""Nothing to say against it. Shared, never changed."""

NO_ANSWER: Final = Answer("none")

DENIED: Final = "Denied by hook"

Reader = Callable[[Any, Any], Answer]
"""Reads a return value; the second argument is the payload that the callback was given."""

_RESULT_FIELDS: Final = frozenset(HookResult.__dataclass_fields__)
_NO_VALUE = (HookOutput, HookInput, BaseException, types.AsyncGeneratorType, types.GeneratorType, Awaitable)
"""Never an answer, and never the output of a tool either."""


def reader_of(spec: EventSpec) -> Reader:
    """How a callback's return value is read at one event."""
    if spec.event is HookEvent.ON_PERMISSION_ASK:
        return partial(_read_permission, spec)
    if spec.managed:
        return partial(_read_managed, spec)
    return partial(_read_ordinary, spec)


def _read_ordinary(spec: EventSpec, value: Any, given: Any) -> Answer:
    if value is None or value is True or value is given:
        return ALLOW
    if value is False:
        return Answer("deny", DENIED)
    if isinstance(value, HookResult):
        return _read_result(spec, value)
    if isinstance(value, dict) and "decision" in value:
        return _read_dict(spec, value)
    if isinstance(value, _NO_VALUE):
        raise BadReturn(_returned(value, _ORDINARY))
    if spec.event is HookEvent.AFTER_TOOL:
        return Answer("allow", changes={"tool_output": value})
    if isinstance(value, str):
        return Answer("deny", refusal_text(value))
    raise BadReturn(_returned(value, _ORDINARY))


def _read_managed(spec: EventSpec, value: Any, given: Any) -> Answer:
    if value is None and spec.event is not HookEvent.TRANSFORM_TOOL_RESULT:
        return ALLOW
    if value is given and value is not None:
        return ALLOW
    if isinstance(value, HookResult):
        return _read_result(spec, value)
    if type(value) is type(given) and isinstance(value, Context):
        return Answer("allow", replaced=value)
    nothing = "" if spec.event is HookEvent.TRANSFORM_TOOL_RESULT else "None, "
    raise BadReturn(_returned(value, f"{nothing}a {spec.payload} or a HookResult"))


def _read_permission(spec: EventSpec, value: Any, given: Any) -> Answer:
    """A yes is True, an allow, or a dict that says so, and nothing else."""
    if value is None or value is given or isinstance(value, Undecided):
        return NO_ANSWER if not isinstance(value, Undecided) else replace(_read_result(spec, value), decision="none")
    answer = _read_ordinary(spec, value, given)
    if answer.decision == "allow" and isinstance(value, HookResult) and value.decision != "allow":
        return replace(answer, decision="none")
    if answer.decision == "allow" and isinstance(value, dict) and value["decision"] != "allow":
        return replace(answer, decision="none")
    return answer


def _read_result(spec: EventSpec, result: HookResult) -> Answer:
    decision = result.decision
    if not isinstance(decision, str) or decision not in STRICTNESS:
        raise BadReturn(f"gave the decision {_short(decision)}; allowed are {', '.join(STRICTNESS)}")
    if decision in ("deny", "block") or (decision == "ask" and not spec.asks):
        return Answer(
            "deny", refusal_text(result.reason), None, None, _text(result, "additional_context", lenient=True)
        )
    changes = result.modified_input
    if changes is not None and not (isinstance(changes, Mapping) and all(isinstance(name, str) for name in changes)):
        raise BadReturn(f"gave a modified_input that is {_kind(changes)}; it is a dict with text as keys")
    return Answer(
        "ask" if decision == "ask" else "allow",
        _text(result, "reason"),
        changes or None,
        None,
        _text(result, "additional_context"),
        result.suppress_output is True,
        _text(result, "system_message"),
    )


def _read_dict(spec: EventSpec, value: dict[str, Any]) -> Answer:
    refuses = value["decision"] in ("deny", "block")
    strange = [] if refuses else sorted(str(key) for key in value if key not in _RESULT_FIELDS)
    if strange:
        known = ", ".join(sorted(_RESULT_FIELDS))
        raise BadReturn(f"returned a dict with a decision and the key {_short(strange[0])}; known keys are {known}")
    return _read_result(spec, HookResult(**{key: item for key, item in value.items() if key in _RESULT_FIELDS}))


def _text(result: HookResult, name: str, lenient: bool = False) -> str | None:
    value = getattr(result, name)
    if value is None or isinstance(value, str):
        return value
    if lenient:
        return None
    raise BadReturn(f"gave a {name} that is {_kind(value)}; it is text or None")


def refusal_text(reason: object) -> str:
    """The reason of a refusal as text. A no is a no, also where its reason cannot even be read."""
    try:
        return str(reason or DENIED)
    except Exception:  # noqa: BLE001
        return DENIED


_ORDINARY = "None, True, False, text, the payload, a HookResult or a dict with a 'decision'"


def _returned(value: Any, allowed: str) -> str:
    return f"returned {_kind(value)}; allowed are {allowed}"


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _short(value: Any) -> str:
    shown = repr(value) if isinstance(value, str) else _kind(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
