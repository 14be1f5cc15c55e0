"""What stands around one model call: the tools it is offered, its request, its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from agent_engine.hooks import payloads
from agent_engine.hooks.errors import HookExecutionError, HookFailure, RunBlocked
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.payloads import private_copy
from agent_engine.models.base import Message, ModelResponse, ToolDefinition, Usage
from agent_engine.runtime.closing import dispatch_closing
from agent_engine.runtime.step import refuses

if TYPE_CHECKING:
    from agent_engine.hooks import middleware
    from agent_engine.models.base import Model, ModelSettings, ToolCall
    from agent_engine.runtime.step import Step
    from agent_engine.runtime.turn import Turn


logger = logging.getLogger("agent_engine.runtime")


class ModelHooks:
    """The request of one model call on its way in, and its answer on its way out.

    Attributes:
        messages, definitions_for_model, model, settings: what the model will get.
        offered: names of the tools in the definitions.
        held: how long the call's text is held back on a stream: not at all, until the call's own hooks have passed
            it, or until the end of the turn.
        asked: when the model was asked (perf_counter).
    """

    __slots__ = (
        "_passed",
        "_passes",
        "_shaped",
        "_usage",
        "asked",
        "definitions_for_model",
        "held",
        "latency_ms",
        "messages",
        "model",
        "offered",
        "settings",
        "step",
        "turn",
    )

    def __init__(self, turn: Turn, step: Step, model: Model, settings: ModelSettings) -> None:
        self.turn = turn
        self.step = step
        self.model = model
        self.settings = settings
        self.messages: Sequence[Message] = ()
        self.definitions_for_model: Sequence[ToolDefinition] = ()
        self.offered: frozenset[str] = frozenset()
        self.held: Literal["none", "call", "end"] = "none"
        self.asked = 0.0
        self.latency_ms = 0.0
        self._usage: Usage | None = None
        # before_llm let the call through and after_llm has not fired.
        self._passed = False
        self._passes = self._shaped = 0

    # The way in

    async def definitions(self, definitions: Sequence[ToolDefinition]) -> None:
        """before_tool_definitions: what the model is offered in this call. Refused: no tools."""
        self._shaped = again = self._shaped + 1
        plan = self.step.plan(HookEvent.BEFORE_TOOL_DEFINITIONS, self.model.name)
        if plan is not None:
            payload = payloads.BeforeToolDefinitionsInput(
                **self.step.base(),
                tool_definitions=shown_definitions(definitions),
                model=self.model.name,
                extra={"pass": again} if again > 1 else {},
            )
            verdict = await plan.dispatch(payload, self.step)
            if refuses(verdict):
                definitions = ()
            elif verdict.changed:
                definitions = definitions_from(verdict.payload.tool_definitions, definitions, verdict.hook)
        self.definitions_for_model = definitions
        prepared = self.turn.tools
        if prepared is not None and definitions is prepared.definitions:
            self.offered = prepared.names
        else:
            self.offered = frozenset(definition.name for definition in definitions)

    async def before_middleware(self, chain: middleware.MiddlewareChain) -> None:
        from agent_engine.runtime.adapters import refusal_of

        sent = self.request()
        await self.take_over(refusal_of(await chain.before_model(sent)))

    async def before_llm(self) -> None:
        """before_llm: it changes this one call. Raises RunBlocked where it is refused."""
        self._passes += 1
        plan = self.step.plan(HookEvent.BEFORE_LLM, self.model.name)
        if plan is None:
            self._passed = True
            return
        payload = payloads.BeforeLLMInput(
            **self.step.base(),
            messages=private_copy(list(self.messages)),
            model=self.model.name,
            temperature=self.settings.temperature,
            max_tokens=self.settings.max_tokens,
            extra=self._extra(),
        )
        verdict = await plan.dispatch(payload, self.step)
        if refuses(verdict):
            raise RunBlocked(HookEvent.BEFORE_LLM, verdict.hook, verdict.public_reason)
        self._passed = True
        if verdict.changed:
            left = verdict.payload
            try:
                self._use(left.messages, left.model, left.temperature, left.max_tokens)
            except TypeError as problem:
                raise bad_edit(HookEvent.BEFORE_LLM, verdict.hook, problem) from problem
        if verdict.additional_context:
            self.messages = with_notes(self.messages, verdict.additional_context)

    async def pass_again(self, request: middleware.ModelRequest) -> None:
        """A wrapper calls on; a changed request passes before_llm (and before_tool_definitions) again."""
        if await self.take_over(request):
            await self.before_llm()

    async def take_over(self, request: middleware.ModelRequest) -> bool:
        """Take what middleware made of the request. Returns whether it changed anything."""
        pristine = self.request()
        tools_changed = request.tools != pristine.tools
        if tools_changed:
            await self.definitions(definitions_from(request.tools or [], self.definitions_for_model, None))
        notes = request.extra.pop("additional_context", ())
        same = request.messages == pristine.messages and request.model == pristine.model
        same = same and request.temperature == pristine.temperature
        if not same:
            self._use(request.messages, request.model, request.temperature, self.settings.max_tokens)
        if notes:
            self.messages = with_notes(self.messages, notes)
        return tools_changed or not same

    def request(self) -> middleware.ModelRequest:
        from agent_engine.runtime.adapters import model_request

        return model_request(
            self.turn,
            self.messages,
            self.model.name,
            self.settings.temperature,
            shown_definitions(self.definitions_for_model),
        )

    def _use(self, messages: list[Message], model: str, temperature: float | None, max_tokens: int | None) -> None:
        if not all(isinstance(message, dict) for message in messages):
            raise TypeError("messages must be a list of messages in the chat shape, each a dict")
        self.messages = without_stale_parts(messages, self.messages)
        if model != self.model.name:
            self.model = self.turn.state.host.model_named(model, self.model, self.turn.node)
        if temperature != self.settings.temperature or max_tokens != self.settings.max_tokens:
            self.settings = replace(self.settings, temperature=temperature, max_tokens=max_tokens)

    def _extra(self) -> dict[str, Any]:
        return {"pass": self._passes} if self._passes > 1 else {}

    async def prefix(self) -> None:
        """prompt_prefix_invalidated, where somebody listens."""
        plan = self.step.plan(HookEvent.PROMPT_PREFIX_INVALIDATED)
        if plan is None:
            return
        from agent_engine.runtime.prefix import prefix_changed

        payload = prefix_changed(self)
        if payload is not None:
            await plan.dispatch(payload, self.step)

    # The way out

    def release(self) -> Callable[[str], None] | None:
        """Where the model's text may go at once; None where it is held back, or where nobody reads it."""
        turn = self.turn
        if not turn.speaks:
            return None
        listens, chain = turn.scope.listens, turn.node.middleware
        if turn.node.output_type is not None or listens(HookEvent.AFTER_AGENT) or listens(HookEvent.MESSAGE_SENDING):
            self.held = "end"
        elif listens(HookEvent.AFTER_LLM) or (chain is not None and chain.holds_text):
            self.held = "call"
        if self.held != "none":
            return None
        state = turn.state
        return lambda text: state.tell("text", text=text)

    def answered(self, response: ModelResponse) -> None:
        """The model has answered: count what it used."""
        self.latency_ms = (time.perf_counter() - self.asked) * 1000
        self._usage = response.usage
        turn = self.turn
        turn.state.usage = turn.state.usage + response.usage
        turn.tokens += response.usage.total

    async def after_middleware(self, chain: middleware.MiddlewareChain, response: ModelResponse) -> ModelResponse:
        from agent_engine.runtime.adapters import refusal_of, response_from, shown_response

        shown = await chain.after_model(shown_response(self.turn, response, self.model.name))
        return response_from(refusal_of(shown, withheld=True), response, ModelResponse)

    async def after_llm(self, response: ModelResponse) -> ModelResponse:
        """after_llm: what it leaves is the answer from here on. Raises RunBlocked where it is refused."""
        self._passed = False
        plan = self.step.plan(HookEvent.AFTER_LLM, self.model.name)
        if plan is None:
            return response
        payload = self._after(response.text, response.tool_calls, "ok", None)
        verdict = await dispatch_closing(self.step, plan, payload)
        if refuses(verdict):
            raise RunBlocked(HookEvent.AFTER_LLM, verdict.hook, verdict.public_reason)
        if not verdict.changed:
            return response
        from agent_engine.runtime.adapters import calls_from

        left = verdict.payload
        try:
            calls = calls_from(left.tool_calls, response.tool_calls)
        except TypeError as problem:
            raise bad_edit(HookEvent.AFTER_LLM, verdict.hook, problem) from problem
        if left.response == response.text and calls is response.tool_calls:
            return response
        # The provider's own parts hold the original words: they do not outlive a change.
        return replace(response, text=left.response, tool_calls=calls, native=None)

    async def close(self, status: str, error_type: str) -> None:
        """after_llm for a call without an answer, where before_llm had let it through."""
        if not self._passed:
            return
        self._passed = False
        plan = self.step.plan(HookEvent.AFTER_LLM, self.model.name)
        if plan is not None:
            if self.asked and not self.latency_ms:
                self.latency_ms = (time.perf_counter() - self.asked) * 1000
            await dispatch_closing(self.step, plan, self._after("", (), status, error_type))

    def _after(self, text: str, calls: Sequence[ToolCall], status: str, error_type: str | None) -> Any:
        from agent_engine.runtime.adapters import shown_calls

        return payloads.AfterLLMInput(
            **self.step.base(),
            messages=private_copy(list(self.messages)),
            response=text,
            tool_calls=shown_calls(calls),
            model=self.model.name,
            tokens_used=self._usage.total if self._usage is not None else 0,
            latency_ms=self.latency_ms,
            status=status,
            error_type=error_type,
        )


