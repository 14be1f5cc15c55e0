"""What was written can be read back, from every store."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from pathlib import Path

import pytest
from tests.records.build import AT, hook_run, payload, record, run, tool_step

from agent_engine.records import rows
from agent_engine.records.connect import engine_for
from agent_engine.records.journal import HookRan, RunClosed, RunOpened, open_journal
from agent_engine.records.jsonlsink import JsonlSink
from agent_engine.records.maker import FactMaker
from agent_engine.records.query import RecordReader
from agent_engine.records.settings import RecordsError, RecordSettings, file_address
from agent_engine.records.sqlsink import SqlSink
from agent_engine.records.views import RecordFilter, RunFilter
from agent_engine.records.writer import StoreJournal


async def test_a_record_holds_everything_but_the_payload(any_address: str) -> None:
    before, after = payload(card="4111 1111"), payload(card="***")
    entry = hook_run(
        "redact", "modify", changed=("tool_input",), before=before, after=after, policy="fail", group=2,
        mode="sequential", additional_context="note", reason="card",
    )  # fmt: skip
    await record(any_address, run("r1", tool_step("r1", hooks=[entry], opened={"server_id": "s"})))
    with RecordReader.open(any_address) as reader:
        detail = reader.run("r1")
        (found,) = reader.records()
    assert detail is not None
    assert detail.run.usage == {"input_tokens": 5, "output_tokens": 2}
    assert (detail.run.status, detail.run.hook_runs, detail.run.steps, detail.run.denied) == ("completed", 1, 2, 0)
    assert (found.run_id, found.step_id, found.parent_id, found.agent) == ("r1", "t1", "turn", "main")
    assert (found.event, found.hook_name, found.hook_id) == ("before_tool", "redact", "before_tool:redact")
    assert (found.source, found.hook_kind, found.mode) == ("plugins/hooks.py:7", "function", "sequential")
    assert (found.group, found.priority, found.policy, found.generation) == (2, 100, "fail", "7")
    assert (found.decision, found.reason, found.changed, found.context) == ("modify", "card", ("tool_input",), True)
    assert found.before_digest is not None
    assert found.after_digest is not None
    assert found.before_digest != found.after_digest
    assert (found.step_kind, found.step_name, found.outcome, found.became) == ("tool", "search", "ran", "ran")
    assert "4111" not in json.dumps(found.to_dict())


async def test_steps_form_the_tree_they_ran_in(any_address: str) -> None:
    nested = tool_step("r1", "inner", name="lookup", parent="t1", hooks=[hook_run()])
    await record(any_address, run("r1", tool_step("r1", "t1"), nested))
    with RecordReader.open(any_address) as reader:
        detail = reader.run("r1")
    assert detail is not None
    (turn,) = detail.roots
    assert [step.step_id for step in turn.children] == ["t1"]
    assert [step.step_id for step in turn.children[0].children] == ["inner"]
    assert [found.hook_name for found in turn.children[0].children[0].records] == ["guard"]


ODD_NAMES = ["what?now", "50% off", "a%3Fb", "c#d", "two words", "?a=1&audit=on", "é&=;'\"", "x.db?capture=*"]


@pytest.mark.parametrize("scheme", ["sqlite", "jsonl"])
@pytest.mark.parametrize("name", ODD_NAMES)
async def test_a_file_of_any_name_has_an_address(tmp_path: Path, scheme: str, name: str) -> None:
    path = tmp_path / name / name
    address = file_address(scheme, path)
    await record(f"{address}?reason=80", run("r1"))
    assert path.is_file()
    assert [file.name for file in tmp_path.iterdir()] == [name]
    with RecordReader.open(address) as reader:
        assert [row.run_id for row in reader.runs()] == ["r1"]


async def test_runs_are_filtered_and_paged_newest_first(address: str) -> None:
    entries = []
    for number in range(12):
        refused = number % 4 == 0
        step = tool_step(
            f"r{number}", name="delete" if refused else "search", outcome="refused" if refused else "ran",
            hooks=[hook_run(decision="deny" if refused else "allow")], refused_by="guard" if refused else None,
        )  # fmt: skip
        entries += run(f"r{number}", step, at=AT + number, closed=number != 11, user_id="ann" if number % 2 else "bob")
    await record(address, entries)
    with RecordReader.open(address) as reader:

        def ids(**wanted: object) -> list[str]:
            return [row.run_id for row in reader.runs(RunFilter(**wanted))]  # type: ignore[arg-type]

        assert ids(decision="deny") == ["r8", "r4", "r0"]
        assert ids(tool="delete", decision="deny", agent="main") == ["r8", "r4", "r0"]
        assert ids(status="open") == ["r11"]
        assert ids(since=AT + 9.5) == ["r11", "r10"]
        assert ids(until=AT + 1.5, user_id="ann") == ["r1"]
        first = reader.runs(limit=5)
        second = reader.runs(limit=5, before=first[-1].key)
        assert [row.run_id for row in first + second] == [f"r{number}" for number in range(11, 1, -1)]
        assert reader.values_of("tool") == ["delete", "search"]
        denied = reader.records(RecordFilter(decision="deny", hook="guard", tool="delete"))
        assert [found.run_id for found in denied] == ["r8", "r4", "r0"]


async def test_totals_latency_and_coverage_are_kept(address: str) -> None:
    entries = []
    for number in range(20):
        slow = hook_run("slow", "deny" if number < 5 else "allow", duration_ms=float(number + 1))
        entries += run(f"r{number}", tool_step(f"r{number}", hooks=[slow], unheard=["before_tool_call"]))
    entries += run("bare", tool_step("bare", name="free", unheard=["before_tool", "before_tool_call", "after_tool"]))
    await record(address, entries)
    with RecordReader.open(address) as reader:
        (stats,) = reader.hook_stats()
        covered = {(row.kind, row.name): row for row in reader.coverage()}
        ((run_id, step),) = reader.ungated_steps("tool")
        totals = reader.totals()
    assert (stats.runs, stats.refused, stats.refusal_rate) == (20, 5, 0.25)
    assert 9 <= stats.percentile(0.5) <= 14
    assert 19 <= stats.percentile(0.99) <= 25
    assert covered[("tool", "search")].count == 20
    assert not covered[("tool", "search")].ungated
    assert covered[("tool", "free")].ungated
    assert (run_id, step.name) == ("bare", "free")
    assert (totals.runs, totals.records, totals.denied, totals.lost) == (21, 20, 5, 0)


@pytest.mark.parametrize(
    ("hooks", "outcome", "refused_by", "became"),
    [
        ([("first", "allow", False), ("second", "deny", False)], "refused", "second", "never ran: refused by second"),
        ([("first", "allow", False)], "declined", None, "never ran: declined by a person"),
        ([("first", "failed", True)], "ran", None, "ran although the hook broke (warn)"),
        ([("first", "failed", True)], "refused", "first", "refused by first"),
        ([("first", "allow", False)], "failed", None, "failed: ValueError"),
        ([("first", "allow", False)], "withheld", "last", "ran, result withheld by last"),
        ([("first", "allow", False)], "ran", None, "ran"),
    ],
)
async def test_what_became_of_the_step_is_told_apart(
    tmp_path: Path, hooks: list[tuple[str, str, bool]], outcome: str, refused_by: str | None, became: str
) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}"
    runs = [
        hook_run(name, decision, broke=broke, policy="warn" if broke and outcome == "ran" else "deny")
        for name, decision, broke in hooks
    ]
    await record(address, run("r1", tool_step("r1", hooks=runs, outcome=outcome, refused_by=refused_by)))
    with RecordReader.open(address) as reader:
        assert reader.records(after=0)[0].became == became


async def test_a_run_that_waited_goes_on_in_another_process(address: str) -> None:
    opened = run("r1", tool_step("r1", hooks=[hook_run()], outcome="waiting"), closed=False)
    await record(address, [*opened, RunClosed("r1", "waiting", None, AT + 1, 5.0, {})])
    resumed = [
        RunOpened("r1", "demo", "s1", "ann", "acme", AT + 100),
        *tool_step("r1", hooks=[hook_run("late")]),
        RunClosed("r1", "completed", None, AT + 101, 6.0, {}),
    ]
    await record(address, resumed)
    with RecordReader.open(address) as reader:
        detail = reader.run("r1")
    assert detail is not None
    assert (detail.run.status, detail.run.hook_runs, detail.run.started_at) == ("completed", 2, AT)
    (tool,) = [step for step in detail.steps if step.kind == "tool"]
    assert [found.hook_name for found in tool.records] == ["guard", "late"]
    assert tool.outcome == "ran"


async def test_hooks_outside_any_run_are_recorded(any_address: str) -> None:
    await record(any_address, [HookRan(None, None, None, hook_run("env", event="on_engine_start"))])
    with RecordReader.open(any_address) as reader:
        (found,) = reader.records()
    assert (found.run_id, found.step_id, found.event, found.became) == (None, None, "on_engine_start", "no step")


@pytest.mark.parametrize("text", ["\x00nul", "lone \ud800 surrogate", "<script>alert(1)</script>", "é" * 10_000])
async def test_odd_texts_neither_break_nor_stop_the_log(any_address: str, text: str) -> None:
    entries = run("r1", tool_step("r1", name=text[:50], hooks=[hook_run(decision="deny", reason=text)]))
    journal = await record(any_address, [*entries, *run("r2")])
    with RecordReader.open(any_address) as reader:
        assert {row.run_id for row in reader.runs()} == {"r1", "r2"}
        (found,) = reader.records()
    assert found.reason is not None
    assert len(found.reason) <= 500
    assert journal.status.lost == 0


async def test_names_too_long_for_an_index_are_cut_and_stay_apart(address: str) -> None:
    entries = []
    for tail in ("one", "two"):
        name = "x" * 50_000 + tail
        entries += run(
            name, tool_step(name, name=name, hooks=[hook_run(decision="deny")]), user_id=name, session_id=name
        )
    journal = await record(address, [*entries, *run("plain")])
    assert journal.status.lost == 0
    with RecordReader.open(address) as reader:
        assert len({row.run_id for row in reader.runs()}) == 3
        assert len(reader.values_of("tool")) == 2
        assert [found.step_kind for found in reader.records()] == ["tool", "tool"]


async def test_ten_processes_worth_of_writers_share_one_store(address: str) -> None:
    await asyncio.gather(
        *(
            record(address, [entry for n in range(20) for entry in run(f"w{w}-{n}", tool_step(f"w{w}-{n}"))])
            for w in range(6)
        )
    )
    with RecordReader.open(address) as reader:
        assert len(reader.runs(limit=1000)) == 120
        assert reader.totals().entries == 120 * 6


async def test_nothing_is_opened_or_built_for_none() -> None:
    assert open_journal(None) is None
    assert open_journal("none") is None
    assert open_journal(["none", None]) is None  # type: ignore[list-item]


@pytest.mark.parametrize(
    "address", ["mysql://u:secret@h/db", "sqlite:", "records.db", "jsonl:", "sqlite:x.db?captur=all"]
)
def test_an_unknown_address_or_option_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(ValueError, match=r"options are|one of") as caught:
        open_journal(address)
    assert "secret" not in str(caught.value)


async def test_a_store_that_cannot_be_opened_says_so_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for address in (
        f"sqlite:{tmp_path / 'file' / 'x.db'}",
        f"jsonl:{tmp_path / 'file' / 'x.jsonl'}",
        "postgresql://u:secret@127.0.0.1:1/x",
    ):
        journal = open_journal(address)
        assert journal is not None
        with pytest.raises(RecordsError) as caught:
            await journal.start()
        assert "secret" not in str(caught.value)


async def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.db"
    other.write_bytes(b"not a database at all" * 100)
    journal = open_journal(f"sqlite:{other}")
    assert journal is not None
    with pytest.raises(RecordsError):
        await journal.start()
    assert other.read_bytes().startswith(b"not a database")


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    for name in ("sqlite:a.db", "jsonl:a.jsonl"):
        kind, _, file = name.partition(":")
        await record(f"{kind}:{tmp_path / file}", run("r1"))
        assert stat.S_IMODE(os.stat(tmp_path / file).st_mode) == 0o600


async def test_reading_where_nothing_was_recorded_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="There are no records at"):
        RecordReader.open(f"sqlite:{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()


async def test_a_journal_can_be_stopped_and_started_again(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}"
    journal = open_journal(address, settings=RecordSettings())
    assert journal is not None
    for name in ("r1", "r2"):
        await journal.start()
        for entry in run(name):
            journal.write(entry)
        await journal.stop()
        await journal.stop()
    with RecordReader.open(address) as reader:
        assert [row.run_id for row in reader.runs()] == ["r2", "r1"]


async def test_a_request_outside_of_any_run_is_no_run_that_stays_open(address: str) -> None:
    journal = await record(address, [*tool_step("", "m1", name="tools/list", unheard=["before_tool"]), *run("r1")])
    assert not journal.recovery.crashed
    with RecordReader.open(address) as reader:
        assert [row.run_id for row in reader.runs()] == ["r1"]
        assert [one.name for one in reader.coverage() if one.kind == "tool"] == ["tools/list"]


def test_a_json_lines_log_that_was_closed_says_so_and_can_be_opened_although_a_child_still_holds_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "records.jsonl"
    sink = JsonlSink(path, RecordSettings())
    sink.open()
    assert sink._file is not None
    inherited = os.dup(sink._file.fileno())  # as a process that is being started has it, until it becomes another
    try:
        sink.close()
        assert json.loads(path.read_text().splitlines()[-1])["entry"] == "stopped"
        again = JsonlSink(path, RecordSettings())
        assert not again.open().crashed
        again.close()
    finally:
        os.close(inherited)


ODD_TEXTS = [
    "\x00",
    "a\x00b",
    "\ud800",
    "x\udcff",
    "'; DROP TABLE record_runs; --",
    "%",
    "_" * 5000,
    "9" * 400,
    "९" * 30,
    "",
]


@pytest.mark.parametrize("odd", ODD_TEXTS)
async def test_nothing_that_is_asked_for_is_too_odd(address: str, odd: str) -> None:
    await record(address, run("r1", tool_step("r1", hooks=[hook_run()])))
    text = odd or "nobody"
    with RecordReader.open(address) as reader:
        names = ("status", "agent", "tool", "decision", "session_id", "user_id", "organization_id")
        assert [reader.runs(RunFilter(**{name: text})) for name in names] == [[]] * len(names)
        assert reader.runs(RunFilter(tool=text, agent="main")) == []
        of_records = ("run_id", "event", "hook", "decision", "tool", "agent", "user_id", "organization_id")
        assert [reader.records(RecordFilter(**{name: text})) for name in of_records] == [[]] * len(of_records)
        assert (reader.run(text), reader.run_row(text), reader.record(text)) == (None, None, None)
        assert (reader.records_of_step(text, 2), reader.ungated_steps(text, text)) == ([], [])
        assert len(reader.runs()) == 1


async def test_an_odd_name_is_found_under_the_name_that_was_given(address: str) -> None:
    name = "t\x00\ud800"
    await record(address, run(name, tool_step(name, name=name, hooks=[hook_run(name)])))
    with RecordReader.open(address) as reader:
        assert [row.steps for row in reader.runs(RunFilter(tool=name))] == [2]
        assert len(reader.records(RecordFilter(run_id=name, tool=name, hook=name))) == 1
        assert reader.run(name) is not None


async def test_a_store_that_is_damaged_while_it_is_read_is_one_sentence(address: str) -> None:
    await record(address, run("r1"))
    engine = engine_for(address)
    with RecordReader.open(address) as reader:
        with engine.connect() as connection, connection.begin():
            connection.exec_driver_sql("DROP TABLE record_marks")
        engine.dispose()
        with pytest.raises(RecordsError, match=r"^The store .* cannot be read now .*is it there, whole and free\?$"):
            reader.marks()


@pytest.mark.parametrize("scheme", ["sqlite", "jsonl"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_store_that_is_removed_or_replaced_while_it_is_written_is_begun_anew(
    tmp_path: Path, scheme: str, replaced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "logs" / "r"
    address = file_address(scheme, path)
    journal = open_journal(address, settings=RecordSettings(batch_s=0.001))
    assert isinstance(journal, StoreJournal)
    await journal.start()
    for entry in run("before"):
        journal.write(entry)
    await journal.flush()
    path.parent.rename(tmp_path / "rotated")
    if replaced:
        await record(address, run("other"))
    with caplog.at_level(logging.WARNING):
        for entry in run("after"):
            journal.write(entry)
        await journal.stop()
    assert "was removed or replaced while it was open" in caplog.text
    with RecordReader.open(address) as reader:
        assert {row.run_id for row in reader.runs()} == {"after", *(["other"] if replaced else [])}
    with RecordReader.open(file_address(scheme, tmp_path / "rotated" / "r")) as reader:
        assert [row.run_id for row in reader.runs()] == ["before"]
    assert not (await record(address, [])).recovery.crashed


async def test_a_reader_follows_the_file_that_stands_there_now(tmp_path: Path) -> None:
    old, new = f"sqlite:{tmp_path / 'r.db'}", f"sqlite:{tmp_path / 'new.db'}"
    await record(old, run("old"))
    await record(new, run("new"))
    with RecordReader.open(old) as reader:
        assert [row.run_id for row in reader.runs()] == ["old"]
        for end in ("", "-wal", "-shm"):
            Path(f"{tmp_path / 'r.db'}{end}").unlink(missing_ok=True)
        with pytest.raises(RecordsError, match="is not there any more"):
            reader.runs()
        assert not (tmp_path / "r.db").exists()
        (tmp_path / "new.db").rename(tmp_path / "r.db")
        assert [row.run_id for row in reader.runs()] == ["new"]


async def test_a_store_in_a_folder_that_cannot_be_written_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "100%? #1" / "r.db"
    address = file_address("sqlite", path)
    await record(address, run("r1"))
    monkeypatch.setattr("agent_engine.records.connect.os.access", lambda *_: False)
    with RecordReader.open(address) as reader:
        assert [row.run_id for row in reader.runs()] == ["r1"]
        assert [file.name for file in path.parent.iterdir()] == ["r.db"]


@pytest.mark.parametrize("text", [b"my notes, without an end of line", b"two\nlines\n", b'{"seq":1}\n', b'{"a": 1}'])
async def test_a_file_that_is_no_log_is_left_as_it_is(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(text)
    with pytest.raises(RecordsError, match="no log of records|no entry of a log"):
        await record(f"jsonl:{path}", run("r1"))
    assert path.read_bytes() == text


async def test_a_device_is_no_store() -> None:
    with pytest.raises(RecordsError, match="no regular file"):
        await record("jsonl:/dev/full", run("r1"))


async def test_a_run_that_never_ends_takes_no_more_memory_than_its_open_steps(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_REMEMBERED_STEPS", 20)
    settings = RecordSettings()
    maker, sink = FactMaker(settings), SqlSink(address, settings)
    sink.open()
    opened, turn, *_ = run("r1", closed=False)
    sink.write([maker.make(one) for one in (opened, turn)])
    for number in range(30):
        entries = [entry for part in range(5) for entry in tool_step("r1", f"t{number}.{part}", name=f"tool{number}")]
        sink.write([maker.make(one) for one in entries])
        assert len(sink.rows.runs["r1"].by_step) <= 25
        assert len(sink.rows.runs["r1"].facets) <= 25
    assert "turn" in sink.rows.runs["r1"].by_step
    late = [HookRan("r1", "t0.0", "main", hook_run("late")), *tool_step("r1", "t0.1", outcome="failed")[-1:]]
    sink.write([maker.make(one) for one in [*late, *run("r1")[-2:]]])
    sink.close()
    with RecordReader.open(address) as reader:
        detail = reader.run("r1")
        (record_of_it,) = reader.records()
        tools = reader.values_of("tool")
    assert detail is not None
    assert (detail.run.status, detail.run.steps, len(detail.steps)) == ("completed", 151, 151)
    assert (record_of_it.step_id, record_of_it.step_name) == ("t0.0", "tool0")
    assert [step.outcome for step in detail.steps if step.step_id.startswith("t0.")] == ["ran", "failed", *["ran"] * 3]
    assert len(tools) == 30
