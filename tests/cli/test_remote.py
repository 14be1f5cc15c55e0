"""chat and approvals against `agentctl serve` at a URL: two processes and a real socket between them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from tests.cli.office import AGENTCTL, agentctl, cancelled, write_office

TOKEN = "a-token-for-these-tests-alone"


@pytest.fixture
def config(tmp_path):
    return write_office(tmp_path)


@pytest.fixture
def serve(config) -> Iterator[Callable[..., str]]:
    """``serve()`` starts the office's server on a free port and returns its address."""
    started = []

    def start(**more: str) -> str:
        process = subprocess.Popen(
            [*AGENTCTL, "serve", "--config", str(config), "--port", "0", "--records", "none"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **more},
        )
        started.append(process)
        line = process.stderr.readline()
        found = re.search(r"http://\S+?(?= |$)", line)
        assert found, line
        return found[0]

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 0
        assert "Traceback" not in said


def test_a_chat_with_a_server_streams_its_answer_and_keeps_the_conversation(config, serve):
    url = serve()
    done = agentctl("chat", "--url", url, stdin="What is the status of order A-17?\n/hooks\nstatus of order B-04?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("Order A-17 is on its way.") < done.stdout.index("Order B-04 is on its way.")
    assert done.stderr.count("  → clerk: order_status") == 2
    assert done.stderr.count("  hook before_tool · rules.watch: allow") == 1


def test_an_ask_of_the_server_is_answered_here(config, serve):
    done = agentctl("chat", "--url", serve(), stdin="Cancel order A-17\nd\nCancel order B-04\no\n")
    assert 'clerk wants to call cancel_order(number="A-17")' in done.stderr
    assert 'cancel_order(number="A-17") was refused' in done.stdout
    assert "Order B-04 is cancelled." in done.stdout
    assert cancelled(config) == "B-04"


def test_a_refused_turn_is_said_and_the_conversation_goes_on(serve):
    done = agentctl("chat", "--url", serve(), stdin="What is the salary?\nstatus of order A-17?\n")
    assert "Blocked by policy: salaries are not discussed here." in done.stderr
    assert "Order A-17 is on its way." in done.stdout


def test_waiting_runs_of_a_server_are_listed_and_decided(config, serve):
    url = serve()
    agentctl("chat", "--url", url, stdin="Cancel order A-17\nq\n")
    listed = agentctl("approvals", "list", "--url", url)
    run_id = re.search(r"^(\S+)  waiting", listed.stdout, re.MULTILINE)[1]
    assert 'clerk wants to call cancel_order(number="A-17")' in listed.stdout
    done = agentctl("approvals", "approve", run_id[:6], "--url", url)
    assert done.returncode == 0, done.stderr
    assert "Order A-17 is cancelled." in done.stdout
    assert cancelled(config) == "A-17"
    assert agentctl("approvals", "list", "--url", url).stdout == "Nothing waits for an approval.\n"
    assert agentctl("approvals", "deny", run_id, "--url", url).returncode == 2


def test_a_token_comes_from_the_environment_and_is_not_shown(serve):
    url = serve(AGENT_ENGINE_TOKEN=TOKEN)
    refused = agentctl("approvals", "list", "--url", url, AGENT_ENGINE_TOKEN="another-token-of-that-length")
    assert refused.returncode == 4
    assert re.fullmatch(
        rf"The server at {url} answered 401: .* \(request \S+\)\. Set AGENT_ENGINE_TOKEN to a token for it\.\n",
        refused.stderr,
    )
    allowed = agentctl("approvals", "list", "--url", url, AGENT_ENGINE_TOKEN=TOKEN)
    assert (allowed.returncode, allowed.stdout) == (0, "Nothing waits for an approval.\n")
    assert TOKEN not in allowed.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "not-a-url", "ftp://127.0.0.1"])
def test_an_address_where_nothing_answers_is_one_sentence(url):
    for command in (["chat"], ["approvals", "list"]):
        done = agentctl(*command, "--url", url)
        assert done.returncode == 4
        assert len(done.stderr.splitlines()) == 1
        assert url in done.stderr
