"""``agentctl records`` and ``agentctl replay``, as a person calls them."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import sys
from pathlib import Path

import pytest
from tests.records.build import hook_run, payload, record, run, tool_step
from typer.testing import CliRunner, Result

from agent_engine.cli.main import app
from agent_engine.hooks.registry import HookRegistry, get_default_registry, set_default_registry
from agent_engine.records.settings import AUDIT_KEY


def agentctl(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with one refused, one plain and one bare tool call."""
    address = f"sqlite:{tmp_path / 'records.db'}"
    refusal = hook_run("guard", "deny", reason="\x1b[31mno [bold]deletes[/bold]", before=payload(path="/etc"))
    refused = tool_step("r1", name="delete", hooks=[refusal], outcome="refused", refused_by="guard")
    plain = tool_step("r2", hooks=[hook_run(before=payload(path="/tmp"))])
    bare = tool_step("r3", name="free", unheard=["before_tool", "before_tool_call"])
    entries = [*run("r1", refused), *run("r2", plain), *run("r3", bare)]
    asyncio.run(record(address, entries, capture=frozenset({"*"})))
    return address


def test_list_shows_what_became_of_each_step_and_filters(store: str) -> None:
    shown = agentctl("records", "list", "--store", store)
    assert shown.exit_code == 0
    assert "refused by guard" in shown.output
    assert "[bold]deletes[/bold]" in shown.output
    assert "\x1b" not in shown.output
    only = agentctl("records", "list", "--store", store, "--decision", "deny", "--tool", "delete", "--json")
    (row,) = [json.loads(line) for line in only.output.splitlines()]
    assert (row["hook_name"], row["became"], row["run_id"]) == ("guard", "refused by guard", "r1")
    assert agentctl("records", "list", "--store", store, "--hook", "nobody").output == "No records match.\n"
    runs = agentctl("records", "list", "--store", store, "--runs", "--decision", "deny", "--json")
    assert [json.loads(line)["run_id"] for line in runs.output.splitlines()] == ["r1"]


@pytest.fixture
def streamed(tmp_path: Path) -> str:
    """A store with a stream of which two hooks saw fifty pieces, and one changed two of them."""
    pieces = [
        one
        for number in range(50)
        for one in (
            hook_run("watch", event="on_llm_delta"),
            hook_run("mask", "modify" if number in (20, 21) else "allow", event="on_llm_delta", duration_ms=2.0),
        )
    ]
    address = f"sqlite:{tmp_path / 'streamed.db'}"
    asyncio.run(record(address, run("r1", tool_step("r1", hooks=[hook_run("early"), *pieces]))))
    return address


def test_what_a_hook_decides_alike_at_every_piece_of_a_stream_is_one_line(streamed: str) -> None:
    lines = agentctl("records", "list", "--store", streamed).output.splitlines()
    told = [" ".join(line.split()) for line in lines[1:]]
    assert [" ".join(line.split()[5:8]) for line in told[:4]] == [
        "mask allow ×48", "watch allow ×50", "mask modify ×2", "early allow ran",
    ]  # fmt: skip
    assert told[4].endswith("--each shows every record.")
    assert " 96.00 " in told[0]
    _, shown, *_ = agentctl("records", "list", "-n", "1", "--store", streamed).output.splitlines()
    assert "allow ×48" in shown
    tail = agentctl("records", "tail", "--no-follow", "-n", "2", "--store", streamed).output.splitlines()
    assert ["×50" in tail[0], "×48" in tail[1]] == [True, True]
    tree = agentctl("records", "show", "r1", "--store", streamed).output
    assert re.findall(r"on_llm_delta  (.*?)  \d", tree) == [
        "watch  allow ×50", "mask  allow ×48", "mask  modify ×2",
    ]  # fmt: skip


def test_each_record_of_a_stream_can_be_seen(streamed: str) -> None:
    for words in (["list"], ["tail", "--no-follow"]):
        shown = agentctl("records", *words, "-n", "70", "--each", "--store", streamed).output
        assert shown.count("on_llm_delta") == 70
        assert "×" not in shown
        as_json = agentctl("records", *words, "-n", "70", "--json", "--store", streamed).output
        assert len(as_json.splitlines()) == 70
    assert agentctl("records", "show", "r1", "--each", "--store", streamed).output.count("on_llm_delta") == 100
    assert agentctl("records", "export", "--store", streamed).output.count("on_llm_delta") == 200  # event and hook's id


