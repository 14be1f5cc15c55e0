"""Who makes a call: passed by value from the run to the door, never found in ambient state."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from agent_engine.hooks.managed import AuthContext, RunContext

if TYPE_CHECKING:
    from agent_engine.hooks.scope import HookScope
    from agent_engine.hooks.site import Sink
    from agent_engine.records.journal import Journal


class Identity(NamedTuple):
    """What a session belongs to. ``credential`` is a digest, so that the token itself is no key of anything."""

    organization_id: str | None
    user_id: str | None
    credential: str

    @classmethod
    def of(cls, context: RunContext) -> Identity:
        auth = context.auth_context
        token = auth.inbound_access_token
        secret = repr((auth.organization_id, auth.user_id, token)).encode("utf-8", "surrogatepass")
        return cls(context.organization_id, context.user_id, hashlib.sha256(secret).hexdigest())

    def __repr__(self) -> str:
        return f"Identity({self.organization_id!r}, {self.user_id!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Caller:
    """One call's run: its context, the hooks that hold for it, and where its facts are written.

    Args:
        run_context: the identity that hooks see; an empty one outside a run.
        scope: the hooks that listen.
        agent: the agent that calls, for hooks that are limited to agents.
        journal: where ``mcp`` steps go; None writes none.
        step_id: the step that the request belongs to.
        sink: told about each hook that ran; None writes to the journal, where there is one.
        strict: hooks raise their own exceptions.
    """

    run_context: RunContext
    scope: HookScope
    agent: str | None = None
    journal: Journal | None = None
    step_id: str | None = None
    sink: Sink | None = None
    strict: bool = False

    def __repr__(self) -> str:
        return f"<Caller run={self.run_context.run_id!r} agent={self.agent!r}>"

    @property
    def identity(self) -> Identity:
        return Identity.of(self.run_context)

    def identity_alone(self, scope: HookScope, journal: Journal | None) -> Caller:
        """The same identity with nothing of this run: for what a session sends by itself (its stream, its end)."""
        context, auth = self.run_context, self.run_context.auth_context
        return Caller(
            RunContext(
                user_id=context.user_id,
                organization_id=context.organization_id,
                auth_context=AuthContext(
                    user_id=auth.user_id,
                    organization_id=auth.organization_id,
                    inbound_access_token=auth.inbound_access_token,
                ),
            ),
            scope,
            journal=journal,
        )
