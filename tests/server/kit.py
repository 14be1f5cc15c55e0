"""A real server in a thread of its own, over a declared system with a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import HookResult
from agent_engine.memory.store import MemoryStore
from agent_engine.models.scripted import ScriptedModel
from agent_engine.runtime.engine import Engine
from agent_engine.server.app import create_app
from agent_engine.server.serving import Server
from agent_engine.server.settings import ServerSettings

SYSTEM = """
system:
  name: office
  description: Looks things up, writes files and sends mail.
agents:
  clerk:
    description: The clerk.
    prompts:
      system: prompts/clerk.md
    tools: [search, write_file, delete_file, send_mail]
tools:
  search: Search the archive.
  write_file: Write a file.
  delete_file: Delete a file.
  send_mail:
    description: Send a mail.
    approval: required
graph:
  clerk: {}
"""

FILES = {
    "prompts/clerk.md": "You are a clerk.\n",
    "plugins/plugins.toml": (
        '[tools]\nsearch = "plugins.tools.office:search"\nwrite_file = "plugins.tools.office:write_file"\n'
        'delete_file = "plugins.tools.office:delete_file"\nsend_mail = "plugins.tools.office:send_mail"\n'
    ),
    "plugins/tools/office.py": (
        "def search(query: str) -> str:\n"
        "    return f'Nothing about {query}.'\n\n"
        "def write_file(path: str, text: str) -> str:\n"
        "    return f'{len(text)} characters written to {path}.'\n\n"
        "def delete_file(path: str) -> str:\n"
        "    raise AssertionError('must never run')\n\n"
        "def send_mail(to: str, text: str) -> str:\n"
        "    return f'Sent to {to}.'\n"
    ),
}


def write_system(folder: Path) -> Path:
    """The office system on disk; returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    path = folder / "agents.yaml"
    path.write_text(SYSTEM.lstrip("\n"))
    return path


def call(name: str, call_id: str = "c1", **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "name": name, "arguments": arguments}


def calls(*wanted: dict[str, Any]) -> dict[str, Any]:
    """A turn of a model: tool calls."""
    return {"tool_calls": list(wanted)}


def office_hooks() -> HookRegistry:
    """A hook of every kind: one changes, one refuses, one only looks, one is a shadow, one breaks under warn."""
    registry = HookRegistry()

    def redact(event: Any) -> HookResult | None:
        text = event.tool_input.get("text")
        if text is None or "4111" not in text:
            return None
        return HookResult.modify(text=text.replace("4111 1111", "[card]"))

    def guard(event: Any) -> str | None:
        return "Files are kept for ten years" if event.tool_name == "delete_file" else None

    def audit(event: Any) -> None:
        return None

    def strict(event: Any) -> str | None:
        return "Searches will need a ticket" if event.tool_name == "search" else None

    def flaky(event: Any) -> None:
        raise ConnectionError("the quota service is away")

    common: dict[str, Any] = {"inline": True}
    registry.register_function("before_tool", redact, sequential=True, priority=10, **common)
    registry.register_function("before_tool", guard, sequential=True, priority=20, **common)
    registry.register_function("before_tool", strict, shadow=True, sequential=True, priority=30, **common)
    registry.register_function("before_tool", flaky, failure_policy="warn", sequential=True, priority=40, **common)
    registry.register_function("after_tool", audit, observe=True, **common)
    registry.register_function("before_llm", audit, name="count_tokens", observe=True, **common)
    return registry


class Served:
    """A running server: its address, its engine and its application."""

    def __init__(self, url: str, engine: Engine | None, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.engine = engine
        self.app = app
        self.loop = loop

    def call(self, function: Callable[[], object]) -> None:
        """Run something on the server's loop, such as the ``set`` of an event that a model waits for."""
        self.loop.call_soon_threadsafe(function)


@contextlib.contextmanager
def served(
    folder: Path,
    turns: Any = (),
    *,
    hooks: Any = None,
    settings: ServerSettings | None = None,
    records: str | None = "sqlite",
    capture: str = "*",
    **options: Any,
) -> Iterator[Served]:
    """Serve the office system until the block ends, then stop it as a signal would."""
    settings = settings or ServerSettings(port=0, drain_s=5)
    address = f"sqlite:{folder / 'records.db'}" if records == "sqlite" else records
    ready: list[Served] = []
    started, failed = threading.Event(), []
    stop: list[Callable[[], None]] = []

    async def main() -> None:
        import socket

        import uvicorn

        model = ScriptedModel(list(turns)) if isinstance(turns, list | tuple) else turns
        store = options.pop("store", None) or MemoryStore()
        where = f"{address}?capture={capture}" if address is not None and capture else address
        engine = Engine.from_yaml(
            write_system(folder / "system"), model=model, hooks=hooks, approver="later", store=store, records=where,
            **options,
        )  # fmt: skip
        async with engine:
            app = create_app(engine, settings=settings, records=address)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                port = listener.getsockname()[1]
                # On a busy machine five seconds pass between two requests of a test, and then both ends would act at
                # once: the server closes what it takes to be idle, the client sends the next request on it.
                config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="on", timeout_keep_alive=600)

                def up() -> None:
                    ready.append(Served(f"http://127.0.0.1:{port}", engine, app, asyncio.get_running_loop()))
                    started.set()

                server = _Threaded(config, app, up)
                stop.append(lambda: setattr(server, "should_exit", True))
                await server.serve([listener])

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread below
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="served")
    thread.start()
    started.wait(60)
    try:
        if failed:
            raise failed[0]
        assert ready, "the server did not start"
        yield ready[0]
    finally:
        for one in stop:
            one()
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"
    if failed:
        raise failed[0]


class _Threaded(Server):
    """Signals belong to the main thread."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
