"""The typed input of each event.

A field that the catalogue lists as changeable can be assigned; every other refuses, so a hook that tries has said
something impossible and is told so. Containers are ordinary dicts and lists: a door hands over copies, and edits
where none are allowed reach nobody.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from agent_engine.hooks.events import CATALOGUE, HookEvent, event_of

MAX_COPY_DEPTH = 200

_T = TypeVar("_T")
_P = TypeVar("_P", bound="HookInput")
_LAZY: Any = object()
"""Stands in a constructor for a value that is worked out when it is first read."""

_set = object.__setattr__
ATOMS = frozenset({str, int, float, bool, type(None)})
"""Types whose values nobody can edit: they need no copy."""


class Copied:
    """What makes a private copy of itself: a context, also where it stands in another one."""

    __slots__ = ()

    def _copy(self) -> Any:
        raise NotImplementedError


def private_copy(value: _T) -> _T:
    """A copy of the dicts, lists, tuples and sets in ``value``, down to 200 levels; everything else is shared.

    A container that refers to itself does so in the copy, too. A context is copied with all that it holds.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict and ATOMS.issuperset(map(type, value.values())):  # type: ignore[attr-defined]  # a dict here
        return value.copy()  # type: ignore[attr-defined,no-any-return]
    if kind is tuple and ATOMS.issuperset(map(type, value)):  # type: ignore[call-overload]  # a tuple here
        return value
    if isinstance(value, (dict, list, tuple, set)):
        copied: _T = _copy(value, {}, MAX_COPY_DEPTH)
        return copied
    return value._copy() if isinstance(value, Copied) else value


