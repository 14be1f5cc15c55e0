"""No turn is lost while a store fails, and its order stays."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_engine.memory.spill import Keeper, SpillFile
from agent_engine.memory.sqlite import SqliteStore
from agent_engine.memory.store import ConversationKey, MemoryStore

ADA = ConversationKey("acme", "ada", "c1")
BOB = ConversationKey("acme", "bob", "c1")


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Shaky(MemoryStore):
    """A store whose writes fail on demand."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.down = False
        if path is not None:
            self.path = str(path)

    async def append(self, key: ConversationKey, messages: Any) -> None:
        if self.down:
            raise OSError("disk full: hunter2")
        await super().append(key, messages)


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


async def test_a_turn_that_the_store_refuses_is_in_the_spill_file_and_comes_home(tmp_path: Path) -> None:
    store = Shaky()
    keeper = Keeper(store, tmp_path / "spill.jsonl")
    assert await keeper.append(ADA, [said("one")]) is None
    store.down = True
    failure = await keeper.append(ADA, [said("two")])
    assert failure is not None
    assert (failure.error, failure.spilled, failure.path) == ("OSError", True, str(tmp_path / "spill.jsonl"))
    assert stat.S_IMODE(os.stat(tmp_path / "spill.jsonl").st_mode) == 0o600
    assert "hunter2" not in (tmp_path / "spill.jsonl").read_text()
    assert texts(await keeper.load(ADA)) == ["one", "two"]
    store.down = False
    assert await keeper.append(ADA, [said("three")]) is None
    assert texts(await store.load(ADA)) == ["one", "two", "three"]
    assert not (tmp_path / "spill.jsonl").exists()


async def test_the_next_process_finds_what_the_last_one_could_not_store(tmp_path: Path) -> None:
    first = Shaky(tmp_path / "c.db")
    first.down = True
    failure = await Keeper(first).append(ADA, [said("one")])
    assert failure is not None
    assert failure.path == f"{tmp_path / 'c.db'}.spill.jsonl"
    second = SqliteStore(tmp_path / "c.db")
    assert texts(await Keeper(second).load(ADA)) == ["one"]
    assert texts(await second.load(ADA)) == ["one"]
    await second.close()


async def test_another_stores_turns_stay_where_they_are(tmp_path: Path) -> None:
    file = SpillFile(tmp_path / "spill.jsonl")
    file.write("file:/elsewhere.db", BOB, [said("not mine")])
    store = Shaky()
    keeper = Keeper(store, tmp_path / "spill.jsonl")
    store.down = True
    await keeper.append(ADA, [said("mine")])
    store.down = False
    assert await keeper.restore() == 1
    assert [texts(entry.messages) for entry in file.entries()] == [["not mine"]]
    assert await store.load(BOB) == []


async def test_where_not_even_a_file_can_be_written_the_turn_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "blocked"))
    store = Shaky()
    keeper = Keeper(store, tmp_path / "blocked" / "spill.jsonl")
    store.down = True
    failure = await keeper.append(ADA, [said("one")])
    assert failure is not None
    assert (failure.spilled, failure.path) == (False, None)
    assert texts(await keeper.load(ADA)) == ["one"]
    store.down = False
    await keeper.append(ADA, [said("two")])
    assert texts(await store.load(ADA)) == ["one", "two"]


async def test_the_spare_folder_is_used_where_the_first_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").write_text("")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "spare"))
    store = Shaky()
    store.down = True
    failure = await Keeper(store, tmp_path / "blocked" / "spill.jsonl").append(ADA, [said("one")])
    assert failure is not None
    assert failure.path is not None
    assert failure.path.startswith(str(tmp_path / "spare"))


def test_a_half_written_line_is_passed_over_and_kept(tmp_path: Path) -> None:
    file = SpillFile(tmp_path / "spill.jsonl")
    file.write("s", ADA, [said("one")])
    with open(tmp_path / "spill.jsonl", "ab") as handle:
        handle.write(b'{"id": "half", "messag')
    file.write("s", ADA, [said("two")])
    entries = file.entries()
    assert [texts(entry.messages) for entry in entries] == [["one"], ["two"]]
    file.remove([entry.id for entry in entries])
    assert b'"half"' in (tmp_path / "spill.jsonl").read_bytes()


async def test_an_entry_that_is_home_already_is_not_stored_twice(tmp_path: Path) -> None:
    store = Shaky(tmp_path / "c.db")
    await store.append(ADA, [said("one"), said("two")])
    keeper = Keeper(store, tmp_path / "spill.jsonl")
    file = SpillFile(tmp_path / "spill.jsonl")
    file.write(f"file:{tmp_path / 'c.db'}", ADA, [said("two")])
    file.mark(file.entries()[0].id, 1)
    await Keeper(store, tmp_path / "spill.jsonl").restore()
    assert texts(await keeper.load(ADA)) == ["one", "two"]
    assert not file.path.exists()


async def test_a_turn_that_reads_like_the_one_before_is_brought_home_too(tmp_path: Path) -> None:
    store = Shaky(tmp_path / "c.db")
    keeper = Keeper(store, tmp_path / "spill.jsonl")
    await keeper.append(ADA, [said("ping"), said("pong")])
    store.down = True
    await keeper.append(ADA, [said("ping"), said("pong")])
    store.down = False
    assert texts(await keeper.load(ADA)) == ["ping", "pong"] * 2
    assert texts(await store.load(ADA)) == ["ping", "pong"] * 2


async def test_a_message_that_is_no_json_is_spilled_as_well_as_it_can_be(tmp_path: Path) -> None:
    store = Shaky()
    store.down = True
    keeper = Keeper(store, tmp_path / "spill.jsonl")
    failure = await keeper.append(ADA, [{"role": "user", "content": {1, 2}}])
    assert failure is not None
    assert failure.spilled


@given(st.lists(st.tuples(st.sampled_from([ADA, BOB]), st.booleans()), max_size=12))
async def test_however_a_store_fails_every_turn_is_there_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[ConversationKey, bool]]
) -> None:
    store = Shaky()
    keeper = Keeper(store, tmp_path_factory.mktemp("spill") / "spill.jsonl")
    expected: dict[ConversationKey, list[str]] = {ADA: [], BOB: []}
    for number, (key, down) in enumerate(steps):
        store.down = down
        await keeper.append(key, [said(str(number))])
        expected[key].append(str(number))
        assert texts(await keeper.load(key)) == expected[key]
    store.down = False
    await keeper.restore()
    for key, wanted in expected.items():
        assert texts(await store.load(key)) == wanted
