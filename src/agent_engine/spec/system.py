"""The typed form of ``agents.yaml``: one model a kind of block, each field named as its key in the file.

The models say shapes alone. What one block owes another (references, the graph, files, secrets) is checked in
:mod:`agent_engine.spec.checks`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

ID_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]*$"
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")

PROVIDERS = (
    "offline",
    "scripted",
    "alibaba",
    "anthropic",
    "azure",
    "bedrock",
    "cerebras",
    "cohere",
    "deepseek",
    "fireworks",
    "gemini",
    "github",
    "google",
    "google-cloud",
    "google-gla",
    "google-vertex",
    "groq",
    "heroku",
    "huggingface",
    "litellm",
    "meta",
    "mistral",
    "moonshotai",
    "nebius",
    "ollama",
    "openai",
    "openai-chat",
    "openai-responses",
    "openrouter",
    "ovhcloud",
    "sambanova",
    "snowflake",
    "together",
    "vercel",
    "vllm",
    "xai",
    "zai",
)
"""Every ``provider`` a file may name; a test holds it against the model layer that is installed."""

KEYLESS = ("offline", "scripted")


def is_id(text: object) -> bool:
    return isinstance(text, str) and _ID.match(text) is not None


def python_name(identifier: str) -> str:
    """The name of an id in file and function names: ``-`` becomes ``_``; a word of Python's own gets a ``_`` behind."""
    name = identifier.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


Text = Annotated[str, StringConstraints(min_length=1)]
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Ids = Annotated[list[Text], BeforeValidator(_one_or_many, json_schema_input_type=Text | list[Text])]


class Block(BaseModel):
    """A block of the file: exact types, no unknown keys, not to be changed after loading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class SystemInfo(Block):
    """``system``: what this system is called and what it is for."""

    name: Text
    description: str = ""


class ModelChoice(Block):
    """One model without its fallbacks. ``max_tokens`` counts tokens; ``base_url`` is the provider's address."""

    provider: Literal[PROVIDERS]  # type: ignore[valid-type]  # the tuple above is the list of literals
    name: Text | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    region: Text | None = None
    base_url: Text | None = None

    @property
    def canonical_provider(self) -> str:
        return "google" if self.provider == "gemini" else str(self.provider)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


class ModelSpec(ModelChoice):
    """A model and the models that take over from it, in order."""

    fallback: Annotated[
        list[ModelChoice], BeforeValidator(_as_list, json_schema_input_type=ModelChoice | list[ModelChoice])
    ] = Field(default_factory=list)


class Defaults(Block):
    model: ModelSpec | None = None


class OrchestratorPrompts(Block):
    orchestrator: Text
    system: Text | None = None
    user: Text | None = None


class AgentPrompts(Block):
    system: Text | None = None
    user: Text | None = None


class NodeSpec(Block):
    """What an orchestrator and an agent have in common."""

    name: Text | None = None
    description: Text | None = None
    model: ModelSpec | None = None
    resolvers: list[Text] = Field(default_factory=list)
    protected: bool = False


class OrchestratorSpec(NodeSpec):
    """A node that routes to its children."""

    prompts: OrchestratorPrompts


class AgentSpec(NodeSpec):
    """A leaf that does the work. ``auto`` false: every tool call needs a person's yes."""

    prompts: AgentPrompts = Field(default_factory=AgentPrompts)
    tools: list[Text] = Field(default_factory=list)
    mcps: list[Text] = Field(default_factory=list)
    auto: bool = True


def _described(value: Any) -> Any:
    return {"description": value} if isinstance(value, str) else value


class ToolSpec(Block):
    """A local tool: the description that the model reads, and whether each call needs a yes."""

    description: Text
    approval: Literal["required"] | None = None


ToolEntry = Annotated[ToolSpec, BeforeValidator(_described, json_schema_input_type=Text | ToolSpec)]


class HeaderTransport(Block):
    type: Literal["header"]
    header_name: Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")] = "X-MCP-Tool-Tag"


class QueryTransport(Block):
    type: Literal["query_param"]
    param_name: Text


class McpSpec(Block):
    """An MCP server, over streamable HTTP (``url``) or stdio (``command``). ``timeout`` is in seconds."""

    url: Text | None = None
    command: Text | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    pass_env: list[Text] = Field(default_factory=list)
    cwd: Text | None = None
    tool_tags: list[Text] = Field(default_factory=list)
    tool_tag_transport: Annotated[HeaderTransport | QueryTransport, Field(discriminator="type")] | None = None
    required: bool = True
    discover: Literal["build", "first_use"] = "build"
    timeout: Seconds | None = None


