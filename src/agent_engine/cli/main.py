"""``agentctl``: the commands by name, and a failure of the user's own as one sentence and an exit code."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from agent_engine.cli.plaintext import plain

if TYPE_CHECKING:
    from agent_engine.spec.problems import Problem

# name -> module of this package and the attribute that holds a Typer app or a function; imported when it is used.
COMMANDS: dict[str, tuple[str, str]] = {
    "validate": ("validate", "validate"),
    "inspect": ("inspect", "inspect"),
    "generate": ("generate", "generate"),
    "schema": ("schema", "schema"),
    "run": ("run", "run"),
    "chat": ("chat", "chat"),
    "serve": ("serve", "serve"),
    "approvals": ("approvals", "app"),
    "hooks": ("hooks", "app"),
    "memory-hooks": ("memory_hooks", "app"),
    "mcp": ("mcp", "app"),
    "records": ("records", "app"),
    "replay": ("replay", "app"),
}

DONE, PROBLEM, USAGE, APPROVAL, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


class Commands(TyperGroup):
    """Imports a command's module when that command is asked for, so that a call pays for one command alone."""

    def list_commands(self, ctx: Any) -> list[str]:
        here = Path(__file__).parent
        return [name for name, (module, _) in COMMANDS.items() if (here / f"{module}.py").exists()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name not in self.list_commands(ctx):
            return None
        module, attribute = COMMANDS[cmd_name]
        found = getattr(import_module(f"agent_engine.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
            single.command(cmd_name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = cmd_name
        self.commands[cmd_name] = command
        return command


app = typer.Typer(
    cls=Commands,
    name="agentctl",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(value: bool) -> None:
    if value:
        from agent_engine import __version__

        typer.echo(f"agentctl {__version__}")
        raise typer.Exit


@app.callback()
def agentctl(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Check, look at and run systems of AI agents that a YAML file declares.

    Exit codes: 0 done, 1 a problem in the files, 2 wrong usage, 3 approval needed, 4 the run failed, 5 refused
    by a hook.
    """


def main() -> None:
    """The command ``agentctl``."""
    _open_streams()
    try:
        app(prog_name="agentctl")
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        # Whoever read our output has gone (`agentctl inspect | head`); nothing is left to say, and nobody to say it to.
        raise SystemExit(DONE) from None
    except BaseException as error:  # noqa: BLE001 - the last place where an error can become a sentence
        raise SystemExit(report(error)) from None


def _open_streams() -> None:
    """Started with a stream closed (cron, a daemon), it finds an empty one; no text is too odd to be printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def report(error: BaseException) -> int:
    """Say on stderr what went wrong, in one sentence or a line a problem, and return the exit code for it.

    With AGENT_ENGINE_DEBUG set the traceback follows.
    """
    from agent_engine.cli.failures import explain

    text, code = explain(error)
    print(plain(text, keep="\n"), file=sys.stderr)
    if os.environ.get("AGENT_ENGINE_DEBUG"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    return code


def show_problems(problems: list[Problem]) -> None:
    """One line a problem on stderr, in the order of the file."""
    for problem in problems:
        print(problem, file=sys.stderr)


if __name__ == "__main__":
    main()
