"""HooksManager: commands and functions of a workspace that run when ``execute`` is called, and never by themselves.

The commands stand in ``.agent_engine/hooks.json`` of the workspace; functions are registered in Python. Agents do not
know about either: for hooks that fire around an agent's own calls see ``agent_engine.hooks``.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_engine.hooks.definition import callable_name, cannot_be_called, is_async_callable
from agent_engine.hooks.errors import guardrail_in
from agent_engine.hooks.jsonform import JsonFormError, to_json
from agent_engine.hooks.limits import TimedOut, within
from agent_engine.hooks.payloads import private_copy
from agent_engine.hooks.portal import run_sync
from agent_engine.hooks.process import Finished, NotStarted, run_process, safe_environment
from agent_engine.hooks.result import HookResult
from agent_engine.hooks.together import is_awaitable
from agent_engine.hooks.workers import Overran, run_in_worker
from agent_engine.memory.hooks_config import (
    CONFIG_PATH,
    DEFAULT_TIMEOUT,
    EVENTS,
    EXAMPLE,
    Config,
    Entry,
    HooksConfigError,
    known_event,
)

__all__ = ["ExecutionResult", "HookReport", "HooksConfigError", "HooksManager", "create_hooks_manager"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class HookReport:
    """How one hook of a workspace went. ``error`` is one sentence, None where it succeeded."""

    event: str
    name: str
    success: bool
    error: str | None = None
    output: str = ""
    exit_code: int | None = None
    duration_ms: float = 0.0


@dataclass(slots=True)
class ExecutionResult:
    """How the hooks of one event went. ``blocked``: one failed that was told to block; ``reason`` is what it said."""

    event: str
    success: bool = True
    blocked: bool = False
    reason: str | None = None
    reports: list[HookReport] = field(default_factory=list)

    @property
    def output(self) -> str:
        """What all of them said, a line break between."""
        return "\n".join(report.output for report in self.reports if report.output)

    def __bool__(self) -> bool:
        return not self.blocked


class HooksManager:
    """The hooks of one workspace.

    Args:
        workspace_path: the folder that holds ``.agent_engine``, and in which commands run; None is the working
            directory.
        verbose: 1 logs each hook that ran, 2 its output too.

    Raises:
        HooksConfigError: the file exists and is wrong.
    """

    def __init__(self, workspace_path: str | Path | None = None, verbose: int = 0) -> None:
        self.workspace_path = Path(workspace_path) if workspace_path is not None else Path.cwd()
        self.verbose = verbose
        self.enabled = True
        self.timeout = DEFAULT_TIMEOUT
        self._from_file: dict[str, list[Entry]] = {}
        self._registered: dict[str, list[Entry]] = {}
        self._counts = {"executions": 0, "hooks_run": 0, "failures": 0, "blocked": 0}
        self.reload()

    @property
    def config_path(self) -> Path:
        """Where the file is, or would be."""
        return self.workspace_path / CONFIG_PATH

    def reload(self) -> None:
        """Read the file again; what was registered in Python stays. On an error everything is as it was.

        Raises:
            HooksConfigError: the file is wrong.
        """
        config = Config.read(self.config_path)
        self.enabled, self.timeout, self._from_file = config.enabled, config.timeout, config.hooks

    def register(
        self,
        event: str,
        function: Callable[[dict[str, Any]], Any],
        *,
        block_on_failure: bool = False,
        timeout: float | None = None,
    ) -> Callable[[dict[str, Any]], Any]:
        """Add a function, sync or async, called with a copy of the context. It fails by raising, or by returning False,
        a text, or a HookResult (or a dict with a ``decision``) that is no allow.

        Raises:
            ValueError: there is no such event.
            TypeError: it cannot be called with one argument.
        """
        event = known_event(event)
        problem = cannot_be_called(function)
        if problem:
            raise TypeError(f"No hook for {event}: {problem}")
        entry = Entry(callable_name(function), function=function, timeout=timeout, block_on_failure=block_on_failure)
        self._registered.setdefault(event, []).append(entry)
        return function

    def unregister(self, event: str, function: Callable[[dict[str, Any]], Any]) -> bool:
        """Take a function out; False where it was not there."""
        entries = self._registered.get(known_event(event), [])
        left = [entry for entry in entries if entry.function is not function and entry.function != function]
        self._registered[event] = left
        return len(left) < len(entries)

    def has_hooks(self, event: str | None = None) -> bool:
        """Whether ``execute`` would run anything, for one event or for any."""
        return self.enabled and any(
            self._entries(name) for name in ((known_event(event),) if event is not None else EVENTS)
        )

    def execute(self, event: str, context: Mapping[str, Any] | None = None) -> ExecutionResult:
        """Run the hooks of one event, those of the file first, one after the other. It works inside a running event
        loop too.

        A hook that fails and was told to block ends it; one that merely fails is reported, and the next one runs.

        Raises:
            ValueError: there is no such event.
        """
        return run_sync(lambda: self.aexecute(event, context))

    async def aexecute(self, event: str, context: Mapping[str, Any] | None = None) -> ExecutionResult:
        """``execute`` for async code."""
        result = ExecutionResult(known_event(event))
        entries = self._entries(event) if self.enabled else []
        if not entries:
            return result
        self._counts["executions"] += 1
        for entry in entries:
            report = await self._run(event, entry, private_copy(dict(context or {})))
            result.reports.append(report)
            self._counts["hooks_run"] += 1
            if report.success:
                continue
            self._counts["failures"] += 1
            result.success = False
            if entry.block_on_failure:
                self._counts["blocked"] += 1
                result.blocked, result.reason = True, report.error
                break
        return result

    def get_stats(self) -> dict[str, Any]:
        """What is set up and what has been run: JSON-ready."""
        return {
            "enabled": self.enabled,
            "workspace": str(self.workspace_path),
            "config_path": str(self.config_path),
            "config_exists": self.config_path.is_file(),
            "timeout": self.timeout,
            "hooks": {event: len(self._entries(event)) for event in EVENTS if self._entries(event)},
            "total_hooks": sum(len(self._entries(event)) for event in EVENTS),
            **self._counts,
        }

    def list_hooks(self) -> dict[str, list[dict[str, Any]]]:
        """Every hook in the order it runs, switched-off ones too: {event: [{name, type, timeout, enabled,
        block_on_failure}]}.
        """
        return {
            event: [
                {
                    "name": entry.name,
                    "type": "command" if entry.command is not None else "function",
                    "timeout": entry.timeout if entry.timeout is not None else self.timeout,
                    "enabled": entry.enabled,
                    "block_on_failure": entry.block_on_failure,
                }
                for entry in (*self._from_file.get(event, ()), *self._registered.get(event, ()))
            ]
            for event in EVENTS
            if self._from_file.get(event) or self._registered.get(event)
        }

    def create_config(self, force: bool = False) -> Path:
        """Write a file with an example in it, and read it.

        Raises:
            FileExistsError: there is one, and ``force`` is not set.
        """
        path = self.write_example(self.workspace_path, force=force)
        self.reload()
        return path

    @staticmethod
    def write_example(workspace_path: Path, force: bool = False) -> Path:
        """The same without a manager, for a file that may be broken."""
        path = workspace_path / CONFIG_PATH
        if path.exists() and not force:
            raise FileExistsError(f"{path} exists; it was left as it is")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(EXAMPLE, indent=2) + "\n", "utf-8")
        return path

    def _entries(self, event: str) -> list[Entry]:
        return [entry for entry in (*self._from_file.get(event, ()), *self._registered.get(event, ())) if entry.enabled]

    async def _run(self, event: str, entry: Entry, context: dict[str, Any]) -> HookReport:
        report = HookReport(event, entry.name, success=False)
        limit = entry.timeout if entry.timeout is not None else self.timeout
        started = time.perf_counter()
        if entry.function is not None:
            report.error = await _call(entry.function, context, limit, report)
        else:
            report.error = await self._command(event, entry, context, limit, report)
        report.success = report.error is None
        report.duration_ms = (time.perf_counter() - started) * 1000
        if self.verbose:
            logger.info("%s hook %s: %s", event, entry.name, report.error or "ok")
        if self.verbose > 1 and report.output:
            logger.info("%s hook %s said: %s", event, entry.name, report.output)
        return report

    async def _command(
        self, event: str, entry: Entry, context: dict[str, Any], limit: float, report: HookReport
    ) -> str | None:
        try:
            document = to_json({**context, "event": event}) if entry.pass_input else b""
        except JsonFormError as problem:
            return f"Hook '{entry.name}' was not run: {problem}"
        try:
            ended = await run_process(
                ["/bin/sh", "-c", entry.command or ""],
                document,
                environment=safe_environment(
                    {"AGENT_ENGINE_EVENT": event, "AGENT_ENGINE_WORKSPACE": str(self.workspace_path)}
                ),
                cwd=str(self.workspace_path),
                limit=limit,
            )
        except NotStarted as problem:
            return f"Hook '{entry.name}' could not be started: {problem}"
        report.output = ended.stdout.decode("utf-8", "replace").strip()
        report.exit_code = ended.exit_code
        return _failure(entry, ended, limit)


def create_hooks_manager(workspace_path: str | Path | None = None, verbose: int = 0) -> HooksManager:
    """The same as HooksManager(...)."""
    return HooksManager(workspace_path, verbose)


async def _call(
    function: Callable[[dict[str, Any]], Any], context: dict[str, Any], limit: float, report: HookReport
) -> str | None:
    said, problem = await within(_ask(function, context, limit), limit)
    if isinstance(problem, TimedOut | Overran):
        return f"Hook '{report.name}' timed out after {limit}s"
    refusal = None if problem is None else guardrail_in(problem)
    if refusal is not None and refusal.reason:
        return str(refusal.reason)
    if problem is not None:
        return f"Hook '{report.name}' raised: {type(problem).__name__}"
    if is_awaitable(said):
        return f"Hook '{report.name}' gave something that would still have to be awaited"
    if isinstance(said, Mapping) and "decision" in said:
        said = HookResult(said["decision"], said.get("reason"))
    if isinstance(said, HookResult):
        said = None if said.is_allowed() else said.reason or False
    if isinstance(said, str) and said:
        return said
    return f"Hook '{report.name}' said no" if said is False or said == "" else None


async def _ask(function: Callable[[dict[str, Any]], Any], context: dict[str, Any], limit: float) -> Any:
    said = function(context) if is_async_callable(function) else await run_in_worker(function, context, limit=limit)
    return await said if inspect.isawaitable(said) else said


def _failure(entry: Entry, ended: Finished, limit: float) -> str | None:
    if not ended.in_time:
        return f"Hook '{entry.name}' timed out after {limit}s"
    if ended.exit_code == 0:
        return None
    said = ended.stderr.decode("utf-8", "replace").strip() or ended.stdout.decode("utf-8", "replace").strip()
    return said or f"Hook '{entry.name}' exited with code {ended.exit_code}"
