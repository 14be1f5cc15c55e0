"""One run, from message to answer: what an Engine and an Agent call."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from agent_engine.hooks import payloads
from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.errors import LimitReached, RunBlocked
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import RUN_CONTEXT, RunContext
from agent_engine.runtime import options
from agent_engine.runtime.content import text_of_message, with_text
from agent_engine.runtime.ending import Ending
from agent_engine.runtime.result import RunResult
from agent_engine.runtime.state import RunState
from agent_engine.runtime.step import Step, refuses
from agent_engine.runtime.turn import Answer, Turn, run_node
from agent_engine.runtime.under_way import UnderWay
from agent_engine.runtime.waiting import Waiting

if TYPE_CHECKING:
    from agent_engine.hooks.scope import HookScope
    from agent_engine.models.base import Message
    from agent_engine.runtime.approvals import Decision
    from agent_engine.runtime.host import Host
    from agent_engine.runtime.node import Node
    from agent_engine.runtime.outcome import ToolOutcome
    from agent_engine.runtime.result import RunEvent

Emit = Callable[["RunEvent"], None]
T = TypeVar("T")


async def run_request(
    root: Node,
    message: str | list[dict[str, Any]],
    *,
    host: Host,
    context: RunContext | None = None,
    history: Sequence[Message] = (),
    emit: Emit | None = None,
    scope: HookScope | None = None,
) -> RunResult:
    """Run one request: session_start, on_run_start … on_run_end or on_run_error.

    Args:
        root: the agent that gets the message.
        message: the person's message: text, or content parts in the chat shape.
        host: what the Engine or Agent lends to its runs.
        context: who asks. With a conversation_id the conversation is loaded, and kept afterwards; without one the run
            is a session of its own. An empty run_id is filled.
        history: messages that came before; they follow those of the stored conversation.
        emit: takes each RunEvent as it happens; given, the model is asked to stream.
        scope: the hooks that hold, where they are not the host's: a request from inside a tool of another run.

    Raises:
        RunBlocked: a hook refused the turn. LimitReached: a limit ended it. HookExecutionError: a hook failed under
        ``fail``. asyncio.CancelledError: the run was cancelled. Any other exception is the run's own error.
    """
    options.is_prompt(message)
    state = _state(root, host, context, text_of_message(message), emit, scope)

    async def turn(ending: Ending) -> RunResult:
        stored = await _begin(state, root)
        before = [*stored, *history] if history else stored
        prompt, notes = await _submit(state, root, state.message)
        told = message if prompt == state.message else with_text(message, prompt)
        state.message = prompt
        return await _turn(state, root, ending, told, before, notes, whole=not history)

    return await _in_own_context(state, root, lambda: _whole(state, root, turn))


async def resume_request(
    root: Node,
    run_id: str,
    decisions: Mapping[str, Decision],
    *,
    host: Host,
    context: RunContext | None = None,
    emit: Emit | None = None,
    scope: HookScope | None = None,
    claimed: Callable[[], None] | None = None,
) -> RunResult:
    """Go on with a waiting run. ``decisions`` maps call ids to "yes", "session" or "no"; what it leaves out stays open.
    ``scope``: see run_request. ``claimed`` is called once the run is this caller's and the decisions count; what is
    raised before it refused them, what is raised after it is the run's own.

    Raises:
        LookupError: no such waiting run, or somebody else has gone on with it, or ``root``, or an agent below it in
            which the run waits, does not exist for this caller. A run that is refused to a caller waits on as it was.
        PermissionError: ``context`` is another caller's.
        ValueError: an unknown word in ``decisions``, or a call id that the run does not wait for.
    """
    from agent_engine.runtime.frames import restore_state
    from agent_engine.runtime.resume import check_delegates, claim, look_up

    document, identity, answers = await look_up(root, run_id, decisions, host, context)
    state = _state(root, host, identity, document["message"], emit, scope)
    restore_state(state, document)
    state.decisions = answers

    async def turn(ending: Ending) -> RunResult:
        if any(ask["call_id"] not in answers for ask in document["asks"]):
            ending.saved_at = document["saved_at"]  # what is still open was asked then; a new ask has its own 24 hours
        return await _turn(state, root, ending, "", (), (), document["frame"])

    async def go_on() -> RunResult:
        await _check_access(state, root)
        await check_delegates(state, root, document["frame"])
        await host.sessions.rejoin(state)
        await claim(host, run_id, document)
        if claimed is not None:
            claimed()
        return await _whole(state, root, turn)

    return await _in_own_context(state, root, go_on)


async def call_tool_directly(
    root: Node,
    name: str,
    arguments: Mapping[str, Any],
    *,
    host: Host,
    context: RunContext | None = None,
    scope: HookScope | None = None,
) -> ToolOutcome:
    """Call one tool of ``root``, or of an agent below it, through the tool door: a request of its own, without a model.

    Raises:
        LookupError: no agent here has a tool of that name.
    """
    from agent_engine.runtime.direct import call_directly

    options.is_mapping(f"the arguments of a call of {name}", arguments)
    state = _state(root, host, context, "", None, scope)
    state.may_wait = False

    async def call(ending: Ending) -> ToolOutcome:
        await _begin(state, root)
        outcome = await call_directly(state, root, name, dict(arguments))
        await ending.succeeded()
        return outcome

    return await _in_own_context(state, root, lambda: _whole(state, root, call))


def _state(
    root: Node,
    host: Host,
    context: RunContext | None,
    message: str,
    emit: Emit | None,
    scope: HookScope | None = None,
) -> RunState:
    options.is_context(context)
    if context is None:
        context = RunContext(run_id=uuid4().hex)
    else:
        context = payloads.private_copy(context)  # what hooks make of it is this run's alone
        if not context.run_id:
            context = context.replace(run_id=uuid4().hex)
    return RunState(
        host=host,
        scope=host.scope if scope is None else scope,
        run_context=context,
        limits=root.limits,
        message=message,
        emit=emit,
        strict=root.strict,
        agent=root.name,
    )


async def _in_own_context(state: RunState, root: Node, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """A run leaves its caller's variables as they were; what on_run_start and before_agent set holds for all of it."""
    own = contextvars.copy_context()
    own.run(RUN_CONTEXT.set, state.run_context)
    under_way = state.under_way = own.run(UnderWay, root.name)
    try:
        return await in_context(own, run())
    finally:
        under_way.end()


