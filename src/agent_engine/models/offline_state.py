"""Where a conversation with the offline model stands: what to call next, and what to say."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_engine.models.base import Message, ToolCall, ToolDefinition
from agent_engine.models.messages import calls_of, text_of_content
from agent_engine.models.offline import NOTHING, SIGNATURE
from agent_engine.models.offline_arguments import Filled, fill, is_free_text, is_naming, read_message
from agent_engine.models.offline_reading import Lead, Result, leads_of, passages, read_result
from agent_engine.models.offline_words import CHANGING, GENERAL_VERBS, Ranking, actions_of, bag, coverage, words_of

_MOST_CALLS = 4
_POINTS_BACK = re.compile(r"\b(?:it|its|that|this|they|them|those|these|there|one)\b", re.I)


@dataclass(slots=True)
class _Candidate:
    tool: ToolDefinition
    score: float
    filled: Filled
    agreed: int


class Conversation:
    """Where a conversation stands: the question, what was called for it, and what is still on offer."""

    def __init__(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        last_question = max((n for n, m in enumerate(messages) if m.get("role") == "user"), default=-1)
        self.question = text_of_content(messages[last_question].get("content")) if last_question >= 0 else ""
        self.asked = read_message(self.question)
        self.results = list(_results(messages[last_question + 1 :]))
        self.place = len(messages)
        self.wanted = self.asked.topics
        if len(self.wanted) <= 4 and _POINTS_BACK.search(self.question):
            self._look_back(messages[:last_question])

    def _look_back(self, before: Sequence[Message]) -> None:
        """A short question that points back ("and its version?") is about what the one before was about."""
        earlier = next((text_of_content(m.get("content")) for m in reversed(before) if m.get("role") == "user"), "")
        if earlier and not self.asked.names and not self.asked.quoted:
            past = read_message(earlier)
            self.asked.names, self.asked.quoted, self.asked.proper = past.names, past.quoted, past.proper
            self.wanted = [*self.wanted, *(word for word in past.topics if word not in self.wanted)]

    # What to call next

    def next_call(self) -> ToolCall | None:
        """The next call, or None when it is time to answer."""
        if not self.tools or not self.question.strip() or len(self.results) >= _MOST_CALLS:
            return None
        if any(result.outcome == "refused" for result in self.results):
            return None  # a refusal is an answer, not something to work around
        for candidate in self._next():
            call = self._call(candidate)
            if call is not None:
                return call
        return None

    def _next(self) -> list[_Candidate]:
        if not self.results:
            return self._first()
        last = self.results[-1]
        if self._is_child(last.tool):
            blind = all(one.score <= 0 for one in self._ranked())  # nobody's field: ask around
            return self._others() if self._says_nothing(last) or (blind and self._covered(last) < 0.8) else []
        lead = self._lead(last)
        if lead:
            return lead
        if last.outcome == "failed" or last.empty:
            return self._others()
        return []

    def _first(self) -> list[_Candidate]:
        """The best tool; before one that needs the name of a thing which nobody named, the tool that finds names."""
        ranked = [one for one in self._ranked() if one.score > 0 or one.filled.sure >= 0.5]
        if not ranked:
            return []
        best = ranked[0]
        if best.filled.sure < 0.5 and not self._is_child(best.tool.name):
            finders = [one for one in ranked if one.filled.sure >= 0.5 and not actions_of(one.tool.name) & CHANGING]
            ranked = [*finders, *(one for one in ranked if one not in finders)]
        return ranked

    def _others(self) -> list[_Candidate]:
        """Tools not tried yet, best first; those that change something only if they fit."""
        tried = {result.tool for result in self.results}
        return [one for one in self._ranked() if one.tool.name not in tried and one.filled.sure >= 0.5]

    def _lead(self, last: Result) -> list[_Candidate]:
        """Calls that follow what the last result offers, where that fits better than what was asked for so far."""
        if last.outcome == "ok" and not (last.cut or self._is_finder(last.tool)):
            return []
        known = {str(value).lower() for result in self.results for value in result.arguments.values()}
        wanted = self._open_words(last)
        for lead in leads_of(last, wanted)[:3]:
            if lead.value.lower() in known:
                continue
            if last.outcome == "ok" and last.cut and not self._is_finder(last.tool) and not self._better(lead, last):
                continue
            followers = [one for one in self._ranked(lead.value, every=True) if self._takes_name(one.tool)]
            followers = [one for one in followers if not self._is_finder(one.tool.name)] or followers
            if followers and not self._wants_the_list(last):
                return followers[:1]
        return []

    def _open_words(self, last: Result) -> list[str]:
        """The words that a lead must fit: those of the question that do not merely name the tools or the action."""
        general = {word for tool in self.tools.values() for word in words_of(tool.name)}
        return [word for word in self.wanted if word not in general] or list(self.wanted)

    def _better(self, lead: Lead, last: Result) -> bool:
        """Whether a part of a result that was cut says more about the question than the whole's own name does."""
        own = " ".join(str(value) for value in last.arguments.values())
        rest = [word for word in self._open_words(last) if word not in words_of(own)]
        return bool(rest) and coverage(rest, f"{lead.value} {lead.line}") > 0

    def _wants_the_list(self, last: Result) -> bool:
        return "list" in self.asked.actions and "list" in actions_of(last.tool) and not self.asked.actions & CHANGING

    def _call(self, candidate: _Candidate) -> ToolCall | None:
        arguments, name = candidate.filled.arguments, candidate.tool.name
        if candidate.filled.missing:
            return None
        if any(result.tool == name and result.arguments == arguments for result in self.results):
            return None
        told = json.dumps([self.question, name, arguments], sort_keys=True)
        return ToolCall(f"call_{self.place}_{zlib.crc32(told.encode()):08x}", name, arguments)

    # What the tools are

    def _ranked(self, lead: str | None = None, *, every: bool = False) -> list[_Candidate]:
        """The tools that may be called, best first: those that fit the question, or all where none does."""
        tools = list(self.tools.values())
        ranking = Ranking([_document(tool) for tool in tools])
        query = {word: 0.4 if word in GENERAL_VERBS else 1.0 for word in self.wanted}
        for word in self.asked.hints():
            query.setdefault(word, 0.5)
        found = []
        for tool, score in zip(tools, ranking.scores(query), strict=True):
            promised = actions_of(tool.name)
            if promised & CHANGING and not promised & self.asked.actions and not _takes_numbers_alone(tool):
                continue
            agreed = len(promised & self.asked.actions)
            if score > 0:
                score += 0.5 * agreed
            filled = fill(tool.parameters, self.asked, lead)
            found.append(_Candidate(tool, score * (0.4 + 0.6 * filled.sure), filled, agreed))
        fitting = found if every else [one for one in found if one.score > 0]
        return sorted(fitting or found, key=lambda one: (-one.score, -one.agreed))

    def _is_child(self, name: str) -> bool:
        """Whether a tool is another agent: it takes a message and nothing else."""
        tool = self.tools.get(name)
        return tool is not None and list(tool.parameters.get("properties") or ()) == ["message"]

    def _is_finder(self, name: str) -> bool:
        """Whether a tool finds names rather than reads a thing: it lists, or takes words to search for."""
        tool = self.tools.get(name)
        if tool is None:
            return False
        properties = tool.parameters.get("properties") or {}
        required = tool.parameters.get("required") or ()
        return not required or any(is_free_text(one) for one in properties)

    def _takes_name(self, tool: ToolDefinition) -> bool:
        properties: Mapping[str, Mapping[str, object]] = tool.parameters.get("properties") or {}
        required = tool.parameters.get("required") or ()
        return any(is_naming(name, rule) for name, rule in properties.items() if name in required)

    def _says_nothing(self, result: Result) -> bool:
        return result.outcome == "failed" or NOTHING in result.text or result.empty

    # What to say

    def answer(self) -> list[str]:
        """The answer's parts, from what was returned, with sources; it says plainly what was refused or went wrong."""
        parts = [*self._from_children(), *self._from_tools(), *self._refused()]
        if not parts:
            parts = [self._nothing(), *self._failed()]
        return parts

    def _from_children(self) -> list[str]:
        said = [result for result in self.results if self._was_child(result) and result.outcome == "ok"]
        useful = [result for result in said if not self._says_nothing(result)]
        if not useful:
            return []
        best = max(useful, key=self._covered)
        return [f"{best.tool} answered:\n\n{_unsigned(best.text)}"]

    def _covered(self, result: Result) -> float:
        """How many of the question's words an answer has, the sources aside, which repeat the question."""
        return coverage(self.wanted, re.sub(r"^Source: .*$", "", result.text, flags=re.M))

    def _from_tools(self) -> list[str]:
        results = [r for r in self.results if r.outcome == "ok" and not self._was_child(r) and not r.empty]
        read = [r for r in self.results if not self._is_finder(r.tool)]
        if read and (read[-1].outcome == "refused" or any(r in read for r in results)):
            results = [r for r in results if r in read]  # what led there has done its work
        results = [r for r in results if self._concerns(r)]
        parts = []
        for result, found in passages(results, self.wanted):
            note = "\nOnly a part of this result was shown to me." if result.cut else ""
            parts.append("\n\n".join(found) + f"\n\nSource: {result.source()}{note}")
        return parts

    def _concerns(self, result: Result) -> bool:
        """Whether a result has to do with the question: by its words, by its tool, or by the thing it was asked for."""
        if coverage(self.wanted, result.text) > 0 or any(not is_free_text(name) for name in result.arguments):
            return True
        return any(one.tool.name == result.tool and one.score > 0 for one in self._ranked())

    def _refused(self) -> list[str]:
        said = []
        for result in self.results:
            if result.outcome == "refused":
                why = f"the reason given: {result.reason}" if result.reason else "no reason was given."
                said.append(f"{result.source()} was refused; {why}")
        return said

    def _failed(self) -> list[str]:
        return [f"{r.source()} failed: {_in_one_line(r.text)}" for r in self.results[-1:] if r.outcome == "failed"]

    def _nothing(self) -> str:
        if self.results:
            tried = ", ".join(result.source() for result in self.results)
            return f"{NOTHING} I tried {tried}."
        return f"{NOTHING} None of my tools fits: {', '.join(self.tools)}."

    def _was_child(self, result: Result) -> bool:
        return list(result.arguments) == ["message"]


