"""The published schemas accept what hooks really get and say, and refuse what the reader refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agent_engine.hooks.events import CATALOGUE, HookEvent
from agent_engine.hooks.jsonform import payload_json
from agent_engine.hooks.managed import AuthContext, RunContext
from agent_engine.hooks.protocol import KEYS, BadAnswer, read_object
from agent_engine.hooks.schemas import DIALECT, all_schemas, decision_schema, payload_schema
from agent_engine.testing import payload

DECISION = Draft202012Validator(decision_schema())


@pytest.mark.parametrize("event", list(CATALOGUE))
def test_every_events_payload_fits_its_schema_and_no_other_events(event: HookEvent) -> None:
    schema = payload_schema(event)
    Draft202012Validator.check_schema(schema)
    document = json.loads(payload_json(payload(event), event))

    Draft202012Validator(schema).validate(document)
    assert not Draft202012Validator(schema).is_valid({**document, "event_name": "another"})
    for name in schema["required"]:
        assert not Draft202012Validator(schema).is_valid({key: value for key, value in document.items() if key != name})


def test_filled_payloads_fit() -> None:
    context = RunContext(
        user_id="u", auth_context=AuthContext(inbound_access_token="t", scopes=("a",)), metadata={"k": 1}
    )
    for event, built in (
        ("on_run_start", context),
        ("before_llm", payload("before_llm", messages=[{"role": "user", "content": "x"}], temperature=0, max_tokens=5)),
        ("after_tool", payload("after_tool", tool_output=[1, None], extra={"pass": 2})),
        ("on_auth", payload("on_auth", principal={"id": 1})),
    ):
        Draft202012Validator(payload_schema(event)).validate(json.loads(payload_json(built, event)))


def test_a_wrong_type_does_not_fit() -> None:
    document = json.loads(payload_json(payload("before_tool"), "before_tool"))

    for name, value in (("tool_input", []), ("tool_name", None), ("extra", "x"), ("call_id", 5)):
        assert not Draft202012Validator(payload_schema("before_tool")).is_valid({**document, name: value}), name


def test_every_schema_is_published_once_in_the_same_dialect() -> None:
    schemas = all_schemas()

    assert len(schemas) == len(CATALOGUE) + 1
    assert {schema["$schema"] for schema in schemas.values()} == {DIALECT}
    assert len({schema["$id"] for schema in schemas.values()}) == len(schemas)
    assert "payload/before_tool.json" in schemas
    json.dumps(schemas)


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="Did you mean 'before_tool'"):
        payload_schema("befor_tool")


_values: Any = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.dictionaries(st.text(max_size=3), st.none(), max_size=1)
)
_objects = st.dictionaries(
    st.sampled_from(KEYS) | st.text(max_size=8),
    _values | st.sampled_from(["allow", "modify", "ask", "deny", "block", "DENY"]),
)


@given(_objects)
def test_the_schema_of_decisions_and_the_reader_agree(verdict: dict[str, Any]) -> None:
    try:
        decision = read_object(verdict).decision
    except BadAnswer:
        assert not DECISION.is_valid(verdict)
    else:
        # A deny counts whatever else the object holds; the schema says how it ought to be.
        assert DECISION.is_valid(verdict) or decision == "deny"


def test_keys_of_the_schema_are_those_of_the_reader() -> None:
    assert tuple(decision_schema()["properties"]) == KEYS
