"""Who may see the protected nodes of this system."""

from __future__ import annotations

from typing import Any


class AccessResolver:
    def can_access(self, ctx: Any, node_id: str) -> bool:
        """Operations is for operators. For everyone else the node does not exist: no agent can name it or reach it."""
        return "operator" in ctx.run_context.auth_context.roles
