"""``agentctl hooks`` and ``agentctl memory-hooks``, as a person calls them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agent_engine.testing import fresh_default_registry

Agentctl = Callable[..., Any]

MODULE = """
from agent_engine.hooks import HookRegistry, HookResult, add_hook

@add_hook("before_tool", matcher="delete_*")
def block_delete(payload):
    return "Delete operations are blocked"

@add_hook("before_tool", sequential=True, priority=10)
def mask(payload):
    if "secret" in str(payload.tool_input):
        return HookResult.modify(text="[masked]")

@add_hook("before_tool", matcher="ask_*")
def ask(payload):
    return HookResult.ask("sure?")

@add_hook("after_tool")
def broken(payload):
    raise KeyError("user text")

@add_hook("before_llm", failure_policy="fail", name="strict")
def strict(payload):
    raise KeyError("user text")

own = HookRegistry()
own.register_command("before_tool", "echo seen; echo note >&2", name="cmd")
narrow = HookRegistry()

def of_ann(run):
    return run.user_id == "ann"

narrow.register_function(
    "before_tool", mask, matcher="write_*", agents=["clerk", "cook"], servers=["wiki"], when=of_ann, name="narrow"
)
not_one = 5
"""

YAML = """
hooks:
  before_tool:
    - ref: my_gate:check
      name: gate
      matcher: "write_*"
    - command: "cat > /dev/null; exit 2"
      name: shell
      matcher: rm
