"""The bodies of the HTTP API."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Text = Annotated[str, StringConstraints(min_length=1, max_length=500_000)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class MessageRequest(Strict):
    """A message for the system. ``user_id`` and ``organization_id`` are for trusted callers, which speak for others."""

    message: Text
    session_id: Id | None = None
    user_id: Id | None = None
    organization_id: Id | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class DecisionsRequest(Strict):
    """An answer for each call that a waiting run asks about, by call id."""

    decisions: dict[str, Literal["yes", "session", "no"]] = Field(min_length=1, max_length=100)


class Usage(BaseModel):
    input_tokens: int = 0
    output_tokens: int = 0


class Ask(BaseModel):
    """One call that waits for a yes."""

    call_id: str
    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    agent: str = ""
    server_id: str | None = None
    reason: str | None = None
    hook: str | None = None
    run_id: str = ""


class RunAnswer(BaseModel):
    """The outcome of a run: its answer, or what it waits for (``status`` is then ``waiting``)."""

    run_id: str
    status: str
    output: Any = ""
    session_id: str = ""
    usage: Usage = Field(default_factory=Usage)
    visited: list[str] = Field(default_factory=list)
    pending: list[Ask] = Field(default_factory=list)


class Json(JSONResponse):
    """An answer as JSON, whatever text a model has made: a lone surrogate, which is no UTF-8, is sent as its escape."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


class WaitingRun(BaseModel):
    """A run that waits for an approval. ``saved_at`` is seconds since the epoch; after 24 hours it is ``expired``."""

    run_id: str
    saved_at: float | None = None
    expired: bool = False
    user_id: str | None = None
    organization_id: str | None = None
    asks: list[Ask] = Field(default_factory=list)


class WaitingRuns(BaseModel):
    runs: list[WaitingRun]


class RunSummary(BaseModel):
    """One run of the records. ``started_at`` is ISO 8601, UTC; ``next`` of a list goes on with older ones."""

    run_id: str
    system: str | None = None
    status: str
    error_type: str | None = None
    started_at: str
    duration_ms: float | None = None
    session_id: str | None = None
    user_id: str | None = None
    organization_id: str | None = None
    steps: int = 0
    hook_runs: int = 0
    denied: int = 0
    broke: int = 0


class RunList(BaseModel):
    runs: list[RunSummary]
    next: str | None = None


class RunDetail(RunSummary):
    """One run with its steps and decision records, nested as they ran, and what it asks where it waits."""

    steps_detail: list[dict[str, Any]] = Field(default_factory=list)
    records: list[dict[str, Any]] = Field(default_factory=list)
    pending: list[Ask] = Field(default_factory=list)


class Health(BaseModel):
    """``status`` is ok, or stopping; so many ``runs`` are under way."""

    status: Literal["ok", "stopping"]
    runs: int


class ErrorBody(BaseModel):
    code: str
    message: str
    request_id: str


class Error(BaseModel):
    """Every error looks like this."""

    error: ErrorBody
