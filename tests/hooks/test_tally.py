"""The tally: the strictest decision wins whatever comes first, and the first of the strictest gives the reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.hooks.callbacks import Answer
from agent_engine.hooks.definition import FunctionHook
from agent_engine.hooks.errors import HookExecutionError, HookFailure
from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.plan import Entry, compile_plan
from agent_engine.hooks.tally import Tally

FAILURES = ("broke, deny", "broke, warn")


def entry(name: str, event: HookEvent = HookEvent.BEFORE_TOOL, policy: Any = "deny", **options: Any) -> Entry:
    hook = FunctionHook(event=event, func=lambda payload: None, name=name, failure_policy=policy, **options)
    return compile_plan(event, [(hook, 1.0)]).entries[0]


def tally(event: HookEvent = HookEvent.BEFORE_TOOL, *, strict: bool = False, raises: bool = True) -> Tally:
    return Tally(CATALOGUE[event], strict=strict, raises=raises)


def hear(one: Tally, name: str, what: str) -> None:
    if what in FAILURES:
        policy = "deny" if what == FAILURES[0] else "warn"
        one.failed(entry(name, policy=policy), HookFailure(f"{name} broke", "timeout"))
    else:
        one.said(entry(name), Answer(what, f"{name} said {what}"))


@given(st.lists(st.sampled_from(["allow", "ask", "deny", *FAILURES]), max_size=6), st.booleans())
def test_deny_wins_over_ask_over_modify_over_allow(said: list[str], changed: bool) -> None:
    one = tally()
    for number, what in enumerate(said):
        hear(one, f"h{number}", what)
    one.check()
    verdict = one.verdict("payload", changed)
    no = [f"h{n}" for n, what in enumerate(said) if what in ("deny", FAILURES[0])]
    asked = [f"h{n}" for n, what in enumerate(said) if what == "ask"]
    assert one.stopped is bool(no)
    assert verdict.payload == "payload"
    if no:
        broke = said[int(no[0][1:])] == FAILURES[0]
        reason = f"{no[0]} broke" if broke else f"{no[0]} said deny"
        assert (verdict.decision, verdict.hook, verdict.reason) == ("deny", no[0], reason)
        assert (verdict.broke, verdict.public_reason) == (broke, None if broke else reason)
    elif asked:
        assert (verdict.decision, verdict.hook, verdict.reason) == ("ask", asked[0], f"{asked[0]} said ask")
    else:
        assert (verdict.decision, verdict.hook, verdict.reason) == ("modify" if changed else "allow", None, None)


@given(st.lists(st.sampled_from(["allow", "none", "ask", "deny", *FAILURES]), max_size=6))
def test_leave_is_given_by_a_yes_and_by_nothing_else(said: list[str]) -> None:
    event = HookEvent.ON_PERMISSION_ASK
    one = tally(event)
    for number, what in enumerate(said):
        here = entry(f"h{number}", event, "warn" if what == FAILURES[1] else "deny")
        if what in FAILURES:
            one.failed(here, HookFailure("broke"))
        else:
            one.said(here, Answer(what))
    no = any(what == "deny" or what in FAILURES for what in said)
    expected = "deny" if no else "ask" if "ask" in said or "allow" not in said else "allow"
    assert one.verdict("payload", changed=True).decision == expected


def test_what_hooks_add_is_kept_in_the_order_of_the_plan() -> None:
    one = tally()
    one.said(entry("a"), Answer("allow", additional_context="first", system_message="look"))
    one.said(entry("b"), Answer("allow", suppress_output=True))
    one.said(entry("c"), Answer("allow", additional_context="second", system_message="again"))
    verdict = one.verdict("payload", changed=False)
    assert verdict.additional_context == ("first", "second")
    assert (verdict.suppress_output, verdict.system_message) == (True, "look\nagain")


def test_a_no_where_nothing_can_be_refused_stops_nobody() -> None:
    event = HookEvent.SESSION_END
    assert not CATALOGUE[event].refuses
    one = tally(event)
    one.said(entry("a", event), Answer("deny", "too late"))
    assert not one.stopped
    assert one.verdict("payload", changed=False).decision == "allow"


def test_under_fail_the_first_hook_that_broke_is_raised_once() -> None:
    one = tally()
    for name in ("a", "b"):
        one.failed(entry(name, policy="fail"), HookFailure("broke", "KeyError", cause=KeyError(name)))
    assert one.stopped
    with pytest.raises(HookExecutionError, match="'a'") as caught:
        one.check()
    assert isinstance(caught.value.__cause__, KeyError)
    one.check()


def test_at_a_strict_site_the_hooks_own_exception_is_raised() -> None:
    one = tally(strict=True)
    problem = KeyError("own")
    one.failed(entry("a"), HookFailure("broke", "KeyError", cause=problem))
    with pytest.raises(KeyError) as caught:
        one.check()
    assert caught.value is problem


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("policy", ["fail", "deny"])
def test_where_nothing_may_be_raised_a_failure_is_a_refusal(strict: bool, policy: str) -> None:
    one = tally(strict=strict, raises=False)
    one.failed(entry("a", policy=policy), HookFailure("broke"))
    one.check()
    verdict = one.verdict("payload", changed=True)
    assert (verdict.decision, verdict.reason, verdict.hook, verdict.broke) == ("deny", "broke", "a", True)


@pytest.mark.parametrize("options", [{"observe": True}, {"shadow": True}])
def test_an_observer_or_a_shadow_that_breaks_stops_nobody(options: dict[str, Any]) -> None:
    one = tally(strict=True)
    one.failed(entry("a", policy="fail", **options), HookFailure("broke"))
    one.check()
    assert one.verdict("payload", changed=False).decision == "allow"