"""

GATE = """
def check(event):
    if event.payload.tool_input.get("path") == "/etc":
        return "not there"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of hooks and a YAML file, as the current one."""
    (tmp_path / "my_cli_hooks.py").write_text(MODULE)
    (tmp_path / "my_gate.py").write_text(GATE)
    (tmp_path / "agents.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with fresh_default_registry():
        yield tmp_path
    for name in ("my_cli_hooks", "my_gate", "my_broken"):
        sys.modules.pop(name, None)


def test_list_shows_hooks_in_the_order_they_run_and_where_they_were_declared(place: Path, agentctl: Agentctl) -> None:
    done = agentctl("hooks", "list", "--import", "my_cli_hooks")

    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["event", "hook", "type", "mode", "prio", "for", "on", "failure", "declared", "at"]
    order = [line.split()[1] for line in lines[1:]]
    assert order.index("mask") < order.index("block_delete")
    assert "my_cli_hooks.py:4" in done.out
    rows = json.loads(agentctl("hooks", "list", "--import", "my_cli_hooks:own", "--event", "before_tool", "--json").out)
    assert [row["name"] for row in rows] == ["mask", "block_delete", "ask", "cmd"]
    assert (rows[0]["sequential"], rows[0]["priority"], rows[3]["type"]) == (True, 10, "command")


def test_list_tells_whom_a_hook_is_for(place: Path, agentctl: Agentctl) -> None:
    said = agentctl("hooks", "list", "--import", "my_cli_hooks:narrow", "--event", "before_tool").out

    assert "write_*; agents clerk, cook; servers wiki; when of_ann" in said


def test_a_yaml_file_is_listed_too(place: Path, agentctl: Agentctl) -> None:
    done = agentctl("hooks", "list", "--config", "agents.yaml")

    assert done.code == 0
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == ["gate", "shell"]
    assert "agents.yaml:4" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--set", "tool_name=delete_file"], 5, "before_tool: deny in"),
        (["--set", "tool_name=delete_file"], 5, "Delete operations are blocked"),
        (["--target", "delete_file"], 5, "Delete operations are blocked"),
        ([], 0, "before_tool: allow in"),
        (["--set", "tool_input.text=a secret"], 0, 'tool_input.text\n  - "a secret"\n  + "[masked]"'),
        (["--set", "tool_name=ask_me"], 3, "before_tool: ask in"),
    ],
)
def test_test_shows_decision_change_and_time_and_says_it_by_its_code(
    place: Path, agentctl: Agentctl, arguments: list[str], code: int, says: str
) -> None:
    done = agentctl("hooks", "test", "before_tool", "--import", "my_cli_hooks", *arguments)

    assert done.code == code
    assert says in done.out
    assert " ms" in done.out


def test_a_broken_hook_is_told_from_a_refusal(place: Path, agentctl: Agentctl) -> None:
    done = agentctl("hooks", "test", "after_tool", "--import", "my_cli_hooks")
    assert done.code == 4
    assert "after_tool: deny (a hook broke)" in done.out
    assert "Hook 'broken' raised: KeyError" in done.out

    done = agentctl("hooks", "test", "before_llm", "--import", "my_cli_hooks")
    assert done.code == 4
    assert "before_llm: failed in" in done.out
    assert "Hook 'strict' failed at before_llm: KeyError" in done.out


def test_the_payload_comes_from_a_file_or_stdin(
    place: Path, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "payload.json").write_text(
        '{"event_name": "before_tool", "tool_name": "write_file", "tool_input": {"path": "/etc"}}'
    )
    done = agentctl("hooks", "test", "before_tool", "--config", "agents.yaml", "--payload", "payload.json")
    assert (done.code, "not there" in done.out) == (5, True)

    done = agentctl(
        "hooks", "test", "before_tool", "-c", "agents.yaml", "-p", "payload.json", "--set", "tool_input.path=/tmp"
    )
    assert done.code == 0

    monkeypatch.setattr(sys, "stdin", io.StringIO('{"tool_name": "rm"}'))
    done = agentctl("hooks", "test", "before_tool", "--config", "agents.yaml", "--payload", "-")
    assert (done.code, "Blocked by hook" in done.out) == (5, True)


def test_a_payload_file_may_begin_with_a_byte_order_mark_and_is_named_where_it_is_no_payload(
    place: Path, agentctl: Agentctl
) -> None:
    trial = ("hooks", "test", "before_tool", "--config", "agents.yaml", "--payload", "payload.json")
    for content, code, said in (
        (b'\xef\xbb\xbf{"tool_name": "rm"}', 5, "Blocked by hook"),
        (b'{"tool_name": "caf\xe9"}', 1, "payload.json is not UTF-8 text: byte 18"),
        (b'{"tool_input": 5}', 2, "tool_input at before_tool is a dict, not int"),
    ):
        (place / "payload.json").write_bytes(content)
        done = agentctl(*trial)
        assert (done.code, said in done.out + done.err) == (code, True)


def test_as_json(place: Path, agentctl: Agentctl) -> None:
    done = agentctl(
        "hooks", "test", "before_tool", "--import", "my_cli_hooks", "--set", "tool_input.text=secret", "--json"
    )

    found = json.loads(done.out)
    assert (done.code, found["decision"], found["broke"]) == (0, "modify", False)
    assert found["changes"] == [{"field": "tool_input.text", "before": "secret", "after": "[masked]"}]
    assert [(hook["name"], hook["decision"], hook["changed"]) for hook in found["hooks"]] == [
        ("mask", "modify", ["tool_input"])
    ]


def test_run_fires_one_hook_alone_whatever_its_matcher(place: Path, agentctl: Agentctl) -> None:
    done = agentctl("hooks", "run", "block_delete", "--import", "my_cli_hooks")
    assert (done.code, "Delete operations are blocked" in done.out) == (5, True)
    assert "mask" not in done.out

    done = agentctl("hooks", "run", "cmd", "--import", "my_cli_hooks:own")
    assert (done.code, "added for the model: seen" in done.out) == (0, True)

    done = agentctl("hooks", "run", "gate", "--config", "agents.yaml", "--set", "tool_input.path=/etc")
    assert (done.code, "not there" in done.out) == (5, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["list"], 2, "Say which hooks: --config FILE, or --import MODULE."),
        (["list", "--import", "no_such_module"], 1, "The module 'no_such_module' cannot be found from"),
        (["list", "--import", "my_broken"], 1, "Importing my_broken raised ZeroDivisionError"),
        (["list", "--import", "my_cli_hooks:not_one"], 1, "my_cli_hooks:not_one is no HookRegistry; give"),
        (["list", "--config", "gone.yaml"], 1, "gone.yaml"),
        (["list", "--import", "my_cli_hooks", "--event", "befor_tool"], 2, "Did you mean 'before_tool'?"),
        (["test", "befor_tool", "--import", "my_cli_hooks"], 2, "Did you mean 'before_tool'?"),
        (["test", "before_tool", "--import", "my_cli_hooks", "--payload", "gone.json"], 1, "gone.json cannot be read"),
        (["test", "before_tool", "--import", "my_cli_hooks", "--payload", "my_gate.py"], 1, "my_gate.py is not JSON"),
        (["test", "before_tool", "--import", "my_cli_hooks", "--payload", "list.json"], 1, "holds no JSON object"),
        (
            ["test", "before_tool", "--import", "my_cli_hooks", "--payload", "other.json"],
            1,
            "is a payload of after_tool",
        ),
        (["test", "before_tool", "--import", "my_cli_hooks", "--set", "x"], 2, "is not FIELD=VALUE"),
        (["test", "before_tool", "--import", "my_cli_hooks", "--set", "tool_nme=x"], 2, "did you mean 'tool_name'?"),
        (["test", "before_tool", "--import", "my_cli_hooks", "--set", "tool_name.x=1"], 2, "tool_name is no object"),
        (
            ["test", "before_tool", "--import", "my_cli_hooks", "--set", "tool_name=5"],
            2,
            "tool_name at before_tool is text",
        ),
        (["test", "before_tool", "--import", "my_cli_hooks", "--payload", "deep.json"], 1, "deep.json is not JSON"),
        (["run", "nobody", "--import", "my_cli_hooks"], 2, "There is no enabled hook 'nobody' (there are:"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_a_code(
    place: Path, agentctl: Agentctl, arguments: list[str], code: int, says: str
) -> None:
    (place / "my_broken.py").write_text("1 / 0")
    (place / "deep.json").write_text("[" * 100_000)
    (place / "list.json").write_text("[]")
    (place / "other.json").write_text('{"event_name": "after_tool"}')

    done = agentctl("hooks", *arguments)

    assert done.code == code
    assert says in done.err
    assert "Traceback" not in done.err


def test_two_hooks_of_one_name_need_an_id(place: Path, agentctl: Agentctl) -> None:
    (place / "my_gate.py").write_text(
        "from agent_engine.hooks import add_hook\n"
        "add_hook('before_tool', lambda p: None, name='same')\n"
        "add_hook('after_tool', lambda p: None, name='same', id='mine')\n"
    )

    done = agentctl("hooks", "run", "same", "--import", "my_gate")
    assert (done.code, "2 hooks are called 'same'" in done.err) == (2, True)
    assert agentctl("hooks", "run", "same", "--import", "my_gate", "--event", "after_tool").code == 0
    assert agentctl("hooks", "run", "mine", "--import", "my_gate").code == 0


def test_nobody_listens(place: Path, agentctl: Agentctl) -> None:
    done = agentctl("hooks", "test", "session_start", "--import", "my_cli_hooks")

    assert (done.code, done.out.strip()) == (0, "No hook listens to session_start for this payload.")


def test_the_schemas_are_printed(agentctl: Agentctl) -> None:
    one = json.loads(agentctl("hooks", "schema", "before_tool").out)
    assert one["title"] == "BeforeToolInput"
    assert json.loads(agentctl("hooks", "schema", "decision").out)["title"] == "Decision"
    for schema in json.loads(agentctl("hooks", "schema").out).values():
        Draft202012Validator.check_schema(schema)
    assert agentctl("hooks", "schema", "nonsense").code == 2


@pytest.mark.parametrize(
    "event", ["on_run_error", "on_run_start", "before_mcp_request", "transform_tool_result", "notification"]
)
def test_every_kind_of_event_can_be_tried(place: Path, agentctl: Agentctl, event: str) -> None:
    (place / "my_gate.py").write_text(f"from agent_engine.hooks import add_hook\nadd_hook({event!r}, lambda p: p)\n")

    done = agentctl("hooks", "test", event, "--import", "my_gate")

    assert (done.code, f"{event}: allow in" in done.out) == (0, True)


# --- memory-hooks -----------------------------------------------------------------------------------------------------


def test_memory_hooks_from_init_to_list_and_stats(
    tmp_path: Path, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = agentctl("memory-hooks", "list")
    assert (empty.code, empty.out, "memory-hooks init" in empty.err) == (0, "", True)

    done = agentctl("memory-hooks", "init")
    assert (done.code, done.out) == (0, f"Wrote {tmp_path}/.agent_engine/hooks.json\n")
    again = agentctl("memory-hooks", "init")
    assert (again.code, "--force writes over it" in again.err) == (1, True)
    assert agentctl("memory-hooks", "init", "--force").code == 0

    listed = agentctl("memory-hooks", "list", "--workspace", tmp_path)
    assert listed.out.splitlines() == [
        "post_write_code",
        "  true  (30 s)",
        "pre_run_command",
        "  cat > /dev/null  (10 s, blocks on failure)",
    ]
    assert "pre_run_command" in json.loads(agentctl("memory-hooks", "list", "--json").out)
    stats = agentctl("memory-hooks", "stats")
    assert "hooks    2" in stats.out
    assert json.loads(agentctl("memory-hooks", "stats", "--json").out)["total_hooks"] == 2


def test_a_broken_file_of_memory_hooks_is_one_sentence(tmp_path: Path, agentctl: Agentctl) -> None:
    (tmp_path / ".agent_engine").mkdir()
    (tmp_path / ".agent_engine" / "hooks.json").write_text('{"hooks": {"pre_wite_code": "x"}}')

    for command in ("list", "stats"):
        done = agentctl("memory-hooks", command, "-w", tmp_path)
        assert (done.code, "did you mean 'pre_write_code'?" in done.err) == (1, True)
    assert agentctl("memory-hooks", "init", "-w", tmp_path, "--force").code == 0
    assert agentctl("memory-hooks", "list", "-w", tmp_path).code == 0


def test_a_file_where_the_folder_of_memory_hooks_would_be_is_told(tmp_path: Path, agentctl: Agentctl) -> None:
    (tmp_path / ".agent_engine").touch()
    done = agentctl("memory-hooks", "init", "-w", tmp_path)
    assert (done.code, "cannot be written" in done.err, "--force" in done.err) == (1, True, False)


def test_a_trial_marks_the_hooks_that_count_for_nothing(place: Path, agentctl: Agentctl) -> None:
    (place / "rehearsal.py").write_text(
        "from agent_engine.hooks import add_hook\n"
        "add_hook('before_tool', lambda payload: 'no', shadow=True, sequential=True, name='rule')\n"
        "add_hook('before_tool', lambda payload: 1 / 0, observe=True, name='look')\n"
    )
    done = agentctl("hooks", "test", "before_tool", "--import", "rehearsal")
    rule, look = (line.split() for line in done.out.splitlines()[1:3])
    assert (done.code, rule[:5]) == (0, ["rule", "in", "order,", "shadow", "deny"])
    assert look[:4] == ["look", "parallel,", "observe", "failed"]
