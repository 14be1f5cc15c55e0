"""The only door to a model.

The order of one call: before_tool_definitions, before_model middleware, before_llm, wrap_model_call, the model (its
retries inside), on_llm_delta, after_model middleware, after_llm, on_step. Text that a wrapper, a middleware or
after_llm puts in the place of the model's passes on_llm_delta like the model's.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_engine.hooks import payloads
from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.errors import LimitReached, RunBlocked, ends_the_run
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.limits import Escaped, ended, within
from agent_engine.models.base import ModelResponse, ToolCall
from agent_engine.models.errors import ModelError
from agent_engine.runtime.closing import checkpoint, close_step, status_of
from agent_engine.runtime.model_hooks import ModelHooks
from agent_engine.runtime.reporting import error_type_of, report_error
from agent_engine.runtime.retry import MODEL_ATTEMPTS, retried
from agent_engine.runtime.step import Step
from agent_engine.runtime.streaming import TextWindow
from agent_engine.runtime.tool_gates import Refused

if TYPE_CHECKING:
    from agent_engine.hooks import middleware
    from agent_engine.models.base import Message, Model, ModelSettings
    from agent_engine.runtime.turn import Turn


@dataclass(slots=True)
class ModelAnswer:
    """What a model answered, after every hook, and the names of the tools it was offered."""

    response: ModelResponse
    offered: frozenset[str]

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        return self.response.tool_calls


class ModelFailed(Exception):
    """A model could not answer; a fallback may. ``error`` is what it raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        self.error = error


async def call_model(turn: Turn, own: Sequence[Message] | None = None) -> ModelAnswer:
    """One model call of a turn, with fallback models where there are some. Each model's call is a step of its own, and
    runs in a context of its own.

    Args:
        own: messages of the engine's own, for a call without tools that the person does not see: a summary.

    Raises:
        RunBlocked: a hook refused it. LimitReached: the run, or the turn, may call no model any more.
    """
    models = turn.node.models
    while True:
        await checkpoint(turn.task)
        model, settings = models[turn.model_index]
        try:
            return await in_context(contextvars.copy_context(), ModelPassage(turn, model, settings, own=own).run())
        except ModelFailed as failed:
            error = failed.error
        if turn.model_index + 1 >= len(models):
            raise error
        await _fall_back(turn, model, error)


async def _fall_back(turn: Turn, failed: Model, error: Exception) -> None:
    turn.model_index += 1
    model = turn.node.models[turn.model_index][0]
    plan = turn.step.plan(HookEvent.MODEL_FALLBACK, model.name)
    if plan is None:
        return
    payload = payloads.ModelFallbackInput(
        **turn.step.base(),
        from_model=failed.name,
        to_model=model.name,
        reason_category=getattr(error, "category", "unknown"),
        fallback_index=turn.model_index,
    )
    await turn.step.aside(plan, payload)


