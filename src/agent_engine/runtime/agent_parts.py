"""What an Agent is made of, before its faces: its settings, the node it compiles to, and the host of its runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agent_engine.runtime import options
from agent_engine.runtime.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.scope import HookScope
    from agent_engine.memory.store import ConversationStore
    from agent_engine.models.base import Model, ModelSettings
    from agent_engine.runtime.approvals import Approver
    from agent_engine.runtime.given_hooks import GivenHooks
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.turn_queue import TurnQueue
    from agent_engine.tools.base import Tool

inside: ContextVar[tuple[TurnQueue, ...]] = ContextVar("agent_engine_agents", default=())
"""The queues of the agents whose runs the current code is part of: one that calls itself must not wait for itself."""

_making = threading.RLock()
"""What an agent makes when it is first used is made once, whoever comes first."""


@dataclass(slots=True)
class HooksConfig:
    """Hooks of one agent.

    Args:
        on_step: observer, called with each model response.
        on_tool_call: observer, called with each tool request.
        middleware: functions marked with one of the six middleware decorators.
        registry: event hooks of this agent and of whatever it delegates to; they add to the process-wide ones.
        inherit_default: False leaves the process-wide registry out.
    """

    on_step: Callable[[Any], Any] | None = None
    on_tool_call: Callable[[Any], Any] | None = None
    middleware: Sequence[Callable[..., Any]] = field(default_factory=list)
    registry: HookRegistry | None = None
    inherit_default: bool = True


@dataclass(frozen=True, slots=True)
class Handoff:
    """An agent in a list of tools that takes the conversation over: its answer is the answer."""

    agent: AgentParts


class AgentParts:
    """The parts of an Agent. All that costs something is made when it is first needed."""

    __slots__ = (
        "__weakref__",
        "_approver",
        "_fallback",
        "_given",
        "_host",
        "_limits",
        "_model",
        "_node",
        "_output_type",
        "_queue",
        "_ready",
        "_session_id",
        "_store",
        "_strict",
        "_tools",
        "instructions",
        "name",
    )

    def __init__(
        self,
        name: str | None = None,
        instructions: str = "",
        *,
        model: str | Model | None = None,
        tools: Sequence[Any] = (),
        hooks: HooksConfig | Mapping[str, Any] | HookRegistry | Sequence[Callable[..., Any]] | None = None,
        output_type: Any = None,
        fallback: Sequence[str | Model] | str = (),
        approver: Approver | Literal["later"] | None = None,
        limits: Limits = DEFAULT_LIMITS,
        session_id: str | None = None,
        store: ConversationStore | None = None,
    ) -> None:
        options.is_text("name", name, or_none="'agent'")
        options.is_text("instructions", instructions)
        options.is_text("session_id", session_id, or_none="one of its own")
        options.is_model("model", model)
        options.is_output_type(output_type)
        options.is_approver(approver)
        options.is_limits(limits)
        options.is_store(store)
        self.name = name or "agent"
        self.instructions = instructions
        self._model = model
        self._tools = tuple([_as_tool(one) for one in options.several("tools", tools, options.TOOLS)])
        self._given = _read(hooks)
        self._output_type = None if output_type is str else output_type  # text is what an answer is anyway
        self._fallback = (
            (fallback,) if isinstance(fallback, str) else options.several("fallback", fallback, options.MODELS)
        )
        for one in self._fallback:
            options.is_model("fallback", one)
        self._approver = approver
        self._limits = limits
        self._session_id = session_id or None
        self._store = store
        self._strict = False
        self._ready = False
        self._node: Node | None = None
        self._host: Host | None = None
        self._queue: TurnQueue | None = None

    __init__.__qualname__ = "Agent.__init__"  # the name that stands in what Python says about a wrong keyword

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"

    @property
    def session_id(self) -> str:
        """The id of the agent's conversation."""
        if self._session_id is None:
            from uuid import uuid4

            self._session_id = uuid4().hex
        return self._session_id

    @property
    def _strict_hooks(self) -> bool:
        """True raises a hook's own exception instead of turning it into a refusal; for tests."""
        return self._strict

    @_strict_hooks.setter
    def _strict_hooks(self, value: bool) -> None:
        self._strict = bool(value)
        if self._node is not None:
            self._node.strict = self._strict

    def _turns(self) -> TurnQueue:
        if self._queue is None:
            from agent_engine.runtime.turn_queue import TurnQueue

            with _making:
                self._queue = self._queue or TurnQueue()
        return self._queue

    def _identity(self, context: RunContext | None, *, alone: bool = False) -> RunContext:
        """Who asks: the caller's context, else that of the run whose tool this call comes from."""
        from uuid import uuid4

        from agent_engine.hooks.managed import RunContext
        from agent_engine.runtime.calling import calling

        options.is_context(context)
        if context is None:
            turn = calling()
            if turn is None:
                return RunContext(run_id=uuid4().hex, conversation_id=None if alone else self.session_id)
            context = turn.state.run_context.replace(run_id="", conversation_id=None)
        if alone or context.conversation_id:
            return context.replace(conversation_id=None) if alone else context
        return context.replace(conversation_id=self.session_id)

    def _scope(self) -> HookScope | None:
        """Inside a tool of another run the hooks of that run hold too: a tool body is no way around them."""
        from agent_engine.runtime.calling import calling

        turn = calling()
        if turn is None:
            return None
        given = self._given
        return turn.scope.extended(given.registry, given.inherit_default) if given is not None else turn.scope

    # Made when first needed

    async def _prepare(self) -> tuple[Node, Host]:
        """The agent, compiled, and its host; ``setup`` fires the first time."""
        node = self._node if self._node is not None else self._compiled()
        host = self._host if self._host is not None else self._hosted()
        if not self._ready:
            self._ready = True
            from agent_engine.runtime.setup import fire_setup

            try:
                await fire_setup(host, self.name)
            except BaseException:
                self._ready = False  # not made ready: the next call tries again
                raise
        return node, host

    def _compiled(self) -> Node:
        from agent_engine.runtime.node import Node

        with _making:
            if self._node is not None:
                return self._node
            given = self._given
            self._node = Node(
                name=self.name,
                description=self.instructions[:500],
                prompt=self.instructions,
                models=self._models(),
                tools=tuple(one for one in self._tools if not isinstance(one, (AgentParts, Handoff))),
                children=tuple(one._compiled() for one in self._tools if isinstance(one, AgentParts)),
                handoffs=tuple(one.agent._compiled() for one in self._tools if isinstance(one, Handoff)),
                registry=given.registry if given is not None else None,
                inherit_default=given.inherit_default if given is not None else True,
                middleware=given.middleware if given is not None else None,
                on_step=given.on_step if given is not None else None,
                on_tool_call=given.on_tool_call if given is not None else None,
                limits=self._limits,
                output_type=self._output_type,
                strict=self._strict,
            )
            return self._node

    def _models(self) -> tuple[tuple[Model, ModelSettings], ...]:
        from agent_engine.models.base import ModelSettings
        from agent_engine.models.resolve import model_from

        return tuple((model_from(one), ModelSettings()) for one in (self._model, *self._fallback))

    def _hosted(self) -> Host:
        from agent_engine.hooks.scope import default_scope
        from agent_engine.runtime.host import Host

        with _making:
            if self._host is not None:
                return self._host
            given = self._given
            scope = default_scope()
            if given is not None:
                scope = scope.extended(given.registry, given.inherit_default)
            self._host = Host(
                system_name=self.name,
                scope=scope,
                approver=self._approver,
                store=self._store,
            )
            return self._host


def _as_tool(value: Any) -> Tool | AgentParts | Handoff:
    if isinstance(value, (AgentParts, Handoff)):
        return value
    from agent_engine.tools.base import Tool
    from agent_engine.tools.function import tool_of

    if isinstance(value, (str, Tool)) or callable(value):
        return tool_of(value)
    kinds = "a function, an @tool function or its name, an Agent, or agent.handoff()"
    raise TypeError(f"A tool of an Agent is {kinds}, not {type(value).__name__}.")


def _read(hooks: Any) -> GivenHooks | None:
    if hooks is None:
        return None
    from agent_engine.runtime.given_hooks import read_hooks

    return read_hooks(hooks)
