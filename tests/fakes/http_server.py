"""A small HTTP server on a free loopback port, for faking a provider's protocol in a thread of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass
class Received:
    """A request as it arrived. Header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """What the server sends back. ``events`` makes it a stream of server-sent events, one chunk each.

    ``hold`` keeps the answer back until the event is set (or the server closes); ``cut`` drops the connection after
    the events instead of ending the body.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    events: Iterable[str] | None = None
    hold: threading.Event | None = None
    cut: bool = False


class _Listening(ThreadingHTTPServer):
    request_queue_size = 256


class FakeServer:
    """Serves ``answer(received) -> Answer`` until the ``with`` block ends, and keeps what it received."""

    def __init__(self, answer: Callable[[Received], Answer]) -> None:
        self.received: list[Received] = []
        self.closing = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    body = json.loads(raw)
                except ValueError:
                    body = raw
                headers = {name.lower(): value for name, value in self.headers.items()}
                received = Received(self.command, self.path, headers, body)
                fake.received.append(received)
                try:
                    self._send(answer(received))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_POST

            def _send(self, given: Answer) -> None:
                if given.hold is not None:
                    while not given.hold.wait(0.01):
                        if fake.closing.is_set():
                            self.close_connection = True
                            return
                self.send_response(given.status)
                for name, value in given.headers.items():
                    self.send_header(name, value)
                if given.events is None:
                    self.send_header("Content-Type", given.content_type)
                    self.send_header("Content-Length", str(len(given.body)))
                    self.end_headers()
                    self.wfile.write(given.body)
                    return
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for event in given.events:
                    data = event.encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
                if given.cut:
                    self.close_connection = True
                    return
                self.wfile.write(b"0\r\n\r\n")

        self._server = _Listening(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