class ModelPassage:
    """One call of one model on its way through the door.

    A wrapper that calls on a second time starts a passage of its own (``inner``), without the middleware around it.
    """

    __slots__ = (
        "called",
        "ended",
        "hooks",
        "inner",
        "model",
        "model_error",
        "own",
        "passed",
        "response",
        "settings",
        "started",
        "step",
        "turn",
        "window",
    )

    def __init__(
        self,
        turn: Turn,
        model: Model,
        settings: ModelSettings,
        parent: Step | None = None,
        own: Sequence[Message] | None = None,
    ) -> None:
        self.turn = turn
        self.own = own
        self.model = model
        self.settings = settings
        above = turn.step if parent is None else parent
        self.step = Step(turn.state, turn.scope, "model", model.name, turn.node.name, above.step_id, turn.step.timers)
        self.hooks = ModelHooks(turn, self.step, model, settings)
        self.inner = parent is not None
        self.called = 0
        self.ended = False
        self.response: ModelResponse | None = None
        self.model_error: Exception | None = None
        self.window: TextWindow | None = None
        # The text that on_llm_delta has seen and left.
        self.passed: str | None = None

    async def run(self, request: middleware.ModelRequest | None = None) -> ModelAnswer:
        """Pass the door; ``request`` is what a wrapper asks for in the place of the turn's own."""
        count_call(self.turn)
        await self.step.open(model=self.model.name, provider=self.model.provider)
        try:
            response = await self._run(request)
        except Refused as refusal:
            # A middleware refused the call, or its answer.
            blocked = RunBlocked("after_model" if refusal.withheld else "before_model", refusal.hook, refusal.reason)
            await self._close(blocked)
            raise blocked from None
        except BaseException as error:
            await self._close(error)
            if isinstance(error, Exception) and error is self.model_error and not self._text_has_left():
                raise ModelFailed(error) from None
            raise
        usage = response.usage
        self.step.close(
            "ok",
            "ran",
            detail={
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "finish_reason": response.finish_reason,
            }
            if self.turn.state.journal is not None
            else None,
        )
        return ModelAnswer(response, self.hooks.offered)

    async def _run(self, request: middleware.ModelRequest | None) -> ModelResponse:
        turn, hooks = self.turn, self.hooks
        chain = None if self.inner else turn.node.middleware
        bare = turn.last_call or self.own is not None
        hooks.messages = turn.messages if self.own is None else self.own
        await hooks.definitions(() if bare else (await turn.toolset()).definitions)
        if request is not None:
            await hooks.take_over(request)
        if chain is not None and chain.has_before_model:
            await hooks.before_middleware(chain)
        await hooks.before_llm()
        if chain is not None and chain.has_wrap_model:
            response = await self._wrapped(chain)
        else:
            response = await self._ask()
        if chain is not None and chain.has_after_model:
            response = await hooks.after_middleware(chain, response)
        response = await self._past_delta(response)
        response = await self._past_delta(await hooks.after_llm(response))
        if turn.node.on_step is not None:
            from agent_engine.runtime.adapters import observe, shown_response

            await observe(turn.node.on_step, shown_response(turn, response, hooks.model.name), "on_step")
        if response.text and hooks.held == "call":
            turn.state.tell("text", text=response.text)
        elif response.text and hooks.held == "end":
            turn.held.append(response.text)
        return response

    async def _close(self, error: BaseException) -> None:
        """The closing event where it is due, and on_error for what the model itself raised."""
        status = status_of(self.step, error)
        closings: list[Any] = [lambda: self.hooks.close(status, error_type_of(error))]
        if error is self.model_error or ends_the_run(error):
            closings.append(lambda: report_error(self.step, error, model=self.model.name))
        try:
            await close_step(self.turn.state, error, *closings)
        finally:
            self.step.failed(status, error)

    # The model

    async def _ask(self) -> ModelResponse:
        """Ask the model, again where it says that may help, and pass its text by on_llm_delta."""
        hooks = self.hooks
        await hooks.prefix()
        plan = self.step.plan(HookEvent.ON_LLM_DELTA, hooks.model.name)
        window = self.window = TextWindow(self.step, plan, self._release())
        hooks.asked = time.perf_counter()
        if self.turn.state.emit is None:
            response = await retried(self._request, self.step, MODEL_ATTEMPTS, operation="model", worth=self._worth)
        else:
            response = await retried(self._stream, self.step, MODEL_ATTEMPTS, operation="model", worth=self._worth)
        hooks.answered(response)
        text = self.passed = await window.finish(response.text)
        if text != response.text:
            response = replace(response, text=text, native=None)
        return with_ids(response)

    async def _past_delta(self, response: ModelResponse) -> ModelResponse:
        """The response as on_llm_delta leaves it, where its text is not the one that it has seen."""
        if response.text == self.passed:
            return response
        if self.window is None:
            plan = self.step.plan(HookEvent.ON_LLM_DELTA, self.hooks.model.name)
            self.window = TextWindow(self.step, plan, None)
        text = self.passed = await self.window.again(response.text)
        return response if text == response.text else replace(response, text=text, native=None)

    def _release(self) -> Callable[[str], None] | None:
        """Where text may go at once. A summary is for nobody to read, and what a wrapper calls for is the wrapper's."""
        return self.hooks.release() if self.own is None and not self.inner else None

    async def _request(self) -> ModelResponse:
        hooks = self.hooks
        try:
            answer = await ended(hooks.model.request(hooks.messages, hooks.definitions_for_model, hooks.settings))
        except Exception as error:
            self._note(error)
            raise
        return self._whole(answer)

    def _note(self, error: Exception) -> None:
        """Note that it was the model itself that failed: it may be asked again, or another one in its place."""
        if isinstance(error, Escaped):
            self.model_error = ModelError(f"The call of {self.hooks.model.name} {error}.")
            raise self.model_error from error.by
        self.model_error = error

    async def _stream(self) -> ModelResponse:
        hooks, window = self.hooks, self.window
        assert window is not None
        window.restart()
        response: object = None
        chunks = hooks.model.stream(hooks.messages, hooks.definitions_for_model, hooks.settings)
        try:
            while True:
                try:
                    item = await ended(anext(chunks))
                except StopAsyncIteration:
                    break
                except Exception as error:
                    self._note(error)
                    raise
                if isinstance(item, str):
                    await window.feed(item)
                else:
                    response = item
        except BaseException:
            # Why it is left is what counts, and not how the stream takes it.
            await within(_close(chunks), None)
            raise
        await ended(_close(chunks))
        return self._whole(response)

    def _whole(self, answer: object) -> ModelResponse:
        """What a model gave at the end, where that is an answer."""
        if not isinstance(answer, ModelResponse):
            got = "nothing" if answer is None else f"a {type(answer).__name__}"
            self.model_error = ModelError(f"{self.hooks.model.name} gave {got} where its ModelResponse was due.")
            raise self.model_error
        return answer if answer.text is not None else replace(answer, text="")

    def _worth(self, error: BaseException) -> bool:
        retryable = error is self.model_error and isinstance(error, ModelError) and error.retryable
        return retryable and not self._text_has_left()

    def _text_has_left(self) -> bool:
        """Whether the person has read part of the answer: then it cannot be begun anew."""
        return self.window is not None and self.window.started

    # Wrappers

    async def _wrapped(self, chain: middleware.MiddlewareChain) -> ModelResponse:
        from agent_engine.runtime.adapters import refusal_of, response_from

        try:
            shown = refusal_of(await chain.wrap_model(self.hooks.request(), self._call_next))
        finally:
            self.ended = True
        response = response_from(shown, self.response, ModelResponse)
        if self.response is not None:
            self.passed = self.response.text
        else:
            self._release()  # the wrapper answered by itself: its text is held like a model's
        return with_ids(response)

    async def _call_next(self, request: middleware.ModelRequest) -> middleware.ModelResponse:
        """What a wrapper calls: the model. A changed request passes the gates again; a further call is its own step."""
        from agent_engine.runtime.adapters import shown_response

        if self.ended:
            raise RuntimeError("call_next of a model call was called after the call had ended")
        self.called += 1
        if self.called > 1:
            passage = ModelPassage(self.turn, self.hooks.model, self.hooks.settings, self.step, self.own)
            try:
                answer = await passage.run(request)
            except ModelFailed as failed:
                self.model_error = failed.error
                raise failed.error from None
            self.response = answer.response
            self.hooks.offered = answer.offered
        else:
            await self.hooks.pass_again(request)
            self.response = await self._ask()
        return shown_response(self.turn, self.response, self.hooks.model.name)


