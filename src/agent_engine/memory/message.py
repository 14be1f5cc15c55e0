"""The chat shape, in which a conversation is kept and a model is asked."""

from __future__ import annotations

from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""One message: ``role`` (system, user, assistant, tool), ``content`` (text, a list of parts, or None), and where they
apply ``tool_calls``, ``tool_call_id``, ``name`` and ``native`` (the provider's own parts, carried along untouched).
:mod:`agent_engine.models.messages` builds them."""