def _takes_numbers_alone(tool: ToolDefinition) -> bool:
    """Whether a tool takes numbers and nothing else: adding those up changes nothing."""
    properties = list((tool.parameters.get("properties") or {}).values())
    return bool(properties) and all(rule.get("type") in ("integer", "number") for rule in properties)


def _document(tool: ToolDefinition) -> Mapping[str, float]:
    properties = tool.parameters.get("properties") or {}
    named = " ".join(properties)
    described = " ".join(str(rule.get("description", "")) for rule in properties.values() if isinstance(rule, Mapping))
    return bag((tool.name, 2.0), (tool.description, 1.0), (named, 0.5), (described, 0.3))


def _results(messages: Sequence[Message]) -> list[Result]:
    """The calls made since the question, each with what came of it."""
    called: dict[str, ToolCall] = {}
    found = []
    for message in messages:
        if message.get("role") == "assistant":
            called.update({call.id: call for call in calls_of(message)})
        elif message.get("role") == "tool":
            call = called.get(str(message.get("tool_call_id")))
            name = call.name if call else str(message.get("name") or "tool")
            text = text_of_content(message.get("content"))
            found.append(read_result(name, call.arguments if call else {}, text))
    return found


def _unsigned(text: str) -> str:
    return text.replace(SIGNATURE, "").strip()


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:300]