def _copy(value: Any, seen: dict[int, Any], depth: int) -> Any:
    if depth == 0 or not isinstance(value, (dict, list, tuple, set)):
        return value
    known = seen.get(id(value))
    if known is not None:
        return known
    kind: Any = type(value)
    if kind is dict:
        new: Any = {}
        seen[id(value)] = new
        for key, item in value.items():  # type: ignore[union-attr]  # a dict here
            new[key] = item if type(item) in ATOMS else _copy(item, seen, depth - 1)
        return new
    if kind is list:
        new = []
        seen[id(value)] = new
        new.extend([item if type(item) in ATOMS else _copy(item, seen, depth - 1) for item in value])
        return new
    if isinstance(value, (dict, list)):
        return _copy_of_kind(value, seen, depth - 1)
    if isinstance(value, set):
        return set(value) if kind is set else _twin(value, set)
    items = [_copy(item, seen, depth - 1) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if kind is tuple:
        return tuple(items)
    try:  # past a constructor of its own
        return kind._make(items) if hasattr(kind, "_make") else _with_state(tuple.__new__(kind, items), value)
    except Exception:  # noqa: BLE001 - a tuple with rules of its own; a plain one carries its content
        return tuple(items)


def _copy_of_kind(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """A copy of a dict or a list of a kind of its own: of the same kind, as far as its rules let that be."""
    plain = dict if isinstance(value, dict) else list
    new = seen[id(value)] = _twin(value, plain)
    places: list[tuple[Any, Any]] = list(value.items() if plain is dict else enumerate(value))
    inside = [(place, _copy(item, seen, depth)) for place, item in places if type(item) not in ATOMS]
    try:
        for place, item in inside:
            new[place] = item
    except Exception:  # noqa: BLE001 - it takes no item; a plain container carries its content
        new = plain(value)
        for place, item in inside:
            new[place] = item
    return new


def _twin(value: Any, plain: Callable[[Any], Any]) -> Any:
    """A shallow copy of a container of a kind of its own; a plain one where its rules do not let it be copied."""
    try:
        new = copy.copy(value)
    except Exception:  # noqa: BLE001 - a container with rules of its own
        return plain(value)
    return new if type(new) is type(value) and new is not value else plain(value)


def _with_state(new: Any, value: Any) -> Any:
    if hasattr(value, "__dict__"):
        vars(new).update(vars(value))
    return new


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


_FLAT = frozenset(["str", "int", "float", "bool", "str | None", "int | None", "float | None", "bool | None"])
"""Types, as written below, whose values hold no containers and need no copy."""

_WORKED_OUT: dict[str, Callable[[], str]] = {"cwd": os.getcwd, "timestamp": _now}


@dataclass_transform(kw_only_default=True, field_specifiers=(field, Field))
class _Lending:
    """What a payload needs to lend its unchangeable containers while hooks run.

    ``_turn`` is set during a dispatch; its ``__length_hint__`` is another number for every hook. ``_lent`` holds the
    copies of the hook whose turn it is. ``_from`` is the payload that this one is a copy of: a copy takes over what
    nobody may change when it is first read.
    """

    __slots__ = ("_from", "_lent", "_turn")


_new = object.__new__
_from: Any = _Lending._from  # type: ignore[attr-defined]  # a slot
_turn: Any = _Lending._turn  # type: ignore[attr-defined]  # a slot


set_turn: Callable[[Any, Any], None] = _turn.__set__
"""``set_turn(payload, turn)``: from here on ``turn`` says whose turn it is; None where hooks have ended."""


class _Lent:
    """A field that hooks may not change: during a dispatch each hook that reads a container here gets its own copy.

    So an edit inside it reaches nobody, and what no hook reads is never copied.
    """

    __slots__ = ("name", "slot")

    def __init__(self, name: str, slot: Any) -> None:
        self.name = name
        self.slot = slot

    def __get__(self, payload: Any, owner: type[Any]) -> Any:
        if payload is None:
            return self
        value = self.slot.__get__(payload)
        turn = payload._turn
        if turn is None or not isinstance(value, (dict, list, tuple, set)):
            return value
        number = turn.__length_hint__()
        lent = payload._lent
        if lent is None or lent[0] != number:
            lent = (number, {})
            _set(payload, "_lent", lent)
        if self.name not in lent[1]:
            lent[1][self.name] = private_copy(value)
        return lent[1][self.name]

    def __set__(self, payload: Any, value: Any) -> None:
        self.slot.__set__(payload, value)


def _record(cls: type[_T]) -> type[_T]:
    """A dataclass with slots and keyword fields. Which fields may be assigned is the catalogue's to say.

    Its constructor is written when the first of its kind is built: most programs use few of the sixty.
    """
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)
    made.__init__ = _first
    return cast("type[_T]", made)


def _first(self: HookInput, **values: Any) -> None:
    """Stands in for the constructor of a payload type until it is first called."""
    kind: Any = type(self)
    kind.__init__ = _constructor(kind)
    kind.__init__(self, **values)


def _constructor(kind: type[HookInput]) -> Callable[..., None]:
    """``__init__`` of a payload type, straight into its slots; a lazy field that is not given leaves its slot empty."""
    names: dict[str, Any] = {"_LAZY": _LAZY}
    parameters, lines = [], []
    for one in fields(kind):
        name, default = one.name, one.default
        names[f"set_{name}"] = _slot(kind, name).__set__
        made_anew = default is MISSING
        names[f"of_{name}"] = (
            one.default_factory if made_anew else _event_name(kind) if name == "event_name" else default
        )
        parameters.append(f"{name}=_LAZY" if made_anew or name in _WORKED_OUT else f"{name}=of_{name}")
        if made_anew:
            lines.append(f"set_{name}(self, of_{name}() if {name} is _LAZY else {name})")
        elif name in _WORKED_OUT:
            lines.append(f"if {name} is not _LAZY: set_{name}(self, {name})")
        elif name == "event_name":
            lines.append(f"set_{name}(self, {name} or of_{name})")
        else:
            lines.append(f"set_{name}(self, {name})")
    exec(f"def __init__(self, *, {', '.join(parameters)}):\n    " + "\n    ".join(lines), names)  # noqa: S102 - names of fields
    return cast("Callable[..., None]", names["__init__"])


def _event_name(kind: type[HookInput]) -> str:
    return "" if kind.event is None else kind.event.value


@_record
class HookInput(_Lending):
    """What every payload has.

    ``timestamp`` is RFC 3339 in UTC. ``extra`` is for whatever has no field of its own; it never overrides a field in
    ``to_dict()``.
    """

    session_id: str | None = None
    cwd: str = field(default=_LAZY)
    event_name: str = ""
    timestamp: str = field(default=_LAZY)
    agent_name: str | None = None
    run_id: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    event: ClassVar[HookEvent | None] = None
    _changes: ClassVar[frozenset[str]] = frozenset()
    _containers: ClassVar[tuple[str, ...]] = ("extra",)
    _slots: ClassVar[dict[str, Any]] = {}
    _kinds: ClassVar[dict[str, tuple[type, str]]] = {}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._names())

    __hash__ = None  # type: ignore[assignment]  # its fields change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._names())})"

    def __reduce__(self) -> tuple[Any, ...]:
        """For copy and pickle: built anew from its fields, of which most refuse to be assigned."""
        return _rebuilt, (type(self), {name: getattr(self, name) for name in self._names()})

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name!r} of {type(self).__name__} cannot be deleted")

    def __getattr__(self, name: str) -> Any:
        if name in ("_turn", "_lent", "_from"):
            return None
        slot = self._slots.get(name)
        if slot is None:
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}; its fields are {', '.join(self._names())}"
            )
        origin = self._from
        if origin is None:
            value = _WORKED_OUT[name]()
        else:  # The origin's own value, not what it would lend.
            value = getattr(origin, name)
            with suppress(AttributeError):
                value = slot.__get__(origin)
        slot.__set__(self, value)
        return getattr(self, name)

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return tuple(one.name for one in fields(cls))

    def _copy(self: _P) -> _P:
        """A private copy: its containers are shared with nobody. During a dispatch those that nobody may change are
        lent by the copy as they are by this payload."""
        new = _new(type(self))
        _from.__set__(new, self)
        turn = self._turn
        if turn is None:
            for name in self._containers:
                _set(new, name, private_copy(getattr(self, name)))
        else:
            _turn.__set__(new, turn)
        for name in self._changes:
            slot = self._slots[name]
            slot.__set__(new, private_copy(slot.__get__(self)))
        return new

    def _raw(self, names: Iterable[str]) -> dict[str, Any]:
        """These fields as they stand here, nothing lent and nothing worked out; for whoever keeps copies."""
        origin: Any = self
        while (older := origin._from) is not None:
            origin = older
        slots, own = self._slots, self._changes
        return {name: slots[name].__get__(self if name in own else origin) for name in names}

    def _set(self, name: str, value: object) -> None:
        """Assign a field, whatever the catalogue says of it; for the kernel alone."""
        _set(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """The payload as JSON-ready data.

        Raises:
            JsonFormError: a field holds something that JSON cannot carry; the error names its path.
        """
        from agent_engine.hooks.jsonform import to_plain

        named = {name: getattr(self, name) for name in self._names()}
        plain: dict[str, Any] = to_plain({**self.extra, **named})
        return plain


def _rebuilt(kind: type[HookInput], values: dict[str, Any]) -> HookInput:
    return kind(**values)


def _guard(self: HookInput, name: str, value: object) -> None:
    if name not in self._changes:
        allowed = ", ".join(sorted(self._changes)) or "nothing"
        raise AttributeError(
            f"{name!r} cannot be changed at {self.event or type(self).__name__}; what can be changed: {allowed}"
        )
    problem = wrong_kind(self, name, value)
    if problem is not None:
        raise TypeError(problem)
    _set(self, name, value)


HookInput.__setattr__ = _guard  # type: ignore[method-assign, assignment]  # inherited by every payload type


_KINDS: tuple[tuple[str, type, str], ...] = (
    ("str", str, "text"),
    ("list[", list, "a list"),
    ("dict[", dict, "a dict"),
    ("_Dict", dict, "a dict"),
)


def kinds_of(payload_type: type[Any], names: Iterable[str]) -> dict[str, tuple[type, str]]:
    """Which of the fields hold text, a list or a dict and nothing else, and the word for it."""
    types = {one.name: str(one.type) for one in fields(payload_type)} if is_dataclass(payload_type) else {}
    return {
        name: (kind, word)
        for name in names
        for start, kind, word in _KINDS
        if types.get(name, "").startswith(start) and " | " not in types[name]
    }


@cache
def _kinds_at(event: HookEvent) -> dict[str, tuple[type, str]]:
    """The same of the fields that hooks may change at an event, worked out once."""
    return kinds_of(payload_type(event), CATALOGUE[event].changes)


def check_fields(event: HookEvent, values: Mapping[str, object]) -> None:
    """Raises TypeError where a field that hooks may change is given something of the wrong kind."""
    for name, (kind, word) in _kinds_at(event).items():
        if name in values and not isinstance(values[name], kind):
            given = "None" if values[name] is None else type(values[name]).__name__
            raise TypeError(f"{name} at {event} is {word}, not {given}")


def wrong_kind(payload: Any, name: str, value: object) -> str | None:
    """Why ``value`` cannot stand in a field; None where it can."""
    kind = type(payload)._kinds.get(name)
    if kind is None or isinstance(value, kind[0]):
        return None
    return f"makes {name!r} a {type(value).__name__}; it is {kind[1]}"


@dataclass_transform(kw_only_default=True, field_specifiers=(field, Field))
def _payload(event: HookEvent) -> Callable[[type[_P]], type[_P]]:
    """Make a payload type: slots, keyword fields, and assignment only where the catalogue allows it."""

    def make(cls: type[_P]) -> type[_P]:
        made: Any = _record(cls)
        made.event = event
        made._changes = CATALOGUE[event].changes
        made._kinds = kinds_of(made, made._changes)
        made._containers = tuple(
            one.name for one in fields(made) if one.type not in _FLAT and one.name not in _WORKED_OUT
        )
        made._slots = {one.name: _slot(made, one.name) for one in fields(made)}
        for name in made._containers:
            if name not in made._changes:
                setattr(made, name, _Lent(name, _slot(made, name)))
        PAYLOADS[event] = made
        result: type[_P] = made
        return result

    return make


def _slot(kind: type[Any], name: str) -> Any:
    """Where a field's value really lies."""
    found = inspect.getattr_static(kind, name)
    return found.slot if isinstance(found, _Lent) else found


PAYLOADS: dict[HookEvent, type[Any]] = {}
"""The payload type of every event that is not a managed point; those have their contexts (see ``payload_type``)."""

_E = HookEvent
_Dict = dict[str, Any]


@_payload(_E.ON_INIT)
class OnInitInput(HookInput):
    """A plugin has been registered."""

    plugin_name: str = ""
    plugin_version: str = ""
    plugin_description: str = ""


@_payload(_E.ON_SHUTDOWN)
class OnShutdownInput(HookInput):
    """A plugin is about to be unregistered."""

    plugin_name: str = ""
    plugin_version: str = ""
    plugin_description: str = ""


@_payload(_E.SETUP)
class SetupInput(HookInput):
    """An engine or agent is first made ready. ``source`` is ``startup`` or ``maintenance``."""

    source: str = "startup"


@_payload(_E.ON_CONFIG)
class OnConfigInput(HookInput):
    """A configuration file has been read and is not yet used."""

    path: str = ""
    config: _Dict = field(default_factory=dict)


@_payload(_E.ON_AUTH)
class OnAuthInput(HookInput):
    """The HTTP API has identified a caller."""

    scheme: str = ""
    principal: Any = None
    client: str = ""


@_payload(_E.USER_PROMPT_SUBMIT)
class UserPromptSubmitInput(HookInput):
    """A person's message enters."""

    prompt: str = ""


@_payload(_E.BEFORE_AGENT)
class BeforeAgentInput(HookInput):
    """A turn starts."""

    prompt: str = ""
    conversation_history: list[_Dict] = field(default_factory=list)
    tools_available: list[str] = field(default_factory=list)


@_payload(_E.AFTER_AGENT)
class AfterAgentInput(HookInput):
    """A turn has ended. ``response`` is "" where there is no answer."""

    prompt: str = ""
    response: Any = ""
    tools_used: list[str] = field(default_factory=list)
    total_tokens: int = 0
    execution_time_ms: float = 0.0
    status: str = "ok"
    error_type: str | None = None


@_payload(_E.BEFORE_TOOL_DEFINITIONS)
class BeforeToolDefinitionsInput(HookInput):
    """The tools of one model call: a list of ``{name, description, parameters}``."""

    tool_definitions: list[_Dict] = field(default_factory=list)
    model: str = ""


@_payload(_E.BEFORE_LLM)
class BeforeLLMInput(HookInput):
    """One model call is about to be made."""

    messages: list[_Dict] = field(default_factory=list)
    model: str = ""
    temperature: float | None = None
    max_tokens: int | None = None


@_payload(_E.ON_LLM_DELTA)
class OnLLMDeltaInput(HookInput):
    """Streamed text that has not been released; ``final`` marks the last of it."""

    text: str = ""
    index: int = 0
    final: bool = False


@_payload(_E.AFTER_LLM)
class AfterLLMInput(HookInput):
    """One model call has ended. ``tool_calls`` is a list of ``{id, name, arguments}``."""

    messages: list[_Dict] = field(default_factory=list)
    response: str = ""
    tool_calls: list[_Dict] = field(default_factory=list)
    model: str = ""
    tokens_used: int = 0
    latency_ms: float = 0.0
    status: str = "ok"
    error_type: str | None = None


@_payload(_E.MODEL_FALLBACK)
class ModelFallbackInput(HookInput):
    """A fallback model takes over."""

    from_model: str = ""
    to_model: str = ""
    reason_category: str = ""
    fallback_index: int = 0


@_payload(_E.PROMPT_PREFIX_INVALIDATED)
class PromptPrefixInvalidatedInput(HookInput):
    """Model, tools or system prompt changed, so a provider's prompt cache will miss."""

    old_signature: str = ""
    new_signature: str = ""
    reason: str = ""


@_payload(_E.BEFORE_TOOL)
class BeforeToolInput(HookInput):
    """A tool is about to be called with ``tool_input``."""

    call_id: str | None = None
    tool_name: str = ""
    tool_input: _Dict = field(default_factory=dict)
    tool_description: str = ""


@_payload(_E.AFTER_TOOL)
class AfterToolInput(HookInput):
    """A tool has ended; ``tool_error`` is the error's type and text where its body raised."""

    call_id: str | None = None
    tool_name: str = ""
    tool_input: _Dict = field(default_factory=dict)
    tool_output: Any = None
    tool_error: str | None = None
    execution_time_ms: float = 0.0
    status: str = "ok"
    error_type: str | None = None


@_payload(_E.ON_PERMISSION_ASK)
class OnPermissionAskInput(HookInput):
    """A hook asked for leave; a clear yes or no here answers it."""

    tool_name: str = ""
    tool_input: _Dict = field(default_factory=dict)
    reason: str | None = None
    call_id: str | None = None


@_payload(_E.ON_ERROR)
class OnErrorInput(HookInput):
    """An error inside a run."""

    error_type: str = ""
    error_message: str = ""
    stack_trace: str = ""
    context: _Dict = field(default_factory=dict)


@_payload(_E.ON_RETRY)
class OnRetryInput(HookInput):
    """A back-off wait begins; ``attempt`` counts from 1, ``operation`` is ``model`` or ``tool``."""

    tool_name: str = ""
    attempt: int = 1
    delay_ms: float = 0.0
    error: str = ""
    max_attempts: int = 0
    error_type: str = ""
    operation: str = ""


@_payload(_E.SESSION_START)
class SessionStartInput(HookInput):
    """A conversation begins or resumes (``source``: ``startup`` or ``resume``)."""

    source: str = "startup"
    session_name: str | None = None


@_payload(_E.SESSION_END)
class SessionEndInput(HookInput):
    """A conversation has ended."""

    reason: str = ""
    total_turns: int = 0
    total_tokens: int = 0


@_payload(_E.SESSION_PERSIST_FAILED)
class SessionPersistFailedInput(HookInput):
    """A conversation could not be stored; the turn is kept in a spill file."""

    role: str = ""
    content: Any = ""
    error: str = ""
    spilled: bool = False
    spill_path: str | None = None


@_payload(_E.BEFORE_COMPACTION)
class BeforeCompactionInput(HookInput):
    """The history is about to be shortened."""

    messages_count: int = 0
    tokens: int = 0
    limit: int = 0


@_payload(_E.AFTER_COMPACTION)
class AfterCompactionInput(HookInput):
    """The history has been shortened."""

    messages_count: int = 0
    tokens: int = 0
    limit: int = 0
    kept: int = 0
    removed: int = 0
    summary: str = ""


@_payload(_E.SUBAGENT_STOP)
class SubagentStopInput(HookInput):
    """A sub-agent has ended."""

    task: str = ""
    success: bool = True
    output: Any = ""
    error: str | None = None
    depth: int = 0
    duration_ms: float = 0.0


@_payload(_E.NOTIFICATION)
class NotificationInput(HookInput):
    """The engine tells a person something (``approval_needed``, ``run_failed``)."""

    kind: str = ""
    message: str = ""


@_payload(_E.MESSAGE_RECEIVED)
class MessageReceivedInput(HookInput):
    """A message has arrived over a channel."""

    platform: str = ""
    content: str = ""
    sender_id: str | None = None
    channel_id: str | None = None
    channel_type: str | None = None
    message_id: str | None = None


@_payload(_E.MESSAGE_SENDING)
class MessageSendingInput(HookInput):
    """An answer is about to leave."""

    platform: str = ""
    content: str = ""
    channel_id: str | None = None
    channel_type: str | None = None
    reply_to: str | None = None
    message_id: str | None = None


@_payload(_E.MESSAGE_SENT)
class MessageSentInput(HookInput):
    """An answer has left."""

    platform: str = ""
    content: str = ""
    channel_id: str | None = None
    channel_type: str | None = None
    reply_to: str | None = None
    message_id: str | None = None


@_payload(_E.MESSAGE_UNDELIVERED)
class MessageUndeliveredInput(HookInput):
    """An answer could not leave; ``content`` is "" where a hook refused it."""

    platform: str = ""
    content: str = ""
    channel_id: str | None = None
    channel_type: str | None = None
    reply_to: str | None = None
    message_id: str | None = None
    error: str | None = None


@_payload(_E.GATEWAY_START)
class GatewayStartInput(HookInput):
    """The server has started."""

    platforms: list[str] = field(default_factory=list)
    reason: str | None = None


@_payload(_E.GATEWAY_STOP)
class GatewayStopInput(HookInput):
    """The server stops."""

    platforms: list[str] = field(default_factory=list)
    reason: str | None = None


@_payload(_E.JOB_COMPLETED)
class JobCompletedInput(HookInput):
    """A background run has ended."""

    job_id: str = ""
    status: str = ""
    result: Any = None
    error: str | None = None


@_record
class _Conversation(HookInput):
    """Something happened in a conversation on a channel."""

    platform: str = ""
    kind: str = ""
    chat_id: str | None = None
    user_id: str | None = None
    message_id: str | None = None
    emoji: str | None = None
    new_text: str | None = None
    thread_id: str | None = None


@_payload(_E.MESSAGE_EDITED)
class MessageEditedInput(_Conversation):
    """A message was edited."""


@_payload(_E.MESSAGE_DELETED)
class MessageDeletedInput(_Conversation):
    """A message was deleted."""


@_payload(_E.REACTION_RECEIVED)
class ReactionReceivedInput(_Conversation):
    """Somebody reacted to a message."""


@_payload(_E.MEMBER_JOINED)
class MemberJoinedInput(_Conversation):
    """Somebody joined a conversation."""


@_payload(_E.MEMBER_LEFT)
class MemberLeftInput(_Conversation):
    """Somebody left a conversation."""


@_payload(_E.THREAD_CREATED)
class ThreadCreatedInput(_Conversation):
    """A thread was opened."""


@_payload(_E.CLI_BACKEND_EXECUTE)
class CLIBackendExecuteInput(HookInput):
    """An agent delegated a turn to a command-line agent; the prompt in ``command`` is masked."""

    backend: str = ""
    command: str = ""
    content: str = ""
    error: str | None = None


@_record
class _Schedule(HookInput):
    """A scheduled run."""

    job_name: str = ""
    job_id: str = ""
    schedule: str = ""
    message: str = ""
    principal: str | None = None
    enabled: bool = True


@_payload(_E.SCHEDULE_ADD)
class ScheduleAddInput(_Schedule):
    """A scheduled run is to be added."""


@_payload(_E.SCHEDULE_REMOVE)
class ScheduleRemoveInput(_Schedule):
    """A scheduled run was removed."""


@_payload(_E.SCHEDULE_TRIGGER)
class ScheduleTriggerInput(_Schedule):
    """A scheduled run is due."""


@_record
class _KanbanTask(HookInput):
    """A task on the board of background runs."""

    task_id: str = ""
    board: str = ""
    status: str = ""
    assignee: str | None = None
    from_status: str | None = None
    to_status: str | None = None


@_payload(_E.KANBAN_TASK_CREATED)
class KanbanTaskCreatedInput(_KanbanTask):
    """A task was created."""


@_payload(_E.KANBAN_TASK_CLAIMED)
class KanbanTaskClaimedInput(_KanbanTask):
    """Somebody took a task."""


@_payload(_E.KANBAN_TASK_MOVED)
class KanbanTaskMovedInput(_KanbanTask):
    """A task changed its column."""


@_payload(_E.KANBAN_TASK_DONE)
class KanbanTaskDoneInput(_KanbanTask):
    """A task is done."""


@_payload(_E.KANBAN_TASK_BLOCKED)
class KanbanTaskBlockedInput(_KanbanTask):
    """A task cannot go on."""


@_payload(_E.KANBAN_TASK_FAILED)
class KanbanTaskFailedInput(_KanbanTask):
    """A task failed."""


def payload_type(event: HookEvent | str) -> type[Any]:
    """The type of the payload at ``event``: a HookInput, or a managed point's context."""
    known = PAYLOADS.get(event_of(event))
    if known is not None:
        return known
    from agent_engine.hooks import managed

    name = CATALOGUE[event_of(event)].payload
    return BaseException if name == "BaseException" else getattr(managed, name)
