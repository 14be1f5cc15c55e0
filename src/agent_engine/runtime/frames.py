"""Waiting runs as documents: one JSON-ready frame for each open turn, nested by the call it stands in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.errors import RunBlocked
from agent_engine.models.base import ToolCall, Usage
from agent_engine.runtime.approvals import ToolApproval
from agent_engine.tools.result import plain

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.runtime.outcome import ToolOutcome
    from agent_engine.runtime.state import RunState
    from agent_engine.runtime.turn import Turn

VERSION = 1
_COUNTED = ("model_calls", "tool_calls", "child_calls")
_TURN = ("system", "prompt", "first", "tools_used", "tokens", "model_index", "repairs", "last_call", *_COUNTED)


def turn_frame(
    turn: Turn, calls: Sequence[ToolCall], offered: frozenset[str], outcomes: Sequence[ToolOutcome]
) -> dict[str, Any]:
    """What it takes to go on with a turn whose tool calls have run as far as they can."""
    return {
        "node": turn.node.name,
        **{name: getattr(turn, name) for name in _TURN},
        "messages": turn.messages,
        "offered": sorted(offered),
        "calls": [_call_frame(call, outcome) for call, outcome in zip(calls, outcomes, strict=True)],
    }


def _call_frame(call: ToolCall, outcome: ToolOutcome) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "raw": call.raw,
        "error": call.error,
    }
    if outcome.waiting is not None:
        return entry | {"waiting": outcome.waiting.frame}
    done = {
        name: getattr(outcome, name)
        for name in ("status", "text", "error_type", "refused_by", "reason", "over_limit", "handed_over")
    }
    if outcome.blocked is not None:
        done["blocked"] = [outcome.blocked.event, outcome.blocked.hook, outcome.blocked.reason]
    return entry | {"done": done}


def restore_turn(
    turn: Turn, frame: Mapping[str, Any]
) -> tuple[list[ToolCall], frozenset[str], dict[str, Mapping[str, Any]]]:
    """Put a turn where its frame says. Returns its open calls, the names offered, and what is known of the calls."""
    for name in _TURN:
        setattr(turn, name, frame[name])
    turn.tools_used = list(frame["tools_used"])
    turn.messages = list(frame["messages"])
    calls: list[ToolCall] = []
    known: dict[str, Mapping[str, Any]] = {}
    for entry in frame["calls"]:
        calls.append(ToolCall(entry["id"], entry["name"], entry["arguments"], entry["raw"], entry["error"]))
        if "done" in entry:
            done = dict(entry["done"])
            if "blocked" in done:
                done["blocked"] = RunBlocked(*done["blocked"])
            known[entry["id"]] = {"done": done}
        else:
            known[entry["id"]] = entry["waiting"]
    return calls, frozenset(frame["offered"]), known


def open_asks(frame: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The asks of a turn's frame and of those below it, as they stand in the frames."""
    for entry in frame["calls"]:
        waiting = entry.get("waiting")
        if waiting is None:
            continue
        if "frame" in waiting:
            yield from open_asks(waiting["frame"])
        elif "ask" in waiting:
            yield waiting["ask"]
        else:
            yield waiting["again"]["ask"]


def run_document(state: RunState, frame: dict[str, Any], saved_at: float | None) -> dict[str, Any]:
    """The document of a waiting run: plain data, without the caller's token."""
    _tell_apart(frame)
    context = state.run_context
    document: dict[str, Any] = {
        "version": VERSION,
        "run_id": state.run_id,
        "system": state.host.system_name,
        "message": state.message,
        "identity": {
            "conversation_id": context.conversation_id,
            "user_id": context.user_id,
            "organization_id": context.organization_id,
            "metadata": context.metadata,
        },
        "counts": {name: getattr(state, name) for name in _COUNTED},
        "tool_calls_by": state.tool_calls_by,
        "usage": [state.usage.input_tokens, state.usage.output_tokens, state.usage.details],
        "visited": list(state.visited),
        "refusals": [[*key, count] for key, count in state.refusals.items()],
        "seen": [list(key) for key in state.seen],
        "asks": list(open_asks(frame)),
        "frame": frame,
    }
    if saved_at is not None:
        document["saved_at"] = saved_at
    result: dict[str, Any] = plain(document)
    return result


def _tell_apart(frame: dict[str, Any]) -> None:
    """Give asks that share a call id (two agents may number alike) ids of their own: a yes is for one call."""
    seen: set[str] = set()
    for ask in open_asks(frame):
        number, call_id = 2, ask["call_id"]
        while ask["call_id"] in seen:
            ask["call_id"] = f"{call_id}#{number}"
            number += 1
        seen.add(ask["call_id"])


def restore_state(state: RunState, document: Mapping[str, Any]) -> None:
    """Give a state the counts of the run it goes on with."""
    for name in _COUNTED:
        setattr(state, name, document["counts"][name])
    state.tool_calls_by = dict(document["tool_calls_by"])
    sent, received, details = document["usage"]
    state.usage = Usage(sent, received, dict(details))
    state.visited = dict.fromkeys(document["visited"])
    state.refusals = {(agent, tool, digest): count for agent, tool, digest, count in document["refusals"]}
    state.seen = {(agent, tool, digest) for agent, tool, digest in document["seen"]}


def asks_of(document: Mapping[str, Any]) -> tuple[ToolApproval, ...]:
    """The asks of a waiting run's document."""
    asks = ({name: value for name, value in ask.items() if name != "gates"} for ask in document["asks"])
    return tuple(ToolApproval(**ask) for ask in asks)


def context_of(document: Mapping[str, Any]) -> RunContext:
    """The identity that a store can give back: user, organisation, conversation and metadata, and no token."""
    from agent_engine.hooks.managed import AuthContext, RunContext

    kept = document["identity"]
    auth = AuthContext(user_id=kept["user_id"], organization_id=kept["organization_id"])
    return RunContext(run_id=document["run_id"], auth_context=auth, **kept)
