"""'ask': who may lift it, and what the yes is bound to."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agent_engine.runtime.state import RunState
    from agent_engine.runtime.step import Step

logger = logging.getLogger("agent_engine.runtime")

Answer = bool | Literal["session"]
Approver = Callable[["ToolApproval"], Answer | Awaitable[Answer]]
Decision = Literal["yes", "session", "no"]


@dataclass(slots=True, kw_only=True)
class ToolApproval:
    """One question to a person: may this call run?

    Args:
        call_id: the tool call's id; an answer names it.
        tool_name: the tool.
        arguments: the arguments the tool would see, after every rewrite. An approver that changes them and says yes
            approves the changed ones: they are validated and pass the before_tool hooks again.
        agent: name of the agent that makes the call.
        server_id: the MCP server of the tool, None for a local tool.
        reason: why it is asked.
        hook: name of the hook that asked; None where the tool or the agent asks for every call.
        run_id: the run.
    """

    call_id: str
    tool_name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    agent: str = ""
    server_id: str | None = None
    reason: str | None = None
    hook: str | None = None
    run_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The ask as a dict of its fields."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Reply:
    """What became of an ask. ``decision`` is "later" where the run has to wait for it.

    ``by`` says who answered: "hook", "approver", "grant", "nobody", "time-out", "failure" or "expiry". ``reason`` is
    one that a hook gave on purpose. ``arguments`` are those the yes holds for.
    """

    decision: Decision | Literal["later"]
    by: str
    arguments: dict[str, Any]
    reason: str | None = None
    hook: str | None = None


Grant = tuple[str, str, str | None]


def grant_of(ask: ToolApproval) -> Grant:
    """What a yes for the session is for: the agent, the tool, its server."""
    return (ask.agent, ask.tool_name, ask.server_id)


async def consult(
    step: Step, ask: ToolApproval, target: str | tuple[str, ...], seconds: float, *, may_wait: bool
) -> Reply:
    """Find out whether a call may run: a grant of the session, a hook on ``on_permission_ask``, then the approver.

    ``target`` are the names of the tool that matchers are tried against. A yes for the session is remembered in the
    session. ``may_wait``: whether the answer may be "later".
    """
    session, grant = step.state.session, grant_of(ask)  # what is asked now, whatever an approver makes of the ask
    if session is not None and grant in session.grants:
        return Reply("yes", "grant", ask.arguments)
    reply = await _ask_hooks(step, ask, target)
    if reply is None:
        reply = await _ask_person(step, ask, seconds, may_wait)
    if reply.decision == "session" and session is not None:
        session.grants.add(grant)
    return reply


async def _ask_hooks(step: Step, ask: ToolApproval, target: str | tuple[str, ...]) -> Reply | None:
    from agent_engine.hooks.events import HookEvent

    plan = step.plan(HookEvent.ON_PERMISSION_ASK, target, ask.server_id)
    if plan is None:
        return None
    from agent_engine.hooks.payloads import OnPermissionAskInput, private_copy

    payload = OnPermissionAskInput(
        **step.base(),
        tool_name=ask.tool_name,
        tool_input=private_copy(ask.arguments),
        reason=ask.reason,
        call_id=ask.call_id,
    )
    verdict = await plan.dispatch(payload, step)
    if verdict.denied:
        return Reply("no", "hook", ask.arguments, verdict.public_reason, verdict.hook)
    if verdict.decision != "allow":
        return None
    return Reply("yes", "hook", verdict.payload.tool_input, None, verdict.hook)


async def _ask_person(step: Step, ask: ToolApproval, seconds: float, may_wait: bool) -> Reply:
    from agent_engine.hooks.limits import within
    from agent_engine.hooks.payloads import private_copy
    from agent_engine.runtime.reporting import notify

    state = step.state
    approver = state.host.approver
    given = ask.arguments
    if approver is None or (approver == "later" and not may_wait):
        return Reply("no", "nobody", given)
    _tell_apart(state, ask)
    message = await notify(step, "approval_needed", f"Approval needed: {ask.tool_name} ({ask.call_id}).")
    ask.arguments = private_copy(given)
    state.tell("approval", **ask.to_dict(), message=message)
    if approver == "later":
        return Reply("later", "nobody", given)
    call_id = ask.call_id
    try:
        answer, problem = await within(_answer_of(approver, ask, seconds), seconds)
    finally:
        state.asked.discard(call_id)
    if isinstance(problem, TimeoutError):
        return Reply("no", "time-out", given)
    if problem is not None:  # one that fails, or is cancelled from inside, has not said yes
        logger.warning("The approver failed for %s: %s", ask.tool_name, type(problem).__name__)
        return Reply("no", "failure", given)
    if answer is True:
        return Reply("yes", "approver", ask.arguments)
    if answer == "session":
        return Reply("session", "approver", ask.arguments)
    if answer is not False:
        logger.warning("The approver answered neither True, False nor 'session' for %s: taken for a no.", ask.tool_name)
    return Reply("no", "approver", given)


def _tell_apart(state: RunState, ask: ToolApproval) -> None:
    """Two agents of a run may number their calls alike: an answer by id is for one of them."""
    number, call_id = 2, ask.call_id
    while ask.call_id in state.asked:
        ask.call_id = f"{call_id}#{number}"
        number += 1
    state.asked.add(ask.call_id)


async def _answer_of(approver: Any, ask: ToolApproval, seconds: float) -> object:
    from agent_engine.hooks.definition import is_async_callable
    from agent_engine.hooks.workers import run_in_worker

    if is_async_callable(approver):
        return await approver(ask)
    answer = await run_in_worker(approver, ask, limit=seconds)
    return await answer if isinstance(answer, Awaitable) else answer


class ApprovalDesk:
    """An approver whose answers come from outside: ``Engine(approver=desk)``, then ``desk.answer(call_id, True)``.

    It may be answered from any thread. What nobody answers in time is a no, like with any approver.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], tuple[ToolApproval, asyncio.AbstractEventLoop, asyncio.Future[Answer]]] = {}

    async def __call__(self, ask: ToolApproval) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        key = (ask.run_id, ask.call_id)
        with self._lock:
            self._open[key] = (ask, loop, future)
        try:
            return await future
        finally:
            with self._lock:
                self._open.pop(key, None)

    def open(self) -> list[ToolApproval]:
        """The asks that wait for an answer, oldest first."""
        with self._lock:
            return [ask for ask, _, _ in self._open.values()]

    def answer(self, call_id: str, answer: Answer, run_id: str | None = None) -> bool:
        """Answer one ask: True, False or "session". Returns False where no such ask is open: the first answer counts.

        Raises:
            LookupError: several runs ask under this call id; name the run.
        """
        with self._lock:
            found = [key for key in self._open if key[1] == call_id and run_id in (None, key[0])]
            if len(found) > 1:
                raise LookupError(f"{len(found)} runs ask under the call id {call_id!r}: name the run too.")
            if not found:
                return False
            _, loop, future = self._open.pop(found[0])
        loop.call_soon_threadsafe(_settle, future, answer)
        return True


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def terminal_approver(ask: ToolApproval) -> Answer:
    """Ask at the terminal: o for once, s for this session, anything else is a no."""
    import json
    import sys

    arguments = json.dumps(ask.arguments, ensure_ascii=False, default=str)
    reason = f" ({ask.reason})" if ask.reason else ""
    sys.stderr.write(f"{ask.agent} wants to call {ask.tool_name} {arguments}{reason}\n")
    sys.stderr.write("Allow? [o]nce, [s]ession, [d]eny: ")
    sys.stderr.flush()
    word = sys.stdin.readline().strip().lower()
    if word in ("o", "once", "y", "yes"):
        return True
    return "session" if word in ("s", "session") else False
