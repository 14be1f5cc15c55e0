"""Credentials for MCP requests, to use in a ``before_mcp_request`` hook.

    tokens = TokenExchange("https://login.example.com/token", client_id="engine",
                           client_secret=from_env("ENGINE_SECRET"), audience="mcp-service", servers=("crm",))

    class Auth:
        async def inject(self, event: HookInvocation) -> McpRequestContext:
            return await tokens.authorize(event.payload_as(McpRequestContext), event.run_context)

Each of them is a hook by itself, too: ``add_hook("before_mcp_request", tokens)``, or ``ref: plugins.auth:tokens``.
Nothing here prints a token: not in a repr, not in an error, and none of these objects that holds one can be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_engine.batteries.credentials.base import Credential as Credential
    from agent_engine.batteries.credentials.base import CredentialError as CredentialError
    from agent_engine.batteries.credentials.bearer import BearerToken as BearerToken
    from agent_engine.batteries.credentials.checks import TokenCheck as TokenCheck
    from agent_engine.batteries.credentials.hmac_verifier import SignatureInvalid as SignatureInvalid
    from agent_engine.batteries.credentials.hmac_verifier import verify as verify
    from agent_engine.batteries.credentials.oauth import ClientCredentials as ClientCredentials
    from agent_engine.batteries.credentials.oauth import TokenExchange as TokenExchange
    from agent_engine.batteries.credentials.signing import HmacSigner as HmacSigner
    from agent_engine.batteries.credentials.sources import Secret as Secret
    from agent_engine.batteries.credentials.sources import from_env as from_env
    from agent_engine.batteries.credentials.sources import from_file as from_file

_HOMES = {
    "Credential": "base",
    "CredentialError": "base",
    "BearerToken": "bearer",
    "TokenCheck": "checks",
    "SignatureInvalid": "hmac_verifier",
    "verify": "hmac_verifier",
    "ClientCredentials": "oauth",
    "TokenExchange": "oauth",
    "HmacSigner": "signing",
    "Secret": "sources",
    "from_env": "sources",
    "from_file": "sources",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(sorted(_HOMES))}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
