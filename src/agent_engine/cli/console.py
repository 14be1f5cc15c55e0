"""Asking a person at the terminal whether a call may run."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from agent_engine.cli.plaintext import plain, shortened

if TYPE_CHECKING:
    from agent_engine.runtime.approvals import ToolApproval

_STOPS_WITHIN_S = 10.0
_LONGEST_VALUE = 1_200
"""Characters of one argument that a person is shown before a yes."""

Read = Callable[[str], Awaitable[str]]
Decision = Literal["once", "session", "deny", "quit"]

_DECISIONS: dict[str, Decision] = {
    "o": "once",
    "once": "once",
    "y": "once",
    "yes": "once",
    "s": "session",
    "session": "session",
    "d": "deny",
    "deny": "deny",
    "n": "deny",
    "no": "deny",
    "q": "quit",
    "quit": "quit",
}


def at_terminal() -> bool:
    """Whether a person can be asked: the questions go to stderr, the answers come from stdin."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def read_line(prompt: str) -> str:
    """One line from the person; EOFError where there will be none."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    session: PromptSession[str] = PromptSession(output=create_output(stdout=sys.stderr))
    return await session.prompt_async(prompt)


def describe_ask(ask: ToolApproval) -> str:
    """What is asked, for a person: the call as it would run, and who asks why."""
    arguments = ", ".join(
        f"{name if name.isidentifier() else json.dumps(name)}={_short(value)}" for name, value in ask.arguments.items()
    )
    where = f" on {ask.server_id}" if ask.server_id else ""
    by = f" ({ask.hook})" if ask.hook else ""
    reason = f": {ask.reason}" if ask.reason else ""
    agent = f"{ask.agent} wants to call " if ask.agent else ""
    return plain(f"{agent}{ask.tool_name}({arguments}){where}{reason}{by}")


def ask_of(fields: Mapping[str, Any]) -> ToolApproval:
    """An ask from its stored or sent form; what it does not know is left out."""
    from agent_engine.runtime.approvals import ToolApproval

    return ToolApproval(**{name: fields[name] for name in ToolApproval.__slots__ if name in fields})


def _short(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return shortened(text, _LONGEST_VALUE)


async def ask_person(ask: ToolApproval, read: Read = read_line) -> Decision:
    """Ask until one of the four answers is given. The end of the input is a no."""
    print(f"\n{describe_ask(ask)}", file=sys.stderr, flush=True)
    while True:
        try:
            answer = await read("  o(nce), s(ession), d(eny) or q(uit)? ")
        except (EOFError, KeyboardInterrupt):
            return "quit"
        decision = _DECISIONS.get(answer.strip().lower())
        if decision is not None:
            return decision


class TerminalApprover:
    """An approver that asks the person at the terminal, one question at a time.

    ``before`` makes room for a question; ``stop`` is called where the person answers q.
    """

    def __init__(
        self,
        before: Callable[[ToolApproval], Awaitable[None]],
        stop: Callable[[], object],
        read: Read = read_line,
    ) -> None:
        self._before = before
        self._stop = stop
        self._read = read
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, ask: ToolApproval) -> bool | Literal["session"]:
        async with self._one_at_a_time:
            await self._before(ask)
            decision = await ask_person(ask, self._read)
            if decision == "quit":
                self._stop()
                await asyncio.sleep(_STOPS_WITHIN_S)  # the cancellation ends this: nothing goes on, or asks, after a q
                return False
        return "session" if decision == "session" else decision == "once"
