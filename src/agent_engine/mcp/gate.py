"""Gate: the pair of events and the step in the record of one request. Both doors, HTTP and stdio, are built on it."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio

from agent_engine.hooks.callbacks import in_context
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.managed import McpRequestContext, McpResponseContext
from agent_engine.hooks.site import Site, Where
from agent_engine.mcp.errors import McpToolError, blocked

if TYPE_CHECKING:
    from agent_engine.hooks.plan import Plan
    from agent_engine.hooks.result import HookRun
    from agent_engine.mcp.call import Call
    from agent_engine.records.journal import Outcome

CLOSING_SECONDS = 5.0
"""How long the closing event of a cancelled request may take."""

STDIO: Final = "STDIO"
"""The method of a request that is no HTTP request."""
STREAM: Final = "stream"
CLOSE: Final = "close"

_ENDED: Final = ("cancelled", "timed_out")
_PROCESS = secrets.token_hex(4)
_STEPS = count(1)


class StdioRequestContext(McpRequestContext):
    """A request that no header can be set on: a hook that does fails, and is told why."""

    __slots__ = ()

    def __post_init__(self) -> None:
        McpRequestContext.__post_init__(self)
        if self.headers:
            raise ValueError(
                f"MCP server '{self.server_id}' runs over stdio, where there are no headers: hand it its credentials "
                "with `pass_env`, or limit the hook to other servers"
            )


class Gate:
    """One request of a call: ``before`` lets it through or raises, ``after`` closes it, once.

    Args:
        server_id, url, method: the request, as hooks see it; a GET is the operation ``stream``, whosever it is.
        call: the call it belongs to.
        attempt: 1, or 2 after a 401.
        body: what is sent, for its digest.
    """

    __slots__ = (
        "_closed",
        "_digest",
        "_step",
        "attempt",
        "body",
        "call",
        "method",
        "operation",
        "server_id",
        "started",
        "tool_name",
        "url",
    )

    def __init__(
        self, server_id: str, url: str, call: Call, *, method: str = "POST", body: bytes | None = None, attempt: int = 1
    ) -> None:
        self.server_id = server_id
        self.url = url
        self.call = call
        self.method = method
        self.operation = STREAM if method == "GET" else call.operation
        self.tool_name = None if method == "GET" else call.tool_name
        self.body = body
        self.attempt = attempt
        self.started = 0.0
        self._closed = False
        self._digest: str | None = None
        self._step: str | None = None

    async def before(self) -> dict[str, str]:
        """Ask the hooks; the headers that they set.

        Raises:
            McpToolError: a hook refused the request.
            Exception: a hook's own failure, where its policy is to fail.
        """
        await self._open_step()
        plan = self._plan(HookEvent.BEFORE_MCP_REQUEST)
        headers: dict[str, str] = {}
        if plan is not None:
            headers = await self._ask(plan)
        self.started = time.perf_counter()
        return headers

    async def _ask(self, plan: Plan) -> dict[str, str]:
        kind = StdioRequestContext if self.method == STDIO else McpRequestContext
        payload = kind(
            server_id=self.server_id,
            url=self.url,
            operation=self.operation,
            tool_name=self.tool_name,
            method=self.method,
            body_sha256=self._sha256(),
            attempt=self.attempt,
        )
        try:
            with self.call.paused():
                verdict = await in_context(self.call.context, plan.dispatch(payload, self._site()))
        except BaseException as error:
            cancelled = not isinstance(error, Exception)
            self._close_step("cancelled" if cancelled else "failed", "cancelled" if cancelled else "error", error)
            raise
        if verdict.denied or verdict.asked:
            refusal = blocked(self.server_id, verdict.public_reason)
            self._close_step("refused", "denied", None, refused_by=verdict.hook, reason=verdict.reason)
            raise refusal
        headers = verdict.payload.headers
        try:
            return sendable(self.server_id, headers) if self.method != STDIO or not headers else _no_headers(self)
        except McpToolError as failure:
            self._close_step("failed", "error", failure)
            raise

    async def after(
        self, status_code: int | None, *, status: str = "ok", error_type: str | None = None, size: int | None = None
    ) -> None:
        """Close the pair, once: however the request ended, after_mcp_response fires where somebody listens.

        Raises:
            Exception: a hook's failure, where its policy is to fail.
        """
        if self._closed:
            return
        self._closed = True
        latency = (time.perf_counter() - self.started) * 1000
        failure: BaseException | None = None
        try:
            plan = self._plan(HookEvent.AFTER_MCP_RESPONSE)
            if plan is None:
                return
            payload = McpResponseContext(
                server_id=self.server_id,
                url=self.url,
                status_code=status_code,
                operation=self.operation,
                tool_name=self.tool_name,
                latency_ms=latency,
                status=status,
                error_type=error_type,
                metadata={"method": self.method, "attempt": self.attempt, "body_sha256": self._sha256()},
            )
            told = in_context(self.call.context, plan.dispatch(payload, self._site()))
            if status in _ENDED or anyio.current_effective_deadline() == -math.inf:
                with anyio.move_on_after(CLOSING_SECONDS, shield=True):
                    await told
            else:
                with self.call.paused():
                    await told
        except BaseException as error:
            failure = error
            raise
        finally:
            outcome: Outcome = "cancelled" if status in _ENDED else "ran" if status == "ok" else "failed"
            self._close_step(
                outcome, status, failure, error_type=error_type, latency=latency, status_code=status_code, size=size
            )

    def listens(self) -> bool:
        """Whether any hook is asked before this request."""
        return self._plan(HookEvent.BEFORE_MCP_REQUEST) is not None

    def _plan(self, event: HookEvent) -> Plan | None:
        caller = self.call.caller
        return caller.scope.plan(event, self.server_id, agent=caller.agent, server=self.server_id)

    def _site(self) -> Site:
        caller = self.call.caller
        return Site(
            run_context=caller.run_context,
            agent=caller.agent,
            step_id=self._step or caller.step_id,
            sink=caller.sink if caller.sink is not None else self._journal_sink(),
            wants_payloads=caller.journal is not None and caller.journal.wants_payloads,
            strict=caller.strict,
        )

    def _journal_sink(self) -> Any:
        journal = self.call.caller.journal
        if journal is None:
            return None
        from agent_engine.records.journal import HookRan

        run_id = self.call.caller.run_context.run_id or None

        def sink(site: Where, run: HookRun) -> None:
            journal.write(HookRan(run_id, site.step_id, site.agent, run))

        return sink

    def _sha256(self) -> str | None:
        if self._digest is None and self.body is not None:
            import hashlib

            self._digest = hashlib.sha256(self.body).hexdigest()
        return self._digest

    async def _open_step(self) -> None:
        caller = self.call.caller
        if caller.journal is None:
            return
        if caller.journal.full:
            await caller.journal.room()
        from agent_engine.records.journal import StepOpened

        self._step = f"mcp-{_PROCESS}-{next(_STEPS):x}"
        self.started = time.perf_counter()
        caller.journal.write(
            StepOpened(
                caller.run_context.run_id,
                self._step,
                caller.step_id,
                "mcp",
                self.operation,
                caller.agent,
                time.time(),
                {
                    "server_id": self.server_id,
                    "tool_name": self.tool_name,
                    "method": self.method,
                    "attempt": self.attempt,
                },
            )
        )

    def _close_step(
        self,
        outcome: Outcome,
        status: str,
        failure: BaseException | None,
        *,
        refused_by: str | None = None,
        reason: str | None = None,
        error_type: str | None = None,
        latency: float | None = None,
        status_code: int | None = None,
        size: int | None = None,
    ) -> None:
        journal = self.call.caller.journal
        if journal is None or self._step is None:
            return
        from agent_engine.records.journal import StepClosed

        if failure is not None and outcome not in ("cancelled", "refused"):
            outcome, status, error_type = "failed", "error", type(failure).__name__
            refused_by = getattr(failure, "ref", None) or refused_by
        detail: Mapping[str, Any] = {"status_code": status_code, "bytes": size}
        unheard = [
            str(event)
            for event in (HookEvent.BEFORE_MCP_REQUEST, HookEvent.AFTER_MCP_RESPONSE)
            if self._plan(event) is None
        ]
        journal.write(
            StepClosed(
                self.call.caller.run_context.run_id,
                self._step,
                status,
                error_type,
                outcome,
                refused_by,
                reason,
                latency if latency is not None else (time.perf_counter() - self.started) * 1000,
                {key: value for key, value in detail.items() if value is not None},
                tuple(unheard),
            )
        )
        self._step = None


_FRAMING = frozenset(
    ("connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
_SESSION = frozenset(("last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"))


def sendable(server_id: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a hook set, checked: an HTTP library's own complaint would show the value.

    Raises:
        McpToolError: a header that cannot or must not be sent; the message has its name, never its value.
    """
    checked: dict[str, str] = {}
    values: dict[str, str] = {}
    for name, value in headers.items():
        if (
            not isinstance(name, str)
            or not name
            or not name.isascii()
            or any(c in _SEPARATORS or c <= " " for c in name)
        ):
            raise _unsendable(server_id, "a header whose name is no HTTP token")
        if name.lower() in _FRAMING or name.lower() in _SESSION:
            raise _unsendable(server_id, f"the header {name!r}, which belongs to the protocol")
        if not isinstance(value, str):
            raise _unsendable(server_id, f"the header {name!r} to something that is no text")
        if not value.isascii() or any(c < " " or c == "\x7f" for c in value) or value != value.strip():
            raise _unsendable(
                server_id, f"the header {name!r} to a text with characters or blanks that a header cannot carry"
            )
        if values.setdefault(name.lower(), value) != value:
            # Both would be sent, and whose request it is would be the server's choice.
            raise _unsendable(server_id, f"the header {name!r} to two different texts, under names in different case")
        checked[name] = value
    return {name: value for name, value in checked.items() if values.pop(name.lower(), None) is not None}


def _no_headers(gate: Gate) -> dict[str, str]:
    raise _unsendable(gate.server_id, "headers, which a server over stdio cannot be given")


_SEPARATORS = frozenset('()<>@,;:\\"/[]?={}\x7f')


def _unsendable(server_id: str, what: str) -> McpToolError:
    return McpToolError(
        server_id,
        f"The request to MCP server '{server_id}' was not sent: a before_mcp_request hook set {what}.",
        "refused",
    )
