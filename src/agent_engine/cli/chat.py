"""``agentctl chat``: a console that keeps the conversation, and shows what hooks decide while the answer comes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_engine.cli.main import DONE, report
from agent_engine.cli.options import EnvFile, ModelName, Records, SessionId, UserId
from agent_engine.cli.plaintext import answer_for, plain
from agent_engine.cli.state import state_path

if TYPE_CHECKING:
    from agent_engine.cli.talk import Talk
    from agent_engine.runtime.approvals import ToolApproval

HELP = """\
  /hooks   show every hook that runs, or only those that change or refuse something
  /new     begin a new conversation
  /quit    leave (Ctrl-D does too); Ctrl-C stops the answer that is being given"""


def chat(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", readable=False, help="The agents.yaml of the system to talk with.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="The address of a running `agentctl serve`.")] = None,
    session_id: SessionId = None,
    user_id: UserId = None,
    env: EnvFile = None,
    model: ModelName = None,
    records: Records = None,
) -> None:
    """Talk with a system.

    The conversation is kept, and --session-id goes on with an earlier one. A call that needs approval is asked about:
    o(nce), s(ession), d(eny), q(uit).
    """
    if (config is None) == (url is None):
        raise typer.BadParameter("give either --config FILE or --url URL.", param_hint="--config")
    if url is not None and model is not None:
        raise typer.BadParameter("the server at --url has its own model.", param_hint="--model")
    raise typer.Exit(asyncio.run(_chat(config, url, session_id, user_id, model, records)))


async def _chat(
    config: Path | None,
    url: str | None,
    session_id: str | None,
    user_id: str | None,
    model: str | None,
    records: str | None,
) -> int:
    from agent_engine.cli.talk import open_talk

    read = _reader(config)
    console = Console(read)
    async with open_talk(
        config,
        url,
        session_id=session_id or new_session(),
        user_id=user_id,
        model=model,
        records=records,
        console=console,
    ) as talk:
        await console.converse(talk)
    return DONE


def new_session() -> str:
    return f"chat-{uuid.uuid4().hex[:12]}"


class Console:
    """Reads what the person types, shows what comes back."""

    def __init__(self, read: Callable[[str], Awaitable[str]]) -> None:
        self.read = read
        self.every_hook = False
        self._turn: asyncio.Task[None] | None = None
        self._in_text = False
        self._asks: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def converse(self, talk: Talk) -> None:
        """One turn after the other until the person leaves."""
        self.note(f"{talk.name}, conversation {talk.session_id}. /help says what you can type.")
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.stop)
        try:
            while True:
                try:
                    line = (await self.read("you › ")).strip()
                except EOFError:
                    return
                except KeyboardInterrupt:
                    continue
                if line in ("/quit", "/exit"):
                    return
                if line.startswith("/"):
                    self._command(line, talk)
                elif line:
                    await self._one_turn(talk, line)
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def make_room(self, ask: ToolApproval) -> None:
        """Wait until everything that happened before an ask has been shown: the stream tells of the ask too."""
        await self._asks[ask.call_id].wait()
        self.end_text()

    def stop(self) -> None:
        """Stop the answer that is being given, if there is one."""
        if self._turn is not None:
            self._turn.cancel()

    def _command(self, line: str, talk: Talk) -> None:
        if line == "/hooks":
            self.every_hook = not self.every_hook
            self.note("Showing every hook." if self.every_hook else "Showing hooks that change or refuse something.")
        elif line == "/new":
            talk.session_id = new_session()
            self.note(f"A new conversation: {talk.session_id}.")
        else:
            self.note(HELP if line == "/help" else f"There is no {line.split()[0]}.\n{HELP}")

    async def _one_turn(self, talk: Talk, line: str) -> None:
        self._turn = asyncio.ensure_future(self._show_answer(talk, line))
        try:
            await self._turn
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self.note("Stopped.")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a failed turn is said, and the conversation goes on
            self.end_text()
            report(error)
        finally:
            self._turn = None
            self._asks.clear()

    async def _show_answer(self, talk: Talk, line: str) -> None:
        async for kind, data in talk.send(line):
            self.show(kind, data)
        self.end_text()

    def show(self, kind: str, data: dict[str, Any]) -> None:
        """One event of a run, by its type as RunEvent has it."""
        if kind == "text":
            print(answer_for(sys.stdout, data["text"]), end="", flush=True)
            self._in_text = True
        elif kind == "approval":
            self._asks[data["call_id"]].set()
        elif kind == "tool_started":
            self.note(plain(f"  → {_agent(data)}{data['tool_name']}"))
        elif kind == "tool_finished" and data.get("status") not in ("ok", "denied"):
            self.note(plain(f"  {data['tool_name']}: {data.get('status')}"))
        elif kind == "hook" and (self.every_hook or data.get("decision") not in ("allow", "none")):
            reason = f": {data['reason']}" if data.get("reason") else ""
            self.note(plain(f"  hook {data['event']} · {data['hook']}: {data['decision']}{reason}"))

    def note(self, text: str) -> None:
        """A line that is not part of the answer, on stderr."""
        self.end_text()
        dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else ("", "")
        print(f"{dim}{text}{plain}", file=sys.stderr, flush=True)

    def end_text(self) -> None:
        if self._in_text:
            print(flush=True)
            self._in_text = False


def _agent(data: dict[str, Any]) -> str:
    return f"{data['agent']}: " if data.get("agent") else ""


def _reader(config: Path | None) -> Callable[[str], Awaitable[str]]:
    """How lines are read: with recall and editing at a terminal, plainly from a pipe."""
    if not sys.stdin.isatty():
        return _read_pipe
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    history: History = InMemoryHistory()
    if config is not None and (folder := state_path(config).parent).parent.is_dir():
        with suppress(OSError):  # where nothing can be kept, the lines of this conversation are recalled all the same
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / "chat_history").touch(mode=0o600)
            history = FileHistory(str(folder / "chat_history"))
    session: PromptSession[str] = PromptSession(history=history, enable_history_search=True)

    async def read(prompt: str) -> str:
        # Ctrl-C at the prompt is a key; the signal stays with the console, which stops an answer with it.
        return await session.prompt_async(prompt, handle_sigint=False)

    return read


async def _read_pipe(prompt: str) -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        print("That line is not UTF-8 text, and was not sent.", file=sys.stderr, flush=True)
        return ""
