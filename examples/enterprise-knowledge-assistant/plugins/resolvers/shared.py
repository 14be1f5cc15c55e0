"""Values for prompts that every agent may use."""

from __future__ import annotations

from datetime import date
from typing import Any


class SharedResolver:
    def today(self, ctx: Any) -> str:
        return f"{date.today():%A, %d %B %Y}"

    def reader(self, ctx: Any) -> str:
        return ctx.run_context.user_id or "a colleague"
