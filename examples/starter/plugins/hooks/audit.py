"""The hook plugin audit."""

from __future__ import annotations

import logging

from agent_engine.runtime.hooks import HookInvocation, ToolCallContext

logger = logging.getLogger("audit")


class AuditHook:
    async def record_call(self, event: HookInvocation) -> None:
        """Runs at after_tool_call."""
        call = event.payload_as(ToolCallContext)
        logger.info("tool=%s status=%s elapsed_ms=%.0f", call.tool_name, call.status, call.latency_ms or 0.0)
