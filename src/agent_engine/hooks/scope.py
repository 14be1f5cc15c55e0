"""Which registries a step listens to, and the plans compiled from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_engine.hooks import registry as _registry
from agent_engine.hooks.definition import HookDefinition
from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.matcher import Target
from agent_engine.hooks.registry import DEFAULT_TIMEOUT, HookRegistry, clock, order
from agent_engine.hooks.site import Site as Site

if TYPE_CHECKING:
    from agent_engine.hooks.plan import Plan

_Key = tuple[Target, str | None, str | None]
_MAX_PLANS = 4096
"""Plans of one event that are kept."""


@dataclass(frozen=True, slots=True)
class _State:
    """What a scope knows: its registries, the versions and the time at which it looked, and a dict of plans for each
    event that somebody listens to."""

    at: int
    registries: tuple[HookRegistry, ...]
    versions: tuple[int, ...]
    plans: dict[HookEvent, dict[_Key, Plan | None]]


class HookScope:
    """Layers of registries: platform hooks, the process-wide registry, an engine's, an agent's and those of the
    agents above it.

    ``plan`` is the only question a door asks before it builds a payload; where nobody listens the answer is None,
    from a dict. Plans are compiled once and thrown away when one of the registries changes. A dispatch uses the plan
    it started with.
    """

    __slots__ = ("_default", "_registries", "_runner_timeout", "_state", "platform")

    def __init__(
        self,
        *registries: HookRegistry,
        platform: HookRegistry | None = None,
        with_default: bool = True,
        runner_timeout: float | None = None,
    ) -> None:
        self.platform = platform
        self._default = with_default
        self._registries = tuple(dict.fromkeys(registries))
        self._runner_timeout = runner_timeout
        self._state = _State(-1, (), (), {})

    def extended(self, registry: HookRegistry | None, inherit_default: bool = True) -> HookScope:
        """This scope with one registry more. ``inherit_default=False`` leaves the process-wide registry out from here
        on; platform hooks and the registries above stay."""
        added = () if registry is None else (registry,)
        if not added and inherit_default:
            return self
        return HookScope(
            *self._registries,
            *added,
            platform=self.platform,
            with_default=self._default and inherit_default,
            runner_timeout=self._runner_timeout,
        )

    def registries(self) -> tuple[HookRegistry, ...]:
        """Every registry of this scope, platform first."""
        head = () if self.platform is None else (self.platform,)
        middle = (_registry.get_default_registry(),) if self._default else ()
        return tuple(dict.fromkeys((*head, *middle, *self._registries)))

    def plan(
        self, event: HookEvent, target: Target = None, *, agent: str | None = None, server: str | None = None
    ) -> Plan | None:
        """What runs at ``event`` for ``target``; None where nobody listens."""
        state = self._state
        if state.at != clock.now:
            state = self._refresh()
        plans = state.plans.get(event)
        if plans is None:
            return None
        key = (target, agent, server)
        try:
            return plans[key]
        except KeyError:
            return self._compile(event, key, plans)

    def listens(self, event: HookEvent) -> bool:
        """True where a hook on ``event`` could hold something back: an enabled one that is neither an observer nor a
        shadow."""
        return any(not hook.observe and not hook.shadow for hook, _ in self._ordered(event))

    def hooks(self, event: HookEvent | None = None) -> list[HookDefinition]:
        """The enabled hooks in the order they run, of one event or of all in the catalogue's order."""
        events = CATALOGUE if event is None else (event,)
        return [hook for one in events for hook, _ in self._ordered(one)]

    def _ordered(self, event: HookEvent) -> list[tuple[HookDefinition, float]]:
        platform: list[tuple[HookDefinition, float]] = []
        others: list[tuple[HookDefinition, float]] = []
        for registry in self.registries():
            limit = self._runner_timeout or registry.own_timeout or DEFAULT_TIMEOUT
            found = [(hook, hook.timeout or limit) for hook in registry.hooks_of(event)]
            (platform if registry is self.platform else others).extend(found)
        # Whatever their priorities and ids, nothing precedes platform hooks.
        return [pair for hooks in (platform, others) for pair in sorted(hooks, key=lambda pair: order(pair[0]))]

    def _refresh(self) -> _State:
        # Time and versions are read before the hooks, and all is put in place at once: a plan compiled from hooks that
        # have since changed can only ever stand beside a time and versions that no longer match.
        at, old = clock.now, self._state
        seen = self.registries()
        versions = tuple(registry.version for registry in seen)
        if seen == old.registries and versions == old.versions:
            plans = old.plans
        else:
            plans = {event: {} for registry in seen for event in registry.events()}
        self._state = state = _State(at, seen, versions, plans)
        return state

    def _compile(self, event: HookEvent, key: _Key, plans: dict[_Key, Plan | None]) -> Plan | None:
        target, agent, server = key
        chosen = [
            (hook, limit)
            for hook, limit in self._ordered(event)
            if hook.matches(target)
            and (hook.agents is None or agent in hook.agents)
            and (hook.servers is None or server in hook.servers)
        ]
        plan: Plan | None = None
        if chosen:
            from agent_engine.hooks.plan import compile_plan

            plan = compile_plan(event, chosen)
        if len(plans) >= _MAX_PLANS:
            plans.clear()
        plans[key] = plan
        return plan


_process_scope: HookScope | None = None


def default_scope() -> HookScope:
    """The scope over the process-wide registry alone."""
    global _process_scope
    if _process_scope is None:
        _process_scope = HookScope()
    return _process_scope