def bad_edit(event: HookEvent, hook: str | None, problem: TypeError) -> HookExecutionError:
    """The error for what hooks have left and nobody can use; the log says what is wrong with it. Which of several it
    was is not known any more."""
    logger.error("What the hooks at %s left cannot be used: %s", event, problem)
    return HookExecutionError(event, hook or "unknown", HookFailure(str(problem), "bad_edit", cause=problem))


def shown_definitions(definitions: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Tool definitions as hooks and middleware see them; the copies are theirs."""
    return [
        {"name": one.name, "description": one.description, "parameters": private_copy(one.parameters)}
        for one in definitions
    ]


def definitions_from(
    shown: Sequence[dict[str, Any]], before: Sequence[ToolDefinition], hook: str | None
) -> Sequence[ToolDefinition]:
    """Tool definitions as a hook left them.

    Raises:
        HookExecutionError: an entry has no name.
    """
    known = {one.name: one for one in before}
    definitions: list[ToolDefinition] = []
    for entry in shown:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            problem = TypeError("tool_definitions must be a list of {name, description, parameters}")
            raise bad_edit(HookEvent.BEFORE_TOOL_DEFINITIONS, hook, problem)
        old = known.get(entry["name"])
        parameters = entry.get("parameters")
        definitions.append(
            ToolDefinition(
                entry["name"],
                str(entry.get("description", old.description if old else "")),
                parameters if isinstance(parameters, dict) else (old.parameters if old else {}),
            )
        )
    return definitions


def with_notes(messages: Sequence[Message], notes: Sequence[str]) -> list[Message]:
    """The messages with more system messages, behind those at their head."""
    head = 0
    while head < len(messages) and messages[head].get("role") == "system":
        head += 1
    return [*messages[:head], *({"role": "system", "content": note} for note in notes), *messages[head:]]


def without_stale_parts(messages: list[Message], before: Sequence[Message]) -> list[Message]:
    """The messages of one call after a hook changed them: where it changed a message, the provider's own parts of it
    are left out, since they hold what it said before."""
    if not any("native" in message for message in messages):
        return messages
    unchanged = [message for message in before if "native" in message]
    return [
        {key: value for key, value in message.items() if key != "native"}
        if "native" in message and message not in unchanged
        else message
        for message in messages
    ]