def test_runs_are_chosen_by_their_status_and_no_option_is_passed_over(store: str) -> None:
    runs = agentctl("records", "list", "--store", store, "--runs", "--status", "completed", "--json")
    assert len(runs.output.splitlines()) == 3
    assert agentctl("records", "list", "--store", store, "--runs", "--status", "failed", "--json").output == ""
    for words in (["--runs", "--hook", "guard"], ["--status", "failed"]):
        assert agentctl("records", "list", "--store", store, *words).exit_code == 2


def test_show_tells_a_record_and_a_run(store: str) -> None:
    tree = agentctl("records", "show", "r3", "--store", store).output
    assert "tool free" in tree
    assert "no gate saw it" in tree
    listed = agentctl("records", "list", "--store", store, "--run", "r1", "--json")
    record_id = json.loads(listed.output)["record_id"]
    shown = agentctl("records", "show", record_id, "--store", store, "--json")
    assert json.loads(shown.output)["payloads"]["before"]["tool_input"] == {"path": "/etc"}
    assert "payload before" in agentctl("records", "show", record_id, "--store", store).output
    assert (
        json.loads(agentctl("records", "show", "r1", "--store", store, "--json").output)["steps"][0]["kind"] == "agent"
    )
    missing = agentctl("records", "show", "nothing", "--store", store)
    assert missing.exit_code == 1


def test_a_run_is_found_by_the_beginning_of_its_id_where_that_is_one(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}"
    ids = ("4b7156c04a88", "4b9956c04a88", "c1")
    asyncio.run(record(address, [entry for one in ids for entry in run(one, tool_step(one, hooks=[hook_run()]))]))
    assert agentctl("records", "show", "4b71", "--store", address).output.startswith("4b7156c04a88")
    for command in (["list", "--json"], ["export"], ["tail", "--no-follow", "--json"]):
        lines = agentctl("records", *command, "--run", "4b9", "--store", address).output.splitlines()
        assert [json.loads(line)["run_id"] for line in lines] == ["4b9956c04a88"]
    assert agentctl("records", "show", "4b", "--store", address).exit_code == 1


def test_stats_count_and_name_what_no_gate_saw(store: str) -> None:
    shown = agentctl("records", "stats", "--store", store).output
    assert "3 runs (0 open), 2 records: 1 denied" in shown
    assert "No gate saw 1 tool call (free, in main)." in shown
    as_data = json.loads(agentctl("records", "stats", "--store", store, "--json").output)
    assert as_data["hooks"][0]["decisions"] == {"allow": 1, "deny": 1}


def test_tail_once_and_export(store: str, tmp_path: Path) -> None:
    tail = agentctl("records", "tail", "--store", store, "--no-follow", "--json")
    assert [json.loads(line)["run_id"] for line in tail.output.splitlines()] == ["r1", "r2"]
    out = tmp_path / "out.csv"
    assert agentctl("records", "export", "--store", store, "-o", str(out), "--format", "csv").exit_code == 0
    with out.open(newline="") as file:
        assert [row["decision"] for row in csv.DictReader(file)] == ["deny", "allow"]
    lines = agentctl("records", "export", "--store", store, "--payloads").output.splitlines()
    assert json.loads(lines[1])["payloads"]["before"]["tool_input"] == {"path": "/tmp"}


def test_a_cell_of_an_export_holds_names_or_nothing_and_the_header_is_always_there(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}"
    hooks = [
        hook_run("cut", "modify", changed=("tool_input", "timeout"), before=payload(q="1"), after=payload(q="2")),
        hook_run("look", reason="=1+1"),
        hook_run("tab", reason=" \t@SUM(A1)"),
        hook_run("semicolon", reason="no;=1+1"),
    ]
    asyncio.run(record(address, run("r1", tool_step("r1", hooks=hooks)), capture=frozenset({"*"})))
    text = agentctl("records", "export", "--store", address, "--format", "csv", "--payloads").output
    cut, look, tab, semicolon = csv.DictReader(text.splitlines())
    assert (cut["changed"], look["changed"], look["payloads"]) == ("tool_input,timeout", "", "")
    assert json.loads(cut["payloads"])["after"]["tool_input"] == {"q": "2"}
    assert (look["reason"], tab["reason"], semicolon["reason"]) == ("'=1+1", "' \t@SUM(A1)", "no;=1+1")
    assert '"no;=1+1"' in text
    nothing = agentctl("records", "export", "--store", address, "--format", "csv", "--hook", "nobody").output
    assert nothing.splitlines() == [text.splitlines()[0].removesuffix(',"payloads"')]


