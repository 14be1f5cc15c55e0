"""What a provider library raises, as the engine's own ModelError: kind and status, never the provider's words."""

from __future__ import annotations

import json
import math
from typing import Any

from agent_engine.models.errors import ErrorCategory, ModelError

_SAYS: dict[str, str] = {
    "rate_limit": "is rate limited",
    "timeout": "did not answer in time",
    "server": "failed to answer",
    "auth": "refused the key",
    "bad_request": "refused the request",
    "connection": "cannot be reached",
    "unknown": "failed",
}
_RETRYABLE = ("rate_limit", "timeout", "server", "connection")
_LONGEST_WAIT = 24 * 3600.0


def model_error(error: Exception, provider: str, model: str, keys: tuple[str, ...] = ()) -> ModelError:
    """The ModelError for an exception that a provider's library raised while answering.

    It does not carry ``error`` along: a provider's own text may quote the prompt, the arguments or a key.
    """
    category, retryable = _classify(error)
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    said = _SAYS[category]
    if type(error).__name__.endswith("NotFoundError") or status == 404:
        said = "does not know this model or address"
    notes = [type(error).__name__.lstrip("_")] if status is None else [f"status {status}", _plain_name(error)]
    text = f"The model {provider}:{model} {said} ({', '.join(notes)})"
    if category == "auth" and keys:
        text += f"; check {' or '.join(keys)}"
    return ModelError(
        f"{text}.", status=status, retryable=retryable, retry_after=_retry_after(error), category=category
    )


def _plain_name(error: Exception) -> str:
    return type(error).__name__.removeprefix("_HTTP").lstrip("_")


def _classify(error: Exception) -> tuple[ErrorCategory, bool]:
    from pydantic_ai import exceptions as raised

    kinds: list[tuple[type[Exception], ErrorCategory, bool]] = [
        (raised.ModelQuotaExceededError, "rate_limit", False),
        (raised.ModelRateLimitError, "rate_limit", True),
        (raised.ModelTimeoutError, "timeout", True),
        (raised.ModelRequestTimeout, "timeout", True),
        (raised.ModelConnectionError, "connection", True),
        (raised.ModelServerError, "server", True),
        (raised.ModelUnavailableError, "server", True),
        (raised.ModelAuthenticationError, "auth", False),
        (raised.ModelRequestRejectedError, "bad_request", False),
        (raised.ContentFilterError, "bad_request", False),
        (raised.UnexpectedModelBehavior, "server", True),
        (raised.UserError, "bad_request", False),
        (json.JSONDecodeError, "server", True),
        (TimeoutError, "timeout", True),
        (ConnectionError, "connection", True),
    ]
    for kind, category, retryable in kinds:
        if isinstance(error, kind):
            return category, retryable
    if isinstance(error, raised.ModelHTTPError):
        by_status = _by_status(error.status_code)
        return by_status, by_status in _RETRYABLE
    by_name = _by_name(error)
    if by_name == "unknown" and isinstance(error, raised.ModelAPIError) and isinstance(error.__cause__, Exception):
        return _classify(error.__cause__)
    return by_name, by_name in _RETRYABLE


def _by_status(status: int) -> ErrorCategory:
    if status == 429:
        return "rate_limit"
    if status in (401, 403):
        return "auth"
    if status == 408:
        return "timeout"
    return "server" if status >= 500 else "bad_request"


def _by_name(error: Exception) -> ErrorCategory:
    """By the names of the HTTP libraries' classes, which several packages share without a common base."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"TimeoutException", "APITimeoutError", "ReadTimeout", "ConnectTimeout"}:
        return "timeout"
    if names & {"TransportError", "APIConnectionError", "StreamError"}:
        return "connection"
    if names & {"APIResponseValidationError", "DecodingError", "ValidationError"}:
        return "server"
    return "unknown"


def _retry_after(error: Any) -> float | None:
    seconds = getattr(error, "retry_after", None)
    if isinstance(seconds, (int, float)) and math.isfinite(seconds):
        return min(max(0.0, float(seconds)), _LONGEST_WAIT)
    return None
