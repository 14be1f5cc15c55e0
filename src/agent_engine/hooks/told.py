"""The quick way where somebody is told of every hook: an iterator over the hooks of a plan that tells of each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.folding import Folding, copy_of, same
from agent_engine.hooks.result import HookRun

if TYPE_CHECKING:
    from agent_engine.hooks.plan import Plan
    from agent_engine.hooks.site import Where

__all__ = ["Telling", "kept"]


def kept(payload: Any, folding: Folding) -> Any:
    """A copy that no hook sees; what it shares with the payload is lent to nobody and need not be copied."""
    copy = copy_of(payload)
    folding.lend(copy, None)
    return copy


class Telling:
    """Gives out one hook's function after the other. Asked for the next one, it tells the site of the one before: that
    hook has said "go on" in the plainest way, so what is to be told is when it ran and what it changed.

    Attributes:
        begun: when the hook that is on began (``time.perf_counter``).
        known: the changeable fields as that hook found them, as :meth:`Folding.keep` gives them.
        left: the whole payload as it found it, where the site wants payloads.
    """

    __slots__ = ("_folding", "_on", "_payload", "_pending", "_plan", "_site", "begun", "known", "left")

    def __init__(self, plan: Plan, payload: Any, site: Where, folding: Folding) -> None:
        self._plan = plan
        self._payload = payload
        self._site = site
        self._folding = folding
        self._pending: Any = iter(plan.calls)
        self._on = False
        self.begun = 0.0
        self.known: Any = folding.keep(payload)
        self.left: Any = None

    def __iter__(self) -> Iterator[Any]:
        if self._on:  # Whoever asks a second time wants no hook after this one.
            return iter(self._pending)
        self._on = True
        return self._tell()

    def __length_hint__(self) -> int:
        return int(self._pending.__length_hint__())

    def _tell(self) -> Iterator[Any]:
        payload, folding, site = self._payload, self._folding, self._site
        event, read, clock, sink = self._plan.event, folding.read, time.perf_counter, site.sink
        assert sink is not None
        if site.wants_payloads:
            self.left = kept(payload, folding)
        epoch = time.time() - clock()
        for entry, call in zip(self._plan.entries, self._pending, strict=False):
            self.begun = begun = clock()
            yield call
            ended = clock()
            changed: tuple[str, ...] = ()
            seen = self.left
            now = read(payload)
            if now is not self.known and not same(now, self.known):
                changed = folding.changed(payload, folding.named(self.known))
                self.known = folding.keep(payload)
                self.left = kept(payload, folding) if site.wants_payloads else None
            hook = entry.hook
            run = HookRun(hook, event)
            run.changed, run.duration_ms, run.policy = changed, (ended - begun) * 1000, hook.failure_policy
            run.started_at, run.before, run.after = epoch + begun, seen, self.left
            if changed:
                run.decision = "modify"
            sink(site, run)
