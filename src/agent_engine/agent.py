"""Agent: the Python front door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_engine.runtime.agent_parts import AgentParts, Handoff, inside
from agent_engine.runtime.agent_parts import HooksConfig as HooksConfig

if TYPE_CHECKING:
    from types import TracebackType

    from agent_engine.hooks.managed import RunContext
    from agent_engine.runtime.approvals import Decision
    from agent_engine.runtime.outcome import ToolOutcome
    from agent_engine.runtime.result import RunEvent, RunResult

Prompt = str | list[dict[str, Any]]


class Agent(AgentParts):
    """An agent that keeps one conversation; calls on it take turns.

    Args:
        name: its name; another agent calls it by that, with ``_`` for what is no letter, digit, ``_`` or ``-``.
        instructions: the system text.
        model: ``"provider:name"``, ``"offline"``, ``"scripted:PATH"`` or a Model; None is what AGENT_ENGINE_MODEL says,
            else the offline model.
        tools: functions, ``@tool`` functions, names of those, Agents, or ``agent.handoff()``.
        hooks: a HooksConfig, a dict of its keys, a HookRegistry, or a list of middleware.
        output_type: a pydantic model, or another type that pydantic validates: what the answer is read as. None and str
            leave it the text that it is.
        fallback: models to go on with where the first one fails.
        approver: answers asks: a callable, or "later"; None means no.
        limits: bounds of each run.
        session_id: the conversation's id; made up when first needed.
        store: where the conversation is kept; in memory by default.

    Raises:
        TypeError: ``hooks`` or a tool is of a kind that is not taken; the message lists those that are.
        ValueError: a tool's name is unknown.
    """

    __slots__ = ()

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

        async def resume(inside_its_own: bool) -> RunResult:
            return await resume_request(node, run_id, decisions, host=host, context=context, scope=self._scope())

        return await self._told(self._in_turn(resume))

    def end_session(self) -> None:
        """End the conversation: session_end fires, what was allowed for it is over; the next call begins a new one."""
        from agent_engine.hooks.portal import run_sync

        run_sync(self.aend_session)

    async def aend_session(self) -> None:
        """See :meth:`end_session`."""
        await self._end("end_session")
        self._session_id = None

    def close(self) -> None:
        """End the conversation and let go of what it holds. Another call begins a new one; it may be called twice."""
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
        queue = self._turns()
        entered = await queue.enter(inside.get())
        try:
            await self._host.sessions.end_all(reason)
        finally:
            if entered:
                queue.leave()

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

            return Result(
                output=str(blocked),
                status="blocked",
                run_id=blocked.run_id,
                session_id=self.session_id,
                usage=blocked.usage or Usage(),
                visited=blocked.visited,
            )
        return result

    async def _run(
        self, prompt: Prompt, context: RunContext | None, emit: Callable[[RunEvent], None] | None
    ) -> RunResult:
        from agent_engine.runtime.run import run_request

        node, host = await self._prepare()

        async def run(inside_its_own: bool) -> RunResult:
            # From inside its own run it is a fresh conversation, since the open one waits for this very call.
            identity = self._identity(context, alone=inside_its_own)
            return await run_request(node, prompt, host=host, context=identity, emit=emit, scope=self._scope())

        return await self._in_turn(run)

    async def _in_turn(self, work: Callable[[bool], Awaitable[RunResult]]) -> RunResult:
        """Await ``work(False)`` when it is this call's turn, or ``work(True)`` at once where that would never be: the
        agent's own run, or one that it waits for, makes the call."""
        around, queue = inside.get(), self._turns()
        if not await queue.enter(around):
            return await work(True)
        token = inside.set((*around, queue))
        try:
            return await work(False)
        finally:
            queue.leave()
            inside.reset(token)
