"""What can go wrong at a model: one error type with a category, and one for a model that cannot be set up."""

from __future__ import annotations

from typing import Literal

ErrorCategory = Literal["unknown", "rate_limit", "timeout", "server", "auth", "bad_request", "connection", "config"]


class ModelError(Exception):
    """A model call that failed.

    The text names the provider, the kind of failure and the HTTP status; it never carries the provider's own text,
    which may quote the prompt or a key.

    Attributes:
        status: HTTP status of the answer, or None where there was none.
        retryable: whether the same request may succeed later.
        retry_after: seconds the provider asked to wait, or None.
        category: what kind of failure it was.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        category: ErrorCategory = "unknown",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.category = category


class ModelConfigError(ModelError):
    """A model that cannot be used as configured: a missing key, a missing package, an unknown provider.

    The text is one sentence that says what is missing and what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, category="config")
