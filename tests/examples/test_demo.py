"""The demo from end to end, as a person runs it: real processes, real MCP servers, and what is seen on the screen."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from tests.fakes.openai_server import FakeOpenAI, calls, says
from tests.fakes.processes import processes_of

from agent_engine import AuthContext, Engine, RunContext

pytestmark = pytest.mark.xdist_group("assistant")

ASSISTANT = Path(__file__).resolve().parents[2] / "examples" / "enterprise-knowledge-assistant"
KEY = "a-key-for-these-tests-alone-4711"
MARKER = f"demo-of-{os.urandom(8).hex()}"
PLANTED = re.search(r"sk-\S+", (ASSISTANT / "notes" / "search-service-access.md").read_text(encoding="utf-8")).group()
AGENTCTL = [sys.executable, "-m", "agent_engine.cli.main"]


def environ(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRIVATE_", "PUBLIC_"))}
    return {**kept, "COLUMNS": "200", **more}


def demo(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ASSISTANT / "demo.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ(**more))


@pytest.fixture(scope="module")
def tour() -> subprocess.CompletedProcess[str]:
    """The whole tour, once, with a key that the tests know."""
    return demo(PRIVATE_PACKAGES_API_KEY=KEY, DEMO_MARKER=MARKER)


def account_of(tour: subprocess.CompletedProcess[str], question: str) -> str:
    """What stderr shows between one question and the next."""
    return next(part for part in tour.stderr.split("─" * 78) if question in part)


def test_the_tour_ends_well_and_every_answer_names_its_source(tour):
    assert tour.returncode == 0, tour.stderr
    assert "new datetime parsed from a string" in tour.stdout
    assert "json.dumps: Serialize" in tour.stdout
    assert metadata.version("pydantic") in tour.stdout
    assert metadata.metadata("pydantic")["Summary"] in tour.stdout
    assert f"Python {platform.python_version()}" in tour.stdout
    for source in (
        'read_docs(name="json")',
        'read_package(name="pydantic")',
        'read_note(title="search-service-access")',
    ):
        assert f"Source: {source}" in tour.stdout
    assert tour.stdout.count("This is the offline model") == 5


def test_the_public_server_gets_no_header_and_the_private_one_its_key(tour):
    assert re.search(r"mcp public_docs: tools/call \w+: 200, no header added", tour.stderr)
    assert re.search(r"mcp private_packages: tools/call \w+: 200, header X-API-Key", tour.stderr)
    assert not re.search(r"mcp public_docs: .*header X-API-Key", tour.stderr)
    assert not re.search(r"mcp private_packages: .*no header added", tour.stderr)


def test_a_long_result_is_capped_and_the_one_that_was_needed_is_not(tour):
    whole = account_of(tour, "json module")
    assert re.search(
        r"hook transform_tool_result · research_hooks.cap_result: modify \(result [\d,]+ → 8,\d+ characters\)", whole
    )
    assert "research_hooks.cap_result: modify" not in account_of(tour, "datetime.strptime")


def test_deleting_a_note_is_denied_with_the_reason_and_the_note_stays(tour):
    shown = account_of(tour, "Delete the note")
    assert "hook before_tool · keep_notes: deny (notes are kept for the record" in shown
    assert "tool delete_note: refused by keep_notes" in shown
    assert "notes are kept for the record, and 'retired-importer' is one" in tour.stdout
    assert (ASSISTANT / "notes" / "retired-importer.md").exists()


def test_a_key_in_a_note_is_redacted(tour):
    assert "hook after_tool · redact_keys: modify (tool_output" in account_of(tour, "search service")
    assert "[a key was here]" in tour.stdout


def test_each_tool_call_has_its_audit_line_without_arguments(tour):
    lines = re.findall(r"log audit: (tool_call .*)", tour.stderr)
    assert len(lines) >= 5
    for line in lines:
        assert re.fullmatch(
            r"tool_call run_id=\S+ agent=\w+ tool=\w+ provider=(local|mcp) status=succeeded elapsed_ms=\d+", line
        )


def test_no_secret_is_shown_anywhere(tour):
    for secret in (KEY, PLANTED):
        assert secret not in tour.stdout + tour.stderr
    assert "secrets: none was shown" in tour.stderr


def test_the_account_is_plain_text_where_it_is_piped(tour):
    assert "\x1b" not in tour.stdout + tour.stderr
    assert "├" not in tour.stderr


@pytest.mark.parametrize(
    ("question", "answer", "source"),
    [
        ("What does heapq.nlargest do?", "Find the n largest elements", 'read_docs(name="heapq.nlargest")'),
        ("Which version of rich is installed here?", metadata.version("rich"), 'read_package(name="rich")'),
        ("Read the onboarding note.", "Ask for your accounts on the first day", 'read_note(title="onboarding")'),
    ],
)
async def test_another_question_works_the_same(engine, question, answer, source):
    result = await engine.run(question)
    assert answer in result.answer
    assert f"Source: {source}" in result.answer


async def test_a_protected_agent_exists_for_operators_alone(engine):
    question = "How much disk space is free on the machine?"
    assert "machine_report" not in (await engine.run(question)).answer
    operator = RunContext(user_id="ada", auth_context=AuthContext(roles=("operator",)))
    result = await engine.run(question, context=operator)
    assert "Source: machine_report()" in result.answer
    assert result.visited == ("assistant", "operations")


def test_one_question_of_ones_own_for_machines_is_one_object_a_line():
    done = demo("--json", "--question", "Delete the note about the retired importer.", PRIVATE_PACKAGES_API_KEY=KEY)
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {"run_started", "step_started", "hook", "step_ended", "run_ended", "result", "log"} <= {
        line["type"] for line in lines
    }
    denied = [line for line in lines if line["type"] == "hook" and line["decision"] == "deny"]
    assert [line["hook"] for line in denied] == ["keep_notes"]
    assert KEY not in done.stderr


@pytest.fixture
async def engine(addresses, monkeypatch):
    """The example built in this process, with the servers of this session."""
    for name, value in {**addresses, "PRIVATE_PACKAGES_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    async with Engine.from_yaml(ASSISTANT / "agents.yaml") as built:
        yield built


def ports_of(text: str) -> list[int]:
    return [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)/mcp", text)]


def test_the_servers_are_stopped_with_the_demo(tour):
    assert len(ports_of(tour.stderr)) == 2
    assert processes_of(MARKER) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopping_the_demo_leaves_no_process(number):
    marker = f"stopped-demo-{os.urandom(8).hex()}"
    running = subprocess.Popen(
        [sys.executable, str(ASSISTANT / "demo.py")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(DEMO_MARKER=marker),
        start_new_session=True,
    )
    seen = ""
    with running:
        for line in running.stderr:
            seen += line
            if "Question 1" in line:
                assert len(processes_of(marker)) == 3, "the demo and its two servers"
                os.kill(running.pid, number)
                break
        seen += running.stderr.read()  # until the last process that holds this pipe is gone
    assert running.returncode == (-number if number == signal.SIGKILL else 130)
    assert "Traceback" not in seen
    assert len(ports_of(seen)) == 2
    until = time.monotonic() + 60
    while processes_of(marker) and time.monotonic() < until:  # which hold this pipe no more, and are about to be gone
        time.sleep(0.01)
    assert processes_of(marker) == set()


def agentctl(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AGENTCTL, *arguments], capture_output=True, text=True, timeout=300, env=environ(**more))


def ask(message: str, **more: str) -> subprocess.CompletedProcess[str]:
    return agentctl("run", "--config", str(ASSISTANT / "agents.yaml"), "--message", message, **more)


def test_a_missing_key_stops_the_build_with_one_sentence_that_names_it(addresses):
    done = ask("What does heapq offer?", **addresses)
    assert done.returncode == 5
    assert done.stdout == ""
    sentences = [line for line in done.stderr.splitlines() if not line.lstrip().startswith("hook ")]
    assert len(sentences) == 1
    assert "PRIVATE_PACKAGES_API_KEY" in sentences[0]


def test_a_private_server_that_refuses_gives_a_clear_error(addresses):
    done = ask("What does heapq offer?", **{**addresses, "PRIVATE_PACKAGES_API_KEY": "a-wrong-key"})
    assert done.returncode == 4
    last = done.stderr.splitlines()[-1]
    assert "private_packages" in last
    assert "401" in last
    assert "a-wrong-key" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_there_is_named(addresses):
    gone = {"PUBLIC_DOCS_URL": "http://127.0.0.1:9/mcp", "PRIVATE_PACKAGES_API_KEY": KEY}
    done = ask("What does heapq offer?", **{**addresses, **gone})
    assert done.returncode == 4
    assert "public_docs" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_quiet_leaves_the_answer_alone(addresses):
    more = {**addresses, "PRIVATE_PACKAGES_API_KEY": KEY}
    config = str(ASSISTANT / "agents.yaml")
    done = agentctl("run", "--config", config, "--message", "What does heapq.nlargest do?", "--quiet", **more)
    assert done.returncode == 0
    assert "Find the n largest elements" in done.stdout
    assert done.stderr == ""


def test_the_same_system_runs_on_a_provider_of_models(addresses):
    question = "What does heapq.nlargest do?"
    with FakeOpenAI(
        calls(("python_docs", {"message": question})),
        calls(("read_docs", {"name": "heapq.nlargest"})),
        says("It finds the n largest elements."),
        says("heapq.nlargest finds the n largest elements of a dataset."),
    ) as provider:
        more = {"PRIVATE_PACKAGES_API_KEY": KEY, "OPENAI_API_KEY": "sk-for-tests", "OPENAI_BASE_URL": provider.base_url}
        config = str(ASSISTANT / "agents.yaml")
        done = agentctl(
            "run", "--config", config, "--message", question, "--model", "openai:gpt-test", **{**addresses, **more}
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "heapq.nlargest finds the n largest elements of a dataset.\n"
    assert "Find the n largest elements in a dataset" in json.dumps(provider.received[2].body)
    assert "mcp public_docs: tools/call read_docs: 200, no header added" in done.stderr
    assert "sk-for-tests" not in done.stdout + done.stderr


def test_the_example_validates_and_generate_has_nothing_to_add(tmp_path):
    copied = tmp_path / "assistant"
    shutil.copytree(ASSISTANT, copied)
    assert agentctl("validate", str(copied / "agents.yaml")).returncode == 0
    done = agentctl("generate", str(copied / "agents.yaml"))
    assert (done.returncode, done.stdout) == (0, "Nothing is missing.\n")
