"""What holds for any hooks whatever: timing decides nothing, a deny denies, nothing becomes an allow by accident."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_engine.hooks.errors import GuardrailBlocked, HookExecutionError
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import AfterLLMInput, BeforeToolInput
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookExecutionResult, HookResult, HookRun, Verdict
from agent_engine.hooks.scope import HookScope
from agent_engine.hooks.site import Site

E = HookEvent
SEEN: ContextVar[tuple[int, ...]] = ContextVar("SEEN", default=())
SAYS = ("nothing", "true", "payload", "edit", "modify", "context", "ask", "false", "text", "guardrail", "raise", "junk")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("agent_engine.hooks"), "disabled", True)


@dataclass(frozen=True)
class Plot:
    """One hook of a made-up set: what it says, how it runs, how long it takes (thousandths of a second)."""

    says: str
    kind: str
    sequential: bool
    priority: int
    pause: int
    policy: str


_plots = st.lists(
    st.builds(
        Plot,
        says=st.sampled_from(SAYS),
        kind=st.sampled_from(["inline", "worker", "async", "suspending"]),
        sequential=st.booleans(),
        priority=st.integers(0, 3),
        pause=st.integers(0, 3),
        policy=st.sampled_from(["deny", "deny", "warn", "fail"]),
    ),
    min_size=1,
    max_size=6,
)


def say(says: str, number: int, payload: BeforeToolInput) -> Any:
    edits = payload.tool_input
    if says == "edit":
        edits["order"] = [*edits.get("order", []), number]
        edits[f"edit{number}"] = len(edits)
        return None
    if says == "raise":
        edits["half"] = number
        raise KeyError(number)
    if says == "guardrail":
        raise GuardrailBlocked(f"guardrail {number}")
    return {
        "nothing": None,
        "true": True,
        "payload": payload,
        "modify": HookResult.modify(last=number, seen=sorted(edits)),
        "context": HookResult(additional_context=f"context {number}", system_message=f"message {number}"),
        "ask": HookResult.ask(f"ask {number}"),
        "false": False,
        "text": f"text {number}",
        "junk": 42,
        "awaitable": Awaited(),
        "var": SEEN.set((*SEEN.get(), number)) and None if says == "var" else None,
    }[says]


class Awaited:
    """What is nothing once it has been awaited."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def build(plots: list[Plot], slow: bool) -> HookRegistry:
    registry = HookRegistry()
    for number, plot in enumerate(plots):
        pause = plot.pause / 1000 if slow else 0

        def sync(payload: Any, plot: Plot = plot, number: int = number, pause: float = pause) -> Any:
            if pause:
                time.sleep(pause)
            return say(plot.says, number, payload)

        async def at_once(payload: Any, plot: Plot = plot, number: int = number) -> Any:
            return say(plot.says, number, payload)

        async def later(payload: Any, plot: Plot = plot, number: int = number, pause: float = pause) -> Any:
            await asyncio.sleep(pause)
            return say(plot.says, number, payload)

        func: Any = {"async": at_once, "suspending": later}.get(plot.kind, sync)
        registry.register_function(
            E.BEFORE_TOOL,
            func,
            name=f"h{number}",
            inline=plot.kind == "inline",
            sequential=plot.sequential,
            priority=plot.priority,
            failure_policy=plot.policy,
        )
    return registry


def expected(plots: list[Plot]) -> tuple[Any, ...]:
    """What the rules say, written down once more and as simply as they can be."""
    order = sorted(range(len(plots)), key=lambda number: (plots[number].priority, number))
    payload = BeforeToolInput(tool_input={"start": 1})
    decision, reason, hook, contexts = "allow", None, None, []
    for sequential, members in itertools.groupby(order, key=lambda number: plots[number].sequential):
        refused = raised = None
        for number in members:
            plot = plots[number]
            given = payload._copy()
            try:
                value = say(plot.says, number, given)
                failed = plot.says == "junk"
            except KeyError:
                value, failed = None, True
            except GuardrailBlocked as blocked:
                value, failed = blocked.reason, False
            if failed and plot.policy == "warn":
                continue
            if failed and plot.policy == "fail":
                raised = number if raised is None else raised
            elif failed:
                words = "raised: KeyError" if plot.says == "raise" else "returned a int"
                refused = refused or (words, f"h{number}")
            elif value is False or isinstance(value, str):
                refused = refused or (value or "Denied by hook", f"h{number}")
            else:
                if isinstance(value, HookResult) and value.additional_context:
                    contexts.append(value.additional_context)
                if isinstance(value, HookResult) and value.decision == "ask" and decision != "ask":
                    decision, reason, hook = "ask", value.reason, f"h{number}"
                if sequential:
                    changes = value.modified_input if isinstance(value, HookResult) else None
                    payload.tool_input = {**given.tool_input, **(changes or {})}
            if sequential and (refused or raised is not None):
                break
        if raised is not None:
            return ("raises", f"h{raised}")
        if refused:
            return ("deny", refused[0], refused[1])
    if decision == "allow" and payload.tool_input != {"start": 1}:
        decision = "modify"
    return (decision, reason, hook, payload.tool_input, tuple(contexts))


