"""Prompts with ``{{ name }}``, the resolvers that fill them, and who may use a protected node."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agent_engine.spec.template import fill, names_in, read_prompt

if TYPE_CHECKING:
    from pathlib import Path

    from agent_engine.hooks.managed import RunContext
    from agent_engine.plugins.loader import PluginSpace
    from agent_engine.plugins.manifest import Manifest
    from agent_engine.runtime.state import RunState
    from agent_engine.spec.system import System

logger = logging.getLogger("agent_engine.runtime")

_PRIVATE_HEADERS = frozenset(("authorization", "cookie", "proxy-authorization"))
_VALUES = "prompt_values"
_ACCESS = "access"
_T = TypeVar("_T")
Method = Callable[["ResolverContext"], Any]


class ResolverError(Exception):
    """A resolver that failed: the message names it and its error's type, never the error's text."""


@dataclass(frozen=True, slots=True)
class ResolverContext:
    """What a resolver or an access check is given.

    Attributes:
        headers: the request's headers (``metadata["headers"]`` of the run's context), without Authorization and Cookie.
        metadata: the metadata of the run's context; its headers are these headers.
        run_context: the run's context without its inbound_access_token.
        values: what resolvers have given so far for this prompt, by name.
        node_id: the node that the prompt belongs to, or that is asked for.
    """

    headers: Mapping[str, str]
    metadata: Mapping[str, Any]
    run_context: RunContext
    values: Mapping[str, Any] = field(default_factory=dict)
    node_id: str = ""


def context_for(run: RunContext, node_id: str, values: Mapping[str, Any] | None = None) -> ResolverContext:
    """The context of one call, with what a prompt must not see taken out."""
    raw = run.metadata.get("headers")
    headers = {
        str(name): str(value)
        for name, value in (raw.items() if isinstance(raw, Mapping) else ())
        if str(name).casefold() not in _PRIVATE_HEADERS
    }
    metadata = dict(run.metadata)
    if "headers" in metadata:
        metadata["headers"] = dict(headers)
    bare = run.replace(metadata=metadata, auth_context=run.auth_context.replace(inbound_access_token=None))
    return ResolverContext(
        MappingProxyType(headers), MappingProxyType(metadata), bare, MappingProxyType(dict(values or {})), node_id
    )


class Prompts:
    """The prompts of one system, read once, and the code that fills them."""

    def __init__(self, system: System, folder: Path, space: PluginSpace, manifest: Manifest) -> None:
        self._system = system
        self._folder = folder
        self._code = _Code(system, space, manifest)

    def system_text(self, node_id: str) -> str | Callable[[RunState], Awaitable[str]]:
        """The system text of a node: ``prompts.system``, and ``prompts.orchestrator`` below it."""
        prompts = self._system.node(node_id).prompts
        files = [name for name in (prompts.system, getattr(prompts, "orchestrator", None)) if name is not None]
        text = "\n\n".join(read_prompt(self._folder / name).strip() for name in files)
        if not files:
            return self._system.node(node_id).description or ""
        filler = self._filler(node_id, text)
        if not filler.names:
            return text

        async def filled(run: RunState) -> str:
            return fill(text, await filler.values(run))

        return filled

    def user_text(self, node_id: str) -> Callable[[RunState, str], Awaitable[str]] | None:
        """What shapes the message: ``{{ message }}`` is the message; without it the message follows the text."""
        name = self._system.node(node_id).prompts.user
        if name is None:
            return None
        text = read_prompt(self._folder / name).strip()
        filler = self._filler(node_id, text)
        own = "message" in self._system.resolvers
        whole = (
            text if own or any(found.name == "message" for found in names_in(text)) else f"{text}\n\n{{{{ message }}}}"
        )

        async def shaped(run: RunState, message: str) -> str:
            values = await filler.values(run) if filler.names else {}
            return fill(whole, {"message": message, **values})

        return shaped

    def _filler(self, node_id: str, text: str) -> _Filler:
        used = {found.name for found in names_in(text)}
        listed = set(self._system.node(node_id).resolvers) if used else set()
        names = [name for name in self._system.resolvers if name in used | listed] if used else []
        return _Filler(self._code, node_id, names, self._system)

    def access(self, node_id: str) -> Callable[[RunState], Awaitable[bool]]:
        """The check of a protected node: asked once for each node in a run; only a plain True opens it."""
        check = self._code.access_method()

        async def visible(run: RunState) -> bool:
            once: _Once[bool] = run.metadata.setdefault(_ACCESS, _Once())
            return await once.get(node_id, lambda: self._may(check, run, node_id))

        return visible

    async def _may(self, check: Callable[..., Any], run: RunState, node_id: str) -> bool:
        try:
            answer = await _call(check, context_for(run.run_context, node_id), node_id)
        except (Exception, SystemExit) as exc:  # noqa: BLE001  a check that raises says no, whatever it raised
            logger.info("Access to '%s' was not granted: the check raised %s", node_id, type(exc).__name__)
            return False
        if not isinstance(answer, bool):
            logger.warning(
                "AccessResolver.can_access returned %s for '%s'; only True grants access",
                type(answer).__name__,
                node_id,
            )
        return answer is True


class _Once(Generic[_T]):
    """Values of one run by key, each made once; who asks meanwhile waits for it, and a failure is asked for again."""

    def __init__(self) -> None:
        self._made: dict[Hashable, _T] = {}
        self._locks: dict[Hashable, asyncio.Lock] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[_T]]) -> _T:
        if key not in self._made:
            async with self._locks.setdefault(key, asyncio.Lock()):
                if key not in self._made:
                    self._made[key] = await make()
        return self._made[key]


class _Filler:
    """Resolves the names of one prompt, in the order in which the file declares them."""

    def __init__(self, code: _Code, node_id: str, names: list[str], system: System) -> None:
        self.names = names
        self._node_id = node_id
        self._methods = {name: code.resolver(name, node_id) for name in names}
        self._shared = {name for name in names if system.resolvers[name].scope == "shared"}

    async def values(self, run: RunState) -> dict[str, str]:
        """Name → text. A shared value is resolved once a run, an agent's own once for that agent."""
        from agent_engine.tools.result import text_of

        once: _Once[Any] = run.metadata.setdefault(_VALUES, _Once())
        values: dict[str, Any] = {}
        for name in self.names:
            key = ("" if name in self._shared else self._node_id, name)
            values[name] = await once.get(key, partial(self._resolve, name, run, dict(values)))
        return {name: "" if value is None else text_of(value) for name, value in values.items()}

    async def _resolve(self, name: str, run: RunState, values: dict[str, Any]) -> Any:
        try:
            return await _call(self._methods[name], context_for(run.run_context, self._node_id, values))
        except (Exception, SystemExit) as exc:
            what = f"The resolver '{name}' for '{self._node_id}' raised {type(exc).__name__}"
            raise ResolverError(what) from exc