def test_verify_holds_and_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"jsonl:{tmp_path / 'audit.jsonl'}"
    monkeypatch.setenv(AUDIT_KEY, "k")
    asyncio.run(record(address, run("r1", tool_step("r1", hooks=[hook_run()])), audit=True))
    head = agentctl("records", "head", "--store", address).output.strip()
    good = agentctl("records", "verify", "--store", address, "--head", head)
    assert good.exit_code == 0
    assert "The log holds" in good.output
    path = tmp_path / "audit.jsonl"
    path.write_text(path.read_text().replace('"allow"', '"deny"'))
    bad = agentctl("records", "verify", "--store", address)
    assert bad.exit_code == 1
    assert "was changed, moved or put in later" in bad.output
    monkeypatch.delenv(AUDIT_KEY)
    assert agentctl("records", "verify", "--store", address).exit_code == 2


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["list", "--store", "sqlite:/nowhere/none.db"], 1, "There are no records at"),
        (["list", "--store", "mysql://u:secret@h/x"], 2, "is no store that can be read"),
        (["list", "--event", "before_tol"], 2, "Unknown hook event"),
        (["list", "--decision", "maybe"], 2, "is no decision"),
        (["list", "--since", "soon"], 2, "is no duration"),
        (["stats", "--since", "9" * 400 + "d"], 2, "longer than anything lasts here"),
        (["verify", "--head", "zzz"], 2, "is no head"),
        (["export", "--format", "xml"], 2, "There is no format"),
        (["list", "--limit", "9" * 20], 2, "Invalid value for"),
        (["tail", "--no-follow", "--limit", "9" * 20], 2, "Invalid value for"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    words: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUDIT_KEY, "k")
    done = agentctl("records", *words)
    assert done.exit_code == code
    assert says in done.output
    assert "secret" not in done.output


@pytest.mark.parametrize("value", ['"x"', "NaN", "1e300", "[1]", "{}"])
def test_a_log_that_was_edited_into_nonsense_is_one_sentence(tmp_path: Path, value: str) -> None:
    path = tmp_path / "r.jsonl"
    asyncio.run(record(f"jsonl:{path}", run("r1", tool_step("r1", hooks=[hook_run()]))))
    path.write_text(path.read_text().replace('"at":1800000000.0', f'"at":{value}'))
    done = agentctl("records", "list", "--store", f"jsonl:{path}")
    assert done.exit_code == 1
    assert "holds an entry that no writer of records makes" in done.output


def test_a_time_of_no_calendar_is_shown_as_its_number(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'r.db'}"
    asyncio.run(record(address, run("r1", tool_step("r1", hooks=[hook_run(started_at=1e15)]), at=-1e15)))
    assert '"at": "1e+15"' in agentctl("records", "list", "--store", address, "--json").output
    assert "-1e+15" in agentctl("records", "list", "--runs", "--store", address).output


def test_a_damaged_store_is_said_to_be_damaged(tmp_path: Path) -> None:
    for name, content in (("text.db", b"hello, this is no database" * 100), ("cut.db", b"")):
        path = tmp_path / name
        path.write_bytes(content)
        if not content:
            asyncio.run(record(f"sqlite:{path}", run("r1")))
            path.write_bytes(path.read_bytes()[:20_000])
        done = agentctl("records", "stats", "--store", f"sqlite:{path}")
        assert done.exit_code == 1
        assert "it is damaged, or no SQLite file" in done.output


def test_replay_shows_what_a_changed_policy_would_do(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new_policy_for_replay.py").write_text(
        "from agent_engine.hooks import add_hook\n"
        "@add_hook('before_tool', name='guard', sequential=True)\n"
        "def guard(event):\n"
        "    return 'closed' if event.tool_input['path'] == '/tmp' else None\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = get_default_registry()
    set_default_registry(HookRegistry())
    try:
        done = agentctl("replay", "--import", "new_policy_for_replay", "--store", store, "--fail")
    finally:
        set_default_registry(before)
        sys.modules.pop("new_policy_for_replay", None)
    assert done.exit_code == 1
    assert "2 calls: 0 decided as before, 2 otherwise." in done.output
    assert "hook guard at before_tool: allow → deny  1" in done.output
    assert "before_tool search: deny → allow  1" in done.output
    assert "now: closed (guard)" in done.output


def test_replay_needs_hooks_and_payloads(store: str) -> None:
    assert agentctl("replay", "--store", store).exit_code == 2
    missing = agentctl("replay", "--import", "no_such_module_here", "--store", store)
    assert missing.exit_code == 1
    assert "no_such_module_here" in missing.output
