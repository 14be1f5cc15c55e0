"""The providers that the model layer knows: their names, the variables that hold their keys, the packages they need."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from agent_engine.models.errors import ModelConfigError


class ProviderInfo(NamedTuple):
    """``keys``: variables that may hold the key, first one found wins. ``extra``: what to install for it."""

    keys: tuple[str, ...] = ()
    extra: str = "openai"


PROVIDERS: dict[str, ProviderInfo] = {
    "alibaba": ProviderInfo(("ALIBABA_API_KEY", "DASHSCOPE_API_KEY")),
    "anthropic": ProviderInfo(("ANTHROPIC_API_KEY",), "anthropic"),
    "azure": ProviderInfo(("AZURE_OPENAI_API_KEY",)),
    "bedrock": ProviderInfo((), "bedrock"),
    "cerebras": ProviderInfo(("CEREBRAS_API_KEY",)),
    "cohere": ProviderInfo(("CO_API_KEY",), "cohere"),
    "deepseek": ProviderInfo(("DEEPSEEK_API_KEY",)),
    "fireworks": ProviderInfo(("FIREWORKS_API_KEY",)),
    "github": ProviderInfo(("GITHUB_API_KEY",)),
    "google": ProviderInfo(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "google"),
    "google-cloud": ProviderInfo((), "google"),
    "groq": ProviderInfo(("GROQ_API_KEY",), "groq"),
    "heroku": ProviderInfo(("HEROKU_INFERENCE_KEY",)),
    "huggingface": ProviderInfo(("HF_TOKEN",), "huggingface"),
    "litellm": ProviderInfo(),
    "meta": ProviderInfo(("META_API_KEY",)),
    "mistral": ProviderInfo(("MISTRAL_API_KEY",), "mistral"),
    "moonshotai": ProviderInfo(("MOONSHOTAI_API_KEY",)),
    "nebius": ProviderInfo(("NEBIUS_API_KEY",)),
    "ollama": ProviderInfo(),
    "openai": ProviderInfo(("OPENAI_API_KEY",)),
    "openai-chat": ProviderInfo(("OPENAI_API_KEY",)),
    "openai-responses": ProviderInfo(("OPENAI_API_KEY",)),
    "openrouter": ProviderInfo(("OPENROUTER_API_KEY",)),
    "ovhcloud": ProviderInfo(("OVHCLOUD_API_KEY",)),
    "sambanova": ProviderInfo(("SAMBANOVA_API_KEY",)),
    "snowflake": ProviderInfo(),
    "together": ProviderInfo(("TOGETHER_API_KEY",)),
    "vercel": ProviderInfo(("VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN")),
    "vllm": ProviderInfo(),
    "xai": ProviderInfo(("XAI_API_KEY",), "xai"),
    "zai": ProviderInfo(("ZAI_API_KEY",)),
}
_ALIASES = {"gemini": "google", "google-gla": "google", "google-vertex": "google-cloud"}
_OWN_EXTRAS = ("openai", "anthropic", "google", "groq", "mistral", "bedrock")
_OPENAI = ("openai", "openai-chat", "openai-responses")


def canonical(provider: str) -> str:
    """The provider's name in the model layer; ``gemini`` is read as ``google``."""
    return _ALIASES.get(provider, provider)


def key_variables(provider: str) -> tuple[str, ...]:
    """The environment variables that may hold the provider's key; empty where it needs none, or more than a key."""
    return PROVIDERS.get(canonical(provider), ProviderInfo()).keys


def needs_key(provider: str, base_url: str | None, environ: Mapping[str, str]) -> bool:
    """Whether the provider cannot be used without a key. A server of one's own at ``base_url`` may need none."""
    if canonical(provider) in _OPENAI and (base_url or environ.get("OPENAI_BASE_URL")):
        return False
    return bool(key_variables(provider))


def key_for(provider: str, base_url: str | None, environ: Mapping[str, str]) -> str | None:
    """The provider's key. Raises ModelConfigError naming the variable where it is needed and missing."""
    names = key_variables(provider)
    found = next((environ[name] for name in names if environ.get(name)), None)
    if found is None and needs_key(provider, base_url, environ):
        raise ModelConfigError(f"The model provider '{provider}' needs its key: set {' or '.join(names)}.")
    return found


