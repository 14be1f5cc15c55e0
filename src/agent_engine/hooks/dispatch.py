"""One dispatch: the hooks of a plan on one payload, in order and in groups, and the verdict they come to."""

from __future__ import annotations

import contextvars
import inspect
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent_engine.hooks.callbacks import ALLOW, Answer, BadReturn, refusal_text
from agent_engine.hooks.errors import HookFailure, guardrail_in
from agent_engine.hooks.folding import BadEdit, copy_of
from agent_engine.hooks.limits import TimedOut, pressed, within
from agent_engine.hooks.offload import Stage, call
from agent_engine.hooks.payloads import private_copy
from agent_engine.hooks.result import HookResult
from agent_engine.hooks.rows import Ran, hook_run, result_row
from agent_engine.hooks.tally import Tally
from agent_engine.hooks.together import DISCARDED, Edits, Job, is_awaitable, run_together
from agent_engine.hooks.told import kept
from agent_engine.hooks.workers import MOST_OVERRUN, Overran, overrun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_engine.hooks.plan import Entry, Group, Plan
    from agent_engine.hooks.result import HookExecutionResult, Verdict
    from agent_engine.hooks.site import Where
    from agent_engine.hooks.told import Telling

logger = logging.getLogger("agent_engine.hooks")

_OVER: Final = 5.0
"""Seconds on top of its limit for a command or webhook, which minds the limit itself and then ends its process."""


