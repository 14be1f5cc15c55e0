"""The catalogue: every event, what its payload is called, and what a hook may do there.

This is the one table. Payload types, matchers, default modes, documentation and tests are checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class HookEvent(StrEnum):
    """Every event. A member equals its value; ``str()``, formatting and JSON give the value."""

    ON_INIT = "on_init"
    ON_SHUTDOWN = "on_shutdown"
    SETUP = "setup"
    ON_CONFIG = "on_config"
    ON_AUTH = "on_auth"
    USER_PROMPT_SUBMIT = "user_prompt_submit"
    BEFORE_AGENT = "before_agent"
    AFTER_AGENT = "after_agent"
    BEFORE_TOOL_DEFINITIONS = "before_tool_definitions"
    BEFORE_LLM = "before_llm"
    ON_LLM_DELTA = "on_llm_delta"
    AFTER_LLM = "after_llm"
    MODEL_FALLBACK = "model_fallback"
    PROMPT_PREFIX_INVALIDATED = "prompt_prefix_invalidated"
    BEFORE_TOOL = "before_tool"
    AFTER_TOOL = "after_tool"
    ON_PERMISSION_ASK = "on_permission_ask"
    ON_ERROR = "on_error"
    ON_RETRY = "on_retry"
    SESSION_START = "session_start"
    SESSION_END = "session_end"
    SESSION_PERSIST_FAILED = "session_persist_failed"
    BEFORE_COMPACTION = "before_compaction"
    AFTER_COMPACTION = "after_compaction"
    SUBAGENT_STOP = "subagent_stop"
    NOTIFICATION = "notification"
    MESSAGE_RECEIVED = "message_received"
    MESSAGE_SENDING = "message_sending"
    MESSAGE_SENT = "message_sent"
    MESSAGE_UNDELIVERED = "message_undelivered"
    GATEWAY_START = "gateway_start"
    GATEWAY_STOP = "gateway_stop"
    JOB_COMPLETED = "job_completed"
    MESSAGE_EDITED = "message_edited"
    MESSAGE_DELETED = "message_deleted"
    REACTION_RECEIVED = "reaction_received"
    MEMBER_JOINED = "member_joined"
    MEMBER_LEFT = "member_left"
    THREAD_CREATED = "thread_created"
    CLI_BACKEND_EXECUTE = "cli_backend_execute"
    SCHEDULE_ADD = "schedule_add"
    SCHEDULE_REMOVE = "schedule_remove"
    SCHEDULE_TRIGGER = "schedule_trigger"
    KANBAN_TASK_CREATED = "kanban_task_created"
    KANBAN_TASK_CLAIMED = "kanban_task_claimed"
    KANBAN_TASK_MOVED = "kanban_task_moved"
    KANBAN_TASK_DONE = "kanban_task_done"
    KANBAN_TASK_BLOCKED = "kanban_task_blocked"
    KANBAN_TASK_FAILED = "kanban_task_failed"
    ON_ENGINE_START = "on_engine_start"
    ON_ENGINE_STOP = "on_engine_stop"
    ON_RUN_START = "on_run_start"
    ON_RUN_END = "on_run_end"
    ON_RUN_ERROR = "on_run_error"
    BEFORE_TOOL_CALL = "before_tool_call"
    AFTER_TOOL_CALL = "after_tool_call"
    TRANSFORM_TOOL_RESULT = "transform_tool_result"
    ON_TOOL_ERROR = "on_tool_error"
    BEFORE_MCP_REQUEST = "before_mcp_request"
    AFTER_MCP_RESPONSE = "after_mcp_response"

    # Old names: members of their own spelling, the same events.
    BEFORE_MESSAGE = "message_received"
    AFTER_MESSAGE = "message_sending"
    TOOL_RESULT_PERSIST = "after_tool"

    @classmethod
    def _missing_(cls, value: object) -> HookEvent | None:
        if isinstance(value, str):
            old = OLD_NAMES.get(value)
            if old is not None:
                return cls(old)
            member = cls.__members__.get(value)
            if member is not None:
                return member
            raise ValueError(_unknown(value))
        return None


OLD_NAMES: Mapping[str, str] = MappingProxyType(
    {"before_message": "message_received", "after_message": "message_sending", "tool_result_persist": "after_tool"}
)


def event_of(name: str | HookEvent) -> HookEvent:
    """The event called ``name``: a member, its value, an old name or a member's name.

    Raises:
        ValueError: no such event; the message lists the valid ones and names the nearest.
        TypeError: ``name`` is no text.
    """
    if type(name) is HookEvent:
        return name
    if not isinstance(name, str):
        raise TypeError(f"A hook event is a HookEvent or its name, not {type(name).__name__}")
    return HookEvent(name)


def _unknown(name: str) -> str:
    values = [event.value for event in HookEvent]
    import difflib

    near = difflib.get_close_matches(name.lower(), [*values, *OLD_NAMES], n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"Unknown hook event: '{name[:100]}'. Valid events: {', '.join(values)}.{hint}"


@dataclass(frozen=True, slots=True)
class EventSpec:
    """What holds at one event.

    ``changes`` are the payload fields a hook may change; ``target`` is the payload attribute that a matcher is tried
    against, None where a matcher is refused; ``closing`` marks the event that ends a step; ``engine_fires`` is False
    where the engine has no such part yet.
    """

    event: HookEvent
    payload: str
    changes: frozenset[str]
    refuses: bool
    asks: bool
    managed: bool
    target: str | None
    closing: bool
    engine_fires: bool
    auto_sequential: bool


def _camel(event: HookEvent) -> str:
    words = {"llm": "LLM", "cli": "CLI"}
    return "".join(words.get(word, word.capitalize()) for word in event.value.split("_")) + "Input"


def _spec(
    event: HookEvent,
    changes: str = "",
    *,
    refuses: bool = False,
    asks: bool = False,
    target: str | None = None,
    closing: bool = False,
    fires: bool = True,
    context: str | None = None,
) -> EventSpec:
    fields = frozenset(changes.split())
    auto = context is not None or (bool(fields) and event not in (HookEvent.BEFORE_TOOL, HookEvent.BEFORE_LLM))
    return EventSpec(
        event, context or _camel(event), fields, refuses, asks, context is not None, target, closing, fires, auto
    )


_E = HookEvent
_RUN_CONTEXT = "conversation_id user_id organization_id metadata auth_context"
_SPECS = (
    _spec(_E.ON_INIT),
    _spec(_E.ON_SHUTDOWN),
    _spec(_E.SETUP),
    _spec(_E.ON_CONFIG, "config", refuses=True),
    _spec(_E.ON_AUTH, "principal", refuses=True),
    _spec(_E.USER_PROMPT_SUBMIT, "prompt", refuses=True),
    _spec(_E.BEFORE_AGENT, "prompt", refuses=True),
    _spec(_E.AFTER_AGENT, "response", refuses=True, closing=True),
    _spec(_E.BEFORE_TOOL_DEFINITIONS, "tool_definitions", refuses=True, target="model"),
    _spec(_E.BEFORE_LLM, "messages model temperature max_tokens", refuses=True, target="model"),
    _spec(_E.ON_LLM_DELTA, "text", refuses=True, target="model"),
    _spec(_E.AFTER_LLM, "response tool_calls", refuses=True, target="model", closing=True),
    _spec(_E.MODEL_FALLBACK, target="to_model"),
    _spec(_E.PROMPT_PREFIX_INVALIDATED),
    _spec(_E.BEFORE_TOOL, "tool_input", refuses=True, asks=True, target="tool_name"),
    _spec(_E.AFTER_TOOL, "tool_output", refuses=True, target="tool_name", closing=True),
    _spec(_E.ON_PERMISSION_ASK, "tool_input", refuses=True, target="tool_name"),
    _spec(_E.ON_ERROR),
    _spec(_E.ON_RETRY, target="tool_name"),
    _spec(_E.SESSION_START),
    _spec(_E.SESSION_END),
    _spec(_E.SESSION_PERSIST_FAILED),
    _spec(_E.BEFORE_COMPACTION, refuses=True),
    _spec(_E.AFTER_COMPACTION),
    _spec(_E.SUBAGENT_STOP),
    _spec(_E.NOTIFICATION, "message"),
    _spec(_E.MESSAGE_RECEIVED, "content", refuses=True, target="platform"),
    _spec(_E.MESSAGE_SENDING, "content", refuses=True, target="platform"),
    _spec(_E.MESSAGE_SENT, target="platform"),
    _spec(_E.MESSAGE_UNDELIVERED, target="platform"),
    _spec(_E.GATEWAY_START),
    _spec(_E.GATEWAY_STOP),
    _spec(_E.JOB_COMPLETED, fires=False),
    _spec(_E.MESSAGE_EDITED, target="platform", fires=False),
    _spec(_E.MESSAGE_DELETED, target="platform", fires=False),
    _spec(_E.REACTION_RECEIVED, target="platform", fires=False),
    _spec(_E.MEMBER_JOINED, target="platform", fires=False),
    _spec(_E.MEMBER_LEFT, target="platform", fires=False),
    _spec(_E.THREAD_CREATED, target="platform", fires=False),
    _spec(_E.CLI_BACKEND_EXECUTE, fires=False),
    _spec(_E.SCHEDULE_ADD, refuses=True, target="job_name", fires=False),
    _spec(_E.SCHEDULE_REMOVE, target="job_name", fires=False),
    _spec(_E.SCHEDULE_TRIGGER, refuses=True, target="job_name", fires=False),
    _spec(_E.KANBAN_TASK_CREATED, fires=False),
    _spec(_E.KANBAN_TASK_CLAIMED, fires=False),
    _spec(_E.KANBAN_TASK_MOVED, fires=False),
    _spec(_E.KANBAN_TASK_DONE, fires=False),
    _spec(_E.KANBAN_TASK_BLOCKED, fires=False),
    _spec(_E.KANBAN_TASK_FAILED, fires=False),
    _spec(_E.ON_ENGINE_START, refuses=True, context="EngineContext"),
    _spec(_E.ON_ENGINE_STOP, context="EngineContext"),
    _spec(_E.ON_RUN_START, _RUN_CONTEXT, refuses=True, context="RunContext"),
    _spec(_E.ON_RUN_END, context="RunEndContext", closing=True),
    _spec(_E.ON_RUN_ERROR, context="BaseException", closing=True),
    _spec(_E.BEFORE_TOOL_CALL, refuses=True, context="ToolRequestContext", target="tool_name"),
    _spec(_E.AFTER_TOOL_CALL, refuses=True, context="ToolCallContext", target="tool_name", closing=True),
    _spec(_E.TRANSFORM_TOOL_RESULT, "result", refuses=True, context="ToolResultContext", target="tool_name"),
    _spec(_E.ON_TOOL_ERROR, context="ToolCallContext", target="tool_name", closing=True),
    _spec(_E.BEFORE_MCP_REQUEST, "headers", refuses=True, context="McpRequestContext", target="server_id"),
    _spec(_E.AFTER_MCP_RESPONSE, context="McpResponseContext", target="server_id", closing=True),
)

CATALOGUE: Mapping[HookEvent, EventSpec] = MappingProxyType({spec.event: spec for spec in _SPECS})
"""Every event's EventSpec, in the order of the enum."""

HOOK_POINTS: tuple[HookEvent, ...] = tuple(spec.event for spec in _SPECS if spec.managed)
"""The eleven managed points, in the order of a request's life."""
