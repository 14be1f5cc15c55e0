"""Which hooks of a closing event have heard it, so that after a cancellation the others can still be told."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_engine.hooks.plan import Entry, Plan

_MOST = 256

_heard: ContextVar[list[Entry]] = ContextVar("agent_engine_heard")
"""Whose turn has come in the closing event that is being dispatched; one list, also for hooks in threads."""


class HeardPlans:
    """Plans whose hooks say when they are called; kept, since most steps end with the same few."""

    __slots__ = ("_plans",)

    def __init__(self) -> None:
        self._plans: dict[int, tuple[Plan, Plan]] = {}

    def of(self, plan: Plan) -> Plan:
        """The same hooks, noting their calls."""
        known = self._plans.get(id(plan))
        if known is None:
            if len(self._plans) >= _MOST:
                self._plans.clear()
            known = self._plans[id(plan)] = (plan, type(plan)(plan.event, [_noting(entry) for entry in plan.entries]))
        return known[1]


async def dispatch_heard(plan: Plan, noting: Plan, payload: Any, site: Any, rest: Callable[[Plan], Any]) -> Any:
    """Dispatch; where it is cancelled, ``rest`` gets a plan of the hooks that have not heard the event."""
    heard: list[Entry] = []
    token = _heard.set(heard)
    try:
        return await noting.dispatch(payload, site)
    except BaseException as error:
        unheard = [entry for entry in plan.entries if not any(entry is one for one in heard)]
        if unheard and _cancelled(error):
            await rest(type(plan)(plan.event, unheard))
        raise
    finally:
        _heard.reset(token)


def _cancelled(error: BaseException) -> bool:
    import asyncio

    return isinstance(error, asyncio.CancelledError)


def _noting(entry: Entry) -> Entry:
    call = entry.call

    def noted(*arguments: Any, **options: Any) -> Any:
        _heard.get().append(entry)
        return call(*arguments, **options)

    return replace(entry, call=noted)