def _scoped(value: Any) -> Any:
    if isinstance(value, str):
        return {"scope": value}
    if isinstance(value, list):
        return {"scope": "agent", "agents": value}
    return value


class ResolverSpec(Block):
    """A value for prompts: one for the whole system (``shared``) or one an agent's own class gives (``agent``)."""

    scope: Literal["shared", "agent"]
    agents: list[Text] = Field(default_factory=list)


ResolverEntry = Annotated[
    ResolverSpec,
    BeforeValidator(_scoped, json_schema_input_type=Literal["shared", "agent"] | list[Text] | ResolverSpec),
]


def _all_agent_scope(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return dict.fromkeys(value, "agent")
    return value


Resolvers = Annotated[
    dict[Id, ResolverEntry],
    BeforeValidator(_all_agent_scope, json_schema_input_type=dict[Id, ResolverEntry] | list[Id]),
]


class HookEntry(Block):
    """One entry under ``hooks``. ``timeout`` is in seconds, ``hold_back`` in characters."""

    plugin: Text | None = None
    method: Text | None = None
    ref: Text | None = None
    command: Text | None = None
    args: Annotated[list[str], Field(min_length=1)] | None = None
    url: Text | None = None
    failure_policy: Literal["fail", "deny", "warn"] = "fail"
    matcher: Text | None = None
    agents: Ids = Field(default_factory=list)
    servers: Ids = Field(default_factory=list)
    name: Text | None = None
    priority: Annotated[int, Field(ge=0)] = 100
    sequential: bool = True
    timeout: Seconds | None = None
    observe: bool = False
    hold_back: Annotated[int, Field(ge=0)] = 0
    shadow: bool = False
    env: dict[str, str] = Field(default_factory=dict)
    pass_env: list[Text] = Field(default_factory=list)

    @property
    def kind(self) -> Literal["plugin", "ref", "command", "webhook"]:
        if self.plugin is not None:
            return "plugin"
        if self.ref is not None:
            return "ref"
        return "webhook" if self.url is not None else "command"


class Plugins(Block):
    import_roots: list[Text] = Field(default_factory=list)


class Execution(Block):
    """Limits of one run. ``timeout_s`` is wall-clock time in seconds, ``max_tokens`` counts input and output."""

    max_iterations: Annotated[int, Field(ge=1)] = 20
    max_tool_calls: Annotated[int, Field(ge=0)] = 10
    max_tool_calls_per_agent: Annotated[int, Field(ge=0)] = 4
    max_child_agent_calls: Annotated[int, Field(ge=0)] = 8
    allow_duplicate_tool_calls: bool = False
    timeout_s: Seconds | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None


GraphTree = Mapping[str, Any]
"""Nested ids: each key a node, each value the tree of its children; a leaf is empty."""


def _graph(value: Any) -> Any:
    """Every leaf becomes ``{}``; faults inside are left as they are, for the check that knows their places."""
    if not isinstance(value, dict):
        return value
    return {key: {} if child is None or child == [] else _graph(child) for key, child in value.items()}


Graph = Annotated[
    dict[str, Any],
    BeforeValidator(_graph),
    WithJsonSchema({"type": "object", "title": "Graph"}),
]


class System(Block):
    """A whole ``agents.yaml``."""

    system: SystemInfo
    defaults: Defaults = Field(default_factory=Defaults)
    agents: dict[Id, AgentSpec] = Field(default_factory=dict)
    orchestrators: dict[Id, OrchestratorSpec] = Field(default_factory=dict)
    tools: dict[Id, ToolEntry] = Field(default_factory=dict)
    mcps: dict[Id, McpSpec] = Field(default_factory=dict)
    resolvers: Resolvers = Field(default_factory=dict)
    hooks: dict[str, list[HookEntry]] = Field(default_factory=dict)
    plugins: Plugins = Field(default_factory=Plugins)
    execution: Execution = Field(default_factory=Execution)
    graph: Graph

    @property
    def root(self) -> str:
        """The id of the node that a message enters at."""
        return next(iter(self.graph))

    def node(self, node_id: str) -> OrchestratorSpec | AgentSpec:
        """The declaration of a node; KeyError where there is none."""
        found = self.orchestrators.get(node_id) or self.agents.get(node_id)
        if found is None:
            raise KeyError(node_id)
        return found

    def model_of(self, node_id: str) -> ModelSpec | None:
        """The node's own model, else the default one, else None (then the environment decides)."""
        return self.node(node_id).model or self.defaults.model
