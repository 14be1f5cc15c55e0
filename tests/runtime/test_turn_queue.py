"""The turn goes on, to one at a time, whatever becomes of the loops of those who wait for it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from agent_engine.runtime.turn_queue import TurnQueue


async def entered(queue: TurnQueue) -> bool:
    async with asyncio.timeout(30):
        return await queue.enter()


def waiting_elsewhere(queue: TurnQueue) -> tuple[asyncio.AbstractEventLoop, asyncio.Task[bool]]:
    """Somebody on a loop of its own who waits for the turn."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(queue.enter())
    while not queue._waiting:
        loop.run_until_complete(asyncio.sleep(0))
    return loop, task


def test_a_turn_that_is_given_to_a_loop_in_its_last_moment_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loop is asked to do when it has gone round for the last time it takes, and never does."""
    queue = TurnQueue()
    assert asyncio.run(entered(queue))
    loop, task = waiting_elsewhere(queue)
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *given: None)
    queue.leave()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    assert asyncio.run(entered(queue))


@pytest.mark.parametrize("gone_first", [True, False])
def test_who_waited_on_a_loop_that_was_closed_gives_nobody_elses_turn_away(gone_first: bool) -> None:
    queue = TurnQueue()
    assert asyncio.run(entered(queue))
    loop, task = waiting_elsewhere(queue)
    loop.close()
    held: list[Any] = [task]
    del task

    def forget() -> None:
        held.clear()
        gc.collect()

    if gone_first:
        forget()
    queue.leave()
    assert asyncio.run(entered(queue))
    forget()

    async def second() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await queue.enter()
        queue.leave()
        assert await entered(queue)

    asyncio.run(second())


async def test_who_is_given_the_turn_and_does_not_want_it_any_more_passes_it_on() -> None:
    queue = TurnQueue()
    assert await entered(queue)
    tasks = [asyncio.create_task(queue.enter()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.leave()
    tasks[0].cancel()
    assert await asyncio.wait_for(tasks[1], 30)
    assert tasks[0].cancelled()
