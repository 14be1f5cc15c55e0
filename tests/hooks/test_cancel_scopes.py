"""Hooks inside and around the cancel scopes of anyio, which most HTTP clients and web frameworks stand on: such a scope
knows its cancellation by the message, and asks again and again until it is left."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from agent_engine.hooks import HookRegistry, afire_hook, limits
from agent_engine.hooks.limits import ended, within

pytestmark = pytest.mark.usefixtures("nothing_for_the_loop_to_complain_about")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE", 0.3)  # the scopes here are left long before that, on a busy machine too


async def gives_up_soon(_: object = None) -> str:
    try:
        with anyio.fail_after(0.01):
            await anyio.sleep(30)
    except TimeoutError:
        return "fell back"
    return "never"


async def moves_on(_: object = None) -> str:
    with anyio.move_on_after(0.01) as scope:
        await anyio.sleep(30)
    await anyio.sleep(limits.GRACE * 2)  # longer than a cancelled hook would have
    return "moved on" if scope.cancelled_caught else "never"


async def asks_a_thread(_: object = None) -> str:
    with anyio.move_on_after(0.01):
        await asyncio.gather(asyncio.create_task(anyio.sleep(30)), anyio.sleep(30))
    return await anyio.to_thread.run_sync(lambda: "asked")


@pytest.mark.usefixtures("idle_clock")
@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize(("hook", "answer"), [(gives_up_soon, "fell back"), (moves_on, "moved on")])
async def test_a_scope_inside_a_hook_works(hook: Any, answer: str, sequential: bool) -> None:
    await _answers(hook, answer, sequential)


@pytest.mark.parametrize("sequential", [True, False])
async def test_a_hook_may_ask_a_thread_once_a_scope_of_its_own_is_left(
    monkeypatch: pytest.MonkeyPatch, sequential: bool
) -> None:
    monkeypatch.setattr(limits, "GRACE", 60)
    await _answers(asks_a_thread, "asked", sequential)


async def _answers(hook: Any, answer: str, sequential: bool) -> None:
    registry = HookRegistry()
    registry.register_function("before_tool", hook, sequential=sequential)
    (row,) = await afire_hook("before_tool", {"tool_name": "search"}, registry=registry)
    assert row.output is not None
    assert (row.output.decision, row.output.reason) == ("deny", answer)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


@pytest.mark.usefixtures("idle_clock")
async def test_a_scope_inside_the_body_of_a_tool_works() -> None:
    assert await ended(gives_up_soon()) == "fell back"


async def test_what_a_caller_says_with_its_cancellation_reaches_the_hook_and_comes_back() -> None:
    heard = []

    async def hook() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError as cancelled:
            heard.append(cancelled.args)
            raise

    async def caller() -> None:
        await within(hook(), 30)

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel("the client has gone")
    with pytest.raises(asyncio.CancelledError, match="the client has gone"):
        await task
    assert heard == [("the client has gone",)]


@pytest.mark.usefixtures("idle_clock")
@pytest.mark.parametrize("sequential", [True, False])
async def test_a_hook_that_ignores_the_scope_around_it_is_given_up(sequential: bool) -> None:
    """The scope asks again at every turn of the loop, and none of that gives the hook new time."""
    stop = False

    async def stubborn(_: object) -> None:
        while not stop:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    registry = HookRegistry()
    registry.register_function("before_tool", stubborn, sequential=sequential)

    def enough() -> None:
        nonlocal stop
        stop = True

    timer = asyncio.get_running_loop().call_later(10, enough)
    with anyio.move_on_after(0.01) as scope:
        await afire_hook("before_tool", {"tool_name": "search"}, registry=registry)
    timer.cancel()
    assert (scope.cancelled_caught, stop) == (True, False)
