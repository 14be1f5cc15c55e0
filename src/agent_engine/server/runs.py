"""Runs of the server: within its limits, past its own hooks, cancelled with their client, drained at a stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import uuid4

from agent_engine.runtime.frames import context_of
from agent_engine.server.errors import ApiError, problem_of
from agent_engine.server.gateway import Gateway
from agent_engine.server.identity import Identity
from agent_engine.server.live import Live
from agent_engine.server.settings import ServerSettings

if TYPE_CHECKING:
    from agent_engine.hooks.managed import RunContext
    from agent_engine.runtime.engine import Engine
    from agent_engine.runtime.result import RunEvent, RunResult

logger = logging.getLogger("agent_engine.server")

T = TypeVar("T")
Decision = Literal["yes", "session", "no"]


class ClientGone(Exception):
    """Nobody waits for the answer any more; its run has been cancelled."""


class Slot:
    """A place for one run; given back once."""

    def __init__(self, runs: Runs) -> None:
        self._runs: Runs | None = runs

    def release(self) -> None:
        if self._runs is not None:
            self._runs.give_back(self)
            self._runs = None


class Runs:
    """What the API does with the engine."""

    def __init__(self, engine: Engine, gateway: Gateway, settings: ServerSettings, live: Live) -> None:
        self.engine = engine
        self.gateway = gateway
        self.live = live
        self.slots: set[Slot] = set()
        self._settings = settings
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def under_way(self) -> int:
        return len(self.slots)

    def slot(self) -> Slot:
        """A place for one run.

        Raises:
            ApiError: the server stops, or has as many runs as it takes (503).
        """
        if self._stopping:
            raise ApiError(503, "stopping", "The server is stopping.", retry_after=10)
        if len(self.slots) >= self._settings.max_runs:
            raise ApiError(503, "busy", "The server has as many runs as it takes; come back later.", retry_after=1)
        slot = Slot(self)
        self.slots.add(slot)
        self._idle.clear()
        return slot

    def give_back(self, slot: Slot) -> None:
        self.slots.discard(slot)
        if not self.slots:
            self._idle.set()

    def context(self, identity: Identity, request: Any) -> RunContext:
        """The run context of a request.

        Raises:
            ApiError: it names another user than its token does (403).
        """
        try:
            return identity.run_context(
                run_id=uuid4().hex,
                session_id=request.session_id,
                user_id=request.user_id,
                organization_id=request.organization_id,
                metadata=request.metadata,
            )
        except PermissionError as error:
            raise ApiError(403, "forbidden", str(error)) from None

    async def invoke(self, message: str, context: RunContext) -> RunResult:
        """One message, one answer, past the hooks at the edge."""
        async with self._limited():
            content = await self.gateway.received(message, context)
            with self._shown(context.run_id):
                result = await self.engine.run(content, context)
                await self._let_out(result, context)
                if result.status == "completed":
                    self.live.text(context.run_id, str(result.output))
            return result

    async def stream(self, message: str, context: RunContext) -> AsyncGenerator[RunEvent, None]:
        """The same as events; text only once no hook can still hold it back."""
        async with self._limited():
            content = await self.gateway.received(message, context)
            with self._shown(context.run_id):
                async with contextlib.aclosing(self._passed(self.engine.stream(content, context), context)) as events:
                    async for event in events:
                        yield event

    async def resume(
        self,
        run_id: str,
        decisions: Mapping[str, Decision],
        identity: Identity,
        went_on: Callable[[], None] = lambda: None,
    ) -> RunResult:
        """Go on with a waiting run and wait for its end. ``went_on`` is called once the decisions count.

        Raises:
            ApiError: there is no such run (404), it is somebody else's (403), or a decision is none (422).
        """
        final: RunResult | None = None
        async with self._limited():
            async for event in self._resumed(run_id, decisions, identity, went_on):
                if event.type == "final":
                    final = event.result
        if final is None:
            raise ApiError(500, "internal", "The run ended without an answer.")
        return final

    async def resume_aside(self, run_id: str, decisions: Mapping[str, Decision], identity: Identity) -> None:
        """Go on with a waiting run; returns once it does, without waiting for its answer. Pages follow it.

        Raises:
            ApiError: as ``resume`` does, where the decisions did not count.
        """
        slot = self.slot()
        went_on = asyncio.Event()

        async def go_on() -> None:
            try:
                await self.resume(run_id, decisions, identity, went_on.set)
            except Exception as error:
                if not went_on.is_set():
                    raise
                # Its outcome is in the records; nobody waits here.
                logger.warning("run %s went on and failed: %s", run_id, type(error).__name__)
            finally:
                slot.release()

        loop = asyncio.get_running_loop()
        task = loop.create_task(go_on())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        begun = loop.create_task(went_on.wait())
        try:
            await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()
        if not went_on.is_set():
            await task

    async def drain(self) -> None:
        """Take no more runs, and wait for those under way; what is left then is cancelled by the engine's close."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                await self._idle.wait()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _resumed(
        self, run_id: str, decisions: Mapping[str, Decision], identity: Identity, went_on: Callable[[], None]
    ) -> AsyncGenerator[RunEvent, None]:
        waiting = {str(one["run_id"]): one for one in await self.engine.waiting()}
        document = waiting.get(run_id)
        if document is None:
            raise ApiError(404, "not_found", "No run of that id waits for an approval.")
        stored = context_of(document)
        if not identity.owns(stored.user_id, stored.organization_id):
            raise ApiError(404, "not_found", "No run of that id waits for an approval.")
        counts = False

        def claimed() -> None:
            nonlocal counts
            counts = True
            self._record_decisions(run_id, decisions, identity)
            self.live.begin(run_id)
            went_on()

        try:
            going_on = self.engine.resume_stream(run_id, decisions, claimed=claimed)
            async with contextlib.aclosing(self._passed(going_on, stored)) as events:
                async for event in events:
                    yield event
        except (LookupError, PermissionError, ValueError) as error:
            if counts:
                raise  # the run's own error
            raise _refusal(error) from None
        finally:
            if counts:
                self.live.end(run_id)

    async def _passed(self, events: AsyncIterator[RunEvent], context: RunContext) -> AsyncGenerator[RunEvent, None]:
        """Events on their way out: the answer passes ``message_sending`` before it leaves."""
        held = self.gateway.holds_answers()
        async with contextlib.aclosing(events):  # type: ignore[type-var]  # a stream is an async generator
            async for event in events:
                if event.type == "text":
                    if held:
                        continue
                    self.live.text(context.run_id, str(event.data.get("text", "")))
                elif event.type == "final" and event.result is not None:
                    await self._let_out(event.result, context)
                    event.data["output"] = event.result.output
                    if held and event.result.status == "completed":
                        from agent_engine.runtime.result import RunEvent as Event

                        text = str(event.result.output)
                        self.live.text(context.run_id, text)
                        yield Event("text", event.run_id, {"text": text})
                yield event

    async def _let_out(self, result: RunResult, context: RunContext) -> None:
        if result.status != "completed" or not isinstance(result.output, str):
            return
        result.output = await self.gateway.sending(result.output, context)

    @contextlib.contextmanager
    def _shown(self, run_id: str) -> Iterator[None]:
        self.live.begin(run_id)
        try:
            yield
        finally:
            self.live.end(run_id)

    @contextlib.asynccontextmanager
    async def _limited(self) -> AsyncIterator[None]:
        async with asyncio.timeout(self._settings.run_s):
            yield

    def _record_decisions(self, run_id: str, decisions: Mapping[str, Decision], identity: Identity) -> None:
        """Who answered goes into the log; it never becomes the run's identity."""
        journal = self.engine.journal
        if journal is None:
            return
        from agent_engine.records.journal import StepClosed, StepOpened

        step_id, now = uuid4().hex, time.time()
        detail = {"by": identity.user_id or identity.scheme, "decisions": dict(decisions)}
        journal.write(StepOpened(run_id, step_id, None, "engine", "approval", None, now, detail))
        journal.write(StepClosed(run_id, step_id, "ok", None, "ran", None, None, 0.0))


def _refusal(error: LookupError | PermissionError | ValueError) -> ApiError:
    """Why a waiting run did not go on; the texts are the engine's own."""
    if isinstance(error, LookupError):
        return ApiError(404, "not_found", "No run of that id waits for an approval.")
    if isinstance(error, PermissionError):
        return ApiError(403, "forbidden", "This is not yours to see or do.")
    return ApiError(422, "invalid_request", str(error)[:300])


async def while_connected(receive: Callable[[], Awaitable[Any]], work: Awaitable[T]) -> T:
    """Wait for ``work``, and cancel it when the client goes away.

    Raises:
        ClientGone: it went away.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.wait({task, gone})
        if not task.cancelled():
            task.exception()


async def disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        continue


def error_event(error: BaseException, request_id: str) -> dict[str, Any]:
    """The data of an ``error`` event in a stream."""
    problem = problem_of(error)
    if problem.status >= 500:
        logger.error("request %s failed: %s", request_id, type(error).__name__)
    return {"code": problem.code, "message": problem.message, "request_id": request_id}
