"""Run events as an async stream, and holding text back until a hook has passed it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from agent_engine.hooks import payloads
from agent_engine.hooks.errors import RunBlocked
from agent_engine.hooks.events import HookEvent
from agent_engine.runtime.step import refuses

if TYPE_CHECKING:
    from agent_engine.hooks.plan import Plan
    from agent_engine.runtime.result import RunEvent, RunResult
    from agent_engine.runtime.step import Step


async def stream_events(
    start: Callable[[Callable[[RunEvent], None]], Awaitable[RunResult]],
) -> AsyncIterator[RunEvent]:
    """The events of a run as they happen, the final one last; then the run's own exception, if it failed.

    Args:
        start: starts the run and hands it the ``emit`` it is given, for example
            ``lambda emit: run_request(node, message, host=host, emit=emit)``.

    Leaving the stream early cancels the run and waits until every open step is closed.
    """
    events: asyncio.Queue[RunEvent | None] = asyncio.Queue()

    async def run() -> None:
        try:
            await start(events.put_nowait)
        finally:
            events.put_nowait(None)

    task = asyncio.get_running_loop().create_task(run(), context=contextvars.copy_context())
    try:
        while (event := await events.get()) is not None:
            yield event
        await task
    finally:
        await _ended(task)


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel the run unless it has ended, and wait for its closing events; those have a time limit of their own."""
    if task.done():
        # Its exception has been raised already, or nobody reads the stream any more.
        if not task.cancelled():
            task.exception()
        return
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()
    if cancelled is not None:
        raise cancelled


async def past_delta(step: Step, model: str, text: str) -> str:
    """A text that no model call has passed by ``on_llm_delta``: what its hooks leave of it.

    Raises:
        RunBlocked: one of them refused it.
    """
    plan = step.plan(HookEvent.ON_LLM_DELTA, model)
    return text if plan is None else await TextWindow(step, plan, None).finish(text)


class TextWindow:
    """The text of one model call on its way out, past ``on_llm_delta``.

    A hook there sees everything that is not yet released; what it leaves in its place is released except for the last
    ``hold_back`` characters, so that a secret cut over several chunks is whole before its first character leaves.

    Args:
        plan: who listens at ``on_llm_delta``.
        release: takes text that may go out at once; None where it may not, or where nobody reads it.
    """

    __slots__ = ("_hold_back", "_index", "_pending", "_plan", "_release", "_released", "_step", "fed")

    def __init__(self, step: Step, plan: Plan | None, release: Callable[[str], None] | None) -> None:
        self._step = step
        self._plan = plan
        self._hold_back = max((entry.hook.hold_back for entry in plan.entries), default=0) if plan is not None else 0
        self._release = release
        self._released: list[str] = []
        self._pending = ""
        self._index = 0
        # Whether any text has come.
        self.fed = False

    @property
    def started(self) -> bool:
        """Whether text has left: from then on the call cannot be made again."""
        return self._release is not None and bool(self._released)

    async def feed(self, chunk: str) -> None:
        """Take a chunk of the model's text. Raises RunBlocked where a hook refuses it."""
        if not chunk:
            return
        self.fed = True
        if self._plan is None:
            self._let_go(chunk)
            return
        self._pending += chunk
        await self._ask(self._plan, final=False)

    async def finish(self, whole: str) -> str:
        """The text is complete: what it is from here on. ``whole`` is the text where no chunk came."""
        if self._plan is None:
            if not self.fed and whole:
                self._let_go(whole)
            return whole
        if not self.fed:
            if not whole:
                return whole
            self._pending = whole
        await self._ask(self._plan, final=True)
        return "".join(self._released)

    async def again(self, whole: str) -> str:
        """Another text has taken the place of the one that passed: what it is from here on. It leaves later."""
        self.restart()
        self._release = None
        return await self.finish(whole)

    def restart(self) -> None:
        """Forget what came: the call is made again."""
        self._released.clear()
        self._pending = ""
        self.fed = False

    async def _ask(self, plan: Plan, *, final: bool) -> None:
        payload = payloads.OnLLMDeltaInput(**self._step.base(), text=self._pending, index=self._index, final=final)
        self._index += 1
        verdict = await plan.dispatch(payload, self._step)
        if refuses(verdict):
            raise RunBlocked(HookEvent.ON_LLM_DELTA, verdict.hook, verdict.public_reason)
        text: str = verdict.payload.text
        cut = len(text) if final else max(0, len(text) - self._hold_back)
        self._pending = text[cut:]
        if cut:
            self._let_go(text[:cut])

    def _let_go(self, text: str) -> None:
        self._released.append(text)
        if self._release is not None:
            self._release(text)