class Turn:
    """Another number for each hook, or group of hooks that run at once."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def __length_hint__(self) -> int:
        return self.number


class Dispatch:
    """The state of one dispatch. ``rows`` is a list where the caller wants a row for each hook; then nothing raises."""

    def __init__(self, plan: Plan, payload: Any, site: Where, rows: list[HookExecutionResult] | None = None) -> None:
        self.plan = plan
        self.payload = payload
        self.site = site
        self.rows = rows
        self.tally = Tally(plan.spec, strict=site.strict, raises=rows is None)
        self._folding = plan.folding(payload)
        self._told = rows is not None or site.sink is not None
        self._keeps = site.sink is not None and site.wants_payloads
        # What the next hook finds is what the one before left: one copy serves both.
        self._left: Any = None
        self._group = 0
        self._unsent: list[Ran] = []
        self._guard: dict[str, Any] | None = None
        self._turn = Turn()

    async def run(self) -> Verdict:
        """Run the groups one after the other, until one refuses."""
        return await self._finish(self._folding.snapshot(self.payload), self.plan.groups)

    async def go_on(
        self,
        before: Mapping[str, Any],
        left: int,
        value: Any,
        error: BaseException | None,
        begun: float | None = None,
        told: Telling | None = None,
        worked_on: Any = None,
    ) -> Verdict:
        """Take over from a quick way through one sequential group, at the hook that did not simply say "go on".

        ``left`` is how many hooks are behind it, ``begun`` when it began (``time.perf_counter``), ``told`` who has told
        of those before it, ``worked_on`` the copy that a worker thread was given.
        """
        group, payload = self.plan.groups[0], self.payload
        if worked_on is not None:
            self.payload = worked_on
        position = len(group.entries) - 1 - left
        ran = self.heard(group.entries[position], begun if told is None else told.begun)
        if told is not None:
            ran.before = self._folding.named(told.known)
            ran.seen = ran.left = self._left = told.left
        if error is None and ran.entry.kind == "inline" and is_awaitable(value):
            value, error = await within(value, ran.entry.limit)
        self.settle(ran, value, error)
        self._send()
        if worked_on is not None:
            self.payload = payload if self.tally.stopped else self._folding.take_over(payload, worked_on)
        return await self._finish(before, [] if self.tally.stopped else group.after(position))

    def settle_group(self, shared: Any, jobs: Sequence[Job]) -> Verdict:
        """Take over from the quick way through one parallel group, when all its hooks have ended."""
        self._settle_all([(Ran(entry, shared, 0), job) for entry, job in zip(self.plan.entries, jobs, strict=True)])
        return self.tally.verdict(self.payload, changed=False)

    async def _finish(self, before: Mapping[str, Any], groups: Sequence[Group]) -> Verdict:
        self._guard = self._folding.guard(self.payload)
        self._folding.lend(self.payload, self._turn)
        try:
            for self._group, group in enumerate(groups):
                await (self._sequential(group) if group.sequential else self._parallel(group))
                if self.tally.stopped:
                    break
        finally:
            self._folding.lend(self.payload, None)
        return self.tally.verdict(self.payload, bool(self._folding.changed(self.payload, before)))

    # Sequential groups

    async def _sequential(self, group: Group) -> None:
        for run in group.runs:
            if run[0].kind == "worker":
                await self._in_worker(run)
            else:
                for entry in run:
                    await self._one(entry)
                    if self.tally.stopped:
                        return
            if self.tally.stopped:
                return

    async def _one(self, entry: Entry) -> None:
        ran = self.begin(entry)
        if ran is None:
            return
        value, error = await self._call(ran)
        self.settle(ran, value, error)
        self._send()

    async def _in_worker(self, run: Sequence[Entry]) -> None:
        """Neighbouring sync hooks: one hand-off, on a copy that is taken over when they have returned in time."""
        payload, left = self.payload, list(run)
        self.payload = copy_of(payload)
        try:
            while left and not self.tally.stopped:
                if overrun() >= MOST_OVERRUN:
                    self._crowded(left.pop(0))
                    continue
                stage = Stage(self, left)
                left = await stage.run()
                if stage.awaitable is not None:
                    ran, awaitable = stage.awaitable
                    value, error = await within(awaitable, ran.entry.limit)
                    self.settle(ran, value, error)
                self._send()
        finally:
            worked_on, self.payload = self.payload, payload
        if not self.tally.stopped:
            self.payload = self._folding.take_over(payload, worked_on)

    def _crowded(self, entry: Entry) -> None:
        ran = self.begin(entry)
        if ran is not None:
            self.settle(ran, None, crowded(entry))
            self._send()

    # Parallel groups

    async def _parallel(self, group: Group) -> None:
        """All at once on one private copy; what they said is read in the order of the plan, whoever was first.

        Observers and shadows have a copy each: what they edit must not be what a hook that counts decides on.
        """
        self._turn.number += 1
        shared = copy_of(self.payload)
        edits = Edits(self._folding, shared)
        busy = overrun() >= MOST_OVERRUN
        pairs: list[tuple[Ran, Job]] = []
        for entry in group.entries:
            ran = self.begin(entry, shared if entry.counts else copy_of(self.payload))
            if ran is not None:
                threaded = entry.kind == "worker" and not busy and ran.failure is None
                # Whatever is no plain function minds its limit by itself, in _call.
                work = partial(_raw, ran, self.site) if threaded else partial(self._raising, ran)
                limit = entry.limit if threaded else math.inf
                pairs.append((ran, Job(work, limit, threaded, partial(self._ended, ran, edits))))
        await run_together([job for _, job in pairs])
        self._settle_all(pairs)

    def _settle_all(self, pairs: Sequence[tuple[Ran, Job]]) -> None:
        for ran, job in pairs:
            self.settle(ran, job.value, job.error)
        self._send()

    def _ended(self, ran: Ran, edits: Edits) -> None:
        ran.ended = time.perf_counter()
        if ran.entry.counts:
            edits.blame(ran.entry.name)

    async def _raising(self, ran: Ran) -> Any:
        value, error = await self._call(ran)
        if error is not None:
            raise error
        return value

    # One hook

    def begin(self, entry: Entry, shared: Any = None) -> Ran | None:
        """What a hook is given; None where its predicate says that it is not for this run."""
        self._turn.number += entry.sequential
        given = shared if shared is not None else self.payload if entry.live else copy_of(self.payload)
        ran = Ran(entry, given, self._group)
        if self._told:
            ran.started_at = time.time()
            ran.begun = time.perf_counter()
            if entry.sequential:
                ran.before = self._folding.snapshot(given)
        if self._keeps:
            if self._left is None:
                self._left = kept(given, self._folding)
            ran.seen = ran.left = self._left
        if entry.when is not None:
            try:
                applies = entry.when(self._run_context())
                if inspect.isawaitable(applies):
                    _discard(applies)
                    raise TypeError("when= is a plain function, not an async one")
                applies = bool(applies)
            except BaseException as error:  # a predicate that breaks is a hook that broke
                if pressed(error):
                    raise
                ran.failure = _failure(entry, error)
                return ran
            if not applies:
                return None
        return ran

    def heard(self, entry: Entry, begun: float | None = None) -> Ran:
        """A hook that something has come of already, or whose time was over before it began."""
        ran = Ran(entry, self.payload, self._group)
        now = time.perf_counter()
        ran.begun = begun or now
        ran.started_at = time.time() - now + ran.begun
        return ran

    async def _call(self, ran: Ran) -> tuple[Any, BaseException | None]:
        entry, site = ran.entry, self.site
        if ran.failure is not None:
            return None, ran.failure
        if entry.kind == "worker":
            return None, crowded(entry)
        if entry.kind == "missing":
            return None, HookFailure(f"Hook '{entry.name}' has no callable", "no_callable")
        if entry.kind == "command":
            from agent_engine.hooks.command import CommandFailure, CommandOutcome

            outcome, error = await within(
                entry.call(entry.hook, ran.given, cwd=site.cwd, limit=entry.limit), entry.limit + _OVER
            )
            said = error if outcome is None else outcome
            if isinstance(said, CommandFailure | CommandOutcome):
                ran.stdout, ran.stderr, ran.exit_code = said.stdout, said.stderr, said.exit_code
            return getattr(outcome, "result", None), error
        if entry.kind == "webhook":
            return await within(entry.call(entry.hook, ran.given, limit=entry.limit), entry.limit + _OVER)
        value, error = call(ran, site) if entry.sequential else contextvars.copy_context().run(call, ran, site)
        if error is None and is_awaitable(value):
            return await within(value, entry.limit)
        return value, error

    def settle(self, ran: Ran, value: Any, error: BaseException | None) -> None:
        """Read what a hook said, take over what it changed, and note what follows. Never raises for the hook."""
        entry = ran.entry
        try:
            answer = self._answer(ran, value, error)
            if entry.counts and answer.decision != "deny":
                self._take(ran, answer)
            ran.answer = answer
        except HookFailure as failure:
            ran.failure = failure
        except BadEdit as problem:
            ran.failure = HookFailure(f"Hook '{entry.name}' {problem}", "bad_edit")
        except BaseException as problem:  # an answer that cannot even be read is no allow
            if pressed(problem):
                raise
            ran.failure = _failure(entry, problem)
        if self._told:
            self._note(ran, value)
        if ran.failure is not None:
            self.tally.failed(entry, ran.failure)
        elif entry.counts and ran.answer is not None:
            self.tally.said(entry, ran.answer)
        if entry.live and entry.sequential:
            self._folding.restore(self.payload, self._guard)
        self._unsent.append(ran)

    def _answer(self, ran: Ran, value: Any, error: BaseException | None) -> Answer:
        if error is None and ran.entry.hook.observe:
            return ALLOW  # what an observer returns is nobody's business
        if error is None:
            try:
                return self.plan.reader(value, ran.given)
            except BadReturn as problem:
                raise HookFailure(f"Hook '{ran.entry.name}' {problem}", "bad_return") from None
        refusal = guardrail_in(error)
        if refusal is not None:
            return Answer("deny", refusal_text(refusal.reason))
        raise _failure(ran.entry, error)

    def _take(self, ran: Ran, answer: Answer) -> None:
        """Fold one hook's edits into the payload, or warn that a parallel one's are discarded."""
        folding = self._folding
        if not ran.entry.sequential:
            folding.apply(copy_of(ran.given), answer)
            if answer.changes or answer.replaced is not None:
                logger.warning(DISCARDED, ran.entry.name, "returned modified_input")
            return
        folding.check(ran.given)
        edited = folding.apply(ran.given, answer)
        self.payload = edited if ran.entry.live else folding.take_over(self.payload, edited)

    def _run_context(self) -> Any:
        from agent_engine.hooks.managed import RunContext

        return private_copy(self.site.run_context) or RunContext()

    # Rows

    def _note(self, ran: Ran, value: Any) -> None:
        ran.duration_ms = ((ran.ended or time.perf_counter()) - ran.begun) * 1000
        if ran.failure is None and isinstance(value, HookResult):
            ran.result = value
        if ran.before is not None and ran.failure is None and ran.entry.counts:
            ran.changed = self._folding.changed(self.payload, ran.before)
        if self._keeps and ran.changed:
            ran.left = self._left = kept(self.payload, self._folding)

    def _send(self) -> None:
        """Tell the sink and the caller of what has been settled, and raise what is to be raised; on the loop."""
        unsent, self._unsent = self._unsent, []
        if self._told:
            for ran in unsent:
                self._row(ran)
        self.tally.check()

    def _row(self, ran: Ran) -> None:
        if self.rows is not None:
            self.rows.append(result_row(ran))
        if self.site.sink is not None:
            self.site.sink(self.site, hook_run(ran))


def _raw(ran: Ran, site: Where) -> Any:
    return ran.entry.call(ran.entry.argument(ran.given, site))


def crowded(entry: Entry) -> HookFailure:
    """Why a sync hook is not even started."""
    return HookFailure(
        f"Hook '{entry.name}' was not run: {MOST_OVERRUN} hooks that overran their limit have not returned yet",
        "too_many_overrun",
    )


def _failure(entry: Entry, error: BaseException) -> HookFailure:
    if isinstance(error, HookFailure):
        return error
    if isinstance(error, (TimedOut, Overran)):
        return HookFailure(f"Hook '{entry.name}' timed out after {entry.limit}s", "timeout")
    kind = type(error).__name__
    return HookFailure(f"Hook '{entry.name}' raised: {kind}", kind, cause=error)


def _discard(awaitable: Any) -> None:
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
