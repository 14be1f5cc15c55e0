"""The text of generated files. Each stub raises until a person has written it, so that nothing is let through by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_engine.spec.markers import PROMPT_MARKER, STUB_MARKER
from agent_engine.spec.system import python_name

HOOKS_MODULE = "agent_engine.runtime.hooks"
_RAISE = f'raise NotImplementedError("{STUB_MARKER}")'
_CONTEXTS = {
    "on_engine_start": ("EngineContext", None),
    "on_engine_stop": ("EngineContext", None),
    "on_run_start": ("RunContext", "RunContext"),
    "on_run_end": ("RunEndContext", None),
    "on_run_error": (None, None),
    "before_tool_call": ("ToolRequestContext", None),
    "after_tool_call": ("ToolCallContext", None),
    "transform_tool_result": ("ToolResultContext", "ToolResultContext"),
    "on_tool_error": ("ToolCallContext", None),
    "before_mcp_request": ("McpRequestContext", "McpRequestContext"),
    "after_mcp_response": ("McpResponseContext", None),
}


@dataclass(frozen=True, slots=True)
class Stub:
    """A function or method to write: its name, its source without indentation, the imports it needs."""

    name: str
    source: str
    imports: tuple[tuple[str, str], ...] = ()


def class_name(plugin: str) -> str:
    """``research_hooks`` → ``ResearchHooksHook``."""
    words = [word for word in plugin.replace("-", "_").split("_") if word]
    return "".join(word[0].upper() + word[1:] for word in words) + "Hook"


def hook_method(event: str, method: str, *, function: bool = False) -> Stub:
    """A managed hook: one HookInvocation in, the context out where the point may change it."""
    first = "" if function else "self, "
    if event not in _CONTEXTS:
        return _hook_of_an_event(event, method, first)
    payload, result = _CONTEXTS[event]
    names = ["HookInvocation", *sorted({name for name in (payload, result) if name})]
    lines = [f"async def {method}({first}event: HookInvocation) -> {result or 'None'}:", f'    """Runs at {event}."""']
    if payload is not None:
        lines.append(f"    {_local(event)} = event.payload_as({payload})")
    elif event == "on_run_error":
        lines.append("    error = event.payload  # the exception; record its type rather than its text")
    lines.append(f"    {_RAISE}")
    return Stub(method, "\n".join(lines) + "\n", tuple((HOOKS_MODULE, name) for name in names))


def _hook_of_an_event(event: str, method: str, first: str) -> Stub:
    """A hook of an event that is no managed point: what it gets, and what it may answer."""
    from agent_engine.hooks.events import event_of
    from agent_engine.hooks.payloads import payload_type

    payload = payload_type(event_of(event)).__name__
    source = (
        f"async def {method}({first}event: HookInvocation) -> HookResult | None:\n"
        f'    """Runs at {event}."""\n'
        f"    payload = event.payload_as({payload})\n"
        f"    {_RAISE}\n"
    )
    home = "agent_engine.hooks"
    return Stub(method, source, ((home, payload), (home, "HookResult"), (HOOKS_MODULE, "HookInvocation")))


def _local(event: str) -> str:
    if "run" in event or "engine" in event:
        return "context"
    if event == "transform_tool_result":
        return "result"
    return "response" if event == "after_mcp_response" else "request" if event.startswith("before") else "call"


def tool_function(tool: str) -> Stub:
    name = python_name(tool)
    source = (
        f"def {name}(query: str) -> str:\n"
        f'    """What the code does; the model reads the description in agents.yaml.\n\n'
        f"    Args:\n"
        f"        query: what the model puts here.\n"
        f'    """\n'
        f"    {_RAISE}\n"
    )
    return Stub(name, source)


def resolver_method(resolver: str) -> Stub:
    name = python_name(resolver)
    source = (
        f"def {name}(self, ctx: Any) -> str:\n"
        f'    """The value of {{{{ {resolver} }}}} in prompts. ctx: headers, metadata, run_context, values."""\n'
        f"    {_RAISE}\n"
    )
    return Stub(name, source, (("typing", "Any"),))


def access_method() -> Stub:
    source = (
        "def can_access(self, ctx: Any, node_id: str) -> bool:\n"
        '    """Whether this caller may use a protected node; False or an exception hides it."""\n'
        f"    {_RAISE}\n"
    )
    return Stub("can_access", source, (("typing", "Any"),))


def module_text(
    doc: str,
    *,
    functions: Sequence[Stub] = (),
    cls: str | None = None,
    base: str | None = None,
    methods: Sequence[Stub] = (),
    imports: Sequence[tuple[str, str]] = (),
) -> str:
    """A whole new module."""
    wanted: dict[str, set[str]] = {}
    for module, name in [*imports, *(pair for stub in (*functions, *methods) for pair in stub.imports)]:
        wanted.setdefault(module, set()).add(name)
    parts = [f'"""{doc}"""', "from __future__ import annotations"]
    lines = {module: f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(wanted.items())}
    standard = [line for module, line in lines.items() if module == "typing"]
    parts.extend([*standard, "\n".join(line for module, line in lines.items() if module != "typing")])
    parts = [part for part in parts if part]
    text = "\n\n".join(parts) + "\n"
    for stub in functions:
        text += f"\n\n{stub.source}"
    if cls is not None:
        text += f"\n\n{class_text(cls, base, methods)}"
    return text


def class_text(cls: str, base: str | None, methods: Sequence[Stub]) -> str:
    head = f"class {cls}({base}):\n" if base else f"class {cls}:\n"
    if not methods:
        return head + '    """Values for prompts; each method is one."""\n'
    return head + "\n".join(_indented(stub.source) for stub in methods)


def _indented(source: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in source.splitlines(keepends=True))


def prompt_text(title: str, description: str, names: Sequence[str], *, kind: str) -> str:
    """A first prompt. It carries the marker until a person has taken it out."""
    if kind == "user":
        return f"{PROMPT_MARKER}\n{{{{ message }}}}\n"
    body = description.strip() or "Say who this agent is, what it does, and what it must not do."
    if kind == "orchestrator":
        body += "\n\nChoose the agent that fits the message and pass on everything it needs."
    values = "".join(f"- {{{{ {name} }}}}\n" for name in names)
    return f"{PROMPT_MARKER}\n# {title}\n\n{body}\n" + (f"\nValues of this request:\n\n{values}" if values else "")
