"""A server at the other end of a URL (`agentctl serve`): talking with it, and its waiting runs.

The token for it comes from the variable AGENT_ENGINE_TOKEN, where the server asks for one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from agent_engine.cli.main import APPROVAL, DONE, FAILED, REFUSED
from agent_engine.cli.plaintext import answer_for, text_of
from agent_engine.cli.waiting import Decision, WaitingRun

if TYPE_CHECKING:
    import httpx2

    from agent_engine.cli.chat import Console

TOKEN_VARIABLE = "AGENT_ENGINE_TOKEN"  # noqa: S105 - the name of a variable, not a token


class ServerError(Exception):
    """The server could not be reached or refused; the text is one sentence for a person."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.exit_code = REFUSED if refused else FAILED


class Server:
    """The HTTP API of one server."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url = url.rstrip("/")
        self._http = http

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Self]:
        """A server that has answered at least once. Raises ServerError where it does not."""
        import httpx2

        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"'{url}' is no address; write it like http://127.0.0.1:8090.")
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(10.0, read=None)) as http:
            server = cls(url, http)
            await server.get("/health")
            yield server

    async def get(self, path: str) -> Any:
        return await self._json("GET", path)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._json("POST", path, body)

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        import httpx2

        try:
            answer = await self._http.request(method, self.url + path, json=body)
            if answer.is_success:
                return answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise self._unreachable(error) from None
        raise _refusal(self.url, answer.status_code, answer.content)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The server-sent events of a POST: name and data of each."""
        import httpx2

        try:
            async with self._http.stream("POST", self.url + path, json=body) as answer:
                if not answer.is_success:
                    raise _refusal(self.url, answer.status_code, await answer.aread())
                name, data = "message", []
                async for line in answer.aiter_lines():
                    if line.startswith("event:"):
                        name = line[6:].strip()
                    elif line.startswith("data:"):
                        data.append(line[5:].removeprefix(" "))
                    elif not line and data:
                        yield name, json.loads("\n".join(data))
                        name, data = "message", []
        except (httpx2.HTTPError, ValueError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> ServerError:
        return ServerError(f"The server at {self.url} cannot be reached or does not answer: {type(error).__name__}.")


def _refusal(url: str, status: int, content: bytes) -> ServerError:
    """What a server said no with, as a sentence; its safe message and request id where it gives them."""
    try:
        said = json.loads(content)
        error = said.get("error", said) if isinstance(said, dict) else {}
    except ValueError:
        error = {}
    message = error.get("message") if isinstance(error, dict) else None
    request = f" (request {error['request_id']})" if isinstance(error, dict) and error.get("request_id") else ""
    hint = f" Set {TOKEN_VARIABLE} to a token for it." if status == 401 else ""
    return ServerError(f"The server at {url} answered {status}: {message or 'no reason given'}{request}.{hint}")


class RemoteTalk:
    """A conversation with a server. Its asks are put to the person here, and the answers are sent back."""

    def __init__(self, server: Server, session_id: str, user_id: str | None, console: Console) -> None:
        self._server = server
        self._console = console
        self._user_id = user_id
        self.name = server.url
        self.session_id = session_id

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, *, session_id: str, user_id: str | None, console: Console
    ) -> AsyncIterator[RemoteTalk]:
        async with Server.connect(url) as server:
            yield cls(server, session_id, user_id, console)

    async def send(self, message: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        body: dict[str, Any] = {"message": message, "session_id": self.session_id}
        if self._user_id is not None:
            body["user_id"] = self._user_id
        said, final = False, None
        async for kind, data in self._server.events("/stream", body):
            if kind == "error":
                raise ServerError(f"{data.get('message', 'The run failed')}.", refused=data.get("code") == "blocked")
            if kind == "final":
                final = data
            else:
                said = said or kind == "text"
                yield kind, data.get("data", data)
        while final is not None:
            outcome = final.get("data", final)
            if outcome.get("status") != "waiting":
                if not said:
                    yield "text", {"text": text_of(outcome.get("output", ""))}
                return
            run_id = str(final.get("run_id"))
            final, said = await self._answer(run_id, outcome["pending"]), False

    async def _answer(self, run_id: str, pending: list[dict[str, Any]]) -> dict[str, Any]:
        from agent_engine.cli.console import ask_of, ask_person

        decisions: dict[str, Decision] = {}
        words: dict[str, Decision] = {"once": "yes", "session": "session", "deny": "no"}
        for ask in pending:
            self._console.end_text()
            decision = await ask_person(ask_of(ask), self._console.read)
            if decision == "quit":
                raise ServerError("Stopped; the run waits at the server for its answer.")
            decisions[str(ask["call_id"])] = words[decision]
        answer: dict[str, Any] = await self._server.post(
            f"/runs/{quote(run_id, safe='')}/resume", {"decisions": decisions}
        )
        return answer


class RemoteRuns:
    """The waiting runs of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[RemoteRuns]:
        async with Server.connect(url) as server:
            yield cls(server)

    async def all(self) -> list[WaitingRun]:
        found = await self._server.get("/approvals")
        return [
            WaitingRun(str(one["run_id"]), one.get("saved_at"), bool(one.get("expired")), list(one.get("asks", ())))
            for one in found["runs"]
        ]

    async def resume(self, run: WaitingRun, decisions: Mapping[str, Decision]) -> int:
        answer = await self._server.post(f"/runs/{quote(run.run_id, safe='')}/resume", {"decisions": dict(decisions)})
        if answer.get("status") == "waiting":
            print(f"Run {run.run_id} waits again: agentctl approvals list --url {self._server.url}", file=sys.stderr)
            return APPROVAL
        print(answer_for(sys.stdout, text_of(answer.get("output", ""))), flush=True)
        return DONE
