"""A model that plays exact turns: for tests, and for showing a system without a provider."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from agent_engine.models.base import Message, ModelResponse, ModelSettings, ToolCall, ToolDefinition, Usage
from agent_engine.models.errors import ErrorCategory, ModelConfigError, ModelError
from agent_engine.models.messages import parse_call, text_of_content

Order = Literal["order", "conversation"]


@dataclass(slots=True)
class Turn:
    """One answer of a script.

    Attributes:
        text: the answer's text; where only ``stream`` is given, its chunks joined.
        tool_calls: calls of the answer.
        stream: the chunks a streaming caller gets; by default the text in one piece.
        usage: tokens to report.
        finish_reason: by default ``tool_calls`` where there are calls, else ``stop``.
        error: raised in the place of an answer; a streaming caller gets ``stream`` first.
        delay: seconds to wait before answering.
        wait: called and awaited before answering, such as the ``wait`` of an asyncio.Event.
        expect: what the request must hold: text that its last message contains, or a mapping with ``last`` (text),
            ``contains`` (text anywhere in the transcript) and ``tools`` (names offered). A miss is an AssertionError.
        native: handed back as the response's provider parts.
    """

    text: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    stream: Sequence[str] | None = None
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    error: BaseException | None = None
    delay: float = 0.0
    wait: Callable[[], Awaitable[object]] | None = None
    expect: str | Mapping[str, Any] | None = None
    native: Mapping[str, Any] | None = None

    def response(self) -> ModelResponse:
        text = self.text if self.text is not None else "".join(self.stream or ())
        reason = self.finish_reason or ("tool_calls" if self.tool_calls else "stop")
        calls = tuple(ToolCall(c.id, c.name, dict(c.arguments), c.raw, c.error) for c in self.tool_calls)
        return ModelResponse(text, calls, self.usage + Usage(), reason, self.native)

    def chunks(self) -> Sequence[str]:
        if self.stream is not None:
            return self.stream
        return [self.text] if self.text else []


@dataclass(slots=True)
class Request:
    """A request that a scripted model received."""

    messages: list[Message]
    tools: list[ToolDefinition]
    settings: ModelSettings
    streamed: bool


TurnLike = Turn | ModelResponse | str | Mapping[str, Any] | BaseException | Callable[..., Any]


class ScriptedModel:
    """Plays turns one after the other, or chooses them by the conversation.

    Args:
        turns: a list of turns, or the path of a YAML file that holds one (see :func:`load_script`). A turn is text, a
            mapping of :class:`Turn`'s fields, a Turn, a ModelResponse, an exception to raise, or a function
            ``(messages, tools, settings)``, sync or async, that returns one of these.
        by: ``order`` plays the list once, whoever asks. ``conversation`` takes the turn whose index is the number of
            assistant messages in the transcript, so that each of many concurrent conversations plays the whole
            script; an error there answers every attempt at its place.
        record: keep each request under ``requests``.
        repeat_last: go on with the last turn when the list has run out.
    """

    provider: str = "scripted"

    def __init__(
        self,
        turns: Sequence[TurnLike] | str | os.PathLike[str],
        *,
        name: str = "scripted",
        by: Order = "order",
        record: bool = True,
        repeat_last: bool = False,
    ) -> None:
        if isinstance(turns, (str, os.PathLike)):
            script = load_script(turns)
            turns, by = script.turns, script.by or by
            self.source = str(script.source)
        else:
            self.source = "the list it was given"
        if by not in ("order", "conversation"):
            raise ModelConfigError(f"A scripted model answers by 'order' or by 'conversation', not by {by!r}.")
        self.name = name
        self.by = by
        self.record = record
        self.repeat_last = repeat_last
        self.requests: list[Request] = []
        self._turns = [turn if callable(turn) else as_turn(turn, f"turn {n}") for n, turn in enumerate(turns, 1)]
        self._played = 0
        self._lock = threading.Lock()

    @property
    def remaining(self) -> int:
        """Turns not yet played, where the script is played in order."""
        return max(0, len(self._turns) - self._played)

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> ModelResponse:
        turn = await self._next(messages, tools, settings, streamed=False)
        if turn.error is not None:
            raise turn.error.with_traceback(None)
        return turn.response()

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> AsyncIterator[str | ModelResponse]:
        turn = await self._next(messages, tools, settings, streamed=True)
        for chunk in turn.chunks():
            yield chunk
            await asyncio.sleep(0)
        if turn.error is not None:
            raise turn.error.with_traceback(None)
        yield turn.response()

    async def _next(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings, *, streamed: bool
    ) -> Turn:
        with self._lock:
            if self.record:
                copied = [dict(message) for message in messages]
                self.requests.append(Request(copied, list(tools), settings, streamed))
            index = self._played if self.by == "order" else _answers(messages)
            self._played += 1
            if index >= len(self._turns) and self.repeat_last and self._turns:
                index = len(self._turns) - 1
        if index >= len(self._turns):
            raise ModelError(
                f"The scripted model '{self.name}' has no turn {index + 1}: {self.source} holds {len(self._turns)}."
                f" Its last message was from {messages[-1].get('role') if messages else 'nobody'}.",
                category="bad_request",
            )
        entry = self._turns[index]
        if isinstance(entry, Turn):
            turn = entry
        else:
            made = entry(messages, tools, settings)
            turn = as_turn(await made if inspect.isawaitable(made) else made, f"turn {index + 1}")
        if turn.expect is not None:
            _check(turn.expect, messages, tools, f"turn {index + 1} of {self.source}")
        if turn.wait is not None:
            await turn.wait()
        if turn.delay:
            await asyncio.sleep(turn.delay)
        return turn


def _answers(messages: Sequence[Message]) -> int:
    return sum(1 for message in messages if message.get("role") == "assistant")


def _check(
    expect: str | Mapping[str, Any], messages: Sequence[Message], tools: Sequence[ToolDefinition], where: str
) -> None:
    rules: Mapping[str, Any] = {"last": expect} if isinstance(expect, str) else expect
    last = text_of_content(messages[-1].get("content")) if messages else ""
    if "last" in rules and rules["last"] not in last:
        raise AssertionError(f"{where} expects the last message to contain {rules['last']!r}; it is {last[:200]!r}")
    if "contains" in rules and not any(rules["contains"] in text_of_content(m.get("content")) for m in messages):
        raise AssertionError(f"{where} expects {rules['contains']!r} in the transcript; no message contains it")
    if "tools" in rules:
        offered = [definition.name for definition in tools]
        missing = [name for name in rules["tools"] if name not in offered]
        if missing:
            raise AssertionError(f"{where} expects the tools {missing}; offered are {offered}")


@dataclass(slots=True)
class Script:
    turns: list[Any]
    by: Order | None
    source: str


def load_script(path: str | os.PathLike[str]) -> Script:
    """Read a script: a YAML list of turns, or a mapping with ``turns`` and ``by``.

    ``file.yaml#name`` takes the list (or mapping) under that key, so one file can script several agents.

    Raises:
        ModelConfigError: when the file cannot be read or holds no turns; the text names it.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    file, _, part = os.fspath(path).partition("#")
    try:
        data = YAML(typ="safe", pure=True).load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelConfigError(f"The script {file} cannot be read ({type(error).__name__}).") from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ModelConfigError(f"The script {file}{line} is not valid YAML.") from error
    if part:
        if not isinstance(data, Mapping) or part not in data:
            raise ModelConfigError(f"The script {file} has no key '{part}'.")
        data = data[part]
    by = None
    if isinstance(data, Mapping):
        by = data.get("by")
        data = data.get("turns")
    if not isinstance(data, list):
        raise ModelConfigError(f"The script {path} must hold a list of turns, or a mapping with 'turns'.")
    try:
        turns = [as_turn(turn, f"turn {number}") for number, turn in enumerate(data, 1)]
    except ModelConfigError as error:
        raise ModelConfigError(f"The script {path}: {error}") from error
    return Script(turns, by, os.fspath(path))