def build_provider(provider: str, environ: Mapping[str, str], *, region: str | None, base_url: str | None) -> Any:
    """The model layer's provider object, with keys and addresses from ``environ``.

    Raises:
        ModelConfigError: unknown provider, missing key or package, or a setting the provider does not take.
    """
    name = canonical(provider)
    key = key_for(name, base_url, environ)
    kind = _provider_class(provider, name)
    takes = inspect.signature(kind.__init__).parameters
    given: dict[str, Any] = {}
    if key is not None and "api_key" in takes:
        given["api_key"] = key
    if name in _OPENAI:
        base_url = base_url or environ.get("OPENAI_BASE_URL")
        if base_url and not _is_openai(base_url):
            return _compatible(name, base_url, key)
    if name == "bedrock":
        given = {"bedrock_client": _bedrock_client(environ, region, base_url)}
    else:
        given.update(_address(provider, takes, key, base_url))
        given.update(_place(provider, takes, region))
    try:
        return kind(**given)
    except ImportError as error:
        raise _missing_package(provider, name) from error
    except Exception as error:  # noqa: BLE001 - each provider library has errors of its own for what is missing
        raise ModelConfigError(_setup_problem(provider, error)) from None


def _provider_class(provider: str, name: str) -> Any:
    try:
        from pydantic_ai.providers import infer_provider_class

        return infer_provider_class(name)
    except ImportError as error:
        if name not in PROVIDERS:
            raise unknown(provider) from error
        raise _missing_package(provider, name) from error
    except ValueError:
        raise unknown(provider) from None


_KNOWN = (*PROVIDERS, *_ALIASES, "offline", "scripted")


def is_known(provider: str) -> bool:
    """Whether ``provider`` is the name of a provider, or an older name of one."""
    return provider in _KNOWN


def unknown(provider: str, otherwise: str = f"known are {', '.join(sorted(_KNOWN))}") -> ModelConfigError:
    """The error for a provider that there is not; ``otherwise`` is what to do where no known one is near."""
    near = difflib.get_close_matches(provider, _KNOWN, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"{otherwise}."
    return ModelConfigError(f"Unknown model provider '{provider}'; {hint}")


def _missing_package(provider: str, name: str) -> ModelConfigError:
    extra = PROVIDERS.get(name, ProviderInfo()).extra
    package = f"agent-engine[{extra}]" if extra in _OWN_EXTRAS else f"pydantic-ai-slim[{extra}]"
    return ModelConfigError(f"The model provider '{provider}' needs a package: pip install '{package}'.")


def _is_openai(base_url: str) -> bool:
    return f".{urlsplit(base_url).hostname or ''}".endswith(".openai.com")


def _compatible(name: str, base_url: str, key: str | None) -> Any:
    """A server that speaks OpenAI's protocol; ``max_tokens`` is the spelling that all of them know."""
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    profile = OpenAIModelProfile(openai_chat_supports_max_completion_tokens=False)
    return OpenAICompatibleProvider(name, base_url=base_url, api_key=key, profile=profile)


def _address(provider: str, takes: Mapping[str, Any], key: str | None, base_url: str | None) -> dict[str, Any]:
    if base_url is None:
        return {}
    for parameter in ("base_url", "azure_endpoint", "api_base", "api_host"):
        if parameter in takes:
            return {parameter: base_url}
    if "openai_client" in takes:
        from openai import AsyncOpenAI

        return {"api_key": None, "openai_client": AsyncOpenAI(base_url=base_url, api_key=key or "none", max_retries=0)}
    raise ModelConfigError(f"The model provider '{provider}' takes no base_url.")


def _place(provider: str, takes: Mapping[str, Any], region: str | None) -> dict[str, Any]:
    if region is None:
        return {}
    for parameter in ("region_name", "location"):
        if parameter in takes:
            return {parameter: region}
    raise ModelConfigError(f"The model provider '{provider}' takes no region.")


def _bedrock_client(environ: Mapping[str, str], region: str | None, base_url: str | None) -> Any:
    """A Bedrock client that makes one attempt; the retries are the engine's own, where hooks see them."""
    try:
        boto3 = import_module("boto3")
        config_type = import_module("botocore.config").Config
        boto_error = import_module("botocore.exceptions").BotoCoreError
    except ImportError as error:
        raise _missing_package("bedrock", "bedrock") from error
    session = boto3.Session(
        aws_access_key_id=environ.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=environ.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=environ.get("AWS_SESSION_TOKEN"),
        region_name=region or environ.get("AWS_DEFAULT_REGION") or environ.get("AWS_REGION"),
        profile_name=environ.get("AWS_PROFILE"),
    )
    config = config_type(read_timeout=300, connect_timeout=60, retries={"total_max_attempts": 1, "mode": "standard"})
    try:
        return session.client("bedrock-runtime", config=config, endpoint_url=base_url)
    except boto_error as error:
        raise ModelConfigError(
            f"Bedrock cannot be set up ({type(error).__name__}): set a region and AWS credentials."
        ) from None


def _setup_problem(provider: str, error: Exception) -> str:
    """One sentence; of the library's own words only the names of variables are taken over."""
    names = list(dict.fromkeys(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", str(error))))
    wanted = f" set {' or '.join(names)}." if names else " look at its key, address and region."
    return f"The model provider '{provider}' cannot be set up ({type(error).__name__}):{wanted}"
