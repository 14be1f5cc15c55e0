"""How a server is set up: who may use it, and how much it takes on."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TOKEN = "AGENT_ENGINE_TOKEN"  # noqa: S105 - the name of a variable, not a token
JWT_KEYS = "AGENT_ENGINE_JWT_KEYS"
JWT_ISSUER = "AGENT_ENGINE_JWT_ISSUER"
JWT_AUDIENCE = "AGENT_ENGINE_JWT_AUDIENCE"


class ServerConfigError(Exception):
    """The server cannot be set up like this; the message says what to change."""


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """Bearer tokens that somebody else issues.

    Attributes:
        keys: the keys as text: a JWK set, one JWK, a PEM public key, or a shared secret.
        issuer, audience: what ``iss`` and ``aud`` must be; None leaves it open.
        organization_claim: the claim that holds the organisation.
        admin_scope: who has this scope sees and decides everything; others only what is their own.
    """

    keys: str
    issuer: str | None = None
    audience: str | None = None
    organization_claim: str = "org_id"
    admin_scope: str = "agent_engine:admin"
    leeway_s: int = 30


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """
    Attributes:
        host: the address it listens at. Without ``token`` and ``jwt`` it must be a loopback address.
        token: a static bearer token; whoever has it may do everything, in the name of any user.
        max_body: largest request body, in bytes.
        max_runs: runs at the same time; what comes on top is told to come back later.
        run_s: longest time for one run, in seconds.
        drain_s: how long a stop waits for runs under way, in seconds.
        public_hosts: host names under which it is reached besides ``host``, for the check of the Host header.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    token: str | None = None
    jwt: JwtSettings | None = None
    max_body: int = 1 << 20
    max_runs: int = 256
    run_s: float = 600.0
    drain_s: float = 30.0
    public_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.is_open and not is_loopback(self.host):
            raise ServerConfigError(
                f"{self.host} can be reached from other machines: set {TOKEN} to a token, or {JWT_KEYS} to the keys of "
                "your token issuer, or listen at 127.0.0.1."
            )
        if self.token is not None and len(self.token) < 16:
            raise ServerConfigError(f"The token in {TOKEN} is too short; take at least 16 random characters.")

    @property
    def is_open(self) -> bool:
        """Whether anybody on this machine may use it without a token."""
        return self.token is None and self.jwt is None

    @classmethod
    def from_environ(cls, host: str, port: int, environ: Mapping[str, str] = os.environ) -> Self:
        """The settings from AGENT_ENGINE_TOKEN, AGENT_ENGINE_JWT_KEYS (a file, or the keys themselves), …_ISSUER and
        …_AUDIENCE.

        Raises:
            ServerConfigError: a host that needs a token has none, or a key file cannot be read.
        """
        keys = environ.get(JWT_KEYS)
        jwt = None
        if keys:
            jwt = JwtSettings(_keys(keys), environ.get(JWT_ISSUER) or None, environ.get(JWT_AUDIENCE) or None)
        return cls(host=host, port=port, token=environ.get(TOKEN) or None, jwt=jwt)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _keys(value: str) -> str:
    text = value.strip()
    if text.startswith(("{", "-----BEGIN")):
        return text
    path = Path(text)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ServerConfigError(f"The key file in {JWT_KEYS} cannot be read: {error.strerror}.") from None
    if "/" in text or text.endswith((".json", ".pem", ".jwk", ".jwks")):
        raise ServerConfigError(f"There is no key file at {text} ({JWT_KEYS}).")
    if len(text) < 32:
        raise ServerConfigError(f"The shared secret in {JWT_KEYS} is too short; take at least 32 random characters.")
    return text
