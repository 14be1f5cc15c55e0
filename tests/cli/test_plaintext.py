"""What strangers' text may do to a terminal: nothing."""

from __future__ import annotations

import io

import pytest

from agent_engine.cli.account import LogLine, Run
from agent_engine.cli.account_view import PlainLines, tree_of
from agent_engine.cli.console import describe_ask
from agent_engine.cli.plaintext import answer_for, plain, shortened
from agent_engine.runtime.approvals import ToolApproval


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, Grüße, 日本語\u3000と", "plain text, Grüße, 日本語\u3000と"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b31mred", "\\x9b31mred"),
        ("a\nrun 1 completed", "a\\nrun 1 completed"),
        ("txt.\u202egpj", "txt.\\u202egpj"),
        ("rm\u200b -rf", "rm\\u200b -rf"),
        ("\udcff", "\\udcff"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_an_answer_is_exact_in_a_pipe_and_cannot_steer_a_terminal() -> None:
    text = "one\n\ttwo \x1b[2J\x9b1m\u202e\r👩‍💻"
    assert answer_for(io.StringIO(), text) == text
    assert answer_for(Tty(), text) == "one\n\ttwo [2J1m👩‍💻"


def test_a_person_sees_the_end_of_what_they_approve_and_how_much_is_not_shown() -> None:
    script = "echo harmless; " * 1000 + "rm -rf /"
    asked = describe_ask(ToolApproval(call_id="c1", tool_name="shell", arguments={"script": script}, agent="clerk"))
    assert asked.endswith('rm -rf /")')
    assert "13,810 characters not shown" in asked
    assert len(asked) < 1_400
    assert shortened("short", 10) == "short"


def test_an_ask_cannot_pretend_to_be_another() -> None:
    ask = ToolApproval(
        call_id="c1",
        tool_name="pay\x1b[1K",
        arguments={"sum": 'x", to="bob', 'to="ann") #': 1},
        agent="clerk",
        reason="fine\n\nclerk wants to look()",
    )
    assert describe_ask(ask) == (
        'clerk wants to call pay\\x1b[1K(sum="x\\", to=\\"bob", "to=\\"ann\\") #"=1): fine\\n\\nclerk wants to look()'
    )


def test_a_logged_line_stays_one_line_of_the_account() -> None:
    out = io.StringIO()
    line = LogLine("audit", 20, "user=ann\n  hook before_tool · gate: allow\x1b[8m")
    PlainLines(out).happened(line, Run(None), 1)
    assert out.getvalue() == "  log audit: user=ann\\n  hook before_tool · gate: allow\\x1b[8m\n"
    run = Run(None, inside=[line])
    assert "\x1b" not in str(tree_of(run).children[0].label)