async def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Call sync code in a worker thread and async code here."""
    from agent_engine.hooks.limits import ended

    if inspect.iscoroutinefunction(function):
        return await ended(function(*args))
    from agent_engine.hooks.workers import run_in_worker

    answer = await run_in_worker(function, *args)
    return await ended(answer) if inspect.isawaitable(answer) else answer


class _Code:
    """The resolver and access classes of a system: one instance each for the engine's life."""

    def __init__(self, system: System, space: PluginSpace, manifest: Manifest) -> None:
        self._system = system
        self._space = space
        self._manifest = manifest
        self._instances: dict[str, Any] = {}

    def resolver(self, name: str, node_id: str) -> Method:
        """The method of a resolver, bound: the node's own class first, then the shared one, then one of its own.

        Raises SpecError naming the method that is missing.
        """
        from agent_engine.spec.code import resolver_places

        for ref, method in resolver_places(self._manifest, self._space, name, node_id):
            bound = getattr(self._instance(ref), method, None)
            if callable(bound):
                return bound  # type: ignore[no-any-return]  # callable is all that is known of it
        raise self._missing(f"resolvers.{name}", f"no resolver class has a method for '{name}' of '{node_id}'")

    def access_method(self) -> Callable[..., Any]:
        """``AccessResolver.can_access`` of ``plugins/access.py``, bound."""
        instance = self._instance("plugins.access:AccessResolver")
        method = getattr(instance, "can_access", None)
        if not callable(method):
            raise self._missing("", "plugins/access.py: AccessResolver has no method can_access(ctx, node_id)")
        return method  # type: ignore[no-any-return]  # callable is all that is known of it

    def _instance(self, ref: str) -> Any:
        from agent_engine.plugins.loader import LoadError

        if ref not in self._instances:
            try:
                cls = self._space.load(ref)
                self._instances[ref] = cls()
            except LoadError as exc:
                raise self._missing("", str(exc)) from exc
            except (Exception, SystemExit) as exc:
                raise self._missing("", f"{ref} cannot be made without arguments: {type(exc).__name__}") from exc
        return self._instances[ref]

    def _missing(self, path: str, message: str) -> Exception:
        from agent_engine.plugins.problems import Problem, SpecError

        file = str(self._manifest.path.parent.parent)
        return SpecError([Problem(file, 0, 0, path, f"{message}; run agentctl generate")])
