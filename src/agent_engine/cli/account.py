"""The account of a run: what each step did, which hooks ran there, what they decided or changed, and how long it took.

An :class:`Account` is a journal. How it is shown is a :class:`Style`: a tree at a terminal, plain lines where it is
piped, JSON lines for machines. Names and sizes stand in for values (arguments, results, headers); a call's arguments
are shown in the tree alone, where the person who asked is looking.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias

from agent_engine.records.journal import Entry, HookRan, RunClosed, RunOpened, StepClosed, StepOpened

if TYPE_CHECKING:
    from agent_engine.hooks.result import HookRun

LOG_CONTEXT = "agent_engine_run"


@dataclass(slots=True, eq=False)
class Step:
    """One step and everything that happened inside it, in order."""

    opened: StepOpened
    closed: StepClosed | None = None
    inside: list[Step | HookRan | LogLine] = field(default_factory=list)

    def hooks(self, event: str) -> list[HookRan]:
        return [one for one in self.inside if isinstance(one, HookRan) and str(one.run.event) == event]


@dataclass(slots=True, eq=False)
class Run:
    """One request as a tree. ``opened`` is None for what happens while the engine is built or closed."""

    opened: RunOpened | None
    closed: RunClosed | None = None
    inside: list[Step | HookRan | LogLine] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    depth: int = 1
    logged: list[LogLine] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class LogLine:
    """One line that the system's own code logged."""

    logger: str
    level: int
    text: str


Inside: TypeAlias = "Step | HookRan | LogLine"


class Style(Protocol):
    """How an account is shown. ``happened`` is called for each thing as it happens, ``ended`` once a run is over."""

    def happened(self, thing: Entry | LogLine, run: Run, depth: int) -> None: ...

    def ended(self, run: Run) -> None: ...

    def result(self, summary: Mapping[str, Any]) -> None:
        """The outcome as JSON-ready data, for machines; people read the answer."""

    def pause(self) -> None:
        """Keep the screen free (a person is about to be asked, or text is being streamed)."""

    def close(self) -> None: ...


