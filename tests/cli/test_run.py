"""agentctl run: what goes where, with which exit code, piped and at a terminal."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import sqlite3
import subprocess
import sys

import pytest
from tests.cli.office import AGENTCTL, Terminal, agentctl, cancelled, write_office


@pytest.fixture
def config(tmp_path):
    return write_office(tmp_path)


@pytest.fixture
def here(request):
    """agentctl in this process."""
    return request.getfixturevalue("agentctl")


@pytest.fixture
def terminal():
    opened = []

    def start(*arguments):
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_the_answer_is_on_stdout_and_the_account_on_stderr(config):
    done = agentctl("run", "--config", config, "--message", "What is the status of order A-17?")
    assert done.returncode == 0, done.stderr
    assert "Order A-17 is on its way." in done.stdout
    assert "Order A-17" not in done.stderr
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"run \S+ office", lines[0])
    assert re.search(r"^    hook before_agent · rules.gate: allow [\d.]+ ms$", done.stderr, re.MULTILINE)
    assert re.search(r"^      hook before_tool · rules.watch: allow [\d.]+ ms$", done.stderr, re.MULTILINE)
    assert re.fullmatch(r"run \S+ completed in .*tokens", lines[-1])


def test_quiet_shows_the_answer_alone(config):
    done = agentctl("run", "--config", config, "--message", "What is the status of order A-17?", "--quiet")
    assert "Order A-17 is on its way." in done.stdout
    assert done.stderr == ""


def test_json_is_for_machines(config):
    done = agentctl("run", "--config", config, "--message", "What is the status of order A-17?", "--json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[0]["type"] == "run_started"
    assert lines[-1]["type"] == "result"
    assert (lines[-1]["status"], lines[-1]["visited"], lines[-1]["pending"]) == ("completed", ["clerk"], [])
    assert "Order A-17 is on its way." in done.stdout


def test_a_stream_prints_the_same_answer(config):
    command = ["run", "--config", config, "--message", "What is the status of order A-17?", "--quiet"]
    assert agentctl(*command, "--stream").stdout == agentctl(*command).stdout


def test_the_message_may_come_from_stdin_and_may_not_be_empty(config):
    done = agentctl("run", "--config", config, "--message", "-", "-q", stdin="What is the status of order B-04?")
    assert "Order B-04 is on its way." in done.stdout
    assert agentctl("run", "--config", config, "--message", " ").returncode == 2


def test_a_conversation_goes_on_under_its_session_id(config):
    first = ["run", "--config", config, "--session-id", "s1", "--quiet", "--message"]
    assert agentctl(*first, "What is the status of order A-17?").returncode == 0
    script = config.parent / "script.yaml"
    script.write_text("- text: it goes on\n  expect: {contains: order A-17}\n")
    done = agentctl(*first, "and now?", "--model", f"scripted:{script}")
    assert (done.returncode, done.stdout) == (0, "it goes on\n"), done.stderr
    other = agentctl("run", "--config", config, "-q", "--message", "and now?", "--model", f"scripted:{script}")
    assert other.returncode == 4


def test_a_run_that_a_hook_refuses_ends_with_5_and_the_reason(config):
    done = agentctl("run", "--config", config, "--message", "What is the salary of the boss?", "--quiet")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == "Blocked by policy: salaries are not discussed here.\n"


def test_a_hook_that_breaks_ends_with_4_and_keeps_the_text_of_its_exception(config):
    done = agentctl("run", "--config", config, "--message", "break it")
    assert (done.returncode, done.stdout) == (4, "")
    assert (
        done.stderr.splitlines()[-1]
        == "Hook 'rules.gate' failed at before_agent: ValueError. Set AGENT_ENGINE_DEBUG=1 to see where."
    )
    # The log alone has the exception's own text; whoever called gets its type.
    told = [line for line in done.stderr.splitlines() if not line.lstrip().startswith("log ")]
    assert "text-of-the-exception" not in "\n".join(told)
    assert "log rules: failed error_type=" in done.stderr


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("opnai:x", "did you mean 'openai'?"),
        ("gpt-5", "write PROVIDER:NAME, such as openai:NAME"),
        ("", "there is no provider ''"),
        ("openai", "openai:NAME"),
    ],
)
def test_a_model_that_there_is_not_is_wrong_usage(config, here, model, words):
    done = here("run", "--config", config, "--message", "hello", "--model", model)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_a_provider_without_its_key_is_one_sentence_that_names_the_variable(config):
    done = agentctl(
        "run", "--config", config, "--message", "hello", "--model", "anthropic:claude-x", "-q", ANTHROPIC_API_KEY=""
    )
    assert done.returncode == 4
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_stops_the_run_with_its_closing_events(config):
    running = subprocess.Popen(
        [*AGENTCTL, "run", "--config", str(config), "--message", "Write the slow yearly report."],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen = ""
    with running:
        for line in running.stderr:
            seen += line
            if "tool slow_report …" in line:
                running.send_signal(signal.SIGINT)
                break
        seen += running.stderr.read()
    assert running.returncode == 130
    assert "tool slow_report: cancelled" in seen
    assert "hook on_run_error · rules.failed" in seen
    assert re.search(r"^run \S+ cancelled", seen, re.MULTILINE)
    assert "Traceback" not in seen


def test_without_a_terminal_a_call_that_needs_approval_waits_and_says_how_to_give_it(config):
    done = agentctl("run", "--config", config, "--message", "Cancel order A-17")
    assert (done.returncode, done.stdout) == (3, "")
    run_id = re.search(r"^Run (\S+) waits for approval:$", done.stderr, re.MULTILINE)[1]
    assert 'cancel_order(number="A-17")' in done.stderr
    assert f"agentctl approvals approve {run_id} --config {config}" in done.stderr
    assert cancelled(config) is None

    listed = agentctl("approvals", "list", "--config", config)
    assert run_id in listed.stdout
    assert 'cancel_order(number="A-17")' in listed.stdout

    approved = agentctl("approvals", "approve", run_id[:8], "--config", config)
    assert approved.returncode == 0, approved.stderr
    assert "Order A-17 is cancelled." in approved.stdout
    assert cancelled(config) == "A-17"
    assert agentctl("approvals", "list", "--config", config).stdout == "Nothing waits for an approval.\n"
    assert agentctl("approvals", "approve", run_id, "--config", config).returncode == 2


def test_a_denied_call_does_not_run_and_the_answer_says_so(config):
    agentctl("run", "--config", config, "--message", "Cancel order A-17", "--quiet")
    (waiting,) = json.loads(agentctl("approvals", "list", "--config", config, "--json").stdout)
    call = waiting["asks"][0]["call_id"]
    done = agentctl("approvals", "deny", f"{waiting['run_id']}:{call}", "--config", config)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout
    assert cancelled(config) is None


def test_listing_what_waits_makes_no_file(config):
    assert agentctl("approvals", "list", "--config", config).stdout == "Nothing waits for an approval.\n"
    assert not (config.parent / ".agent_engine").exists()


@pytest.mark.parametrize(("key", "number"), [("o", "A-17"), ("d", None)])
def test_at_a_terminal_the_person_is_asked(config, terminal, key, number):
    console = terminal("run", "--config", config, "--message", "Cancel order A-17")
    console.wait_for('clerk wants to call cancel_order(number="A-17")')
    console.type("?\r")
    console.wait_for("q(uit)?", times=2)
    console.type(f"{key}\r")
    assert console.ends() == 0
    assert cancelled(config) == number
    assert ("is cancelled" in console.screen) == (number is not None)


def test_at_a_terminal_the_account_is_a_tree(config, terminal):
    console = terminal("run", "--config", config, "--message", "What is the status of order A-17?")
    assert console.ends() == 0
    assert re.search(r"^office +run \S+ +completed", console.screen, re.MULTILINE)
    assert "└── agent clerk" in console.screen
    assert "├── hook before_agent · rules.gate  allow" in console.screen
    assert "\x1b[" in console.raw


def test_quitting_at_an_approval_stops_the_run(config, terminal):
    console = terminal("run", "--config", config, "--message", "Cancel order A-17")
    console.wait_for("q(uit)?")
    console.type("q\r")
    assert console.ends() == 130
    assert cancelled(config) is None
    assert "Traceback" not in console.screen


def test_decision_records_are_kept_where_asked_for(config):
    address = f"sqlite:{config.parent / 'records.db'}"
    done = agentctl("run", "--config", config, "-q", "--message", "status of order A-17?", AGENT_ENGINE_RECORDS=address)
    assert done.returncode == 0, done.stderr
    listed = agentctl("records", "list", "--store", address)
    assert "rules.watch" in listed.stdout, listed.stderr


def test_a_message_that_is_no_text_is_wrong_usage(config, here, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    for given in ("-", "caf\udce9"):
        done = here("run", "--config", config, "--message", given)
        assert (done.code, done.out) == (2, "")
        assert "not UTF-8 text" in done.err


def test_the_command_to_approve_can_be_pasted_and_goes_on_with_the_same_model_and_records(tmp_path, here):
    folder = tmp_path / "the office"
    folder.mkdir()
    config = write_office(folder)
    records = folder / "records.db"
    script = folder / "turns.yaml"
    script.write_text(
        "by: conversation\nturns: [{tool_calls: [{id: c1, name: cancel_order, arguments: {number: A-17}}]}, Cancelled.]"
    )
    options = ["--config", config, "--model", "scripted:turns.yaml", "--records", f"sqlite:{records}"]
    done = here("run", *options, "--message", "Cancel it")
    assert done.code == 3
    command = shlex.split(done.err.rpartition("Give it with: ")[2].partition("   (")[0])
    assert command[:3] == ["agentctl", "approvals", "approve"]

    done = here(*command[1:])
    assert (done.code, done.out) == (0, "Cancelled.\n")
    assert cancelled(config) == "A-17"
    with sqlite3.connect(records) as db:
        statuses = {status for (status,) in db.execute("SELECT status FROM record_runs")}
    assert statuses == {"completed"}, "the part after the approval is in the records too"


def test_what_an_env_file_sets_holds_for_every_option(config, here, monkeypatch):
    monkeypatch.delenv("AGENT_ENGINE_RECORDS", raising=False)
    records = config.parent / "kept.jsonl"
    env = config.parent / "settings.env"
    env.write_text(f"AGENT_ENGINE_RECORDS=jsonl:{records}\n")
    done = here("run", "--config", config, "--message", "What is the status of order A-17?", "--env", env)
    assert done.code == 0
    assert "rules.watch" in records.read_text()


@pytest.mark.parametrize("name", ["stdin", "stderr"])
def test_with_a_stream_closed_it_runs_all_the_same(config, here, monkeypatch, name):
    monkeypatch.setattr(sys, name, None)
    done = here("run", "--config", config, "--message", "What is the status of order A-17?")
    assert done.code == 0
    assert "A-17 is on its way" in done.out


def test_a_reader_that_goes_away_is_no_failure_and_a_full_disk_is_one_sentence(config):
    command = shlex.join([*AGENTCTL, "run", "--quiet", "--config", str(config), "--message", "status of order A-17?"])
    gone = subprocess.run(f"({command}; echo $? >&2) | true", shell=True, capture_output=True, text=True, timeout=300)
    assert gone.stderr == "0\n"
    full = subprocess.run(f"{command} >/dev/full", shell=True, capture_output=True, text=True, timeout=300)
    assert (full.returncode, full.stderr) == (4, "Writing failed: no space left on device.\n")
