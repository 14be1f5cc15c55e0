"""Who calls: an identity from a verified token, and what it may see."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_engine.hooks.managed import AuthContext, RunContext
from agent_engine.server.settings import JwtSettings, ServerConfigError

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

_ALGORITHMS = {
    "oct": ("HS256", "HS384", "HS512"),
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("Ed25519", "EdDSA"),
}
_LONGEST = 16_384


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller. ``trusted`` callers may speak for others and see everything; the rest see what is their own.

    ``expires_at``: when the token ends, in seconds since the epoch; None for one that does not.
    """

    scheme: str
    user_id: str | None = None
    organization_id: str | None = None
    scopes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    trusted: bool = False
    token: str | None = field(default=None, repr=False)
    expires_at: float | None = None

    def principal(self) -> dict[str, Any]:
        """What ``on_auth`` sees, and may change."""
        return {
            "user_id": self.user_id,
            "organization_id": self.organization_id,
            "scopes": list(self.scopes),
            "roles": list(self.roles),
        }

    def with_principal(self, principal: Mapping[str, Any]) -> Identity:
        """The identity as an ``on_auth`` hook left it. It cannot make a caller trusted."""
        return Identity(
            self.scheme,
            _text(principal.get("user_id")),
            _text(principal.get("organization_id")),
            tuple(str(one) for one in principal.get("scopes") or ()),
            tuple(str(one) for one in principal.get("roles") or ()),
            self.trusted,
            self.token,
            self.expires_at,
        )

    def run_context(
        self,
        *,
        run_id: str,
        session_id: str | None,
        user_id: str | None,
        organization_id: str | None,
        metadata: Mapping[str, Any],
    ) -> RunContext:
        """The context of a run this caller asks for. A trusted caller may name the user; nobody else can.

        Raises:
            PermissionError: the request names another user or organisation than the token does.
        """
        if self.trusted and self.user_id is None:
            user, organization = user_id, organization_id
        else:
            user, organization = self.user_id, self.organization_id
            if user_id not in (None, user) or organization_id not in (None, organization):
                raise PermissionError("The request names another user or organisation than the token.")
        auth = AuthContext(
            user_id=user,
            organization_id=organization,
            inbound_access_token=self.token,
            scopes=self.scopes,
            roles=self.roles,
        )
        return RunContext(
            run_id=run_id,
            conversation_id=session_id,
            user_id=user,
            organization_id=organization,
            metadata=dict(metadata),
            auth_context=auth,
        )

    def owns(self, user_id: str | None, organization_id: str | None) -> bool:
        """Whether a run of that user is this caller's to see."""
        return self.trusted or (self.user_id is not None and (user_id, organization_id) == self.key)

    @property
    def key(self) -> tuple[str | None, str | None]:
        return (self.user_id, self.organization_id)


LOCAL = Identity("loopback", trusted=True)
"""Anybody at this machine, where no token is set."""


class Unauthenticated(Exception):
    """No token, or one that does not hold; the text never says which part of it was wrong."""


class Verifier:
    """Turns the text of a bearer token into an identity."""

    def __init__(self, token: str | None, jwt: JwtSettings | None) -> None:
        self._token = token.encode() if token is not None else None
        self._jwt = jwt
        self._keys = _key_set(jwt.keys) if jwt is not None else None
        self._algorithms = _algorithms(self._keys) if self._keys is not None else ()

    def identify(self, token: str) -> Identity:
        """Check a token.

        Raises:
            Unauthenticated: it is not the static token, and no valid JWT.
        """
        if self._token is not None and hmac.compare_digest(token.encode("utf-8", "replace"), self._token):
            return Identity("token", trusted=True)
        if self._jwt is None or self._keys is None or len(token) > _LONGEST:
            raise Unauthenticated("The token is not valid.")
        return self._from_jwt(token, self._jwt, self._keys)

    def _from_jwt(self, token: str, settings: JwtSettings, keys: KeySet) -> Identity:
        from joserfc import jwt
        from joserfc.errors import JoseError

        expected: dict[str, Any] = {"exp": {"essential": True}, "sub": {"essential": True}}
        if settings.issuer is not None:
            expected["iss"] = {"essential": True, "value": settings.issuer}
        if settings.audience is not None:
            expected["aud"] = {"essential": True, "value": settings.audience}
        try:
            claims = jwt.decode(token, keys, algorithms=self._algorithms).claims
            jwt.JWTClaimsRegistry(leeway=settings.leeway_s, **expected).validate(claims)
        except (JoseError, ValueError, TypeError, KeyError):
            raise Unauthenticated("The token is not valid.") from None
        scopes = _scopes(claims.get("scope", claims.get("scp")))
        roles = claims.get("roles")
        return Identity(
            "jwt",
            str(claims["sub"]),
            _text(claims.get(settings.organization_claim)),
            scopes,
            tuple(str(role) for role in roles) if isinstance(roles, list) else (),
            settings.admin_scope in scopes,
            token,
            float(claims["exp"]),
        )


def _key_set(text: str) -> KeySet:
    from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey, import_key

    try:
        if text.startswith("{"):
            found = json.loads(text)
            return KeySet.import_key_set(found) if "keys" in found else KeySet([import_key(found)])
        if not text.startswith("-----BEGIN"):
            return KeySet([OctKey.import_key(text)])
    except Exception as error:  # noqa: BLE001 - the library raises many kinds, and their texts may quote the key
        raise ServerConfigError(f"The keys for tokens cannot be read ({type(error).__name__}).") from None
    for kind in (RSAKey, ECKey, OKPKey):
        try:
            return KeySet([kind.import_key(text)])
        except Exception as error:  # noqa: BLE001 - another kind of key; the last one decides
            del error
    raise ServerConfigError("The PEM key for tokens is neither RSA, EC nor Ed25519.")


def _algorithms(keys: KeySet) -> tuple[str, ...]:
    kinds = {str(key.key_type) for key in keys.keys}
    return tuple(name for kind in sorted(kinds) for name in _ALGORITHMS.get(kind, ()))


def _scopes(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(str(one) for one in value) if isinstance(value, list) else ()


def _text(value: object) -> str | None:
    return None if value is None else str(value)
