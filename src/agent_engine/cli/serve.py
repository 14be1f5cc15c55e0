"""``agentctl serve``: the HTTP API and the inspector of one system."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_engine.cli.main import PROBLEM, USAGE
from agent_engine.cli.options import Config, EnvFile, ModelName

if TYPE_CHECKING:
    from fastapi import FastAPI

    from agent_engine.server.settings import ServerSettings

Host = Annotated[str, typer.Option("--host", help="The address to listen at; any but loopback needs a token.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--records", metavar="ADDRESS", help="Where decision records go; none keeps none. By default a SQLite file."
    ),
]


def serve(
    config: Config,
    host: Host = "127.0.0.1",
    port: Port = 8090,
    records: Store = None,
    env: EnvFile = None,
    model: ModelName = None,
) -> None:
    """Serve a system over HTTP: POST /invoke and /stream, runs, approvals, and the inspector at /ui.

    Who may use it: set AGENT_ENGINE_TOKEN to a token, or AGENT_ENGINE_JWT_KEYS to the keys of your token issuer (and
    AGENT_ENGINE_JWT_ISSUER, AGENT_ENGINE_JWT_AUDIENCE). Without either, this machine only.
    """
    _needs_server()
    from agent_engine.records.settings import default_store

    where = records or default_store(config)
    asyncio.run(_serve(config, _settings(host, port), where, model))


async def _serve(config: Path, settings: ServerSettings, records: str, model: str | None) -> None:
    from agent_engine.cli.state import open_store
    from agent_engine.runtime.engine import Engine
    from agent_engine.server.app import create_app

    store = open_store(config)
    try:
        async with Engine.from_yaml(config, approver="later", records=records, store=store, model=model) as engine:
            shown = None if records in ("none", "memory", "otel") else records
            app = create_app(engine, settings=settings, records=shown)
            await _until_stopped(app, settings, f"Serving {engine.loaded.system.system.name}")
    finally:
        await store.close()


def serve_ui(store: str | None = None, config: Path | None = None, host: str = "127.0.0.1", port: int = 8090) -> None:
    """The inspector alone, over the records of a store; what ``agentctl inspect --ui`` calls."""
    _needs_server()
    from agent_engine.records.query import RecordReader
    from agent_engine.records.settings import RecordsError, default_store
    from agent_engine.server.app import create_app

    settings = _settings(host, port)
    try:
        reader = RecordReader.open(store or default_store(config))
    except (RecordsError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(PROBLEM) from None
    with reader:
        asyncio.run(_until_stopped(create_app(None, settings=settings, records=reader), settings, "Showing records"))


def _settings(host: str, port: int) -> ServerSettings:
    from agent_engine.server.settings import ServerConfigError, ServerSettings

    try:
        return ServerSettings.from_environ(host, port)
    except ServerConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from None


async def _until_stopped(app: FastAPI, settings: ServerSettings, what: str) -> None:
    from agent_engine.server.serving import serve_app
    from agent_engine.server.settings import ServerConfigError

    def ready(url: str) -> None:
        print(f"{what} at {url} (pages: {url}/ui)", file=sys.stderr, flush=True)

    try:
        await serve_app(app, settings, ready)
    except ServerConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(PROBLEM) from None


def _needs_server() -> None:
    try:
        import fastapi
        import sqlalchemy
        import uvicorn
    except ModuleNotFoundError as error:
        typer.echo(f"{error.name} is missing: pip install 'agent-engine[server,records]'.", err=True)
        raise typer.Exit(PROBLEM) from None
    del fastapi, sqlalchemy, uvicorn
