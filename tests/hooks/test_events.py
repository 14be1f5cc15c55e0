"""The catalogue is one table: names resolve, payload types exist, and every rule that is derived from it holds."""

from __future__ import annotations

import json

import pytest

from agent_engine.hooks.events import CATALOGUE, HOOK_POINTS, OLD_NAMES, HookEvent, event_of
from agent_engine.hooks.payloads import payload_type


def test_a_member_is_its_value_everywhere() -> None:
    event = HookEvent.BEFORE_TOOL
    assert event == "before_tool"
    assert str(event) == f"{event}" == "before_tool"
    assert json.dumps({"event": event}) == '{"event": "before_tool"}'


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("before_tool", HookEvent.BEFORE_TOOL),
        ("BEFORE_TOOL", HookEvent.BEFORE_TOOL),
        (HookEvent.AFTER_LLM, HookEvent.AFTER_LLM),
        ("before_message", HookEvent.MESSAGE_RECEIVED),
        ("after_message", HookEvent.MESSAGE_SENDING),
        ("tool_result_persist", HookEvent.AFTER_TOOL),
        ("BEFORE_MESSAGE", HookEvent.MESSAGE_RECEIVED),
    ],
)
def test_values_members_member_names_and_old_names_resolve(name: str, event: HookEvent) -> None:
    assert event_of(name) is event


def test_old_names_are_the_same_members() -> None:
    assert HookEvent("before_message") is HookEvent.BEFORE_MESSAGE is HookEvent.MESSAGE_RECEIVED
    assert {event_of(old).value for old in OLD_NAMES} == set(OLD_NAMES.values())


def test_an_unknown_name_lists_the_valid_ones_and_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"^Unknown hook event: 'before_tol'\. Valid events: on_init, ") as caught:
        event_of("before_tol")
    assert str(caught.value).endswith("Did you mean 'before_tool'?")
    assert all(event.value in str(caught.value) for event in HookEvent)


@pytest.mark.parametrize("nonsense", ["", " ", "before tool", "x" * 10_000, "\0"])
def test_nonsense_is_a_value_error_of_bounded_length(nonsense: str) -> None:
    with pytest.raises(ValueError, match="Unknown hook event") as caught:
        event_of(nonsense)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("thing", [None, 3, object()])
def test_what_is_no_name_is_a_type_error(thing: object) -> None:
    with pytest.raises(TypeError, match="A hook event is a HookEvent or its name"):
        event_of(thing)  # type: ignore[arg-type]  # the point of the test


def test_the_catalogue_covers_every_event_in_order() -> None:
    assert list(CATALOGUE) == list(HookEvent)


def test_the_managed_points_are_the_eleven_of_a_requests_life_in_order() -> None:
    assert [point.value for point in HOOK_POINTS] == [
        "on_engine_start",
        "on_engine_stop",
        "on_run_start",
        "on_run_end",
        "on_run_error",
        "before_tool_call",
        "after_tool_call",
        "transform_tool_result",
        "on_tool_error",
        "before_mcp_request",
        "after_mcp_response",
    ]


@pytest.mark.parametrize("event", list(HookEvent))
def test_every_event_has_its_own_payload_type_named_for_it(event: HookEvent) -> None:
    spec, kind = CATALOGUE[event], payload_type(event)
    assert kind.__name__ == spec.payload
    if not spec.managed:
        assert kind.__name__.lower() == event.value.replace("_", "") + "input"
        assert kind.event is event
        assert kind().event_name == event.value


@pytest.mark.parametrize("event", list(HookEvent))
def test_what_may_change_is_a_field_of_the_payload(event: HookEvent) -> None:
    spec = CATALOGUE[event]
    if spec.payload != "BaseException":
        assert spec.changes <= set(payload_type(event).__dataclass_fields__)
        assert payload_type(event)._changes == spec.changes


@pytest.mark.parametrize("event", list(HookEvent))
def test_the_automatic_mode_follows_the_changeable_fields(event: HookEvent) -> None:
    spec = CATALOGUE[event]
    parallel_all_the_same = event in (HookEvent.BEFORE_TOOL, HookEvent.BEFORE_LLM)
    assert spec.auto_sequential == (spec.managed or (bool(spec.changes) and not parallel_all_the_same))


def test_closing_payloads_have_status_and_error_type() -> None:
    for event, spec in CATALOGUE.items():
        if spec.closing and spec.payload != "BaseException":
            assert {"status", "error_type"} <= set(payload_type(event).__dataclass_fields__), event


def test_only_a_tool_call_can_be_asked_about() -> None:
    assert [event for event, spec in CATALOGUE.items() if spec.asks] == [HookEvent.BEFORE_TOOL]
