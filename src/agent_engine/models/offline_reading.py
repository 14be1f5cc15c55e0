"""Reading what a tool returned: whether it worked, what it leads to, and which passages answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_engine.models.offline_words import Ranking, bag, coverage, topics_of

Outcome = Literal["ok", "refused", "failed"]
_REFUSED = re.compile(
    r"^(?:Execution|Result) of .{1,200}? was blocked by security policy\.(?: Reason: (.*))?", re.DOTALL
)
_CUT = re.compile(
    r"\b(?:truncated|cut (?:here|off)|capped|shortened|omitted|more characters)\b|\[\s*(?:…|\.\.\.)\s*\]", re.I
)
_EMPTY = re.compile(
    r"^(?:no|nothing|none)\b|\b(?:not found|no (?:match|result|such)\w*|nothing (?:in|matches|found))\b", re.I
)
_ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+(.+)$")
_NAME = re.compile(r"^[`'\"*]*([\w][\w./@+-]*(?: [\w.-]+){0,4})[`'\"*]*(?:\s*(?:[:—–(]|-\s).*)?$", re.DOTALL)
_NEAR = re.compile(
    r"(?:near it|near|did you mean|similar|closest|known|available|there are|are|options|one of)\W{1,3}(.+)$", re.I
)
_BADGE = re.compile(r"^\s*(?:\[?!\[|<(?:img|a|p|div|picture)\b|</)")
_LONGEST_PASSAGE = 1000
_LONGEST_ANSWER = 1400
_MOST_PASSAGES = 3


@dataclass(slots=True)
class Result:
    """One finished call of the conversation."""

    tool: str
    arguments: dict[str, Any]
    text: str
    outcome: Outcome = "ok"
    reason: str | None = None

    @property
    def cut(self) -> bool:
        """Whether the result says that it is not the whole."""
        return bool(_CUT.search(self.text[-300:]))

    @property
    def empty(self) -> bool:
        """Whether the result says that there is nothing."""
        return (
            not self.text.strip() or self.text.strip() in ("[]", "{}", "null") or bool(_EMPTY.search(self.text[:200]))
        )

    def source(self) -> str:
        """The call, as a person would write it down."""
        given = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
        return f"{self.tool}({given})"


@dataclass(slots=True)
class Lead:
    """Something a result names, which another call could look at; ``score`` is how well it fits the question."""

    value: str
    line: str
    score: float = field(default=0.0)


def read_result(tool: str, arguments: dict[str, Any], text: str) -> Result:
    """What became of a call."""
    refused = _REFUSED.match(text)
    if refused:
        return Result(tool, arguments, text, "refused", (refused.group(1) or "").strip() or None)
    data = _json(text)
    if isinstance(data, dict):
        if "error" in data and len(data) <= 2:
            inner = str(data["error"])
            refused = _REFUSED.match(inner)
            if refused:
                return Result(tool, arguments, inner, "refused", (refused.group(1) or "").strip() or None)
            return Result(tool, arguments, inner, "failed", inner)
        if set(data) == {"result"}:
            data = data["result"]
        text = data if isinstance(data, str) else "\n".join(_lines(data))
    elif isinstance(data, list):
        text = "\n".join(_lines(data))
    if re.match(r"(?:Invalid arguments for tool|Unknown tool|Error\b)", text):
        return Result(tool, arguments, text, "failed", text)
    return Result(tool, arguments, text)


def leads_of(result: Result, wanted: Sequence[str]) -> list[Lead]:
    """What a result offers to look at next, best first, as far as it fits the wanted words at all."""
    found: dict[str, Lead] = {}
    for line in result.text.splitlines()[:400]:
        for value, about in _offers(line):
            found.setdefault(value.lower(), Lead(value, about))
    leads = list(found.values())
    if not leads or not wanted:
        return []
    ranking = Ranking([bag((lead.value, 3.0), (lead.line, 1.0)) for lead in leads])
    scores = ranking.scores(dict.fromkeys(wanted, 1.0))
    for place, (lead, score) in enumerate(zip(leads, scores, strict=True)):
        if score > 0:  # many of the words, named in the name, and offered early
            own = coverage(topics_of(lead.value), " ".join(wanted))
            lead.score = score + 4.0 * coverage(wanted, f"{lead.value} {lead.line}") + own + 1.0 / (1 + place)
    return sorted((lead for lead in leads if lead.score > 0), key=lambda lead: -lead.score)


def passages(results: Sequence[Result], wanted: Sequence[str]) -> list[tuple[Result, list[str]]]:
    """The passages that fit the wanted words best, under their results, in the order they were found."""
    whole = [(result, [result.text.strip()]) for result in results]
    if sum(len(texts[0]) for _, texts in whole) <= _LONGEST_PASSAGE:
        return whole
    every = [(result, passage) for result in results for passage in _passages(result.text)]
    ranking = Ranking([bag((passage, 1.0)) for _, passage in every], length_counts=0.3)
    scores = ranking.scores(dict.fromkeys(wanted, 1.0))
    for number, (result, _) in enumerate(every):
        scores[number] = scores[number] * (1 + 0.5 / (1 + number)) + 0.01 / (1 + number)  # the beginning says most
        if result is results[-1]:
            scores[number] *= 1.5  # the calls before led here
    chosen: list[int] = []
    room = _LONGEST_ANSWER
    for number in sorted(range(len(every)), key=lambda n: -scores[n]):
        size = len(every[number][1])
        if chosen and scores[number] < 0.7 * scores[chosen[0]]:
            break
        if size <= room or not chosen:
            chosen.append(number)
            room -= size
        if len(chosen) == _MOST_PASSAGES:
            break
    shown = [(result, [every[n][1] for n in sorted(chosen) if every[n][0] is result]) for result in results]
    return [(result, texts) for result, texts in shown if texts]


def _offers(line: str) -> Iterator[tuple[str, str]]:
    """The names that one line offers: a list item's beginning, or what stands after 'near it:'."""
    item = _ITEM.match(line)
    if item:
        named = _NAME.match(item.group(1))
        if named:
            yield named.group(1).strip(), item.group(1)
        return
    near = _NEAR.search(line)
    if near and "," in near.group(1):
        for part in near.group(1).rstrip(".!?").split(","):
            value = part.strip().strip("`'\"").removeprefix("and ").removeprefix("or ")
            if value and len(value) < 80:
                yield value, value


