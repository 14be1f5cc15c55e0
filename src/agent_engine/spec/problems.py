"""The problems of a declared system, under the name that readers of specs look for."""

from __future__ import annotations

from agent_engine.plugins.problems import Problem, Severity, SpecError, did_you_mean, nearest, shown

__all__ = ["Problem", "Severity", "SpecError", "did_you_mean", "nearest", "shown"]
