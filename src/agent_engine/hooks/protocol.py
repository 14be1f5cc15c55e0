"""What a process or an endpoint answers, read as a decision. Pure: text in, HookResult or HookFailure out.

One reading for both: a command hook's standard output and a webhook's body follow the same rules.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agent_engine.hooks.errors import HookFailure
from agent_engine.hooks.result import STRICTNESS, HookResult, Undecided

MAX_ANSWER = 1 << 20
"""Bytes of an answer that are read; a longer answer is a failure."""

KEYS = (
    "decision",
    "reason",
    "modified_input",
    "modified_data",
    "additional_context",
    "suppress_output",
    "system_message",
    "proceed",
    "stop_reason",
)
"""Every key that a verdict may have."""

_BLANKS = "".join(
    chr(code)
    for first, last in (
        (0x00, 0x09), (0x0B, 0x0C), (0x0E, 0x1A), (0x1C, 0x20), (0x7F, 0xA0), (0xAD, 0xAD), (0x1680, 0x1680),
        (0x180E, 0x180E), (0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x206F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
    )
    for code in range(first, last + 1)
)  # fmt: skip
"""What nobody sees in a line: blanks, a byte order mark, control characters and marks of no width."""
_UNSEEN = re.compile(rf"(?:\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*\x07|[{re.escape(_BLANKS)}\x1b])*")
"""The same and the colours of a terminal, at the start of a line."""
_JSON_STARTS = tuple('"[-0123456789tfn')


class BadAnswer(ValueError):
    """An answer that cannot be read as a decision; its text says what was found and what is allowed."""


def parse_command_output(stdout: str, stderr: str, exit_code: int) -> HookResult:
    """The decision that a finished command stands for; a failure reads as a deny whose reason says what broke."""
    try:
        return read_exit(stdout, stderr, exit_code)
    except HookFailure as failure:
        return HookResult.deny(failure.reason)


def read_exit(stdout: str, stderr: str, exit_code: int) -> HookResult:
    """The decision table of command hooks.

    Exit 0 is what the output says; 2 is a deny; with any other code only a deny object counts.

    Raises:
        HookFailure: the command broke: an unexpected code, or an output at exit 0 that is neither text nor one verdict.
    """
    if exit_code == 0:
        try:
            return read_answer(stdout)
        except BadAnswer as problem:
            raise HookFailure(f"Hook answered with {problem}", failure_type="bad_output") from None
    if exit_code == 2:
        said = stderr.strip() or "Blocked by hook"
        return read_refusal(stdout, said) or HookResult.deny(stderr.strip() or stdout.strip(_BLANKS + "\r\n") or said)
    refusal = read_refusal(stdout)
    if refusal is None:
        raise HookFailure(_unexpected_exit(stdout, stderr, exit_code), failure_type="exit_code")
    return refusal


def read_answer(text: str) -> HookResult:
    """An answer in good standing (exit 0): text is an allow that adds context, an object is the verdict.

    Raises:
        BadAnswer: it is neither.
    """
    context, verdict = find_object(text)
    if verdict is None:
        return Undecided(additional_context=context or None)
    result = read_object(verdict)
    if context:
        added = result.additional_context
        result.additional_context = f"{context}\n{added}" if added else context
    return result


def read_refusal(text: str, reason: str | None = "Denied by hook") -> HookResult | None:
    """The refusal that ``text`` holds, where it holds one deny object and no other; None for everything else.

    ``reason`` stands in where the object gives none.
    """
    try:
        _, verdict = find_object(text)
    except BadAnswer:
        return None
    return _refusal(verdict, reason) if verdict is not None else None


def find_object(text: str) -> tuple[str, dict[str, Any] | None]:
    """The text before the verdict, and the verdict: one JSON object from the first line that begins with ``{`` to the
    end.

    What nobody sees at the start of a line (blanks, a byte order mark, a terminal's colours) is ignored, so that it
    hides no verdict. Without such a line everything is text and the verdict is None.

    Raises:
        BadAnswer: such a line begins anything but one whole object, or all of it is JSON of another kind.
    """
    start = _object_starts(text)
    if start is None:
        words = text.strip(_BLANKS + "\r\n")
        if _is_json(words):
            raise BadAnswer("JSON that is no object; give text, or one JSON object")
        return words, None
    try:
        verdict = json.loads(text[start:], object_pairs_hook=_unique, parse_constant=_no_constant)
    except BadAnswer:
        raise
    except (ValueError, RecursionError):
        raise BadAnswer("a line that begins with '{' and is not, with all after it, one JSON object") from None
    return text[:start].strip(_BLANKS + "\r\n"), verdict


def read_object(verdict: dict[str, Any]) -> HookResult:
    """A verdict's fields as a HookResult. A deny counts whatever else the object holds.

    Raises:
        BadAnswer: an unknown decision, a field of the wrong type, or no decision and a key that is not the protocol's.
    """
    refusal = _refusal(verdict, "Denied by hook")
    if refusal is not None:
        return refusal
    decision = verdict.get("decision", "allow")
    if not isinstance(decision, str) or decision not in STRICTNESS:
        raise BadAnswer(f"the decision {repr(decision)[:80]}; allowed are {', '.join(STRICTNESS)}")
    strange = [key for key in verdict if key not in KEYS]
    if strange and "decision" not in verdict:
        raise BadAnswer(
            f"an object without a decision that has the key {strange[0][:80]!r}; known are {', '.join(KEYS)}"
        )
    if "modified_input" in verdict and "modified_data" in verdict:
        raise BadAnswer("both 'modified_input' and 'modified_data', which are two names of one thing")
    _typed(verdict, "proceed", bool)
    _typed(verdict, "stop_reason", str)
    kind = HookResult if "decision" in verdict else Undecided
    return kind(
        decision=decision,
        reason=_typed(verdict, "reason", str),
        modified_input=_typed(verdict, "modified_data" if "modified_data" in verdict else "modified_input", dict),
        additional_context=_typed(verdict, "additional_context", str),
        suppress_output=_typed(verdict, "suppress_output", bool) or False,
        system_message=_typed(verdict, "system_message", str),
    )


def _refusal(verdict: dict[str, Any], reason: str | None) -> HookResult | None:
    said_no = verdict.get("decision") in ("deny", "block")
    if not said_no and verdict.get("proceed") is not False:
        return None
    texts = {key: value for key, value in verdict.items() if isinstance(value, str) and value}
    first, second = ("reason", "stop_reason") if said_no else ("stop_reason", "reason")
    return HookResult(
        "deny",
        texts.get(first) or texts.get(second) or reason,
        additional_context=texts.get("additional_context"),
        suppress_output=verdict.get("suppress_output") is True,
        system_message=texts.get("system_message"),
    )


def _unexpected_exit(stdout: str, stderr: str, exit_code: int) -> str:
    """What a code other than 0 and 2 is called; callers match this text."""
    try:
        _, verdict = find_object(stdout)
    except BadAnswer:
        verdict = None
    said = stderr.strip()
    if verdict is not None and verdict.get("decision") == "allow":
        return f"Hook exited with unexpected code {exit_code} after emitting an allow decision: {said or 'no stderr'}"
    return f"Hook exited with unexpected code {exit_code}: {said or stdout.strip() or 'no output'}"


def _typed(verdict: dict[str, Any], key: str, kind: type) -> Any:
    value = verdict.get(key)
    if value is not None and type(value) is not kind:
        names = {str: "text", bool: "true or false", dict: "an object"}
        raise BadAnswer(f"a {key!r} that is not {names[kind]}")
    return value


def _object_starts(text: str) -> int | None:
    start = 0
    for line in text.replace("\r", "\n").split("\n"):
        blank = _UNSEEN.match(line)
        assert blank is not None  # it may be empty
        if line.startswith("{", blank.end()):
            return start + blank.end()
        start += len(line) + 1
    return None


def _is_json(words: str) -> bool:
    if words[:1] not in _JSON_STARTS:
        return False
    try:
        json.loads(words, parse_int=float, parse_constant=_no_constant)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadAnswer("an object that gives the same key twice")
    return found


def _no_constant(name: str) -> Any:
    raise BadAnswer(f"{name}, which is no JSON")
