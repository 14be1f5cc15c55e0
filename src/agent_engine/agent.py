"""Agent: the Python front door."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agent_engine.runtime.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from types import TracebackType

    from agent_engine.hooks.managed import RunContext
    from agent_engine.hooks.registry import HookRegistry
    from agent_engine.hooks.scope import HookScope
    from agent_engine.memory.store import ConversationStore
    from agent_engine.models.base import Model, ModelSettings
    from agent_engine.runtime.approvals import Approver, Decision
    from agent_engine.runtime.given_hooks import GivenHooks
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.outcome import ToolOutcome
    from agent_engine.runtime.result import RunEvent, RunResult
    from agent_engine.runtime.turn_queue import TurnQueue
    from agent_engine.tools.base import Tool

Prompt = str | list[dict[str, Any]]
_inside: ContextVar[tuple[int, ...]] = ContextVar("agent_engine_agents", default=())
"""The agents whose runs the current code is part of: one that calls itself must not wait for itself."""

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

    agent: Agent


class Agent:
    """An agent that keeps one conversation; calls on it take turns.

    Args:
        name: its name; delegates are called by it.
        instructions: the system text.
        model: ``"provider:name"``, ``"offline"``, ``"scripted:PATH"`` or a Model; None is what AGENT_ENGINE_MODEL says,
            else the offline model.
        tools: functions, ``@tool`` functions, names of those, Agents, or ``agent.handoff()``.
        hooks: a HooksConfig, a dict of its keys, a HookRegistry, or a list of middleware.
        output_type: a pydantic model, or another type that pydantic validates: what the answer is read as.
        fallback: models to go on with where the first one fails.
        approver: answers asks: a callable, or "later"; None means no.
        limits: bounds of each run.
        session_id: the conversation's id; made up when first needed.
        store: where the conversation is kept; in memory by default.

    Raises:
        TypeError: ``hooks`` or a tool is of a kind that is not taken; the message lists those that are.
        ValueError: a tool's name is unknown.
    """

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
        self.name = name or "agent"
        self.instructions = instructions
        self._model = model
        self._tools = tuple([_as_tool(one) for one in tools])
        self._given = _read(hooks)
        self._output_type = output_type
        self._fallback = (fallback,) if isinstance(fallback, str) else tuple(fallback)
        if approver is not None and approver != "later" and not callable(approver):
            raise TypeError(
                f"approver is a function of a ToolApproval, 'later' or None, not {type(approver).__name__}."
            )
        self._approver = approver
        if not isinstance(limits, Limits):
            raise TypeError(f"limits is a Limits, not {type(limits).__name__}.")
        self._limits = limits
        self._session_id = session_id
        self._store = store
        self._strict = False
        self._ready = False
        self._node: Node | None = None
        self._host: Host | None = None
        self._queue: TurnQueue | None = None

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

    def handoff(self) -> Handoff:
        """This agent for another's ``tools``: called, it takes the conversation over and its answer is the answer."""
        return Handoff(self)

    # The faces

    def start(self, prompt: Prompt, *, context: RunContext | None = None) -> Any:
        """The answer: text, or an object of the output type. A refused turn gives ``Blocked by policy: …``."""
        from agent_engine.hooks.portal import run_sync

        return run_sync(lambda: self.astart(prompt, context=context))

    def chat(self, prompt: Prompt, *, context: RunContext | None = None) -> Any:
        """The same as :meth:`start`."""
        return self.start(prompt, context=context)

    def run(self, prompt: Prompt, *, context: RunContext | None = None) -> RunResult:
        """The answer with everything about the run. A refused turn has status ``blocked``."""
        from agent_engine.hooks.portal import run_sync

        return run_sync(lambda: self.arun(prompt, context=context))

    async def astart(self, prompt: Prompt, *, context: RunContext | None = None) -> Any:
        """See :meth:`start`."""
        result = await self.arun(prompt, context=context)
        if result.status == "waiting":
            asked = ", ".join(f"{ask.tool_name} ({ask.call_id})" for ask in result.pending)
            return f"Run {result.run_id} waits for approval of: {asked}."
        return result.output

    async def achat(self, prompt: Prompt, *, context: RunContext | None = None) -> Any:
        """See :meth:`start`."""
        return await self.astart(prompt, context=context)

    async def arun(self, prompt: Prompt, *, context: RunContext | None = None) -> RunResult:
        """See :meth:`run`."""
        return await self._request(prompt, context, None)

    def stream(self, prompt: Prompt, *, context: RunContext | None = None) -> Iterator[str]:
        """The answer's text as it comes. Leaving the loop early cancels the run."""
        from agent_engine.runtime.iterate import iterate

        return iterate(lambda: self.astream(prompt, context=context))

    async def astream(self, prompt: Prompt, *, context: RunContext | None = None) -> AsyncIterator[str]:
        """See :meth:`stream`."""
        from agent_engine.hooks.errors import RunBlocked
        from agent_engine.runtime.streaming import stream_events

        def start(emit: Callable[[RunEvent], None]) -> Any:
            return self._run(prompt, context, emit)

        events = stream_events(start)
        try:
            async for event in events:
                if event.type == "text":
                    yield event.data["text"]
        except RunBlocked as blocked:
            if self._output_type is not None:
                raise
            yield str(blocked)
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # an async generator

    # Beside the conversation

    def call_tool(self, name: str, arguments: Mapping[str, Any], *, context: RunContext | None = None) -> Any:
        """Call one of the agent's tools through the door, with every hook around it, and without a model.

        Returns the result after its hooks; where a hook refused the call, the text that a model would read.

        Raises:
            LookupError: the agent has no such tool. Any other exception is the one the tool raised.
        """
        from agent_engine.hooks.portal import run_sync

        return run_sync(lambda: self.acall_tool(name, arguments, context=context))

    async def acall_tool(self, name: str, arguments: Mapping[str, Any], *, context: RunContext | None = None) -> Any:
        """See :meth:`call_tool`."""
        from agent_engine.hooks.errors import RunBlocked
        from agent_engine.runtime.run import call_tool_directly

        node, host = await self._prepare()
        identity = self._identity(context, alone=True)
        try:
            outcome: ToolOutcome = await call_tool_directly(
                node, name, arguments, host=host, context=identity, scope=self._scope()
            )
        except RunBlocked as blocked:
            return str(blocked)
        if outcome.error is not None:
            raise outcome.error
        if outcome.status not in ("ok", "denied"):
            from agent_engine.tools.base import ToolError

            raise ToolError(outcome.text)
        return outcome.value

    def resume(self, run_id: str, decisions: Mapping[str, Decision], *, context: RunContext | None = None) -> RunResult:
        """Go on with a run that waits for approvals (``approver="later"``): call id -> "yes", "session" or "no"."""
        from agent_engine.hooks.portal import run_sync

        return run_sync(lambda: self.aresume(run_id, decisions, context=context))

    async def aresume(
        self, run_id: str, decisions: Mapping[str, Decision], *, context: RunContext | None = None
    ) -> RunResult:
        """See :meth:`resume`."""
        from agent_engine.runtime.run import resume_request

        node, host = await self._prepare()
        async with self._turns():
            return await self._told(resume_request(node, run_id, decisions, host=host, context=context))

    def end_session(self) -> None:
        """End the conversation: session_end fires, what was allowed for it is over; the next call begins a new one."""
        from agent_engine.hooks.portal import run_sync

        run_sync(self.aend_session)

    async def aend_session(self) -> None:
        """See :meth:`end_session`."""
        await self._end("end_session")
        self._session_id = None

    def close(self) -> None:
        """End the conversation for good. It may be called twice."""
        from agent_engine.hooks.portal import run_sync

        run_sync(self.aclose)

    async def aclose(self) -> None:
        """See :meth:`close`."""
        await self._end("close")

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _end(self, reason: str) -> None:
        if self._host is None:
            return
        if id(self) in _inside.get():
            await self._host.sessions.end_all(reason)
            return
        async with self._turns():
            await self._host.sessions.end_all(reason)

    # One request

    async def _request(
        self, prompt: Prompt, context: RunContext | None, emit: Callable[[RunEvent], None] | None
    ) -> RunResult:
        return await self._told(self._run(prompt, context, emit))

    async def _told(self, run: Any) -> RunResult:
        """A refused turn as a result, for an agent whose answer is text."""
        from agent_engine.hooks.errors import RunBlocked

        try:
            result: RunResult = await run
        except RunBlocked as blocked:
            if self._output_type is not None:
                raise
            from agent_engine.models.base import Usage
            from agent_engine.runtime.result import RunResult as Result

            return Result(output=str(blocked), status="blocked", session_id=self.session_id, usage=Usage())
        return result

    async def _run(
        self, prompt: Prompt, context: RunContext | None, emit: Callable[[RunEvent], None] | None
    ) -> RunResult:
        from agent_engine.runtime.run import run_request

        node, host = await self._prepare()
        inside = _inside.get()
        if id(self) in inside:
            # Called from inside its own run: a fresh conversation, since the open one waits for this very call.
            return await run_request(
                node, prompt, host=host, context=self._identity(context, alone=True), emit=emit, scope=self._scope()
            )
        async with self._turns():
            token = _inside.set((*inside, id(self)))
            try:
                return await run_request(
                    node, prompt, host=host, context=self._identity(context), emit=emit, scope=self._scope()
                )
            finally:
                _inside.reset(token)

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

            await fire_setup(host, self.name)
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
                tools=tuple(one for one in self._tools if not isinstance(one, (Agent, Handoff))),
                children=tuple(one._compiled() for one in self._tools if isinstance(one, Agent)),
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
                keeps_conversations=True,
            )
            return self._host


def _as_tool(value: Any) -> Tool | Agent | Handoff:
    if isinstance(value, (Agent, Handoff)):
        return value
    from agent_engine.tools.function import tool_of

    try:
        return tool_of(value)
    except TypeError:
        kinds = "a function, an @tool function or its name, an Agent, or agent.handoff()"
        raise TypeError(f"A tool of an Agent is {kinds}, not {type(value).__name__}.") from None


def _read(hooks: Any) -> GivenHooks | None:
    if hooks is None:
        return None
    from agent_engine.runtime.given_hooks import read_hooks

    return read_hooks(hooks)
