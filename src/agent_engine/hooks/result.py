"""Decisions: what a hook says, what one dispatch comes to, and the rows that tell about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agent_engine.hooks.definition import HookDefinition
    from agent_engine.hooks.events import HookEvent

Decision = Literal["allow", "modify", "ask", "deny", "block"]

STRICTNESS: dict[str, int] = {"allow": 0, "modify": 1, "ask": 2, "deny": 3, "block": 3}
"""The total order of decisions; the strictest wins. Any word that is not here is a failure of the hook."""


@dataclass(slots=True)
class HookResult:
    """What one hook decided.

    ``modified_input`` names tool arguments at ``before_tool``, payload fields elsewhere. ``additional_context`` is
    text for the model.
    """

    decision: str = "allow"
    reason: str | None = None
    modified_input: dict[str, Any] | None = None
    additional_context: str | None = None
    suppress_output: bool = False
    system_message: str | None = None

    @classmethod
    def allow(cls, reason: str | None = None) -> HookResult:
        """Let the step through, as far as this hook is concerned."""
        return cls("allow", reason)

    @classmethod
    def deny(cls, reason: str | None = None) -> HookResult:
        """Refuse the step."""
        return cls("deny", reason)

    @classmethod
    def block(cls, reason: str | None = None) -> HookResult:
        """Refuse the step; another word for deny."""
        return cls("block", reason)

    @classmethod
    def ask(cls, reason: str | None = None) -> HookResult:
        """Let a person decide."""
        return cls("ask", reason)

    @classmethod
    def modify(cls, **changes: Any) -> HookResult:
        """Let the step through with ``changes``."""
        return cls("modify", modified_input=changes)

    def is_allowed(self) -> bool:
        """True for allow and modify."""
        return self.decision in ("allow", "modify")

    def is_denied(self) -> bool:
        """True for everything else: an ask counts as denied until somebody lifts it."""
        return not self.is_allowed()


class Undecided(HookResult):
    """What a command or an endpoint answered without a decision: an allow, but no yes at ``on_permission_ask``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HookResult):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)

    __hash__ = None  # type: ignore[assignment]  # as for every mutable dataclass


@dataclass(slots=True)
class HookOutput:
    """The answer of a command hook or a webhook, as its JSON names it."""

    proceed: bool = True
    stop_reason: str | None = None
    suppress_output: bool = False
    system_message: str | None = None
    decision: str | None = None
    reason: str | None = None
    modified_data: dict[str, Any] | None = None

    def is_blocking(self) -> bool:
        """True where the step is not to go on without a person."""
        return not self.proceed or self.decision in ("deny", "block", "ask")

    def should_stop(self) -> bool:
        """True where ``proceed`` is false."""
        return not self.proceed

    def get_reason(self) -> str:
        """Why, in the words of the hook."""
        return self.stop_reason or self.reason or ("Denied by hook" if self.is_blocking() else "")


@dataclass(slots=True)
class HookExecutionResult:
    """One hook's run, as ``execute`` and ``fire_hook`` give it. ``success`` is False where the hook broke;
    ``duration_ms`` is in milliseconds."""

    hook_id: str = ""
    hook_name: str = ""
    event: str = ""
    success: bool = True
    output: HookResult | None = None
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    duration_ms: float = 0.0
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        from agent_engine.hooks.jsonform import to_plain

        plain: dict[str, Any] = to_plain({name: getattr(self, name) for name in self.__dataclass_fields__})
        return plain


@dataclass(slots=True)
class Verdict:
    """What a dispatch came to: the strictest decision, and the payload with every edit that counts.

    ``broke`` is True where the refusal comes from a failure under the policy ``deny``; ``hook`` names who refused or
    asked. At ``on_permission_ask`` the decision ``allow`` is a yes that somebody gave, ``deny`` a no, ``ask`` that
    nobody answered.
    """

    decision: str
    payload: Any = None
    reason: str | None = None
    hook: str | None = None
    broke: bool = False
    additional_context: tuple[str, ...] = ()
    suppress_output: bool = False
    system_message: str | None = None

    @property
    def denied(self) -> bool:
        """True where the step must not go on."""
        return self.decision == "deny"

    @property
    def asked(self) -> bool:
        """True where a person has to decide."""
        return self.decision == "ask"

    @property
    def changed(self) -> bool:
        """True where a hook changed the payload."""
        return self.decision == "modify"

    @property
    def public_reason(self) -> str | None:
        """The reason that may be shown outside: what a hook said on purpose, None where it broke."""
        return None if self.broke else self.reason


class PlainVerdict(Verdict):
    """A verdict with nothing but its decision and the payload; quicker to make than one that could hold more."""

    __slots__ = ()
    reason = None
    hook = None
    broke = False
    additional_context = ()
    suppress_output = False
    system_message = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Verdict):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)

    __hash__ = None  # type: ignore[assignment]  # as for every mutable dataclass


@dataclass(slots=True)
class HookRun:
    """One hook's run with everything that a decision record wants.

    ``decision`` is the hook's own: allow, modify, ask, deny, ``failed`` where it broke, ``none`` where it only
    observed. ``before`` and ``after`` are copies of the payload, made only for a sink that wants them. ``started_at``
    is a Unix time in seconds.
    """

    hook: HookDefinition
    event: HookEvent
    mode: str = "sequential"
    group: int = 0
    decision: str = "allow"
    reason: str | None = None
    broke: bool = False
    failure_type: str | None = None
    changed: tuple[str, ...] = ()
    duration_ms: float = 0.0
    policy: str = "deny"
    observe: bool = False
    shadow: bool = False
    started_at: float = 0.0
    before: Any = None
    after: Any = None
    additional_context: str | None = None