async def _whole(state: RunState, root: Node, body: Callable[[Ending], Coroutine[Any, Any, T]]) -> T:
    """The request around ``body``: its time limit, and its one end."""
    ending = Ending(state, root.name)
    ending.opened()
    try:
        seconds = state.limits.timeout_s
        if seconds is None:
            return await body(ending)
        return await _within(state, seconds, body, ending)
    except BaseException as error:
        if isinstance(error, (asyncio.CancelledError, LimitReached)):
            assert state.under_way is not None
            state.under_way.cut()
        if isinstance(error, RunBlocked):
            error.run_id, error.usage, error.visited = state.run_id, state.usage, tuple(state.visited)
        await ending.failed(error)
        raise


async def _within(
    state: RunState, seconds: float, body: Callable[[Ending], Coroutine[Any, Any, T]], ending: Ending
) -> T:
    timer = asyncio.timeout(seconds)
    state.timers = (timer,)
    try:
        async with timer:
            return await body(ending)
    except TimeoutError:
        if not timer.expired():
            raise
        state.ended = LimitReached("timeout_s", seconds)
        raise state.ended from None


async def _begin(state: RunState, root: Node) -> Sequence[Message]:
    """session_start where the session is new, then on_run_start. Returns the conversation so far."""
    history: Sequence[Message] = await state.host.sessions.begin(state)
    step = Step(state, state.scope, "agent", root.name, root.name)
    plan = step.plan(HookEvent.ON_RUN_START)
    if plan is not None:
        verdict = await plan.dispatch(state.run_context, step)
        if refuses(verdict):
            raise RunBlocked(HookEvent.ON_RUN_START, verdict.hook, verdict.public_reason)
        if verdict.payload is not state.run_context:
            history = await _renamed(state, verdict.payload, history)
    await _check_access(state, root)
    return history


async def _check_access(state: RunState, root: Node) -> None:
    """Raises LookupError where the root does not exist for this caller."""
    if root.visible is None:
        return
    from agent_engine.runtime.toolset import exists

    if not await exists(root, state):
        raise LookupError(f"There is no agent '{root.name}' for this caller.")


async def _renamed(state: RunState, context: RunContext, history: Sequence[Message]) -> Sequence[Message]:
    """Take over the identity that on_run_start left; another caller's conversation is another conversation."""
    before = state.run_context
    state.run_context = context
    RUN_CONTEXT.set(context)
    state.session_id = context.conversation_id or ""
    keys = [(one.organization_id, one.user_id, one.conversation_id) for one in (before, context)]
    if keys[0] == keys[1] or not (before.conversation_id or context.conversation_id):
        return history  # the same conversation, or still a session of its own
    await state.host.sessions.end_own(state)
    return await state.host.sessions.begin(state)


async def _submit(state: RunState, root: Node, prompt: str) -> tuple[str, tuple[str, ...]]:
    """user_prompt_submit: the prompt as its hooks left it, and the context they add."""
    step = Step(state, state.scope, "agent", root.name, root.name)
    plan = step.plan(HookEvent.USER_PROMPT_SUBMIT)
    if plan is None:
        return prompt, ()
    verdict = await step.aside(plan, payloads.UserPromptSubmitInput(**step.base(), prompt=prompt))
    if refuses(verdict):
        raise RunBlocked(HookEvent.USER_PROMPT_SUBMIT, verdict.hook, verdict.public_reason)
    return verdict.payload.prompt, verdict.additional_context


async def _turn(
    state: RunState,
    root: Node,
    ending: Ending,
    message: str | list[Any],
    history: Sequence[Message],
    notes: Sequence[str],
    frame: dict[str, Any] | None = None,
    *,
    whole: bool = False,
) -> RunResult:
    """The root's turn and, when it has an answer, the end of the run. ``whole``: ``history`` is the stored
    conversation, and a shortened one may take its place."""
    turns: list[Turn] = []
    try:
        answer: Answer = await run_node(
            state,
            root,
            message,
            scope=state.scope,
            history=history,
            notes=notes,
            frame=frame,
            timers=state.timers,
            turns=turns,
        )
    except Waiting as waiting:
        return await ending.waits(waiting)
    turn = turns[0]
    await ending.succeeded()
    for text in turn.held:
        state.tell("text", text=text)
    await state.host.sessions.keep(state, turn.added, turn.shortened if whole else None)
    return ending.result(answer.value, turn.added)
