"""Filling a tool's parameters from what a person wrote, by the JSON Schema of the tool."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_engine.models.offline_words import FUNCTION_WORDS, actions_of, stem, topics_of

_QUOTED = re.compile(r"“([^”]+)”|\"([^\"]+)\"|`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_URL = re.compile(r"\bhttps?://[^\s<>\"')]+[^\s<>\"').,;:?!]")
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_PATH = re.compile(
    r"(?<![\w/])(?:~|\.{1,2})?/[\w.@/-]*[\w/]|\b[\w-]+(?:/[\w.-]+)+|\b[\w-]+\.[a-z]{1,5}\b(?!\.?\w)(?!\()"
)
_DOTTED = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_CODE = re.compile(r"\b(?:[A-Za-z]\w*_\w+|[a-z]+[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*|\w+(?=\(\)))")
_KEBAB = re.compile(r"\b[A-Za-z0-9]+(?:-[A-Za-z0-9]+)+\b")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:?\d\d)?)?")
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")
_SUM = re.compile(r"-?[\d.(][\d\s.,()*/%^+-]*[\d)]")
_PROPER = re.compile(r"(?<=[a-z,;:] )[A-Z][\w-]*(?: [A-Z][\w-]*)*")
_AFTER_KIND = r"(?:named|called|titled|about|on|for|of)?\s*"

_FREE_TEXT = "query question message text prompt search input keyword request task instruction term phrase q"
_KINDS_OF_THINGS = """
account article book city class command country customer document file function issue item library member method module
note package page product project recipe repository table team ticket tool topic user
"""
FREE_TEXT = frozenset(_FREE_TEXT.split())
_KINDS = frozenset(_KINDS_OF_THINGS.split())
_NOT_GUESSED = frozenset({"url", "uri", "link", "href", "email", "mail", "expression", "formula", "calculation"})
_CODE_WORDS = ("python", "module", "function", "class", "method", "api", "documentation", "library", "code")


@dataclass(slots=True)
class Asked:
    """What a message holds that could fill a parameter, found once."""

    text: str
    quoted: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    emails: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    dates: list[str] = field(default_factory=list)
    numbers: list[float | int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Identifiers: dotted, snake_case, CamelCase, kebab-case, ``name()``, or named by their kind (the json module)."""
    proper: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    actions: set[str] = field(default_factory=set)

    def hints(self) -> list[str]:
        """Words for the kinds of things found: a dotted name speaks of code, an address of the web."""
        found: list[str] = []
        if any(_DOTTED.fullmatch(name) or "_" in name for name in self.names) or _CODE.search(self.text):
            found.extend(_CODE_WORDS)
        if self.urls:
            found.extend(("url", "web", "page", "link", "address"))
        if self.paths:
            found.extend(("file", "path", "folder"))
        if re.match(r"\s*how (?:do|does|can|should|would|to)\b", self.text, re.I):
            found.extend(("documentation", "docs", "library", "guide", "function"))
        if self.emails:
            found.extend(("mail", "email", "address"))
        if len(self.numbers) > 1 or re.search(r"\d\s*[-+*/%^]\s*\d", self.text):
            found.extend(("calculate", "number", "sum", "arithmetic"))
        return [stem(word) for word in found]


def read_message(text: str) -> Asked:
    """Find what a message holds."""
    asked = Asked(text)
    asked.quoted = [next(group for group in match.groups() if group) for match in _QUOTED.finditer(text)]
    asked.urls = _URL.findall(text)
    asked.emails = _EMAIL.findall(text)
    rest = _EMAIL.sub(" ", _URL.sub(" ", text))
    asked.dates = _DATE.findall(rest)
    asked.numbers = [_number(found) for found in _NUMBER.findall(_DATE.sub(" ", rest))]
    asked.names = _names(rest)
    asked.paths = [found for found in _PATH.findall(rest) if "/" in found or found not in asked.names]
    asked.proper = [name for name in _PROPER.findall(text) if _may_name(name) and len(name) > 1]
    asked.topics = topics_of(text)
    asked.actions = actions_of(text)
    return asked


