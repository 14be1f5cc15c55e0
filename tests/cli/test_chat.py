"""agentctl chat: piped, and at a terminal as a person types."""

from __future__ import annotations

import io
import sys

import pytest
from tests.cli.office import Terminal, agentctl, cancelled, write_office


@pytest.fixture
def config(tmp_path):
    return write_office(tmp_path)


@pytest.fixture
def console(config):
    opened = Terminal("chat", "--config", config)
    yield opened
    opened.close()


def chat(config, *lines, **more):
    return agentctl(
        "chat", "--config", config, *more.pop("options", ()), stdin="".join(f"{x}\n" for x in lines), **more
    )


def test_answers_are_on_stdout_and_what_happened_on_stderr(config):
    done = chat(config, "What is the status of order A-17?", "What is the status of order B-04?")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("Order A-17 is on its way.") < done.stdout.index("Order B-04 is on its way.")
    assert done.stderr.count("  → clerk: order_status") == 2
    assert "allow" not in done.stderr


def test_hooks_that_refuse_are_shown_and_the_conversation_goes_on(config):
    done = chat(config, "What is the salary of the boss?", "What is the status of order A-17?")
    assert done.returncode == 0
    assert "  hook before_agent · rules.gate: deny: salaries are not discussed here" in done.stderr
    assert "Blocked by policy: salaries are not discussed here." in done.stderr
    assert "Order A-17 is on its way." in done.stdout


def test_a_line_that_is_no_text_is_not_sent_and_the_conversation_goes_on(config, request, monkeypatch):
    lines = b"\xef\xbb\xbfWhat is the status of order A-17?\ncaf\xe9\nWhat is the status of order B-04?\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    done = request.getfixturevalue("agentctl")("chat", "--config", config)
    assert (done.code, done.err.count("→ clerk: order_status")) == (0, 2)
    assert "That line is not UTF-8 text, and was not sent." in done.err
    assert "Order B-04 is on its way." in done.out


def test_every_hook_is_shown_when_asked_for(config):
    done = chat(config, "/hooks", "What is the status of order A-17?", "/nonsense", "/quit", "never sent")
    assert "  hook before_tool · rules.watch: allow" in done.stderr
    assert "There is no /nonsense." in done.stderr
    assert "never sent" not in done.stdout


def test_the_conversation_is_kept_and_can_be_taken_up_again(config):
    script = config.parent / "script.yaml"
    script.write_text("- text: I remember\n  expect: {contains: order A-17}\n")
    chat(config, "What is the status of order A-17?", options=["--session-id", "s1"])
    done = chat(config, "and now?", options=["--session-id", "s1", "--model", f"scripted:{script}"])
    assert "I remember" in done.stdout
    done = chat(config, "and now?", options=["--session-id", "s2", "--model", f"scripted:{script}"])
    assert "I remember" not in done.stdout


def test_a_call_that_needs_approval_is_asked_about(config):
    done = chat(config, "Cancel order A-17", "d", "Cancel order A-17", "o")
    assert done.returncode == 0
    assert done.stderr.count('clerk wants to call cancel_order(number="A-17")') == 2
    assert done.stderr.index("→ clerk: cancel_order") < done.stderr.index("clerk wants to call")
    assert "Order A-17 is cancelled." in done.stdout
    assert cancelled(config) == "A-17"


def test_a_yes_for_the_session_is_not_asked_again(config):
    done = chat(config, "Cancel order A-17", "s", "Cancel order B-04")
    assert done.stderr.count("wants to call cancel_order") == 1
    assert cancelled(config) == "B-04"


def test_either_a_file_or_an_address(config):
    assert agentctl("chat").returncode == 2
    assert agentctl("chat", "--config", config, "--url", "http://127.0.0.1:1").returncode == 2


def test_a_person_can_talk_recall_stop_and_leave(config, console):
    console.wait_for("you ›")
    console.type("What is the status of order A-17?\r")
    console.wait_for("Order A-17 is on its way.")
    console.wait_for("writes nothing of its own.)", times=1)
    console.type("\x1b[A\r")  # the arrow up recalls the line before
    console.wait_for("Order A-17 is on its way.", times=2)
    console.wait_for("writes nothing of its own.)", times=2)

    console.type("Write the slow yearly report.\r")
    console.wait_for("slow_report")
    console.interrupt()  # Ctrl-C stops the answer, not the console
    console.wait_for("Stopped.\nyou ›")

    console.type("\x04")
    assert console.ends() == 0
    assert "Traceback" not in console.screen
