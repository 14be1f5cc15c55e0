"""A real authorisation server for tests: Authlib on Flask over loopback, with a token-exchange grant.

It issues JWTs that it signs with a key of its own (``jwks`` has the public part), counts what it issues, and says no in
the ways that matter.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, InvalidGrantError, InvalidRequestError, UnauthorizedClientError
from authlib.oauth2.rfc6749.grants import BaseGrant, ClientCredentialsGrant, TokenEndpointMixin
from flask import Flask, Response, jsonify, request
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from werkzeug.serving import make_server

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
ISSUER = "https://login.test"


class Client(ClientMixin):
    """A registered client."""

    def __init__(self, client_id: str, secret: str) -> None:
        self.client_id = client_id
        self.secret = secret

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return ""

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return False

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in ("client_secret_basic", "client_secret_post")

    def check_response_type(self, response_type: str) -> bool:
        return False

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in ("client_credentials", EXCHANGE)


class TokenExchangeGrant(BaseGrant, TokenEndpointMixin):
    """RFC 8693, for access tokens that this very server issued."""

    GRANT_TYPE = EXCHANGE
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]  # noqa: RUF012 - as Authlib has it
    owner: AuthServer

    def validate_token_request(self) -> None:
        client = self.authenticate_token_endpoint_client()
        if not client.check_grant_type(EXCHANGE):
            raise UnauthorizedClientError
        form = self.request.form
        if form.get("subject_token_type") != ACCESS_TOKEN:
            raise InvalidRequestError("subject_token_type is not supported")
        try:
            claims = self.owner.read(form.get("subject_token", ""))
        except ValueError:
            raise InvalidGrantError(f"the subject token {form.get('subject_token')} is no good") from None
        self.request.client = client
        self.request.user = claims["sub"]

    def create_token_response(self) -> Any:
        form = self.request.form
        token = self.owner.issue(self.request.user, form.get("audience"), form.get("scope"))
        return 200, {**token, "issued_token_type": ACCESS_TOKEN}, self.TOKEN_RESPONSE_HEADER


class AuthServer:
    """The server. Use it as a context manager."""

    def __init__(self) -> None:
        self.key = ECKey.generate_key("P-256", parameters={"kid": "k1", "use": "sig", "alg": "ES256"})
        self.clients = {"engine": Client("engine", "engine-secret-7f3a")}
        self.life = 3600
        self.issued: list[dict[str, Any]] = []
        self.forms: list[dict[str, str]] = []
        self.delay = 0.0
        self.answer: tuple[int, str, str] | None = None
        """(status, content type, body) that is answered instead."""
        self.wrong_key: ECKey | None = None
        self.issuer = ISSUER
        self.keys_read = 0
        self._http: Any = None
        self._thread: threading.Thread | None = None

    @property
    def jwks(self) -> dict[str, Any]:
        return KeySet([self.key]).as_dict(private=False)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def token_url(self) -> str:
        return f"{self.base}/token"

    def issue(self, subject: str, audience: str | None, scope: str | None) -> dict[str, Any]:
        """A token response."""
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": subject, "iat": now, "exp": now + self.life, "jti": str(len(self.issued))}
        if audience:
            claims["aud"] = audience
        if scope:
            claims["scope"] = scope
        text = jwt.encode({"alg": "ES256", "kid": "k1"}, claims, self.wrong_key or self.key)
        self.issued.append({**claims, "token": text})
        token = {"access_token": text, "token_type": "Bearer", "expires_in": self.life}
        return {**token, "scope": scope} if scope else token

    def inbound(self, subject: str) -> str:
        """A token that a person would come with; it is not counted."""
        claims = {"iss": self.issuer, "sub": subject, "exp": int(time.time()) + 3600}
        return jwt.encode({"alg": "ES256", "kid": "k1"}, claims, self.key)

    def read(self, token: str) -> dict[str, Any]:
        """The claims of a token of this server; ValueError for any other."""
        try:
            claims = jwt.decode(token, self.key, algorithms=["ES256"]).claims
        except Exception as problem:
            raise ValueError("not ours") from problem
        if claims.get("exp", 0) < time.time():
            raise ValueError("expired")
        return claims

    def _app(self) -> Flask:
        app = Flask("auth-server")
        server = AuthorizationServer(app, query_client=self.clients.get, save_token=lambda token, request: None)

        def generate(client: Client, grant_type: str, user: Any = None, scope: Any = None, **_: Any) -> dict[str, Any]:
            return self.issue(client.client_id, request.form.get("audience"), scope)

        server.register_token_generator("default", generate)
        server.register_grant(ClientCredentialsGrant)
        server.register_grant(type("Exchange", (TokenExchangeGrant,), {"owner": self}))

        @app.post("/token")
        def token() -> Any:
            self.forms.append(dict(request.form))
            time.sleep(self.delay)
            if self.answer is not None:
                status, kind, body = self.answer
                return Response(body, status, mimetype=kind)
            return server.create_token_response()

        @app.get("/keys")
        def keys() -> Any:
            self.keys_read += 1
            return jsonify(self.jwks)

        return app

    def __enter__(self) -> AuthServer:
        import logging

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._http = make_server("127.0.0.1", 0, self._app(), threaded=True)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="auth-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        if self._thread is not None:
            self._thread.join(10)
