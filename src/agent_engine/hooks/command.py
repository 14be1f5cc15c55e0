"""Command hooks: a process that reads the payload as JSON and answers with an exit code and text or JSON."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from itertools import pairwise

from agent_engine.hooks.definition import CommandHook
from agent_engine.hooks.errors import HookFailure
from agent_engine.hooks.jsonform import JsonFormError, payload_json
from agent_engine.hooks.process import Finished, NotStarted, run_process, safe_environment
from agent_engine.hooks.protocol import MAX_ANSWER, parse_command_output, read_exit, read_refusal
from agent_engine.hooks.result import HookResult

__all__ = ["CommandOutcome", "check_command", "command_name", "parse_command_output", "run_command"]

_INTERPRETER = re.compile(r"python[\d.]*|node|bash|sh|perl|ruby")
_SCRIPT = re.compile(r"[\w@%+-]*[./][\w@%+./-]*")
_PREFIXES = ("exec", "env", "command", "nohup")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NOT_SIMPLE = re.compile(r"[|&;<>()$`*?\[\]{}~#!\n]")


@dataclass(slots=True)
class CommandOutcome:
    """What a command did: its output, its exit code (128 + n for signal n, None where unknown) and its decision."""

    stdout: str
    stderr: str
    exit_code: int | None
    result: HookResult


class CommandFailure(HookFailure):
    """A command hook broke; what it had said by then, and its exit code where it had one."""

    def __init__(
        self, reason: str, failure_type: str, stdout: str = "", stderr: str = "", exit_code: int | None = None
    ) -> None:
        super().__init__(reason, failure_type)
        self.stdout = stdout
        self.stderr = stderr
        self.exit_code = exit_code


async def run_command(
    hook: CommandHook, payload: object, *, cwd: str | None = None, limit: float | None = None
) -> CommandOutcome:
    """Run one command hook on one payload.

    Args:
        hook: what to run.
        payload: written to standard input in its JSON form.
        cwd: the folder to run in; None is the caller's.
        limit: seconds; None means no limit.

    Raises:
        HookFailure: the hook broke: no JSON form, no program, an unexpected exit code, a bad answer, or the limit.
    """
    folder = os.path.join(cwd or "", hook.cwd) if hook.cwd else cwd
    missing = _missing_script(hook, folder)
    if missing is not None:
        raise CommandFailure(f"Hook exited with unexpected code 2: {missing}", "missing_script", exit_code=2)
    try:
        document = payload_json(payload, str(hook.event))
    except JsonFormError as problem:
        raise CommandFailure(f"Hook '{hook.name}' was not run: {problem}", "no_json_form") from None
    try:
        finished = await run_process(
            _arguments(hook),
            document,
            environment=safe_environment(hook.env, hook.pass_env),
            cwd=folder,
            limit=limit,
            keep_stdout=MAX_ANSWER,
        )
    except NotStarted as problem:
        code = problem.exit_code
        if code is None:
            raise CommandFailure(f"Hook could not be started: {problem}", "not_started") from None
        reason = f"Hook exited with unexpected code {code}: {problem}"
        raise CommandFailure(reason, "exit_code", exit_code=code) from None
    return _outcome(hook, finished, limit)


def command_name(hook: CommandHook) -> str:
    """What a command is called where it was given no name: its program, or the script or module that an interpreter
    runs. No other word of it, for one may hold a secret."""
    words = _call(hook) or (hook.command or "").split() or ["command"]
    program = os.path.basename(words[0])
    if _INTERPRETER.fullmatch(program):
        for before, word in pairwise(words):
            script = before is words[0] or before == "-m" or _SCRIPT.fullmatch(word)
            if script and not word.startswith("-"):
                return os.path.basename(word.rstrip("/"))
    return program


def check_command(hook: CommandHook, cwd: str | None = None) -> None:
    """Refuse what can be seen to be broken before it ever runs.

    Raises:
        ValueError: what is wrong, in one sentence.
    """
    words = _arguments(hook)
    if not words or not words[0].strip():
        raise ValueError("there is nothing to run; give a shell line (command) or a list of words (args)")
    if any("\0" in word for word in (*words, *hook.env, *hook.env.values())):
        raise ValueError("a command, an argument or a variable holds a NUL character")
    if any(not name or "=" in name for name in hook.env):
        raise ValueError("env maps names of variables to values; a name holds no '='")
    missing = _missing_script(hook, cwd or hook.cwd)
    if missing is not None:
        raise ValueError(missing)


def _outcome(hook: CommandHook, finished: Finished, limit: float | None) -> CommandOutcome:
    stdout = finished.stdout.decode("utf-8", "replace")
    stderr = finished.stderr.decode("utf-8", "replace")
    code = finished.exit_code
    try:
        if not finished.in_time or code is None:
            result = read_refusal(stdout)
            if result is None:
                late = f"timed out after {limit}s", "timeout"
                taken = "has no exit code: another part of this program took it", "exit_code"
                problem, kind = taken if finished.in_time else late
                raise HookFailure(f"Hook '{hook.name}' {problem}", kind)
        elif code == 0 and finished.overlong:
            raise HookFailure(f"Hook answered with more than {MAX_ANSWER:,} bytes", "bad_output")
        elif code == 0 and not _is_utf8(finished.stdout):
            raise HookFailure("Hook answered with bytes that are not UTF-8", "bad_output")
        else:
            result = read_exit(stdout, stderr, code)
    except HookFailure as failure:
        raise CommandFailure(failure.reason, failure.failure_type, stdout, stderr, code) from None
    return CommandOutcome(stdout, stderr, code, result)


def _is_utf8(output: bytes) -> bool:
    try:
        output.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _arguments(hook: CommandHook) -> list[str]:
    if hook.args is not None:
        return list(hook.args)
    line = hook.command or ""
    if hook.shell:
        return ["/bin/sh", "-c", line]
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise ValueError(f"its command line cannot be split into words: {problem}") from None


def _missing_script(hook: CommandHook, cwd: str | None) -> str | None:
    """What is wrong where an interpreter is named with a script that it will not find; None where nothing is."""
    words = _call(hook)
    if len(words) < 2 or words[1].startswith("-") or _INTERPRETER.fullmatch(os.path.basename(words[0])) is None:
        return None
    script = os.path.join(cwd or os.getcwd(), words[1])
    if os.path.isdir(script):
        readable = os.path.isfile(os.path.join(script, "__main__.py")) and "python" in words[0]
    else:
        readable = os.access(script, os.R_OK)
    return None if readable else f"{words[0]} cannot open its script {words[1]!r} (looked for in {cwd or os.getcwd()})"


def _call(hook: CommandHook) -> list[str]:
    """The program and its arguments, without what only prepares the call; none where only a shell knows them."""
    words = _words(hook)
    while words and (os.path.basename(words[0]) in _PREFIXES or _ASSIGNMENT.match(words[0])):
        words.pop(0)
    return words


def _words(hook: CommandHook) -> list[str]:
    if hook.args is not None:
        return list(hook.args)
    line = hook.command or ""
    if hook.shell and _NOT_SIMPLE.search(line):
        return []
    try:
        return shlex.split(line)
    except ValueError:
        return []