def _names(text: str) -> list[str]:
    found = [match.group().removesuffix("()") for match in _DOTTED.finditer(text) if "." in match.group()]
    inside = " ".join(found)
    found += [name for name in _CODE.findall(text) if name not in inside]
    found += [name for name in _KEBAB.findall(text) if name not in inside and not name[0].isdigit()]
    for kind in sorted(_KINDS):
        found += re.findall(rf"\b([A-Za-z_][\w.-]*)\s+{kind}\b", text)
        found += re.findall(rf"\b{kind}s?\s+(?:named|called|titled)\s+([A-Za-z_][\w.-]*\w)", text)
        found += re.findall(
            rf"\b{kind}\s+([A-Za-z_][\w.-]*\w)(?=\s*(?:[?.!,;]|$|\b(?:do|does|is|has|say|says|offer|mean|for)))", text
        )
    found += re.findall(
        r"\b(?:version|purpose|use|job|meaning|documentation|docs) (?:of|for) (?:the )?([A-Za-z_][\w.-]*\w)", text
    )
    found += re.findall(
        r"\b(?:is|does|has|do) ([a-z][\w-]*\d[\w-]*|[a-z][\w.]*[\w])\b(?= (?:do|mean|offer|need|for|instal|used))", text
    )
    return [name for name in dict.fromkeys(found) if _may_name(name)]


def _may_name(name: str) -> bool:
    lowered = name.lower()
    return lowered not in FUNCTION_WORDS and lowered not in _KINDS and not (actions_of(name) and name.isalpha())


def _number(text: str) -> float | int:
    plain = text.replace(",", "")
    return float(plain) if "." in plain else int(plain)


@dataclass(slots=True)
class Filled:
    """Arguments for one call. ``sure`` is how well founded they are, 0..1; ``missing`` names what nothing fits."""

    arguments: dict[str, Any]
    sure: float = 1.0
    missing: list[str] = field(default_factory=list)


