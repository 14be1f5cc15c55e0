"""Conversations and waiting runs, in memory and in SQLite alike."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_engine.memory.sqlite import SqliteStore
from agent_engine.memory.store import (
    WAITING_SECONDS,
    ConversationKey,
    ConversationStore,
    MemoryStore,
    StoreError,
    waiting_expired,
)

ADA = ConversationKey("acme", "ada", "c1")


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ConversationStore]:
    made: ConversationStore = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "c.db")
    assert isinstance(made, ConversationStore)
    yield made
    await made.close()


async def test_messages_come_back_in_their_order(store: ConversationStore) -> None:
    assert await store.load(ADA) == []
    await store.append(ADA, [said("one"), said("two", "assistant")])
    await store.append(ADA, [said("three")])
    assert [m["content"] for m in await store.load(ADA)] == ["one", "two", "three"]


async def test_the_same_id_from_another_caller_is_another_conversation(store: ConversationStore) -> None:
    others = [
        ConversationKey("acme", "bob", "c1"),
        ConversationKey("other", "ada", "c1"),
        ConversationKey(None, None, "c1"),
        ConversationKey("None", "None", "c1"),
        ConversationKey("", "", "c1"),
    ]
    await store.append(ADA, [said("hers")])
    for key in others:
        assert await store.load(key) == []
        await store.append(key, [said(repr(key))])
    for key in others:
        assert await store.load(key) == [said(repr(key))]
    assert await store.load(ADA) == [said("hers")]


async def test_loaded_messages_are_the_callers_own(store: ConversationStore) -> None:
    mine = said("one")
    await store.append(ADA, [mine])
    mine["content"] = "changed"
    loaded = await store.load(ADA)
    loaded[0]["content"] = "changed"
    loaded.append(said("more"))
    assert await store.load(ADA) == [said("one")]


async def test_odd_messages_survive(store: ConversationStore) -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "n", "arguments": '{"a": "\\ud800 ü"}'}}],
        "native": {"pydantic_ai": {"parts": [{"signature": "x" * 10_000}]}, "text": "\ud800 ü"},
    }
    await store.append(ADA, [message])
    assert await store.load(ADA) == [message]


async def test_replace_and_delete(store: ConversationStore) -> None:
    await store.append(ADA, [said("one"), said("two")])
    await store.replace(ADA, [said("summary", "system"), said("two")])
    assert [m["content"] for m in await store.load(ADA)] == ["summary", "two"]
    await store.append(ADA, [said("three")])
    assert len(await store.load(ADA)) == 3
    await store.delete(ADA)
    await store.delete(ADA)
    assert await store.load(ADA) == []


async def test_a_waiting_run_is_kept_until_it_is_claimed(store: ConversationStore) -> None:
    assert await store.load_waiting("r1") is None
    await store.save_waiting("r1", {"frames": [1], "saved_at": 5.0})
    await store.save_waiting("r0", {"frames": [2]})
    first, second = await store.list_waiting()
    assert (first["run_id"], first["frames"], first["saved_at"]) == ("r1", [1], 5.0)
    assert second["saved_at"] == pytest.approx(time.time(), abs=60)
    assert await store.load_waiting("r1") == first
    assert await store.remove_waiting("r1")
    assert not await store.remove_waiting("r1")
    assert [document["run_id"] for document in await store.list_waiting()] == ["r0"]


async def test_exactly_one_of_many_claims_a_waiting_run(store: ConversationStore) -> None:
    await store.save_waiting("r", {})
    claims = await asyncio.gather(*(store.remove_waiting("r") for _ in range(20)))
    assert claims.count(True) == 1


async def test_a_run_that_waits_again_is_not_claimed_with_what_it_waited_for_before(store: ConversationStore) -> None:
    await store.save_waiting("r", {"asks": ["a", "b"], "saved_at": 5.0})
    before = await store.load_waiting("r")
    await store.save_waiting("r", {"asks": ["b"], "saved_at": 5.0})
    assert not await store.remove_waiting("r", before)
    assert await store.remove_waiting("r", await store.load_waiting("r"))
    assert await store.load_waiting("r") is None


async def test_saving_a_waiting_run_again_replaces_it(store: ConversationStore) -> None:
    await store.save_waiting("r", {"n": 1})
    await store.save_waiting("r", {"n": 2})
    (document,) = await store.list_waiting()
    assert document["n"] == 2


async def test_concurrent_appends_lose_nothing_and_keep_each_turn_together(store: ConversationStore) -> None:
    turns = [[said(f"{n}"), said(f"{n}", "assistant")] for n in range(30)]
    await asyncio.gather(*(store.append(ADA, turn) for turn in turns))
    texts = [m["content"] for m in await store.load(ADA)]
    assert sorted(texts[::2], key=int) == [str(n) for n in range(30)]
    assert texts[::2] == texts[1::2]


def test_one_store_serves_several_loops_in_several_threads(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "c.db")
    finished: list[int] = []

    async def work(number: int) -> None:
        for turn in range(5):
            await store.append(ConversationKey(None, str(number), "c"), [said(str(turn))])

    def run(number: int) -> None:
        asyncio.run(work(number))
        finished.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(finished) == [0, 1, 2, 3]
    for number in range(4):
        loaded = asyncio.run(store.load(ConversationKey(None, str(number), "c")))
        assert [m["content"] for m in loaded] == ["0", "1", "2", "3", "4"]
    asyncio.run(store.close())


def _append_many(path: str, number: int) -> None:
    async def work() -> None:
        store = SqliteStore(path)
        for turn in range(10):
            await store.append(ADA, [said(f"{number}.{turn}")])
        await store.close()

    asyncio.run(work())


def test_several_processes_share_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "c.db")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(path, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    texts = [m["content"] for m in asyncio.run(SqliteStore(path).load(ADA))]
    for number in range(2):
        assert [text for text in texts if text.startswith(f"{number}.")] == [f"{number}.{turn}" for turn in range(10)]


async def test_what_was_stored_is_there_for_the_next_process(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "deep" / "er" / "c.db")
    await first.append(ADA, [said("one")])
    await first.save_waiting("r", {"n": 1})
    await first.close()
    second = SqliteStore(tmp_path / "deep" / "er" / "c.db")
    assert await second.load(ADA) == [said("one")]
    assert await second.remove_waiting("r")
    await second.close()
    await second.close()


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "c.db")
    await store.append(ADA, [said("one")])
    for name in os.listdir(tmp_path):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600, name
    await store.close()


async def test_a_store_that_cannot_be_used_says_which_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"this is no database, and it says hunter2 " * 100)
    with pytest.raises(StoreError, match=r"c.db cannot be used now \(DatabaseError\)") as raised:
        await SqliteStore(tmp_path / "c.db").append(ADA, [said("secret")])
    assert "secret" not in str(raised.value)


async def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "c.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="written by a newer version"):
        await SqliteStore(tmp_path / "c.db").load(ADA)


async def test_a_message_that_json_cannot_hold_stores_nothing_of_its_turn(
    store: ConversationStore, tmp_path: Path
) -> None:
    if isinstance(store, SqliteStore):
        with pytest.raises(TypeError):
            await store.append(ADA, [said("one"), {"role": "user", "content": object()}])
        assert await store.load(ADA) == []


def test_the_stores_are_had_from_the_package() -> None:
    from agent_engine import memory

    assert (memory.SqliteStore, memory.MemoryStore) == (SqliteStore, MemoryStore)


def test_a_waiting_run_expires_after_a_day() -> None:
    assert not waiting_expired({"saved_at": 1000.0}, now=1000.0 + WAITING_SECONDS - 1)
    assert waiting_expired({"saved_at": 1000.0}, now=1000.0 + WAITING_SECONDS)
    assert waiting_expired({})
    assert waiting_expired({"saved_at": json.loads("null")})


async def test_who_reads_waits_for_no_writer(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "c.db")
    await store.append(ADA, [said("one")])
    await store.save_waiting("run", {})
    writer = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM message")
    assert [m["content"] for m in await store.load(ADA)] == ["one"]
    assert await store.load_waiting("run") is not None
    assert len(await store.list_waiting()) == 1
    writer.execute("ROLLBACK")
    writer.close()


def _in_a_child(work: Callable[[], object]) -> int:
    """The exit status of a forked child that does ``work``."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_opens_a_connection_of_its_own(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "c.db")
    asyncio.run(store.append(ADA, [said("before")]))
    of_the_parent = store._connection

    def work() -> None:
        assert store._connection is None
        asyncio.run(store.append(ADA, [said("child")]))
        assert store._connection is not of_the_parent

    assert _in_a_child(work) == 0
    assert store._connection is of_the_parent
    asyncio.run(store.append(ADA, [said("after")]))
    assert [m["content"] for m in asyncio.run(store.load(ADA))] == ["before", "child", "after"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_transaction_locks_nobody_out(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "c.db")
    held, done = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        held.set()
        done.wait(60)

    busy = threading.Thread(target=lambda: store._transaction(hold, "BEGIN"))
    busy.start()
    held.wait(60)

    def work() -> None:
        assert store._lock.acquire(timeout=30)

    status = _in_a_child(work)
    done.set()
    busy.join()
    assert status == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_is_in_memory_alone_is_copied_with_the_process() -> None:
    store = SqliteStore(":memory:")
    asyncio.run(store.append(ADA, [said("before")]))

    def work() -> None:
        asyncio.run(store.append(ADA, [said("child")]))
        assert [m["content"] for m in asyncio.run(store.load(ADA))] == ["before", "child"]

    assert _in_a_child(work) == 0
    assert [m["content"] for m in asyncio.run(store.load(ADA))] == ["before"]