def observed(verdict: Verdict | HookExecutionError) -> tuple[Any, ...]:
    if isinstance(verdict, HookExecutionError):
        return ("raises", verdict.ref)
    if verdict.denied:
        reason = verdict.reason or ""
        for words in ("raised: KeyError", "returned a int"):
            if words in reason:
                reason = words
        return ("deny", reason, verdict.hook)
    return (verdict.decision, verdict.reason, verdict.hook, verdict.payload.tool_input, verdict.additional_context)


async def dispatch(registry: HookRegistry, site: Site | None = None) -> Verdict | HookExecutionError:
    plan = HookScope(registry, with_default=False).plan(E.BEFORE_TOOL)
    assert plan is not None
    try:
        return await plan.dispatch(BeforeToolInput(tool_input={"start": 1}), site or Site())
    except HookExecutionError as error:
        return error


@given(_plots)
async def test_the_verdict_is_what_the_rules_say(plots: list[Plot]) -> None:
    assert observed(await dispatch(build(plots, slow=False))) == expected(plots)


@given(_plots)
@settings(max_examples=25)
async def test_timing_decides_nothing(plots: list[Plot]) -> None:
    slow = build(plots, slow=True)
    assert observed(await dispatch(slow)) == expected(plots)
    shuffled = [Plot(p.says, p.kind, p.sequential, p.priority, 3 - p.pause, p.policy) for p in plots]
    assert observed(await dispatch(build(shuffled, slow=True))) == expected(plots)


@given(_plots)
async def test_being_told_of_every_hook_changes_nothing(plots: list[Plot]) -> None:
    told: list[HookRun] = []
    site = Site(sink=lambda site, run: told.append(run), wants_payloads=True)
    verdict = await dispatch(build(plots, slow=False), site)
    assert observed(verdict) == expected(plots)
    ran = [run.hook.name for run in told]
    assert len(ran) == len(set(ran))
    in_order = sorted(range(len(plots)), key=lambda number: (plots[number].priority, number))
    assert ran == [f"h{number}" for number in in_order][: len(ran)]


@given(_plots)
async def test_with_rows_the_verdict_is_the_same_and_nothing_raises(plots: list[Plot]) -> None:
    plan = HookScope(build(plots, slow=False), with_default=False).plan(E.BEFORE_TOOL)
    assert plan is not None
    verdict, rows = await plan.dispatch_rows(BeforeToolInput(tool_input={"start": 1}), Site())
    wanted = expected(plots)
    if wanted[0] == "raises":
        assert verdict.denied
    else:
        assert observed(verdict) == wanted
    refused = [row.hook_name for row in rows if row.output is not None and row.output.decision in ("deny", "block")]
    assert (verdict.hook in refused) is verdict.denied
    assert all(0 <= row.duration_ms < 60_000 for row in rows)


_plain_plots = st.sampled_from(["inline", "worker", "async", "suspending"]).flatmap(
    lambda kind: st.booleans().flatmap(
        lambda sequential: st.lists(
            st.builds(
                Plot,
                says=st.sampled_from(["nothing", "nothing", "edit", "var", "awaitable", *SAYS]),
                kind=st.just(kind),
                sequential=st.just(sequential),
                priority=st.just(0),
                pause=st.just(0),
                policy=st.sampled_from(["deny", "fail"]),
            ),
            min_size=1,
            max_size=5,
        )
    )
)


@given(_plain_plots, st.sampled_from(["plain", "told", "rows"]))
async def test_the_quick_ways_say_what_the_general_one_says(plots: list[Plot], face: str) -> None:
    found = []
    for general in (False, True):
        plan = HookScope(build(plots, slow=False), with_default=False).plan(E.BEFORE_TOOL)
        assert plan is not None
        if general:
            plan._own = None
        SEEN.set(())
        runs: list[HookRun] = []
        rows: list[HookExecutionResult] = []
        site = Site(sink=lambda site, run, runs=runs: runs.append(run)) if face == "told" else Site()  # type: ignore[misc]
        given = BeforeToolInput(tool_input={"start": 1})
        verdict: Verdict | HookExecutionError
        try:
            if face == "rows":
                verdict, rows = await plan.dispatch_rows(given, site)
            else:
                verdict = await plan.dispatch(given, site)
        except HookExecutionError as error:
            verdict = error
        found.append(
            (
                observed(verdict),
                [(row.hook_name, row.success, row.output, row.error) for row in rows],
                [(run.hook.name, run.decision, run.reason, run.failure_type, run.changed, run.mode) for run in runs],
                SEEN.get(),
            )
        )
    assert found[0] == found[1]