_TURN_KEYS = tuple(f.name for f in fields(Turn))
_ERRORS: dict[str, tuple[int | None, bool]] = {
    "rate_limit": (429, True),
    "timeout": (None, True),
    "connection": (None, True),
    "server": (500, True),
    "auth": (401, False),
    "bad_request": (400, False),
    "unknown": (None, False),
}


def as_turn(value: Any, where: str = "a turn") -> Turn:
    """Read one turn of a script. Raises ModelConfigError with what is wrong at ``where``."""
    if isinstance(value, Turn):
        return value
    if isinstance(value, str):
        return Turn(text=value)
    if isinstance(value, BaseException):
        return Turn(error=value)
    if isinstance(value, ModelResponse):
        return Turn(value.text, value.tool_calls, None, value.usage, value.finish_reason, native=value.native)
    if not isinstance(value, Mapping):
        raise ModelConfigError(f"{where} must be text or a mapping, not {type(value).__name__}.")
    unknown = [key for key in value if key not in _TURN_KEYS]
    if unknown:
        raise ModelConfigError(f"{where} has the unknown key {unknown[0]!r}; a turn knows {', '.join(_TURN_KEYS)}.")
    turn = Turn(**{key: value[key] for key in value if key not in ("tool_calls", "usage", "error")})
    turn.tool_calls = tuple(_as_call(call, n, where) for n, call in enumerate(value.get("tool_calls") or (), 1))
    turn.usage = _as_usage(value.get("usage"), where)
    turn.error = _as_error(value.get("error"), where)
    return turn


def _as_call(value: Any, number: int, where: str) -> ToolCall:
    if isinstance(value, ToolCall):
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value or set(value) - {"id", "name", "arguments"}:
        raise ModelConfigError(f"{where}: a tool call is a name, or a mapping of name, arguments and id.")
    call_id = str(value.get("id") or f"call_{where.replace(' ', '_')}_{number}")
    return parse_call(call_id, value["name"], value.get("arguments"))


def _as_usage(value: Any, where: str) -> Usage:
    if value is None:
        return Usage()
    if isinstance(value, Usage):
        return value
    if isinstance(value, Mapping) and not set(value) - {f.name for f in fields(Usage)}:
        return Usage(**value)
    raise ModelConfigError(f"{where}: usage is a mapping of input_tokens, output_tokens and details.")


def _as_error(value: Any, where: str) -> BaseException | None:
    if value is None or isinstance(value, BaseException):
        return value
    given: Mapping[str, Any] = {"category": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or set(given) - {"category", "status", "retryable", "retry_after", "message"}:
        raise ModelConfigError(
            f"{where}: an error is one of {', '.join(_ERRORS)}, or a mapping of category, status, retryable,"
            " retry_after and message."
        )
    category: ErrorCategory = given.get("category", "unknown")
    if category not in _ERRORS:
        raise ModelConfigError(f"{where}: unknown error {category!r}; known are {', '.join(_ERRORS)}.")
    status, retryable = _ERRORS[category]
    return ModelError(
        given.get("message") or f"scripted: {category}",
        status=given.get("status", status),
        retryable=given.get("retryable", retryable),
        retry_after=given.get("retry_after"),
        category=category,
    )
