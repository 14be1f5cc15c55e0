"""The server as a FastAPI application: the API, the pages, and the engine's life around them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from agent_engine.memory.store import waiting_expired
from agent_engine.records.settings import RecordsError
from agent_engine.records.writer import StoreJournal
from agent_engine.runtime.frames import context_of
from agent_engine.server import api, errors, pages, shapes
from agent_engine.server.access import Access
from agent_engine.server.gateway import Gateway
from agent_engine.server.guard import Guard
from agent_engine.server.identity import Identity
from agent_engine.server.live import Live
from agent_engine.server.runs import Runs
from agent_engine.server.settings import ServerSettings

if TYPE_CHECKING:
    from agent_engine.records.query import RecordReader
    from agent_engine.runtime.engine import Engine

logger = logging.getLogger("agent_engine.server")


@dataclass(slots=True)
class Services:
    """What the routes work with; one for an application that is up."""

    engine: Engine | None
    settings: ServerSettings
    access: Access
    live: Live
    reader: RecordReader | None
    runs_or_none: Runs | None
    stopping: bool = False

    @property
    def runs(self) -> Runs:
        """Raises ApiError (404) where the pages alone are served."""
        if self.runs_or_none is None:
            raise errors.ApiError(404, "not_found", "No system is served here, only its records.")
        return self.runs_or_none

    @property
    def under_way(self) -> int:
        """How many runs this server has under way; none where the pages alone are served."""
        return self.runs_or_none.under_way if self.runs_or_none is not None else 0

    async def waiting(self, identity: Identity) -> list[shapes.WaitingRun]:
        """The waiting runs that a caller may answer, oldest first."""
        if self.engine is None:
            return []
        found = []
        for document in await self.engine.waiting():
            context = context_of(document)
            if identity.owns(context.user_id, context.organization_id):
                found.append(
                    shapes.WaitingRun(
                        run_id=str(document["run_id"]),
                        saved_at=document.get("saved_at"),
                        expired=waiting_expired(document),
                        user_id=context.user_id,
                        organization_id=context.organization_id,
                        asks=[shapes.Ask(**ask) for ask in document.get("asks", ())],
                    )
                )
        return found

    @property
    def trouble(self) -> str | None:
        """What keeps records from being written, or how many are missing, in a sentence; None where all is well."""
        journal = self.engine.journal if self.engine is not None else None
        for one in getattr(journal, "members", (journal,)):
            status = one.status if isinstance(one, StoreJournal) else None
            if status is not None and status.problem is not None:
                how_many = f"Waiting: {status.waiting:,}, lost: {status.lost:,}."
                return f"Records are not written now: {status.problem}. {how_many}"
            if status is not None and status.lost:
                return f"Since the start {status.lost:,} entries could not be recorded."
        return None

    async def asks_of(self, run_id: str) -> list[dict[str, Any]]:
        if self.engine is None:
            return []
        for document in await self.engine.waiting():
            if document["run_id"] == run_id:
                return list(document.get("asks", ()))
        return []


def create_app(
    engine: Engine | None, *, settings: ServerSettings | None = None, records: str | RecordReader | None = None
) -> FastAPI:
    """The application.

    Args:
        engine: the system to serve. One that is not built yet is built at the start and closed at the stop. None
            serves the pages over ``records`` alone.
        settings: who may use it, and its limits; by default anybody at this machine.
        records: the store that pages and ``/runs`` read: its address, or a reader. The engine must write to the same.

    Raises:
        ServerConfigError: a host that other machines reach, without a token.
    """
    settings = settings or ServerSettings()
    access = Access(settings)

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if engine is not None and not _is_built(engine):
                await engine.build()
                stack.push_async_callback(engine.close)
            reader, owned = await asyncio.to_thread(_reader, records)
            if reader is not None and owned:
                stack.callback(reader.close)
            live = Live(reader)
            here = Services(engine, settings, access, live, reader, None)
            app.state.services = here
            if engine is not None:
                gateway = access.gateway = Gateway(engine)
                here.runs_or_none = Runs(engine, gateway, settings, live)
                await gateway.started()
            try:
                yield
            finally:
                here.stopping = True
                await live.close()
                if here.runs_or_none is not None:
                    await here.runs_or_none.drain()
                    await here.runs_or_none.gateway.stopped("shutdown")

    app = FastAPI(
        title="Agent Engine",
        description="Runs of a declared agent system, their approvals, and what its hooks decided.",
        version=_version(),
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )
    unexpected = errors.install(app, pages.problem_page)
    app.add_exception_handler(pages.NoSession, pages.to_login)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/ui/static", StaticFiles(packages=[("agent_engine.server", "static")]), name="static")
    app.add_middleware(Guard, settings=settings, unexpected=unexpected)
    return app


def _is_built(engine: Engine) -> bool:
    from agent_engine.runtime.engine import EngineError

    try:
        return engine.built is not None
    except EngineError:
        return False


def _reader(records: str | RecordReader | None) -> tuple[RecordReader | None, bool]:
    if records is None:
        return None, False
    from agent_engine.records.query import RecordReader

    if isinstance(records, RecordReader):
        return records, False
    try:
        return RecordReader.open(records), True
    except RecordsError as error:
        raise RecordsError(f"The pages have nothing to show: {error}") from None


def _version() -> str:
    from agent_engine import __version__

    return __version__