@given(_plots, st.integers(0, 6), st.sampled_from(["inline", "worker", "async", "suspending"]), st.booleans())
async def test_a_deny_anywhere_denies(plots: list[Plot], place: int, kind: str, sequential: bool) -> None:
    harmless = [p for p in plots if p.says in ("nothing", "true", "payload", "edit", "modify", "context", "ask")]
    deny = Plot("text", kind, sequential, place % 4, 0, "deny")
    verdict = await dispatch(build([*harmless[:place], deny, *harmless[place:]], slow=False))
    assert isinstance(verdict, Verdict)
    assert verdict.denied


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.text(max_size=5)
    | st.floats(allow_nan=True)
    | st.just(object()),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["decision", "reason", "modified_input", "x"]), inner, max_size=3)
        | st.builds(HookResult, decision=inner, reason=inner, modified_input=inner)
    ),
    max_leaves=6,
)


@given(_values, st.sampled_from(["inline", "worker", "async", "suspending"]), st.booleans())
async def test_no_return_value_becomes_an_allow_by_accident(value: Any, kind: str, sequential: bool) -> None:
    async def at_once(payload: Any) -> Any:
        return value

    async def later(payload: Any) -> Any:
        await asyncio.sleep(0)
        return value

    registry = HookRegistry()
    func: Any = {"async": at_once, "suspending": later}.get(kind, lambda payload: value)
    registry.register_function(E.AFTER_LLM, func, inline=kind == "inline", sequential=sequential)
    plan = HookScope(registry, with_default=False).plan(E.AFTER_LLM)
    assert plan is not None
    verdict = await plan.dispatch(AfterLLMInput(), Site())
    decision = value.get("decision") if isinstance(value, dict) else getattr(value, "decision", None)
    meant = value is None or value is True or decision in ("allow", "modify")
    assert verdict.denied or meant


@given(
    st.sampled_from([Exception, BaseException]), st.text("abc", min_size=1, max_size=8), st.booleans(), st.booleans()
)
async def test_no_exception_becomes_an_allow_by_accident(
    base: type[BaseException], name: str, sequential: bool, late: bool
) -> None:
    error = type(name, (base,), {"__str__": lambda self: 1 // 0} if late else {})

    async def hook(payload: Any) -> None:
        if late:
            await asyncio.sleep(0)
        raise error

    def sync(payload: Any) -> None:
        raise error

    for func in (hook, sync):
        registry = HookRegistry()
        registry.register_function(E.AFTER_LLM, func, sequential=sequential)
        plan = HookScope(registry, with_default=False).plan(E.AFTER_LLM)
        assert plan is not None
        logging.getLogger("agent_engine.hooks").disabled = False
        verdict = await plan.dispatch(AfterLLMInput(), Site())
        assert verdict.denied
        assert verdict.broke
        _, (row,) = await plan.dispatch_rows(AfterLLMInput(), Site())
        assert not row.success


@pytest.mark.parametrize("seed", range(3))
def test_registering_from_eight_threads_while_four_dispatch_leaves_a_consistent_registry(seed: int) -> None:
    registry = HookRegistry()
    scope = HookScope(registry, with_default=False)
    kept = [registry.register_function(E.AFTER_LLM, lambda payload: None, name=f"kept{n}") for n in range(3)]
    guard = registry.register_function(E.BEFORE_TOOL, lambda payload: "always no", name="guard", inline=True)
    failed: list[BaseException] = []
    stop = threading.Event()

    def change(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        for _ in range(40):
            event = chance.choice([E.AFTER_LLM, E.BEFORE_TOOL])
            hook_id = registry.register_function(
                event, lambda payload: None, name="passing", inline=True, priority=chance.randint(0, 200)
            )
            assert any(hook.id == hook_id for hook in registry.get_hooks(event))
            assert registry.unregister(hook_id)

    async def run() -> None:
        while not stop.is_set():
            plan = scope.plan(E.BEFORE_TOOL)
            assert plan is not None
            assert (await plan.dispatch(BeforeToolInput(), Site())).hook == "guard"
            plan = scope.plan(E.AFTER_LLM)
            assert plan is not None
            assert not (await plan.dispatch(AfterLLMInput(), Site())).denied
            order = [hook.priority for hook in registry.get_hooks(E.AFTER_LLM)]
            assert order == sorted(order)

    def guarded(work: Any, *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)
            stop.set()

    dispatchers = [threading.Thread(target=guarded, args=(lambda: asyncio.run(run()),)) for _ in range(4)]
    changers = [threading.Thread(target=guarded, args=(change, number)) for number in range(8)]
    for thread in [*dispatchers, *changers]:
        thread.start()
    for thread in changers:
        thread.join()
    stop.set()
    for thread in dispatchers:
        thread.join()
    assert failed == []
    assert [hook.id for hook in registry.get_hooks(E.AFTER_LLM)] == kept
    assert [hook.id for hook in registry.get_hooks(E.BEFORE_TOOL)] == [guard]
    assert len(registry) == 4
    plan = scope.plan(E.AFTER_LLM)
    assert plan is not None
    assert [entry.hook.id for entry in plan.entries] == kept
