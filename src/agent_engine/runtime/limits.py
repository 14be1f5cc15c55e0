"""How far a run may go: calls, time, tokens, and how long a person may think."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one run. None means: no bound.

    The limits of the agent that a request reaches first bound the whole request, delegates included. A delegate's own
    limits bound its own turn besides.

    Args:
        model_calls: model calls; one more ends the run with LimitReached.
        tool_calls: tool calls; one more is refused with a text the model reads, and the model gets one last call
            without tools.
        tool_calls_per_agent: the same, counted for each agent on its own.
        child_calls: calls of other agents; one more is refused like a tool call over its limit.
        timeout_s: seconds of wall-clock time; then the run ends with LimitReached.
        max_tokens: tokens in and out, as the models report them; beyond, the run ends with LimitReached.
        approval_s: seconds that an approver may take; then the answer is no.
        max_parallel_tools: tool calls of one model message that run at the same time.
        allow_duplicate_tool_calls: False refuses a call that was made before with the same arguments.
        context_tokens: estimated tokens of history; beyond, the history is shortened (before_compaction).

    Raises:
        ValueError: a bound is no number that it can be.
    """

    model_calls: int | None = 20
    tool_calls: int | None = 50
    tool_calls_per_agent: int | None = None
    child_calls: int | None = None
    timeout_s: float | None = None
    max_tokens: int | None = None
    approval_s: float = 300.0
    max_parallel_tools: int | None = None
    allow_duplicate_tool_calls: bool = True
    context_tokens: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "allow_duplicate_tool_calls":
                if not isinstance(value, bool):
                    raise ValueError(f"Limits.{field.name} must be True or False, not {value!r}.")
            elif value is not None and not _bounds(field.name, value):
                least = 1 if field.name == "max_parallel_tools" else 0
                what = "a number" if field.name in _SECONDS else "a whole number"
                raise ValueError(f"Limits.{field.name} must be {what} of at least {least}, or None, not {value!r}.")


_SECONDS = ("timeout_s", "approval_s")


def _bounds(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float if name in _SECONDS else int):
        return False
    return value >= (1 if name == "max_parallel_tools" else 0)  # false for what is not a number (NaN), too


NO_LIMITS = Limits(model_calls=None, tool_calls=None)
DEFAULT_LIMITS = Limits()