async def _close(chunks: AsyncIterator[Any]) -> None:
    closing = getattr(chunks, "aclose", None)
    if closing is not None:
        await closing()


def count_call(turn: Turn) -> None:
    """Count one more model call. Raises LimitReached where there may be none."""
    state, own = turn.state, turn.node.limits
    whole = state.limits
    for limit, bound, count in (
        ("model_calls", whole.model_calls, state.model_calls),
        ("max_tokens", whole.max_tokens, state.usage.total if whole.max_tokens is not None else 0),
    ):
        if bound is not None and count >= bound:
            state.ended = LimitReached(limit, bound)
            raise state.ended
    if turn.depth:
        if own.model_calls is not None and turn.model_calls >= own.model_calls:
            raise LimitReached("model_calls", own.model_calls)
        if own.max_tokens is not None and turn.tokens >= own.max_tokens:
            raise LimitReached("max_tokens", own.max_tokens)
    state.model_calls += 1
    turn.model_calls += 1


def with_ids(response: ModelResponse) -> ModelResponse:
    """The response with an id, and one of its own, for each tool call."""
    calls = response.tool_calls
    if not calls:
        return response
    ids = {call.id for call in calls}
    if len(ids) == len(calls) and "" not in ids:
        return response
    seen: set[str] = set()
    named: list[ToolCall] = []
    for number, call in enumerate(calls, 1):
        if not call.id or call.id in seen:
            call = replace(call, id=f"{call.id or 'call'}_{number}")
        seen.add(call.id)
        named.append(call)
    return replace(response, tool_calls=named, native=None)
