"""Taking up a waiting run: is it there, is it this caller's, what was decided, and whose is it now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_engine.memory.store import waiting_expired
from agent_engine.runtime import options
from agent_engine.runtime.toolset import exists

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.state import RunState

WORDS = ("yes", "session", "no")


async def look_up(
    root: Node, run_id: str, decisions: Mapping[str, str], host: Host, context: RunContext | None
) -> tuple[dict[str, Any], RunContext, dict[str, str]]:
    """A waiting run's document, the identity it goes on with, and the answers by call id. It stays in the store.

    After 24 hours every answer is a no.

    Raises:
        LookupError: it is not there, or it is another agent's.
        PermissionError: ``context`` is another caller's.
        ValueError: an answer is no answer, or for a call that the run does not wait for.
    """
    options.is_context(context)
    options.is_mapping("the decisions on a waiting run", decisions)
    document = await host.store.load_waiting(run_id)
    if document is None:
        raise LookupError(f"No run {run_id!r} waits for an answer; it may have gone on already.")
    if document["frame"]["node"] != root.name:
        raise LookupError(f"The run {run_id!r} belongs to '{document['frame']['node']}', not to '{root.name}'.")
    return document, _identity(document, host, context), _answers(document, decisions)


async def check_delegates(state: RunState, node: Node, frame: Mapping[str, Any]) -> None:
    """Raises LookupError where an agent below ``node`` in which the run waits does not exist for this caller any more:
    it could not go on there, and what has begun there could not be closed either."""
    for entry in frame["calls"]:
        below = entry.get("waiting", {}).get("frame")
        if below is None:
            continue
        child = next((one for one in (*node.children, *node.handoffs) if one.name == entry["name"]), None)
        if child is None or not await exists(child, state):
            raise LookupError(
                f"The run {state.run_id!r} waits in the agent '{entry['name']}', which does not exist for this caller."
            )
        await check_delegates(state, child, below)


async def claim(host: Host, run_id: str, document: Mapping[str, Any]) -> None:
    """Take a waiting run out of the store, as ``document`` tells it. Exactly one caller gets it; one that is cancelled
    meanwhile gives it back.

    Raises:
        LookupError: somebody else has gone on with it.
    """
    removing = asyncio.ensure_future(host.store.remove_waiting(run_id, document))
    try:
        removed = await asyncio.shield(removing)
    except asyncio.CancelledError:
        if await removing:
            await host.store.save_waiting(run_id, document)
        raise
    if not removed:
        raise LookupError(f"The run {run_id!r} has just gone on elsewhere.")
    host.forget_context(run_id)


def _identity(document: Mapping[str, Any], host: Host, context: RunContext | None) -> RunContext:
    """In this process the run's own RunContext; after a restart what the store has, or the same caller's."""
    from agent_engine.runtime.frames import context_of

    kept = document["identity"]
    run_id = document["run_id"]
    if context is None:
        return host.contexts.get(run_id) or context_of(document)
    if (context.user_id, context.organization_id) != (kept["user_id"], kept["organization_id"]):
        raise PermissionError(f"The run {run_id!r} was started by another caller: only they can go on with it.")
    return context.replace(run_id=run_id, conversation_id=kept["conversation_id"])


def _answers(document: Mapping[str, Any], decisions: Mapping[str, str]) -> dict[str, str]:
    asked = [ask["call_id"] for ask in document["asks"]]
    for call_id, word in decisions.items():
        if word not in WORDS:
            raise ValueError(f"An answer is one of {', '.join(WORDS)}, not {word!r} (call {call_id}).")
        if call_id not in asked:
            raise ValueError(f"The run does not wait for the call {call_id!r}; it waits for {', '.join(asked)}.")
    return dict.fromkeys(asked, "no") if waiting_expired(document) else dict(decisions)
