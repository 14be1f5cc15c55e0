"""Contexts print no secret in any way of showing them, and give it plainly when it is asked for by name."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest

from agent_engine.hooks.jsonform import to_json
from agent_engine.hooks.managed import (
    AuthContext,
    EngineContext,
    HookInvocation,
    McpRequestContext,
    McpResponseContext,
    RunContext,
    RunEndContext,
    ToolCallContext,
    ToolRequestContext,
    ToolResultContext,
    current_run_context,
)

TOKEN = "planted-4f9a1c77e0"


def _holders() -> list[Any]:
    auth = AuthContext(user_id="u", inbound_access_token=TOKEN)
    run = RunContext(run_id="r", auth_context=auth, metadata={"headers": {"Authorization": TOKEN}})
    request = McpRequestContext(server_id="s", url="http://h/mcp?q=1", headers={"Authorization": TOKEN})
    return [auth, run, request, HookInvocation(hook_point="before_mcp_request", payload=request, run_context=run)]


@pytest.mark.parametrize("holder", _holders(), ids=lambda holder: type(holder).__name__)
def test_no_way_to_show_a_context_shows_its_secret(holder: Any) -> None:
    shown = [
        repr(holder),
        str(holder),
        f"{holder}",
        f"{holder!r}",
        json.dumps(holder.to_dict(), default=repr),
        to_json(holder).decode(),
        repr([holder]),
    ]
    for text in shown:
        assert TOKEN not in text
    assert "***" in repr(holder)


@pytest.mark.parametrize("holder", _holders()[:3:2], ids=lambda holder: type(holder).__name__)
def test_generic_dataclass_code_sees_masks(holder: Any) -> None:
    assert TOKEN not in repr(dataclasses.asdict(holder))
    assert TOKEN not in repr(dataclasses.astuple(holder))
    assert "***" in repr(dataclasses.asdict(holder))


@pytest.mark.parametrize("holder", _holders(), ids=lambda holder: type(holder).__name__)
def test_no_context_can_be_pickled(holder: Any) -> None:
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(holder)


def test_a_secret_is_plain_text_when_asked_for_by_name() -> None:
    auth, run, request, event = _holders()
    assert type(auth.inbound_access_token) is str
    assert auth.inbound_access_token == run.auth_context.inbound_access_token == TOKEN
    assert type(request.headers["Authorization"]) is str
    assert event.payload_as(McpRequestContext).headers == {"Authorization": TOKEN}


def test_replacing_keeps_the_real_value_whichever_way_it_is_done() -> None:
    auth, run, request, _ = _holders()
    assert dataclasses.replace(auth, user_id="v").inbound_access_token == TOKEN
    assert auth.replace(user_id="v").inbound_access_token == TOKEN
    assert run.replace(user_id="v").auth_context.inbound_access_token == TOKEN
    assert dataclasses.replace(run, user_id="v").auth_context.inbound_access_token == TOKEN
    assert dataclasses.replace(request, attempt=2).headers["Authorization"] == TOKEN
    assert copy.copy(auth).inbound_access_token == copy.deepcopy(auth).inbound_access_token == TOKEN


def test_a_deep_copy_shares_no_container_and_keeps_what_must_be_used() -> None:
    request = McpRequestContext(headers={"Authorization": TOKEN}, metadata={"tags": ["a"]})
    copied = copy.deepcopy(request)
    copied.metadata["tags"].append("b")
    copied.headers["X"] = "1"
    assert (request.metadata, dict(request.headers)) == ({"tags": ["a"]}, {"Authorization": TOKEN})
    assert copied.headers["Authorization"] == TOKEN
    assert TOKEN not in repr(copied)


_KINDS = [
    AuthContext,
    RunContext,
    EngineContext,
    RunEndContext,
    ToolRequestContext,
    ToolCallContext,
    ToolResultContext,
    McpRequestContext,
    McpResponseContext,
    HookInvocation,
]


@pytest.mark.parametrize("kind", _KINDS)
def test_contexts_have_defaults_and_are_frozen(kind: type[Any]) -> None:
    context = kind()
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(context, str(field.name), "changed")


def test_an_identity_is_never_none() -> None:
    assert RunContext().auth_context == AuthContext()
    assert RunContext(auth_context=None).auth_context == AuthContext()  # type: ignore[arg-type]  # what careless callers pass


def test_headers_are_added_and_replaced_in_any_case() -> None:
    request = McpRequestContext().with_headers({"X-A": "1"}).with_headers({"x-a": "2", "X-B": "3"})
    assert request.headers == {"x-a": "2", "X-B": "3"}


def test_with_result_changes_nothing_else() -> None:
    result = ToolResultContext(tool_name="t", result="long", call_id="c")
    assert result.with_result("short") == ToolResultContext(tool_name="t", result="short", call_id="c")
    assert "long" not in repr(result)


def test_asking_for_the_wrong_payload_names_both_types() -> None:
    event = HookInvocation(hook_point="before_tool_call", payload=ToolRequestContext())
    assert event.payload_as(ToolRequestContext) is event.payload
    with pytest.raises(TypeError, match="before_tool_call is a ToolRequestContext, not a McpRequestContext"):
        event.payload_as(McpRequestContext)


def test_a_field_of_the_payload_that_is_asked_of_the_invocation_is_pointed_to() -> None:
    event = HookInvocation(hook_point="before_tool_call", payload=ToolRequestContext())
    with pytest.raises(AttributeError, match=r"write event\.payload\.tool_name$"):
        _ = event.tool_name  # type: ignore[attr-defined]  # what the test is about
    with pytest.raises(AttributeError, match=r"has no 'tool_nam'; its payload, run_context and hook_point say all"):
        _ = event.tool_nam  # type: ignore[attr-defined]  # what the test is about


def test_outside_a_run_there_is_no_run_context() -> None:
    assert current_run_context() is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_serialiser_that_knows_no_context_sees_no_secret(wrapped: bool) -> None:
    from pydantic import BaseModel
    from pydantic_core import to_json as any_json

    class Anything(BaseModel):
        value: Any

    request = McpRequestContext(server_id="s").with_headers({"Authorization": f"Bearer {TOKEN}"})
    run = RunContext(auth_context=AuthContext(user_id="u", inbound_access_token=TOKEN))
    for value in (request, run, run.auth_context, HookInvocation(payload=request, run_context=run)):
        shown = Anything(value=value).model_dump_json() if wrapped else any_json(value).decode()
        assert TOKEN not in shown
        assert "***" in shown
    assert dataclasses.replace(run.auth_context, user_id="v").inbound_access_token == TOKEN
    assert run.auth_context.inbound_access_token == TOKEN


@pytest.mark.parametrize("kind", [McpRequestContext, McpResponseContext])
def test_the_query_of_a_url_is_there_but_not_printed(kind: type[Any]) -> None:
    context = kind(url=f"https://mcp.example/rpc?key={TOKEN}")

    assert context.url.endswith(TOKEN)
    assert TOKEN not in f"{context} {context!r} {HookInvocation(payload=context)}"
    assert "https://mcp.example/rpc?***" in repr(context)
