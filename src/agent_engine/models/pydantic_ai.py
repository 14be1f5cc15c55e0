"""Providers through pydantic-ai's model layer. Imported only when one is used."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

from agent_engine.models.base import Message, ModelResponse, ModelSettings, ToolDefinition
from agent_engine.models.errors import ModelConfigError, ModelError
from agent_engine.models.providers import build_provider, canonical, is_known, key_variables, unknown

if TYPE_CHECKING:
    from pydantic_ai.models import Model as NativeModel
    from pydantic_ai.settings import ModelSettings as NativeSettings

_TALKATIVE = ("openai", "anthropic", "groq", "httpx", "httpx2", "httpcore", "httpcore2", "botocore", "google_genai")


def provider_model(
    provider: str, name: str, environ: Mapping[str, str], *, region: str | None = None, base_url: str | None = None
) -> ProviderModel:
    """A model of a provider.

    ``openai`` with a ``base_url`` (or OPENAI_BASE_URL) speaks Chat Completions, which every compatible server knows.

    Raises:
        ModelConfigError: one sentence that names what is missing: the key's variable, the package, the name.
    """
    if not name:
        if not is_known(provider):
            raise unknown(provider, "write PROVIDER:NAME, such as openai:NAME")
        raise ModelConfigError(f"The model provider '{provider}' needs the name of a model: {provider}:NAME.")
    kind = canonical(provider)
    if kind == "openai" and (base_url or environ.get("OPENAI_BASE_URL")):
        kind = "openai-chat"

    def build() -> NativeModel[Any]:
        built = build_provider(provider, environ, region=region, base_url=base_url)
        from pydantic_ai.models import infer_model

        try:
            return infer_model(f"{kind}:{name}", provider_factory=lambda _: built)
        except Exception as error:  # noqa: BLE001 - each model class has checks of its own
            raise ModelConfigError(f"The model {provider}:{name} cannot be set up ({type(error).__name__}).") from None

    return ProviderModel(build, canonical(provider), name, key_variables(provider))


class ProviderModel:
    """One model of a provider, usable from any event loop.

    Connections belong to the loop that opened them, so each loop gets a client of its own. Retries inside the
    provider's library are switched off: the engine makes them, where hooks can see them.

    Settings under ``extra`` go to the model layer as they are, such as ``timeout`` (seconds) or ``thinking``.
    """

    def __init__(
        self, build: Callable[[], NativeModel[Any]], provider: str, name: str, keys: tuple[str, ...] = ()
    ) -> None:
        self.provider = provider
        self.name = name
        self._build = build
        self._keys = keys
        self._spare: NativeModel[Any] | None = build()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, NativeModel[Any]] = (
            weakref.WeakKeyDictionary()
        )
        _keep_quiet()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.provider}:{self.name}>"

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> ModelResponse:
        from agent_engine.models.native import from_native

        try:
            response = await self._native().request(*self._request(messages, tools, settings))
            return from_native(response)
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the provider's library raises becomes a ModelError
            failed = self._failed(error)
        raise failed

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> AsyncIterator[str | ModelResponse]:
        failed = None
        async with aclosing(self._stream(messages, tools, settings)) as items:
            try:
                async for item in items:
                    yield item
            except ModelError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                failed = self._failed(error)
        if failed is not None:
            raise failed

    async def aclose(self) -> None:
        """Close the connections of every loop that still runs."""
        here = asyncio.get_running_loop()
        opened = list(self._by_loop.items())
        self._by_loop.clear()
        for loop, native in opened:
            if loop is here:
                await _close(native)
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(_close(native), loop)
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(closing), 2.0)

    async def _stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> AsyncGenerator[str | ModelResponse]:
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

        from agent_engine.models.native import from_native

        async with self._native().request_stream(*self._request(messages, tools, settings)) as stream:
            async for event in stream:
                text = ""
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    text = event.part.content
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    text = event.delta.content_delta
                if text:
                    yield text
            yield from_native(stream.get())

    def _native(self) -> NativeModel[Any]:
        loop = asyncio.get_running_loop()
        native = self._by_loop.get(loop)
        if native is None:
            native, self._spare = self._spare or self._build(), None
            self._by_loop[loop] = native
        return native

    def _request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], settings: ModelSettings
    ) -> tuple[list[Any], NativeSettings, Any]:
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition as NativeTool

        from agent_engine.models.native import to_native

        native = self._native()
        offered = [
            NativeTool(name=t.name, parameters_json_schema=t.parameters, description=t.description or None)
            for t in tools
        ]
        parameters = ModelRequestParameters(function_tools=offered)
        chosen = _settings(settings, native)
        return native.prepare_messages(to_native(messages, native.system), parameters), chosen, parameters

    def _failed(self, error: Exception) -> ModelError:
        from agent_engine.models.provider_errors import model_error

        return model_error(error, self.provider, self.name, self._keys)


def _settings(settings: ModelSettings, native: NativeModel[Any]) -> NativeSettings:
    given: dict[str, Any] = {}
    if "max_retries" not in native.unsupported_settings:
        given["max_retries"] = 0
    for name in ("temperature", "max_tokens", "top_p"):
        value = getattr(settings, name)
        if value is not None:
            given[name] = value
    given.update(settings.extra)
    return cast("NativeSettings", given)


async def _close(native: NativeModel[Any]) -> None:
    """Entering and leaving a model is how the model layer closes the client that it opened."""
    async with native:
        pass


def _keep_quiet() -> None:
    """Client libraries log addresses, and at their lowest level whole requests; whoever wants that says so."""
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
