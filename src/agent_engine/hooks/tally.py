"""The tally of one dispatch: what its hooks have said so far, and the verdict that comes of it.

Pure: nothing here runs a hook, and nothing waits.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from agent_engine.hooks.errors import HookExecutionError, HookFailure, as_hooks_own
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.result import PlainVerdict, Verdict
from agent_engine.hooks.rows import text_of

if TYPE_CHECKING:
    from agent_engine.hooks.callbacks import Answer
    from agent_engine.hooks.events import EventSpec
    from agent_engine.hooks.plan import Entry

__all__ = ["Tally", "let_through"]

logger = logging.getLogger("agent_engine.hooks")

_new: Final = object.__new__


def let_through(payload: Any, changed: bool, kind: type[Verdict] = PlainVerdict) -> Verdict:
    """The one expression that lets a step through: nobody refused, nobody asked, and nothing broke that counts."""
    verdict = _new(kind)
    verdict.decision = "modify" if changed else "allow"
    verdict.payload = payload
    return verdict


class Tally:
    """Deny over ask over modify over allow; of two that say the same, the first gives the reason.

    ``stopped`` says that no further hook is to run. ``strict`` raises a hook's own exception where it broke,
    ``raises`` is False where a failure is a refusal in every case.
    """

    __slots__ = (
        "_asked",
        "_contexts",
        "_error",
        "_messages",
        "_raises",
        "_refusal",
        "_spec",
        "_strict",
        "_suppress",
        "_yes",
        "stopped",
    )

    def __init__(self, spec: EventSpec, *, strict: bool, raises: bool) -> None:
        self.stopped = False
        self._spec = spec
        self._strict = strict
        self._raises = raises
        self._refusal: tuple[str | None, str, bool] | None = None
        self._asked: tuple[str | None, str] | None = None
        self._yes = False
        self._error: BaseException | None = None
        self._contexts: list[str] = []
        self._messages: list[str] = []
        self._suppress = False

    def said(self, entry: Entry, answer: Answer) -> None:
        """A hook that counts has answered."""
        if answer.additional_context:
            self._contexts.append(answer.additional_context)
        if answer.system_message:
            self._messages.append(answer.system_message)
        self._suppress = self._suppress or answer.suppress_output
        if answer.decision == "ask":
            self._asked = self._asked or (answer.reason, entry.name)
        elif answer.decision == "allow":
            self._yes = True
        elif answer.decision == "deny":
            if self._spec.refuses:
                self._refuse(answer.reason, entry, broke=False)
            else:
                logger.warning("Hook '%s' said no at %s, where nothing can be refused", entry.name, self._spec.event)

    def failed(self, entry: Entry, failure: HookFailure) -> None:
        """A hook has broken; what follows is for its failure policy to say."""
        cause = failure.cause or failure
        kind = failure.failure_type
        event = self._spec.event
        if entry.on_failure == "log":
            logger.warning("Hook '%s' failed at %s: %s", entry.name, event, kind)
            return
        logger.warning("Hook '%s' failed at %s: %s: %s", entry.name, event, kind, text_of(cause))
        if self._raises and (self._strict or entry.on_failure == "raise"):
            self.stopped = True
            if self._strict:
                self._error = self._error or as_hooks_own(cause)
            elif self._error is None:
                self._error = HookExecutionError(str(event), entry.ref, cause)
                self._error.__cause__ = cause
            return
        self._refuse(failure.reason, entry, broke=True)

    def check(self) -> None:
        """Raise what a broken hook makes the dispatch raise, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def verdict(self, payload: Any, changed: bool) -> Verdict:
        """What all of it comes to."""
        permission = self._spec.event is HookEvent.ON_PERMISSION_ASK
        refusal, asked = self._refusal, self._asked
        if refusal is None and asked is None and (self._yes or not permission):
            verdict = let_through(payload, changed and not permission, Verdict)
        else:
            verdict = Verdict("ask" if refusal is None else "deny", payload)
        verdict.reason, verdict.hook, verdict.broke = refusal or (*(asked or (None, None)), False)
        verdict.additional_context = tuple(self._contexts)
        verdict.suppress_output = self._suppress
        verdict.system_message = "\n".join(self._messages) or None
        return verdict

    def _refuse(self, reason: str | None, entry: Entry, *, broke: bool) -> None:
        self._refusal = self._refusal or (reason, entry.name, broke)
        self.stopped = True
