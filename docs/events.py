"""Writes events.md from the catalogue: ``python docs/events.py``. With ``--check`` it only says whether it must."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from pathlib import Path
from typing import Any

from agent_engine.hooks.events import CATALOGUE, OLD_NAMES, EventSpec, HookEvent
from agent_engine.hooks.payloads import HookInput, payload_type

PAGE = Path(__file__).with_name("events.md")

# When each managed point fires; other events are told by their payload type.
WHEN = {
    HookEvent.ON_ENGINE_START: "Once, when the engine is built, before any request.",
    HookEvent.ON_ENGINE_STOP: "Once, when the engine closes. A failure here never masks what has happened.",
    HookEvent.ON_RUN_START: "A request enters, before anything else. It may give back another RunContext.",
    HookEvent.ON_RUN_END: "The answer of a request that succeeded is ready.",
    HookEvent.ON_RUN_ERROR: "A request failed, for whatever reason. The payload is the exception.",
    HookEvent.BEFORE_TOOL_CALL: "Right before the body of any tool.",
    HookEvent.AFTER_TOOL_CALL: "A tool's body has returned and its result has passed the other hooks.",
    HookEvent.TRANSFORM_TOOL_RESULT: "A tool has returned. It must give back a ToolResultContext.",
    HookEvent.ON_TOOL_ERROR: "A tool call that had begun did not succeed.",
    HookEvent.BEFORE_MCP_REQUEST: "Before every request to an MCP server, whatever the operation.",
    HookEvent.AFTER_MCP_RESPONSE: "After every response of an MCP server, and after a request that failed.",
}

HEAD = """# Events

This page is written by `docs/events.py` from the catalogue that the engine itself uses. How to write and register a
hook is told in [Hooks](hooks.md).

An event has one payload type, named for it. Every payload is built with keyword arguments and has defaults, so that a
test can make one by hand; `payload.to_dict()` is its JSON form, which is also what command hooks and webhooks get
(`agentctl hooks schema EVENT` prints its JSON Schema). A field that is not listed under *may change* refuses
assignment.

- **may refuse**: a deny, or a hook that breaks under the policy `deny`, stops the step. Elsewhere it is logged and
  recorded.
- **may change**: fields that a sequential hook may assign, edit in place, or name in `modified_input`.
- **mode**: how a hook runs where `sequential` is not given. In order: one after the other, each seeing what the ones
  before it changed. Parallel: all at once, changing nothing.
- **matcher**: the payload field that `matcher=` is tried against; where there is none, a matcher is refused.
- **°**: the type is there and the event can be fired with `fire_hook`; the engine has no such part yet.

## Every payload has
"""

MANAGED = """## Managed points

The payload is a frozen context; a hook declared in YAML gets it inside a `HookInvocation`. What may be changed is
changed by giving back another context.
"""


def main(arguments: list[str]) -> int:
    text = render()
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text("utf-8") == text:
            return 0
        sys.stderr.write(f"{PAGE.name} is not what the catalogue says; run: python docs/events.py\n")
        return 1
    PAGE.write_text(text, "utf-8")
    return 0


def render() -> str:
    """The whole page."""
    ordinary = [spec for spec in CATALOGUE.values() if not spec.managed]
    managed = [spec for spec in CATALOGUE.values() if spec.managed]
    base = _table(
        ["field", "type", "default"],
        [[f"`{one.name}`", f"`{_type(HookInput, one)}`", _default(one)] for one in dataclasses.fields(HookInput)],
    )
    old = ", ".join(f"`{name}` is `{event}`" for name, event in OLD_NAMES.items())
    return "\n".join(
        [
            HEAD,
            base,
            "## Events of a run, a session and the server\n",
            _events(ordinary),
            f"Old names that still work: {old}.\n",
            MANAGED,
            _events(managed),
            "## Fields\n",
            *(_fields(spec) for spec in CATALOGUE.values()),
        ]
    )


def _events(specs: list[EventSpec]) -> str:
    rows = []
    for spec in specs:
        refuse = "yes, or ask" if spec.asks else "yes" if spec.refuses else "no"
        rows.append(
            [
                f"[`{spec.event}`](#{spec.event}){'' if spec.engine_fires else ' °'}",
                _when(spec),
                refuse,
                ", ".join(f"`{name}`" for name in sorted(spec.changes)) or "–",
                "in order" if spec.auto_sequential else "parallel",
                f"`{spec.target}`" if spec.target else "–",
            ]
        )
    return _table(["event", "when", "may refuse", "may change", "mode", "matcher"], rows)


def _when(spec: EventSpec) -> str:
    if spec.managed:
        return WHEN[spec.event]
    told = inspect.getdoc(payload_type(spec.event)) or ""
    return " ".join(told.split("\n\n")[0].split()).replace("``", "`")


def _fields(spec: EventSpec) -> str:
    kind = payload_type(spec.event)
    base = {one.name for one in dataclasses.fields(HookInput)}
    if issubclass(kind, BaseException):
        return f"### {spec.event}\n\nThe exception itself.\n"
    own = [one for one in dataclasses.fields(kind) if spec.managed or one.name not in base]
    rows = [[f"`{one.name}`", f"`{_type(kind, one)}`", _default(one)] for one in own]
    return f"### {spec.event}\n\n`{kind.__name__}`\n\n{_table(['field', 'type', 'default'], rows)}"


def _type(kind: type[Any], one: dataclasses.Field[Any]) -> str:
    return _told(typing.get_type_hints(kind)[str(one.name)])


def _told(hint: Any) -> str:
    if hint is types.NoneType:
        return "None"
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(_told(part) for part in typing.get_args(hint))
    arguments = [_told(part) for part in typing.get_args(hint) if part is not ...]
    name = getattr(typing.get_origin(hint) or hint, "__name__", str(hint))
    return f"{name}[{', '.join(arguments)}]" if arguments else name


def _default(one: dataclasses.Field[Any]) -> str:
    if one.name in ("cwd", "timestamp"):
        return {"cwd": "the working directory", "timestamp": "now, RFC 3339 in UTC"}[one.name]
    if one.default_factory is not dataclasses.MISSING:
        made = one.default_factory()
        return f"`{made!r}`" if isinstance(made, dict | list | tuple) else f"`{type(made).__name__}()`"
    return f"`{one.default!r}`"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
