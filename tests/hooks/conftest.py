"""One way to write a hook for all the ways it can run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agent_engine.hooks import workers
from agent_engine.hooks.events import HookEvent
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import Verdict
from agent_engine.hooks.scope import HookScope
from agent_engine.hooks.site import Site

KINDS = ("inline", "worker", "async", "suspending", "mixed")
"""How a hook runs. A mixed one returns a coroutine from a plain function."""

Func = Callable[[Any], Any]


class Kernel:
    """A registry, and dispatches through it as a door makes them."""

    def __init__(self) -> None:
        self.registry = HookRegistry()
        self.scope = HookScope(self.registry, with_default=False)

    def add(self, event: HookEvent | str, func: Func, kind: str = "inline", **keywords: Any) -> str:
        """Register a plain function so that it runs as a hook of ``kind``."""
        keywords.setdefault("name", getattr(func, "__name__", "hook"))

        async def at_once(payload: Any) -> Any:
            return func(payload)

        async def later(payload: Any) -> Any:
            await asyncio.sleep(0)
            value = func(payload)
            await asyncio.sleep(0)
            return value

        hooks: dict[str, Func] = {"async": at_once, "suspending": later, "mixed": lambda payload: later(payload)}
        inline = kind == "inline"
        return self.registry.register_function(event, hooks.get(kind, func), inline=inline, **keywords)

    async def dispatch(
        self, event: HookEvent, payload: Any, site: Site | None = None, target: str | None = None
    ) -> Verdict:
        """The verdict on one payload."""
        plan = self.scope.plan(event, target)
        assert plan is not None, "nobody listens"
        return await plan.dispatch(payload, site or Site())


@pytest.fixture
def nothing_for_the_loop_to_complain_about(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No callback of the kernel fails, whatever becomes of the hook that it belongs to."""
    yield
    told = [*caplog.get_records("call"), *caplog.records]
    assert [record.getMessage() for record in told if record.name == "asyncio" and record.levelno >= 40] == []


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["sequential", "parallel"])
def sequential(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait for something that another thread does; fails after a minute."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.002)

    return wait


@pytest.fixture
async def threads_at_rest(until: Callable[[Callable[[], bool]], Awaitable[None]]) -> None:
    """The worker threads that earlier tests left behind have returned: whoever counts counts its own."""
    await until(lambda: working() == 0 and not workers._left)


def working() -> int:
    """How many worker threads do something."""
    return sum(one.name == "agent-engine-worker" for one in threading.enumerate()) - len(workers._idle)
