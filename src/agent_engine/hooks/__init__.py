"""The hook kernel: events, payloads, decisions, registries and the dispatcher. Useful alone; it imports nothing else
of the package."""

from __future__ import annotations

_HOMES = {
    "events": ("HookEvent", "EventSpec", "CATALOGUE", "HOOK_POINTS", "event_of"),
    "errors": (
        "HookError",
        "HookLoadError",
        "HookExecutionError",
        "HookFailure",
        "HookRegistrationError",
        "GuardrailBlocked",
        "RunBlocked",
        "LimitReached",
        "RunCancelled",
    ),
    "result": ("HookResult", "HookOutput", "HookExecutionResult", "HookRun", "Verdict"),
    "definition": ("HookDefinition", "FunctionHook", "CommandHook", "WebhookHook"),
    "registry": (
        "HookRegistry",
        "add_hook",
        "remove_hook",
        "has_hook",
        "get_default_registry",
        "set_default_registry",
    ),
    "scope": ("HookScope", "Site", "default_scope"),
    "runner": ("HookRunner", "fire_hook", "afire_hook"),
    "managed": (
        "HookInvocation",
        "AuthContext",
        "RunContext",
        "EngineContext",
        "RunEndContext",
        "ToolRequestContext",
        "ToolCallContext",
        "ToolResultContext",
        "McpRequestContext",
        "McpResponseContext",
        "current_run_context",
    ),
    "middleware": (
        "before_model",
        "after_model",
        "wrap_model_call",
        "before_tool",
        "after_tool",
        "wrap_tool_call",
        "ModelRequest",
        "ModelResponse",
        "ToolRequest",
        "ToolResponse",
        "InvocationContext",
        "MiddlewareChain",
        "AsyncMiddlewareChain",
        "MiddlewareManager",
    ),
    "verification": (
        "VerificationResult",
        "VerificationHook",
        "BaseVerificationHook",
        "CommandVerificationHook",
        "FileCheckHook",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    from importlib import import_module

    home = _HOME_OF.get(name)
    if home is not None:
        value = getattr(import_module(f"{__name__}.{home}"), name)
    elif name.endswith("Input"):
        payloads = import_module(f"{__name__}.payloads")
        if not hasattr(payloads, name):
            raise AttributeError(f"module {__name__!r} has no payload type {name!r}")
        value = getattr(payloads, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
