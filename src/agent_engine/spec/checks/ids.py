"""Ids: one meaning each, also where they become file and function names."""

from __future__ import annotations

from agent_engine.spec.checks.context import Check
from agent_engine.spec.system import is_id, python_name

LONGEST_TOOL_NAME = 64


def run(check: Check) -> None:
    agents = check.section("agents")
    for name in check.section("orchestrators"):
        if name in agents:
            check.note(
                ("orchestrators", name),
                f"'{name}' is declared as an agent and as an orchestrator; keep one of them",
                key=True,
            )
    for group, sections in (
        ("nodes", ("orchestrators", "agents")),
        ("tools", ("tools",)),
        ("resolvers", ("resolvers",)),
    ):
        _meeting(check, group, sections)
    for section in ("tools", "orchestrators", "agents"):
        for name in check.section(section):
            if is_id(name) and len(name) > LONGEST_TOOL_NAME:
                what = f"an id of {len(name)} characters; models take names of tools up to {LONGEST_TOOL_NAME}"
                check.note((section, name), what, key=True, severity="warning")
    if check.section("resolvers"):
        for section in ("orchestrators", "agents"):
            for name in check.section(section):
                if python_name(name) == "shared":
                    what = "the file plugins/resolvers/shared.py belongs to the shared resolvers; choose another id"
                    check.note((section, name), what, key=True)


def _meeting(check: Check, group: str, sections: tuple[str, ...]) -> None:
    """Two ids that are one name in Python would share a file or a method."""
    first: dict[str, str] = {}
    for section in sections:
        for name in check.section(section):
            if not is_id(name):
                continue
            known = first.setdefault(python_name(name), name)
            if known != name:
                what = f"the {group} '{known}' and '{name}' meet in the Python name {python_name(name)}; rename one"
                check.note((section, name), what, key=True)
