"""Runs AI agents, and lets an application put deterministic hooks around everything an agent does.

Every public name is imported when it is first used, so that ``import agent_engine`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.agent import Agent as Agent
    from agent_engine.agent import HooksConfig as HooksConfig
    from agent_engine.hooks.errors import GuardrailBlocked as GuardrailBlocked
    from agent_engine.hooks.errors import LimitReached as LimitReached
    from agent_engine.hooks.errors import RunBlocked as RunBlocked
    from agent_engine.hooks.errors import RunCancelled as RunCancelled
    from agent_engine.hooks.managed import AuthContext as AuthContext
    from agent_engine.hooks.managed import RunContext as RunContext
    from agent_engine.runtime.approvals import ToolApproval as ToolApproval
    from agent_engine.runtime.engine import Engine as Engine
    from agent_engine.runtime.limits import Limits as Limits
    from agent_engine.runtime.result import RunEvent as RunEvent
    from agent_engine.runtime.result import RunResult as RunResult
    from agent_engine.tools.function import tool as tool

_HOMES = {
    "Agent": "agent_engine.agent",
    "HooksConfig": "agent_engine.agent",
    "Engine": "agent_engine.runtime.engine",
    "RunContext": "agent_engine.hooks.managed",
    "AuthContext": "agent_engine.hooks.managed",
    "RunResult": "agent_engine.runtime.result",
    "RunEvent": "agent_engine.runtime.result",
    "Limits": "agent_engine.runtime.limits",
    "ToolApproval": "agent_engine.runtime.approvals",
    "tool": "agent_engine.tools.function",
    "GuardrailBlocked": "agent_engine.hooks.errors",
    "RunBlocked": "agent_engine.hooks.errors",
    "LimitReached": "agent_engine.hooks.errors",
    "RunCancelled": "agent_engine.hooks.errors",
}

__all__ = sorted([*_HOMES, "__version__"])
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agent_engine' has no attribute {name!r}; it offers {', '.join(sorted(_HOMES))}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