class Account:
    """A journal that shows runs to a person, or to a machine that reads lines."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.engine = Run(None)
        self._runs: dict[str, Run] = {}
        self._log = _LogReader(self)

    @property
    def wants_payloads(self) -> bool:
        return True  # for sizes and names of what hooks changed

    @property
    def full(self) -> bool:
        return False

    async def room(self) -> None:
        return None

    async def start(self) -> None:
        self._log.install()

    async def stop(self) -> None:
        self._log.remove()
        self.settle()
        self.style.close()

    def settle(self) -> None:
        """Show what has happened outside any run so far: while the engine was built, or closed."""
        engine, self.engine = self.engine, Run(None)
        engine.inside.extend(engine.logged)
        if engine.inside:
            self.style.ended(engine)

    def write(self, entry: Entry) -> None:
        try:
            self._write(entry)
        except Exception as error:  # noqa: BLE001 - showing a run must never fail it
            logging.getLogger("agent_engine.cli").warning("The account lost an entry: %s", type(error).__name__)

    def log(self, line: LogLine, run_id: str | None) -> None:
        """Take a line that was logged inside a run, or outside any.

        A hook logs before its own run is known, so in the tree the line waits for the next hook of that run.
        """
        run = self._run(run_id)
        run.logged.append(line)
        self.style.happened(line, run, run.depth)

    def _write(self, entry: Entry) -> None:
        run = self._run(entry.run_id)
        depth = 0
        if isinstance(entry, RunOpened):
            self.settle()
            run = self._runs[entry.run_id] = Run(entry)
        elif isinstance(entry, RunClosed):
            run.closed = entry
            run.inside.extend(run.logged)
        elif isinstance(entry, StepOpened):
            step = run.steps[entry.step_id] = Step(entry)
            parent = run.steps.get(entry.parent_id or "")
            (parent or run).inside.append(step)
            depth = _depth(run, step)
        elif isinstance(entry, StepClosed):
            closing = run.steps.get(entry.step_id)
            if closing is not None:
                closing.closed = entry
                depth = _depth(run, closing)
        else:
            at = run.steps.get(entry.step_id or "")
            (at or run).inside.extend([entry, *run.logged])
            run.logged.clear()
            depth = _depth(run, at) + 1 if at is not None else 1
        run.depth = max(1, depth)
        self.style.happened(entry, run, depth)
        if isinstance(entry, RunClosed):
            self.style.ended(run)
            self._runs.pop(entry.run_id, None)

    def _run(self, run_id: str | None) -> Run:
        return self._runs.get(run_id or "", self.engine)


def _depth(run: Run, step: Step) -> int:
    depth, parent = 1, run.steps.get(step.opened.parent_id or "")
    while parent is not None:
        depth, parent = depth + 1, run.steps.get(parent.opened.parent_id or "")
    return depth


class _LogReader(logging.Handler):
    """Takes what the system's own code logs (from INFO) and what anybody warns about, and quiets everything else."""

    def __init__(self, account: Account) -> None:
        super().__init__(logging.INFO)
        self._account = account
        self._level: int | None = None

    def install(self) -> None:
        root = logging.getLogger()
        if self not in root.handlers:
            self._level = root.level
            root.addHandler(self)
            root.setLevel(min(root.level, logging.INFO))

    def remove(self) -> None:
        root = logging.getLogger()
        if self in root.handlers:
            root.removeHandler(self)
            root.setLevel(self._level if self._level is not None else logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or not _is_library(record.pathname)

    def emit(self, record: logging.LogRecord) -> None:
        from agent_engine.hooks.managed import current_run_context

        try:
            context = current_run_context()
            line = LogLine(record.name, record.levelno, record.getMessage())
            self._account.log(line, context.run_id if context is not None else None)
        except Exception:  # noqa: BLE001 - logging's own rule: a handler reports its fault and goes on
            self.handleError(record)


_LIBRARY_FOLDERS = {
    Path(folder).resolve() for folder in (Path(__file__).parent.parent, Path(logging.__file__).parent.parent)
}


def _is_library(path: str) -> bool:
    """Whether a source file is the engine's, Python's or an installed package's, and not the system's that runs."""
    where = Path(path)
    return "site-packages" in where.parts or any(folder in where.parents for folder in _LIBRARY_FOLDERS)


class JsonLines:
    """One JSON object a line, as things happen: the fields of the journal's entries, without payloads."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stderr

    def happened(self, thing: Entry | LogLine, run: Run, depth: int) -> None:
        self.line(as_json(thing))

    def line(self, data: Mapping[str, Any]) -> None:
        print(json.dumps(data, ensure_ascii=False, default=str), file=self._out, flush=True)

    def ended(self, run: Run) -> None: ...

    def result(self, summary: Mapping[str, Any]) -> None:
        self.line({"type": "result", **summary})

    def pause(self) -> None: ...

    def close(self) -> None: ...


class Silent:
    """``--quiet``: nothing."""

    def happened(self, thing: Entry | LogLine, run: Run, depth: int) -> None: ...

    def ended(self, run: Run) -> None: ...

    def result(self, summary: Mapping[str, Any]) -> None: ...

    def pause(self) -> None: ...

    def close(self) -> None: ...


_TYPES = {
    RunOpened: "run_started",
    RunClosed: "run_ended",
    StepOpened: "step_started",
    StepClosed: "step_ended",
    HookRan: "hook",
    LogLine: "log",
}


def as_json(thing: Entry | LogLine) -> dict[str, Any]:
    """A thing that happened as JSON-ready data, its ``type`` first and no payload in it."""
    data: dict[str, Any] = {"type": _TYPES[type(thing)]}
    if isinstance(thing, HookRan):
        run = thing.run
        data |= {"run_id": thing.run_id, "step_id": thing.step_id, "agent": thing.agent}
        data |= {
            "event": str(run.event),
            "hook": hook_name(run),
            "mode": run.mode,
            "decision": run.decision,
            "reason": run.reason,
            "changed": list(run.changed),
            "change": change_of(run),
            "failure_type": run.failure_type,
            "observe": run.observe,
            "shadow": run.shadow,
            "duration_ms": round(run.duration_ms, 3),
        }
        return data
    if isinstance(thing, LogLine):
        return data | {"logger": thing.logger, "level": logging.getLevelName(thing.level), "text": thing.text}
    for name in thing.__slots__:
        value = getattr(thing, name)
        if name == "detail":
            value = {key: one for key, one in value.items() if key != "payload"}
        data[name] = dict(value) if isinstance(value, Mapping) else value
    return data


def hook_name(run: HookRun) -> str:
    """The name a person knows a hook by."""
    return str(run.hook.name or run.hook.id)


def change_of(run: HookRun) -> str | None:
    """What a hook changed, without a value: names of headers, fields and arguments, sizes of texts."""
    if not run.changed or run.decision in ("failed", "deny"):
        return None
    return "; ".join(
        _change(name, getattr(run.before, name, None), getattr(run.after, name, None)) for name in run.changed
    )


def _change(name: str, before: object, after: object) -> str:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = [f"+{key}" for key in after if key not in before] + [f"-{key}" for key in before if key not in after]
        keys += [f"~{key}" for key in after if key in before and after[key] != before[key]]
        return f"{name} {', '.join(map(str, keys))}" if keys else name
    if isinstance(before, str) and isinstance(after, str) and len(before) != len(after):
        return f"{name} {len(before):,} → {len(after):,} characters"
    return name
