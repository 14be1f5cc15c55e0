"""``agentctl run``: one message through a system; the answer on stdout, what happened on the way on stderr."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_engine.cli.main import APPROVAL, DONE, report
from agent_engine.cli.options import Config, EnvFile, ModelName, Records, SessionId, UserId
from agent_engine.cli.plaintext import answer_for, plain, text_of

if TYPE_CHECKING:
    from agent_engine.cli.account import Account, Style
    from agent_engine.hooks.managed import RunContext
    from agent_engine.runtime.approvals import ToolApproval
    from agent_engine.runtime.engine import Engine
    from agent_engine.runtime.result import RunResult


def run(
    config: Config,
    message: Annotated[str, typer.Option("--message", "-m", help="What to ask; - reads it from stdin.")],
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer while it comes.")] = False,
    session_id: SessionId = None,
    user_id: UserId = None,
    env: EnvFile = None,
    model: ModelName = None,
    records: Records = None,
    as_json: Annotated[bool, typer.Option("--json", help="The account as JSON, one object a line.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No account.")] = False,
) -> None:
    """Send one message to a system and print its answer.

    The answer goes to stdout. What each hook did on the way goes to stderr: a tree at a terminal, plain lines where it
    is piped, JSON lines with --json. A call that needs approval is asked about at a terminal; elsewhere the run is
    kept, exit code 3, and `agentctl approvals` goes on with it.
    """
    from agent_engine.cli.account_view import style_for

    text = _message(message)
    style = style_for(as_json=as_json, quiet=quiet)
    code = asyncio.run(
        _run(config, text, style, stream=stream, session_id=session_id, user_id=user_id, model=model, records=records)
    )
    raise typer.Exit(code)


def _message(given: str) -> str:
    """What ``--message`` says, or stdin where it says ``-``."""
    try:
        raw = sys.stdin.buffer.read() if given == "-" else os.fsencode(given)
        text = raw.decode("utf-8-sig")
    except UnicodeError:
        raise typer.BadParameter("the message is not UTF-8 text.", param_hint="--message") from None
    if not text.strip():
        raise typer.BadParameter("the message is empty.", param_hint="--message")
    return text


async def _run(
    config: Path,
    message: str,
    style: Style,
    *,
    stream: bool,
    session_id: str | None,
    user_id: str | None,
    model: str | None,
    records: str | None,
) -> int:
    from agent_engine.cli.account import Account, LogLine
    from agent_engine.cli.console import TerminalApprover, at_terminal
    from agent_engine.cli.state import open_store
    from agent_engine.hooks.managed import RunContext
    from agent_engine.runtime.engine import Engine

    task = asyncio.current_task()
    assert task is not None
    account = Account(style)

    async def make_room(ask: ToolApproval) -> None:
        style.pause()

    approver = TerminalApprover(make_room, task.cancel) if at_terminal() else "later"
    engine = Engine.from_yaml(
        config,
        approver=approver,
        records=[account, records] if records else account,
        store=open_store(config),
        model=model,
    )
    context = RunContext(conversation_id=session_id or "", user_id=user_id)
    async with engine:
        account.settle()
        for problem in engine.loaded.warnings:
            account.log(LogLine("agentctl", logging.WARNING, str(problem)), None)
        options = resuming(config, model, records)
        return await answer(engine, message, account, context=context, stream=stream, options=options)


async def answer(
    engine: Engine,
    message: str,
    account: Account,
    *,
    context: RunContext | None = None,
    stream: bool = False,
    options: Sequence[str] = (),
) -> int:
    """Run one message through a built engine, print the answer, and return the exit code.

    A failure of the run is said on stderr; a cancellation goes on as such.
    """
    return await finish(_ask(engine, message, account, context, stream), account, printed=stream, options=options)


async def finish(
    work: Awaitable[RunResult], account: Account, *, printed: bool = False, options: Sequence[str] = ()
) -> int:
    """Wait for a run, then print its answer, or say what went wrong; return the exit code.

    ``options`` are what `agentctl approvals` needs to find the run, where it waits.
    """
    try:
        result = await work
    except BrokenPipeError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every failure of a run becomes a sentence and an exit code
        account.style.pause()
        return report(error)
    account.style.pause()
    return show_result(result, account, printed=printed, options=options)


async def _ask(engine: Engine, message: str, account: Account, context: RunContext | None, stream: bool) -> RunResult:
    if not stream:
        return await engine.run(message, context=context)
    result: RunResult | None = None
    async for event in engine.stream(message, context=context):
        if event.type == "text":
            account.style.pause()
            print(answer_for(sys.stdout, event.data["text"]), end="", flush=True)
        elif event.type == "final":
            result = event.result
    assert result is not None, "a stream that does not fail ends with its result"
    if result.status == "completed":
        print(flush=True)
    return result


def show_result(result: RunResult, account: Account, *, printed: bool = False, options: Sequence[str] = ()) -> int:
    """Print an answer, or how to give the approvals that a run waits for; return the exit code."""
    account.style.result(summary(result))
    if result.status == "waiting":
        _say_waiting(result, options)
        return APPROVAL
    if not printed:
        print(answer_for(sys.stdout, text_of(result.output)), flush=True)
    return DONE


def summary(result: RunResult) -> dict[str, Any]:
    """A result as JSON-ready data, without the messages."""
    usage = result.usage
    return {
        "status": result.status,
        "run_id": result.run_id,
        "session_id": result.session_id,
        "visited": list(result.visited),
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
        "pending": [ask.to_dict() for ask in result.pending],
    }


def _say_waiting(result: RunResult, options: Sequence[str]) -> None:
    from agent_engine.cli.console import describe_ask

    command = shlex.join(["agentctl", "approvals", "approve", result.run_id, *options])
    print(f"Run {result.run_id} waits for approval:", file=sys.stderr)
    for ask in result.pending:
        print(f"  {plain(ask.call_id)}  {describe_ask(ask)}", file=sys.stderr)
    print(f"Give it with: {command}   (or deny; it is a no after 24 hours)", file=sys.stderr)


def resuming(config: Path, model: str | None, records: str | None) -> list[str]:
    """The options with which `agentctl approvals` goes on with a run as it was begun."""
    pairs = (("--config", str(config)), ("--model", model), ("--records", records))
    return [word for name, value in pairs if value is not None for word in (name, value)]
