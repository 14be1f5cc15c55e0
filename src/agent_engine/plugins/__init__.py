"""plugins.toml, loading, and the plugin manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.hooks.errors import GuardrailBlocked as GuardrailBlocked
    from agent_engine.plugins.manager import Plugin as Plugin
    from agent_engine.plugins.manager import PluginManager as PluginManager

_HOMES = {
    "GuardrailBlocked": "agent_engine.hooks.errors",
    "Plugin": "agent_engine.plugins.manager",
    "PluginManager": "agent_engine.plugins.manager",
}

__all__ = ["GuardrailBlocked", "Plugin", "PluginManager"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agent_engine.plugins' has no attribute {name!r}; it offers {', '.join(_HOMES)}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
