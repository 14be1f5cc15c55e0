"""The prompt prefix: what a provider's prompt cache keys on, and noticing when it changes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_engine.hooks.payloads import PromptPrefixInvalidatedInput
    from agent_engine.runtime.model_hooks import ModelHooks


def prefix_changed(hooks: ModelHooks) -> PromptPrefixInvalidatedInput | None:
    """The payload for a call whose model, tools or system text differ from the call before it in the same conversation,
    None for the first call and for one with the same prefix. It remembers this call's."""
    parts = _parts(hooks)
    known, agent = hooks.turn.prefixes, hooks.turn.node.name
    old, known[agent] = known.get(agent), parts
    if old is None or old == parts:
        return None
    from agent_engine.hooks.payloads import PromptPrefixInvalidatedInput

    changed = [name for name in parts if parts[name] != old[name]]
    return PromptPrefixInvalidatedInput(
        **hooks.step.base(),
        old_signature=_signature(old),
        new_signature=_signature(parts),
        reason=" and ".join(changed) + " changed",
    )


def _parts(hooks: ModelHooks) -> dict[str, str]:
    system: list[Any] = []
    for message in hooks.messages:
        if message.get("role") != "system":
            break
        system.append(message.get("content"))
    tools = [[one.name, one.description, one.parameters] for one in hooks.definitions_for_model]
    return {
        "model": f"{hooks.model.provider}:{hooks.model.name}",
        "tools": json.dumps(tools, sort_keys=True, default=str),
        "system prompt": json.dumps(system, default=str),
    }


def _signature(parts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
