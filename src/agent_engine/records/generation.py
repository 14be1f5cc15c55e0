"""Which configuration was in force: a short name for it, the same in every process that has the same one."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.registry import clock
from agent_engine.records.canonical import NoDigest, canonical

if TYPE_CHECKING:
    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.hooks.scope import HookScope

_KEPT = 64
_HOOK = ("name", "source", "matcher", "priority", "sequential", "timeout", "failure_policy", "observe", "shadow")


class Generations:
    """Names the hooks of a scope together with what else is configured.

    Args:
        configuration: what a system declares, as plain data; None where there is no declaration.
    """

    def __init__(self, configuration: Any = None) -> None:
        self._configuration = configuration
        self._known: dict[int, tuple[HookScope, int, str]] = {}

    def name(self, scope: HookScope) -> str:
        """12 hex digits. They change with the declaration and with every hook that comes, goes or is set otherwise."""
        now = clock.now
        known = self._known.get(id(scope))
        if known is not None and known[0] is scope and known[1] == now:
            return known[2]
        try:
            text = canonical([self._configuration, [_shown(hook) for hook in scope.hooks()]])
        except NoDigest:
            text = canonical([_shown(hook) for hook in scope.hooks()])
        found = sha256(text.encode()).hexdigest()[:12]
        while len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)))
        self._known[id(scope)] = (scope, now, found)
        return found


def _shown(hook: HookDefinition) -> dict[str, Any]:
    shown = {name: getattr(hook, name) for name in _HOOK}
    for name in ("agents", "servers"):
        among = getattr(hook, name)
        shown[name] = None if among is None else sorted(str(one) for one in among)
    return {"event": str(hook.event), "kind": type(hook).__name__, **shown}
