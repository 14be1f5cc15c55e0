"""Verification: is what the agent left behind what was asked for? Run by hand, or as hooks on ``after_agent``.

A blocking verification that fails is a deny, with what it found as the reason; one that does not block adds that as
context.

>>> registry.register_function("after_agent", CommandVerificationHook("tests", "pytest -q"))
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agent_engine.hooks.limits import being_cancelled
from agent_engine.hooks.portal import run_sync
from agent_engine.hooks.process import NotStarted, run_process, safe_environment
from agent_engine.hooks.result import HookResult
from agent_engine.hooks.rows import text_of
from agent_engine.hooks.workers import run_in_worker

logger = logging.getLogger("agent_engine.hooks")


@dataclass(slots=True)
class VerificationResult:
    """What one verification found.

    ``output`` is what it has to show (a command's output, up to 64 KiB of each stream); ``error`` says in one sentence
    why it failed, None where it did not.
    """

    name: str
    success: bool
    error: str | None = None
    output: str = ""
    blocking: bool = True
    duration_ms: float = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        """Whether it holds the agent's answer back."""
        return self.blocking and not self.success


@runtime_checkable
class VerificationHook(Protocol):
    """Anything with a name that can be asked to verify."""

    name: str
    blocking: bool

    async def verify(self, context: Mapping[str, Any] | None = None) -> VerificationResult: ...


class BaseVerificationHook:
    """A verification to build on: override ``check``; it returns None where all is well, else the sentence that says
    what is not.

    An exception of ``check`` is a failed verification, whether it blocks or not. An object of such a class is a hook
    for ``after_agent`` too.
    """

    def __init__(self, name: str, *, blocking: bool = True) -> None:
        self.name = name
        self.blocking = blocking

    async def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
        """What is wrong, in one sentence, or None. ``result.output`` and ``result.metadata`` may be filled."""
        raise NotImplementedError(f"{type(self).__name__} must override check")

    async def verify(self, context: Mapping[str, Any] | None = None) -> VerificationResult:
        """Run the check. It never raises for what it finds; a failure of the check itself is a failed verification."""
        result = VerificationResult(self.name, success=False, blocking=self.blocking)
        started = time.perf_counter()
        try:
            result.error = await self._checked(context or {}, result)
        except (Exception, SystemExit, asyncio.CancelledError) as problem:  # what broke has not verified anything
            if isinstance(problem, asyncio.CancelledError) and being_cancelled():
                raise
            result.error = f"Verification '{self.name}' broke: {type(problem).__name__}"
            logger.warning("%s: %s", result.error, text_of(problem))
        result.success = result.error is None
        result.duration_ms = (time.perf_counter() - started) * 1000
        return result

    async def _checked(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
        said: Any = self.check(context, result)
        if inspect.isawaitable(said):
            said = await said
            if said is None or (isinstance(said, str) and said):
                return said
            wrong = "its check returned an empty text" if said == "" else f"its check returned a {type(said).__name__}"
        else:
            wrong = "its check is no async method"
        return (
            f"Verification '{self.name}' broke: {wrong}; it returns None where all is well, else what is not, as text"
        )

    def verify_sync(self, context: Mapping[str, Any] | None = None) -> VerificationResult:
        """verify for code without an event loop."""
        return run_sync(lambda: self.verify(context))

    async def __call__(self, payload: Any) -> HookResult:
        """The hook: a deny where it blocks and fails, an allow that adds what it found where it only fails."""
        result = await self.verify(payload.to_dict() if hasattr(payload, "to_dict") else None)
        if result.blocked:
            return HookResult.deny(result.error or f"Verification '{self.name}' failed")
        return HookResult(additional_context=result.error)


class CommandVerificationHook(BaseVerificationHook):
    """A command that must end with exit code 0, such as a test run.

    Raises:
        ValueError: there is no command, or the limit is none.

    Args:
        name: what it is called.
        command: one shell line, or a list of program and arguments.
        cwd: the folder to run in; None is the caller's.
        timeout: seconds; the command and all it started are killed then.
        blocking: whether its failure holds the answer back.
    """

    def __init__(
        self,
        name: str,
        command: str | Sequence[str],
        cwd: str | None = None,
        timeout: float = 60.0,
        blocking: bool = True,
    ) -> None:
        super().__init__(name, blocking=blocking)
        words = [command] if isinstance(command, str) else command
        if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
            raise ValueError(f"Verification '{name}': command is one shell line, or a list of words")
        if not words[0].strip():
            raise ValueError(f"Verification '{name}': there is no command, and nothing would be verified")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
            raise ValueError(f"Verification '{name}': timeout is a number of seconds above 0, not {timeout!r}")
        self.command = command
        self.cwd = cwd
        self.timeout = timeout

    async def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
        arguments = ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else list(self.command)
        try:
            ended = await run_process(
                arguments, environment=safe_environment(), cwd=self.cwd, limit=self.timeout, keep_stdout=64 << 10
            )
        except NotStarted as problem:
            return f"Verification '{self.name}' could not be started: {problem}"
        result.output = (ended.stdout + ended.stderr).decode("utf-8", "replace")
        result.metadata["exit_code"] = ended.exit_code
        if not ended.in_time:
            return f"Verification '{self.name}' timed out after {self.timeout}s"
        if ended.exit_code != 0:
            last = (result.output.strip().splitlines() or ["no output"])[-1]
            return f"Verification '{self.name}' failed with exit code {ended.exit_code}: {last}"
        return None


class FileCheckHook(BaseVerificationHook):
    """A file that must be there (or must not), and what it must hold.

    Args:
        name: what it is called.
        path: the file; relative to the working directory.
        exists: False where it must not be there; nothing else is looked at then.
        non_empty: it must hold at least one byte.
        contains: text it must hold.
        json_field: where in a JSON file to look, as keys and indexes joined by dots: ``summary.items.0``.
        equals: what that field must be; None: it need only be there. Without json_field: the whole text.
        blocking: whether its failure holds the answer back.

    Raises:
        ValueError: contains or json_field is no text, or names nothing.
    """

    def __init__(
        self,
        name: str,
        path: str | os.PathLike[str],
        exists: bool = True,
        non_empty: bool = False,
        contains: str | None = None,
        json_field: str | None = None,
        equals: Any = None,
        blocking: bool = True,
    ) -> None:
        super().__init__(name, blocking=blocking)
        for key, value in (("contains", contains), ("json_field", json_field)):
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"Verification '{name}': {key} is text, not {value!r}")
        self.path = Path(path)
        self.exists = exists
        self.non_empty = non_empty
        self.contains = contains
        self.json_field = json_field
        self.equals = equals

    async def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
        return await run_in_worker(self._look, limit=None)

    def _look(self) -> str | None:
        if not self.exists:
            return f"{self.path} is there, and must not be" if self.path.exists() else None
        if not self.path.is_file():
            return f"{self.path} is not there"
        try:
            text = self.path.read_text("utf-8")
        except UnicodeDecodeError:
            return f"{self.path} is not UTF-8 text"
        except OSError as problem:
            return f"{self.path} cannot be read: {problem.strerror}"
        if self.non_empty and not text:
            return f"{self.path} is empty"
        if self.contains is not None and self.contains not in text:
            return f"{self.path} does not contain {self.contains!r}"
        if self.json_field is not None:
            return self._look_at_field(text)
        if self.equals is not None and text != self.equals:
            return f"{self.path} does not hold exactly what it must"
        return None

    def _look_at_field(self, text: str) -> str | None:
        try:
            value = json.loads(text)
        except ValueError:
            return f"{self.path} is not JSON"
        for key in (self.json_field or "").split("."):
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return f"{self.path} has no field {self.json_field!r}"
        if self.equals is not None and (
            value != self.equals or isinstance(value, bool) != isinstance(self.equals, bool)
        ):
            return f"{self.path}: {self.json_field} is {value!r}, and must be {self.equals!r}"
        return None