def _passages(text: str) -> list[str]:
    """The paragraphs of a text; a heading stands with what follows it, and a long one is cut."""
    found: list[str] = []
    heading = ""
    for block in re.split(r"\n\s*\n", text.strip()):
        block = "\n".join(line.rstrip() for line in block.splitlines() if not _BADGE.match(line)).strip("\n")
        if not re.search(r"\w", block):
            continue
        if "\n" not in block and len(block) < 100 and not block.endswith((".", "!", "?")):
            heading = f"{heading}\n\n{block}" if heading else block
            continue
        whole = f"{heading}\n\n{block}" if heading else block
        found.append(whole if len(whole) <= _LONGEST_PASSAGE else _cut(whole))
        heading = ""
    return [*found, heading] if heading else found


def _cut(block: str) -> str:
    kept = block[:_LONGEST_PASSAGE]
    at = max(kept.rfind("\n"), kept.rfind(". ") + 1)
    return kept[: at if at > 200 else _LONGEST_PASSAGE].rstrip() + " …"


def _json(text: str) -> Any:
    if text[:1] not in "{[":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _lines(data: Any, depth: int = 0) -> Iterator[str]:
    """JSON as lines that people could have written: a list item a line, an object's name first."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(value, (Mapping, list)) and depth < 4:
                yield f"{key}:"
                yield from _lines(value, depth + 1)
            else:
                yield f"{key}: {value}"
    elif isinstance(data, list):
        for item in data:
            if isinstance(item, Mapping):
                name = next((item[key] for key in ("name", "title", "id", "key", "path") if key in item), None)
                rest = "; ".join(f"{key}: {value}" for key, value in item.items() if value is not name)
                yield f"- {name}: {rest}" if name is not None else f"- {rest}"
            else:
                yield f"- {item}"
    else:
        yield str(data)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…" + text[-1]
