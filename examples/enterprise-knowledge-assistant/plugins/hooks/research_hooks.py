"""The managed hooks of the knowledge assistant: one instance serves the engine for its whole life."""

from __future__ import annotations

import logging
import os

from agent_engine.hooks import GuardrailBlocked
from agent_engine.runtime.hooks import (
    EngineContext,
    HookInvocation,
    McpRequestContext,
    ToolCallContext,
    ToolResultContext,
)

logger = logging.getLogger("audit")

PRIVATE_SERVER = "private_packages"
PRIVATE_KEY = "PRIVATE_PACKAGES_API_KEY"
MODEL_KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GOOGLE_API_KEY",
    "groq": "GROQ_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "openai": "OPENAI_API_KEY",
}
LONGEST_RESULT = 8000


class ResearchHooksHook:
    async def validate_environment(self, event: HookInvocation) -> None:
        """Refuse to start without what every later request would need."""
        context = event.payload_as(EngineContext)
        needed = [PRIVATE_KEY, *(MODEL_KEYS[one] for one in context.metadata.get("providers", ()) if one in MODEL_KEYS)]
        missing = [name for name in needed if not os.environ.get(name)]
        if missing:
            raise GuardrailBlocked(f"Set {' and '.join(missing)} before starting {context.system_name}.")

    async def inject_private_key(self, event: HookInvocation) -> McpRequestContext:
        """Give the private server its key. The public one stays without a header."""
        request = event.payload_as(McpRequestContext)
        if request.server_id != PRIVATE_SERVER:
            return request
        return request.with_headers({"X-API-Key": os.environ[PRIVATE_KEY]})

    async def audit_tool_call(self, event: HookInvocation) -> None:
        """One line a call: who, what, how it ended, how long. No argument and no result."""
        call = event.payload_as(ToolCallContext)
        logger.info(
            "tool_call run_id=%s agent=%s tool=%s provider=%s status=%s elapsed_ms=%.0f",
            event.run_context.run_id if event.run_context else None,
            call.agent_id,
            call.tool_name,
            call.provider,
            call.status,
            call.latency_ms or 0.0,
        )

    async def cap_result(self, event: HookInvocation) -> ToolResultContext:
        """Keep a long result from filling the model's context, and say that it was cut."""
        result = event.payload_as(ToolResultContext)
        whole = len(result.result)
        if whole <= LONGEST_RESULT:
            return result
        notice = f"\n… [cut here: {LONGEST_RESULT:,} of {whole:,} characters; ask for a smaller part to read the rest]"
        return result.with_result(result.result[:LONGEST_RESULT] + notice)

    async def record_failure(self, event: HookInvocation) -> None:
        """Record what kind of failure ended a run. The message stays out: it may hold what a person wrote."""
        error = event.payload_as(BaseException)
        logger.info(
            "run_failed run_id=%s error_type=%s",
            event.run_context.run_id if event.run_context else None,
            type(error).__name__,
        )
