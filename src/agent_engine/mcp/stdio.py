"""An MCP server as a process: one JSON-RPC message a line, in both directions.

The process gets a group of its own, which is killed whole in the end, and an environment with nothing in it but a safe
base and what was declared. Its standard error goes nowhere: what a process writes there may hold anything. A line that
is no message is dropped; one that is too long fails the call it answers; a flood ends the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, jsonrpc_message_adapter

from agent_engine.hooks.process import live_groups, safe_environment
from agent_engine.mcp.errors import McpServerError, too_large

if TYPE_CHECKING:
    from agent_engine.mcp.call import Calls
    from agent_engine.mcp.server import McpServer

logger = logging.getLogger("agent_engine.mcp")

GRACE_SECONDS = 1.0
"""How long a process may take to end by itself once its standard input is closed."""
KILL_SECONDS = 10.0
"""How long a killed group may take to be gone."""
NOISE_BYTES = 8 << 20
"""Bytes that are no message, with no message between them, after which a process is taken to flood."""

_CHUNK = 64 << 10
_ANSWERED = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*"(c-\d+)"')


@asynccontextmanager
async def stdio_transport(server: McpServer, calls: Calls) -> AsyncGenerator[tuple[Any, Any]]:
    """The streams of a process that is started here and gone, with all it started, when the context ends.

    Raises:
        McpServerError: it cannot be started.
    """
    process = _start(server)
    write_in, read_out = create_context_streams[SessionMessage](0)
    deliver, receive = create_context_streams[SessionMessage | Exception](0)
    try:
        async with _pipes(process) as (reader, writer), anyio.create_task_group() as tasks:
            tasks.start_soon(_read, server, calls, reader, deliver)
            tasks.start_soon(_write, read_out, writer, deliver)
            try:
                yield receive, write_in
            finally:
                tasks.cancel_scope.cancel()
    finally:
        for stream in (write_in, read_out, deliver, receive):
            stream.close()
        with anyio.CancelScope(shield=True):
            await _gone(process)


def _start(server: McpServer) -> subprocess.Popen[bytes]:
    assert server.command is not None
    problem = ""
    try:
        process = subprocess.Popen(  # noqa: S603 - the command is what the application declared; no shell is involved
            [server.command, *server.args],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=server.cwd,
            env=safe_environment(server.env, server.pass_env),
            start_new_session=True,
        )
        live_groups.add(process.pid)
        return process
    except OSError as error:
        missing = server.cwd is not None and not os.path.isdir(server.cwd)
        problem = f"the folder {server.cwd} does not exist" if missing else str(error.strerror or type(error).__name__)
    except ValueError:
        problem = "a null character in its command, arguments or environment"
    raise McpServerError(
        server.id, f"MCP server '{server.id}' cannot be started with the command {server.command!r}: {problem}."
    )


@asynccontextmanager
async def _pipes(process: subprocess.Popen[bytes]) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    outgoing, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
    writer = asyncio.StreamWriter(outgoing, flow, None, loop)
    try:
        yield reader, writer
    finally:
        incoming.close()
        outgoing.abort() if outgoing.get_write_buffer_size() else outgoing.close()


async def _write(messages: Any, writer: asyncio.StreamWriter, deliver: Any) -> None:
    try:
        async with messages:
            async for item in messages:
                writer.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await writer.drain()
    except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
        deliver.close()


class _Lines:
    """Cuts the output of a process into lines, keeping no more of a line than a message may have."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, part: bytes) -> list[tuple[bytes, bool]]:
        """The lines that end in this part; True marks one whose end was cut off because it is too long."""
        lines: list[tuple[bytes, bool]] = []
        while part:
            line, end, part = part.partition(b"\n")
            room = self._limit - self._size
            if room > 0:
                self._parts.append(line[:room])
            self._size += len(line)
            if end:
                lines.append((b"".join(self._parts), self._size > self._limit))
                self._parts, self._size = [], 0
        return lines

    @property
    def pending(self) -> int:
        """Bytes of the line under way."""
        return self._size


async def _read(server: McpServer, calls: Calls, reader: asyncio.StreamReader, deliver: Any) -> None:
    lines = _Lines(server.max_result_bytes)
    noise = 0
    async with deliver:
        while part := await reader.read(_CHUNK):
            found = lines.feed(part)
            for line, cut in found:
                message = _oversized(server, calls, line) if cut else _parsed(line)
                if message is None:
                    noise += len(line) + 1
                    continue
                noise = 0
                try:
                    await deliver.send(message)
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    return
            if noise + max(0, lines.pending - server.max_result_bytes) > NOISE_BYTES:
                logger.warning("MCP server '%s' floods its standard output; its session is closed", server.id)
                return


def _parsed(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None  # what a careless program prints is no message, and nobody's business


def _oversized(server: McpServer, calls: Calls, line: bytes) -> SessionMessage | None:
    """The answer to a call in place of a line that is too long; None where it cannot be told which call it is for."""
    named = _ANSWERED.match(line)
    call = calls.find(named[1].decode()) if named else None
    if call is None:
        return None
    failure = too_large(server.id, server.max_result_bytes)
    call.fail(failure)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=call.id, error=ErrorData(code=-32000, message=str(failure))))


async def _gone(process: subprocess.Popen[bytes]) -> None:
    """Until no process of the group is left: asked first, killed after the grace."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        await _within(GRACE_SECONDS, lambda: process.poll() is not None)
        _signal(process, signal.SIGTERM)
        await _within(GRACE_SECONDS, lambda: not _alive(process))
    finally:
        _signal(process, signal.SIGKILL)
        live_groups.discard(process.pid)
        with contextlib.suppress(OSError):
            process.stdout.close()
    await _within(KILL_SECONDS, lambda: not _alive(process))


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _alive(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    with contextlib.suppress(ChildProcessError):
        # Orphans of the group are this process's to reap where it is the first one of a container.
        while os.waitpid(-process.pid, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


async def _within(seconds: float, done: Any) -> None:
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + seconds, 0.001
    while not done() and loop.time() < until:
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