def fill(schema: Mapping[str, Any], asked: Asked, lead: str | None = None) -> Filled:
    """Arguments for a tool's schema. ``lead`` is a value that an earlier result offered for a naming parameter."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    filled = Filled({})
    numbers = list(asked.numbers)
    for name, rule in properties.items():
        found = _value(name, rule if isinstance(rule, Mapping) else {}, asked, lead, numbers, name in required, schema)
        if found is None:
            if name in required:
                filled.missing.append(name)
                filled.sure = 0.0
            continue
        value, sure = found
        filled.arguments[name] = value
        if name in required or len(properties) == 1:
            filled.sure = min(filled.sure, sure)
    return filled


def is_naming(name: str, rule: Mapping[str, Any]) -> bool:
    """Whether a parameter wants the name of one thing, not free text, a number or a choice."""
    return _kind_of(rule) == "string" and "enum" not in rule and not is_free_text(name)


def is_free_text(name: str) -> bool:
    return bool({word.lower() for word in re.findall(r"[A-Za-z][a-z]*", name)} & FREE_TEXT)


def _kind_of(rule: Mapping[str, Any]) -> str:
    kind = rule.get("type")
    if isinstance(kind, str):
        return kind
    for option in [*(rule.get("anyOf") or ()), *(rule.get("oneOf") or ())]:
        if isinstance(option, Mapping) and option.get("type") not in (None, "null"):
            return str(option["type"])
    return "string" if kind is None else next((one for one in kind if one != "null"), "string")


Found = tuple[Any, float] | None


def _value(
    name: str,
    rule: Mapping[str, Any],
    asked: Asked,
    lead: str | None,
    numbers: list[float | int],
    required: bool,
    schema: Mapping[str, Any],
) -> Found:
    if "$ref" in rule:
        rule = (schema.get("$defs") or {}).get(str(rule["$ref"]).rpartition("/")[2], {})
    if "enum" in rule or "const" in rule:
        return _choice(rule.get("enum") or [rule["const"]], asked, required)
    kind = _kind_of(rule)
    if kind in ("integer", "number"):
        fitting = next((n for n in numbers if _in_bounds(n, rule) and (kind == "number" or isinstance(n, int))), None)
        if fitting is None:
            return None
        numbers.remove(fitting)
        return fitting, 1.0
    if kind == "boolean":
        named = stem(name.lower()) in asked.topics
        return (True, 1.0) if named else (False, 0.5) if required else None
    if kind == "array":
        return _several(rule.get("items") or {}, asked, lead, required)
    if kind == "object":
        return ({}, 0.2) if required else None
    return _text(name, rule, asked, lead, required)


def _choice(options: Sequence[Any], asked: Asked, required: bool) -> Found:
    for option in options:
        words = topics_of(str(option)) or [str(option).lower()]
        if all(word in asked.topics for word in words):
            return option, 1.0
    return (options[0], 0.2) if required and options else None


def _in_bounds(number: float, rule: Mapping[str, Any]) -> bool:
    low = rule.get("minimum", rule.get("exclusiveMinimum"))
    high = rule.get("maximum", rule.get("exclusiveMaximum"))
    return (low is None or number >= low) and (high is None or number <= high)


def _several(items: Mapping[str, Any], asked: Asked, lead: str | None, required: bool) -> Found:
    if _kind_of(items) in ("integer", "number") and items:
        return (list(asked.numbers), 1.0) if asked.numbers else None
    if lead is not None:
        return [lead], 1.0
    values = asked.quoted or asked.names
    if values:
        return list(values), 0.9
    return ([asked.text], 0.3) if required else None


def _text(name: str, rule: Mapping[str, Any], asked: Asked, lead: str | None, required: bool) -> Found:
    words = {word.lower() for word in re.findall(r"[A-Za-z][a-z]*", name)}
    special = _special(words, rule, asked)
    if special is not None or words & _NOT_GUESSED:
        return special
    if is_free_text(name):
        return (asked.text, 0.6) if required or words & {"query", "question", "message", "search"} else None
    if not required:
        like = _like_example(rule, asked)
        return None if like is None else (like, 0.9)
    if lead is not None and _fits(lead, rule):
        return lead, 1.0
    found = _best_name(rule, asked)
    if found is not None:
        return found, 0.9
    words_left = [word for word in re.findall(r"[\w.-]*\w", asked.text) if _may_name(word)]
    guess = " ".join(word for word in words_left if word.lower() not in _KINDS)
    return (guess, 0.2) if guess and _fits(guess, rule) else None


def _special(words: set[str], rule: Mapping[str, Any], asked: Asked) -> Found:
    """Parameters whose name or format says exactly what they want."""
    wants: list[tuple[bool, list[str]]] = [
        (bool(words & {"url", "uri", "link", "href"}) or rule.get("format") == "uri", asked.urls),
        (bool(words & {"email", "mail"}) or rule.get("format") == "email", asked.emails),
        (bool(words & {"path", "file", "filename", "folder", "directory"}), asked.paths),
        (bool(words & {"date", "day"}) or rule.get("format") in ("date", "date-time"), asked.dates),
    ]
    for wanted, values in wants:
        if wanted and values and _fits(values[0], rule):
            return values[0], 1.0
    if words & {"expression", "formula", "calculation"}:
        sums = [found.strip() for found in _SUM.findall(asked.text) if re.search(r"[-+*/%^]", found.strip()[1:])]
        if sums:
            return max(sums, key=len), 1.0
    return None


def _best_name(rule: Mapping[str, Any], asked: Asked) -> str | None:
    """The thing that the message names and that looks most like the examples in the parameter's description."""
    quoted = next((value for value in asked.quoted if _fits(value, rule)), None)
    if quoted is not None:
        return quoted
    candidates = [value for value in [*asked.names, *asked.proper] if _fits(value, rule)]
    if not candidates:
        return None
    shapes = _example_shapes(rule)
    return min(
        candidates, key=lambda value: (_shape(value) not in shapes if shapes else False, candidates.index(value))
    )


def _like_example(rule: Mapping[str, Any], asked: Asked) -> str | None:
    """For a parameter that may be left out: what the message holds of the unmistakable shape of its examples."""
    shapes = _example_shapes(rule) - {"word", "words"}
    candidates = [*asked.quoted, *asked.paths, *asked.names]
    return next((value for value in candidates if _shape(value) in shapes and _fits(value, rule)), None)


def _example_shapes(rule: Mapping[str, Any]) -> set[str]:
    examples = re.findall(r"(?:such as|e\.g\.,?|for example,?|like) ([\w./-]*\w)", str(rule.get("description", "")))
    return {_shape(example) for example in [*examples, *(str(one) for one in rule.get("examples") or ())]}


def _shape(value: str) -> str:
    if "/" in value:
        return "path"
    if _DOTTED.fullmatch(value):
        return "dotted"
    if "_" in value:
        return "snake"
    return "kebab" if "-" in value else "words" if " " in value else "word"


def _fits(value: str, rule: Mapping[str, Any]) -> bool:
    longest, shortest = rule.get("maxLength"), rule.get("minLength")
    return (longest is None or len(value) <= longest) and (shortest is None or len(value) >= shortest)
