"""From what a user wrote (`anthropic:NAME`, a model of their own, nothing) to a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from agent_engine.models.base import Model
from agent_engine.models.errors import ModelConfigError

ENVIRONMENT_VARIABLE = "AGENT_ENGINE_MODEL"


@runtime_checkable
class ModelSpecLike(Protocol):
    """A model as a file declares it."""

    @property
    def provider(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def region(self) -> str | None: ...
    @property
    def base_url(self) -> str | None: ...


def model_from(
    value: str | Model | ModelSpecLike | None,
    environ: Mapping[str, str] | None = None,
    *,
    base: str | os.PathLike[str] | None = None,
) -> Model:
    """The model that ``value`` stands for.

    Args:
        value: ``"offline"``, ``"scripted:PATH"``, ``"PROVIDER:NAME"``, a declared model with provider and name, a
            Model, or None for what AGENT_ENGINE_MODEL says, else the offline model.
        environ: where keys and addresses are looked up; ``os.environ`` by default.
        base: the folder that a script's relative path starts from.

    Raises:
        ModelConfigError: one sentence that names the missing variable, package or the unknown provider.
    """
    environ = os.environ if environ is None else environ
    if value is None:
        value = environ.get(ENVIRONMENT_VARIABLE) or "offline"
    region = base_url = None
    if isinstance(value, str):
        provider, _, name = value.partition(":")
    elif isinstance(value, Model):
        return value
    elif isinstance(value, ModelSpecLike):
        provider, name, region, base_url = value.provider, value.name or "", value.region, value.base_url
    else:
        raise TypeError(
            f"A model is text such as 'openai:NAME', a Model or a declared model, not {type(value).__name__}."
        )
    if provider == "offline":
        from agent_engine.models.offline import OfflineModel

        return OfflineModel(name or "offline")
    if provider == "scripted":
        from agent_engine.models.scripted import ScriptedModel

        if not name:
            raise ModelConfigError("The scripted model needs the path of its file: scripted:PATH.")
        return ScriptedModel(Path(base or ".") / name, name=name)
    from agent_engine.models.pydantic_ai import provider_model

    return provider_model(provider, name, environ, region=region, base_url=base_url)
