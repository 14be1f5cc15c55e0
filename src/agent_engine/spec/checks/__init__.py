"""What one block of a file owes another. Each check works on plain data of any shape and never stops at a fault."""

from __future__ import annotations

from agent_engine.spec.checks import graph, hooks, ids, prompts, references, secrets, servers, variables
from agent_engine.spec.checks.context import Check

__all__ = ["Check", "run_checks"]


def run_checks(check: Check, *, files: bool = True) -> None:
    """Run every check; ``files`` False leaves out what needs prompts, manifest and folders to exist."""
    ids.run(check)
    graph.run(check)
    references.run(check, files=files)
    servers.run(check, files=files)
    hooks.run(check, files=files)
    secrets.run(check)
    variables.run(check)
    if files:
        prompts.run(check)
