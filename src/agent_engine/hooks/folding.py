"""The payload during a dispatch: who works on which copy, what counts as an edit, and how edits come together.

Pure: nothing here waits, and nothing here knows how hooks are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, is_
from typing import Any, Final

from agent_engine.hooks.callbacks import Answer
from agent_engine.hooks.events import EventSpec, HookEvent
from agent_engine.hooks.managed import Context
from agent_engine.hooks.payloads import HookInput, kinds_of, private_copy, set_turn

__all__ = ["BadEdit", "Folding", "copy_of", "same"]

_CONTAINERS: Final = (dict, list, tuple, set)
_set = object.__setattr__


class BadEdit(ValueError):
    """A hook changed what may not be changed, or put something of the wrong kind there; the text says which field."""


def copy_of(payload: Any) -> Any:
    """A private copy of a payload: its containers are shared with nobody. An exception has none and is shared."""
    copy = getattr(payload, "_copy", None)
    return payload if copy is None else copy()


def same(one: Any, other: Any) -> bool:
    """True where two values are the same data: equal, and of equal types all the way down, so that 1 is not True."""
    if type(one) is dict and type(other) is dict and len(one) == len(other) and _alike(one, other):
        return True  # as nearly always: a copy of plain values that nobody has touched
    try:
        return _same(one, other, {})
    except RecursionError:
        return False  # too deep to tell: counts as another value


def _alike(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Whether two dicts of one length have the very same values under the very same keys, in the same order."""
    return all(map(is_, one, other)) and all(map(is_, one.values(), other.values()))


def _same(one: Any, other: Any, seen: dict[tuple[int, int], None]) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if not isinstance(one, _CONTAINERS):
        try:
            return bool(one == other)
        except Exception:  # noqa: BLE001 - a value that cannot be compared has to count as another one
            return False
    if len(one) != len(other):
        return False
    pair = (id(one), id(other))
    if pair in seen:
        return True
    seen[pair] = None
    if isinstance(one, dict):
        for key, value in one.items():
            if key not in other:
                return False
            known = other[key]
            if value is not known and not _same(value, known, seen):
                return False
        return True
    if isinstance(one, set):
        return bool(one == other)
    return all(_same(left, right, seen) for left, right in zip(one, other, strict=True))


def _nothing(_: Any) -> None:
    return None


class Folding:
    """What one event allows to be changed in one type of payload.

    Attributes:
        changes: the names of the changeable fields, sorted.
        flat: none of them holds a container, so that reading them is a snapshot.
        read: the changeable fields of a payload as they are: one value, or a tuple of several.
        keep: the same, safe from edits in place.
    """

    __slots__ = ("_guarded", "_kinds", "_lends", "_spec", "changes", "flat", "keep", "read")

    def __init__(self, spec: EventSpec, payload_type: type[Any]) -> None:
        self._spec = spec
        self.changes = tuple(sorted(spec.changes))
        # Payloads lend what may not be changed, a copy for each hook; contexts are watched.
        self._lends = issubclass(payload_type, HookInput)
        watched = () if self._lends else getattr(payload_type, "_containers", ())
        self._guarded = tuple(name for name in watched if name not in spec.changes)
        self._kinds = kinds_of(payload_type, self.changes)
        self.flat = self._lends and not any(name in payload_type._containers for name in self.changes)
        self.read: Callable[[Any], Any] = attrgetter(*self.changes) if self.changes else _nothing
        self.keep = self.read if self.flat else self._keep

    def lend(self, payload: Any, turn: Any) -> None:
        """From here on ``turn`` says whose turn it is; None where hooks have ended."""
        if self._lends:
            set_turn(payload, turn)

    def snapshot(self, payload: Any) -> dict[str, Any]:
        """The changeable fields as they are now, safe from edits in place."""
        return {name: private_copy(getattr(payload, name)) for name in self.changes}

    def _keep(self, payload: Any) -> Any:
        return private_copy(self.read(payload))

    def named(self, values: Any) -> dict[str, Any]:
        """What ``read`` gave, as a snapshot."""
        return dict(zip(self.changes, values if len(self.changes) > 1 else (values,), strict=False))

    def changed(self, payload: Any, before: Mapping[str, Any]) -> tuple[str, ...]:
        """The fields that are not what ``before``, a snapshot, says."""
        return tuple(name for name in self.changes if not same(getattr(payload, name), before[name]))

    def guard(self, payload: Any) -> dict[str, Any] | None:
        """What may not be changed in a context: a copy to compare with and to restore from."""
        if not self._guarded:
            return None
        return {name: private_copy(getattr(payload, name)) for name in self._guarded}

    def restore(self, payload: Any, guard: Mapping[str, Any] | None) -> None:
        """Undo edits inside containers that may not be changed."""
        if guard is None:
            return
        for name, kept in guard.items():
            if not same(getattr(payload, name), kept):
                _set(payload, name, private_copy(kept))

    def apply(self, payload: Any, answer: Answer) -> Any:
        """The payload with what the answer names; the same object where that is possible, another context where not.

        Raises:
            BadEdit: the answer names something that may not be changed, or a value of the wrong kind.
        """
        if answer.replaced is not None:
            return self._accept(payload, answer.replaced)
        changes = answer.changes
        if not changes:
            return payload
        if self._spec.event is HookEvent.BEFORE_TOOL:
            changes = {"tool_input": {**payload.tool_input, **changes}}
        strange = sorted(name for name in changes if name not in self._spec.changes)
        if strange:
            allowed = ", ".join(self.changes) or "nothing"
            raise BadEdit(f"changes {strange[0]!r}; what can be changed at {self._spec.event}: {allowed}")
        for name, value in changes.items():
            self._check(name, value)
        if isinstance(payload, Context):
            return payload._with(**changes)
        for name, value in changes.items():
            _set(payload, name, value)
        return payload

    def check(self, payload: Any) -> None:
        """Raises BadEdit where a changeable field holds a value of the wrong kind."""
        for name in self._kinds:
            self._check(name, getattr(payload, name))

    def take_over(self, payload: Any, edited: Any) -> Any:
        """The payload with the changeable fields of ``edited``, a copy that a hook worked on and has given back."""
        if isinstance(payload, Context):
            found = {name: getattr(edited, name) for name in self.changes}
            if all(same(value, getattr(payload, name)) for name, value in found.items()):
                return payload
            return payload._with(**found)
        for name in self.changes:
            _set(payload, name, getattr(edited, name))
        return payload

    def _accept(self, payload: Any, given: Context) -> Any:
        """A context that a hook gave back in the place of its own: only what may be changed may differ."""
        for name in payload._fields():
            if name not in self._spec.changes and not same(getattr(given, name), getattr(payload, name)):
                allowed = ", ".join(self.changes) or "nothing"
                raise BadEdit(f"changes {name!r}; what can be changed at {self._spec.event}: {allowed}")
        self.check(given)
        return given

    def _check(self, name: str, value: Any) -> None:
        kind = self._kinds.get(name)
        if kind is not None and not isinstance(value, kind[0]):
            raise BadEdit(f"makes {name!r} a {type(value).__name__}; it is {kind[1]}")
