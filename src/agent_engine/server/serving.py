"""Running the application under uvicorn, with a stop that lets go of those who follow and drains the runs."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from agent_engine.server.settings import ServerConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from agent_engine.server.app import Services
    from agent_engine.server.settings import ServerSettings


class Server(uvicorn.Server):
    """Uvicorn waits for every open response before it stops; pages that follow the store must be let go first."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        services: Services = self._app.state.services
        services.stopping = True
        await services.live.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask for a stop, the second one insists; when it is done, it is no failure."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


async def serve_app(app: FastAPI, settings: ServerSettings, ready: Callable[[str], None]) -> None:
    """Serve until a signal asks for a stop. ``ready`` is told the address once requests are taken.

    Raises:
        ServerConfigError: it cannot listen there.
    """
    listener = _listen(settings)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=int(settings.drain_s) + 5,
        proxy_headers=False,
    )
    with listener:
        await Server(config, app, lambda: ready(url)).serve([listener])


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host.strip("[]"), settings.port), family=family, backlog=1024)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ServerConfigError(
            f"The server cannot listen at {settings.host}:{settings.port}: {why}; choose another --port."
        ) from None
