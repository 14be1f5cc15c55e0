"""Command hooks: the decision table row by row, and a real process for whatever only a process can do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.idle_clock import Clock

from agent_engine.hooks import process
from agent_engine.hooks.command import CommandFailure, CommandOutcome, parse_command_output, run_command
from agent_engine.hooks.definition import CommandHook
from agent_engine.hooks.errors import HookExecutionError, HookFailure, HookRegistrationError
from agent_engine.hooks.payloads import BeforeToolInput
from agent_engine.hooks.protocol import KEYS, MAX_ANSWER, read_exit
from agent_engine.hooks.registry import HookRegistry
from agent_engine.hooks.result import Undecided
from agent_engine.hooks.runner import HookRunner
from agent_engine.testing import arun_hook, assert_modified, run_hook

PAYLOAD = BeforeToolInput(tool_name="search", tool_input={"q": "x"}, event_name="before_tool")
NAME = "the hook"

T = TypeVar("T")


def hook(line: str | None = None, **fields: Any) -> CommandHook:
    return CommandHook(event="before_tool", name=NAME, command=line, **fields)


async def run(
    line: str | None = None, payload: Any = PAYLOAD, limit: float = 60.0, cwd: Any = None, **fields: Any
) -> CommandOutcome:
    return await run_command(hook(line, **fields), payload, limit=limit, cwd=None if cwd is None else str(cwd))


async def failure(line: str | None = None, **options: Any) -> CommandFailure:
    with pytest.raises(CommandFailure) as caught:
        await run(line, **options)
    return caught.value


@pytest.fixture(autouse=True)
def time_to_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a killed process may be there for a while."""
    monkeypatch.setattr(process, "_GONE_WITHIN", 60.0)


def script(folder: Path, text: str, name: str = "hook.sh", mode: int = 0o755) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def alive_in_group(group: int) -> bool:
    """Whether a living process (a zombie that waits for init is none) of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return not process._only_zombies(group)


# --- the table, without a process -------------------------------------------------------------------------------------

DENY = '{"decision": "deny", "reason": "policy"}'


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "decision", "reason", "context"),
    [
        (0, "", "", "allow", None, None),
        (0, "\n \t\n", "", "allow", None, None),
        (0, "all fine", "noise", "allow", None, "all fine"),
        (0, "a {not json} inside a line", "", "allow", None, "a {not json} inside a line"),
        (0, '{"decision": "allow", "reason": "ok"}', "", "allow", "ok", None),
        (0, '{"decision": "ask", "reason": "sure?"}', "", "ask", "sure?", None),
        (0, DENY, "", "deny", "policy", None),
        (0, '{"decision": "block", "reason": "policy"}', "", "deny", "policy", None),
        (0, '{"decision": "deny"}', "", "deny", "Denied by hook", None),
        (0, '{"proceed": false, "stop_reason": "enough"}', "", "deny", "enough", None),
        (0, '{"proceed": false}', "", "deny", "Denied by hook", None),
        (0, '{"proceed": false, "decision": "allow"}', "", "deny", "Denied by hook", None),
        (0, '{"proceed": true}', "", "allow", None, None),
        (0, "{}", "", "allow", None, None),
        (0, f"log line\n{DENY}", "", "deny", "policy", "log line"),
        (0, f"log {{x}}\r\n  \t{DENY}\n", "", "deny", "policy", "log {x}"),
        (0, f"\ufeff{DENY}", "", "deny", "policy", None),
        (0, f"log\n\ufeff \u00a0{DENY}", "", "deny", "policy", "log"),
        (0, f"log\n\0\u200b\u2060{DENY}", "", "deny", "policy", "log"),
        (0, f"\x1b[1;39m\x1b[?1034h{DENY}", "", "deny", "policy", "\x1b[1;39m\x1b[?1034h"),
        (0, '{\n  "decision": "deny",\n  "reason": "policy"\n}\n', "", "deny", "policy", None),
        (0, '    {\n      "decision": "deny",\n      "reason": "policy"}', "", "deny", "policy", None),
        (0, 'seen\n{"decision": "allow"}', "", "allow", None, "seen"),
        (0, 'seen\n{"decision": "allow", "additional_context": "more"}', "", "allow", None, "seen\nmore"),
        (2, "", "no way", "deny", "no way", None),
        (2, "said on stdout", "", "deny", "said on stdout", None),
        (2, "out", "err", "deny", "err", None),
        (2, "", "", "deny", "Blocked by hook", None),
        (2, "{}", "", "deny", "{}", None),
        (2, "{not json", "", "deny", "{not json", None),
        (2, '{"decision": "allow"}', "", "deny", '{"decision": "allow"}', None),
        (2, DENY, "err", "deny", "policy", None),
        (2, '{"decision": "deny"}', "err", "deny", "err", None),
        (2, '{"decision": "deny"}', "", "deny", "Blocked by hook", None),
        (1, DENY, "trace", "deny", "policy", None),
        (137, DENY, "", "deny", "policy", None),
        (1, f"log\n{DENY}", "", "deny", "policy", None),
        (1, '{"proceed": false, "stop_reason": "policy"}', "", "deny", "policy", None),
        (1, '{"decision": "deny", "reason": 5}', "", "deny", "Denied by hook", None),
    ],
)
def test_what_a_finished_command_stands_for(
    code: int, stdout: str, stderr: str, decision: str, reason: str | None, context: str | None
) -> None:
    result = read_exit(stdout, stderr, code)

    assert (result.decision, result.reason, result.additional_context) == (decision, reason, context)


@pytest.mark.parametrize(
    ("stdout", "says"),
    [
        ("{not json", "not, with all after it, one JSON object"),
        ("[1,2]", "JSON that is no object"),
        ('"deny"', "JSON that is no object"),
        ("true", "JSON that is no object"),
        ("null", "JSON that is no object"),
        (" 42\n", "JSON that is no object"),
        ("[" * 100_000 + "]" * 100_000, "JSON that is no object"),
        ("1" * 5000, "JSON that is no object"),
        ('{"decision":"DENY"}', "the decision 'DENY'"),
        ('{"decision":"Allow"}', "the decision 'Allow'"),
        ('{"decision": null}', "the decision None"),
        ('{"decision": true}', "the decision True"),
        ('{"decision": ["deny"]}', "the decision ['deny']"),
        ('{"descision":"deny"}', "'descision'"),
        (f"{DENY}\nlog line", "not, with all after it, one JSON object"),
        (f'{DENY}\n{{"decision": "allow"}}', "not, with all after it, one JSON object"),
        (f"log\n{{x\n{DENY}", "not, with all after it, one JSON object"),
        ('{"decision": "allow", "x": NaN}', "NaN, which is no JSON"),
        ('{"decision": "allow", "x": [-Infinity]}', "-Infinity, which is no JSON"),
        ('{"decision": "allow", "decision": "deny"}', "the same key twice"),
        ('{"decision": "deny", "decision": "allow"}', "the same key twice"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "not, with all after it, one JSON object"),
        ('{"decision": "allow", "reason": 5}', "'reason' that is not text"),
        ('{"decision": "modify", "modified_input": [1]}', "'modified_input' that is not an object"),
        ('{"decision": "allow", "suppress_output": "yes"}', "'suppress_output' that is not true or false"),
        ('{"decision": "allow", "proceed": "false"}', "'proceed' that is not true or false"),
        ('{"decision": "allow", "proceed": 0}', "'proceed' that is not true or false"),
        ('{"modified_input": {}, "modified_data": {"a": 1}}', "two names of one thing"),
    ],
)
def test_output_at_exit_0_that_is_neither_text_nor_a_verdict_is_a_failure(stdout: str, says: str) -> None:
    with pytest.raises(HookFailure) as caught:
        read_exit(stdout, "", 0)

    assert says in caught.value.reason
    assert parse_command_output(stdout, "", 0).decision == "deny"


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "reason"),
    [
        (127, "", "not found", "Hook exited with unexpected code 127: not found"),
        (1, "from stdout", "", "Hook exited with unexpected code 1: from stdout"),
        (1, "", "", "Hook exited with unexpected code 1: no output"),
        (1, "{not json", "", "Hook exited with unexpected code 1: {not json"),
        (-9, "", "", "Hook exited with unexpected code -9: no output"),
        (
            127,
            '{"decision": "allow"}',
            "",
            "Hook exited with unexpected code 127 after emitting an allow decision: no stderr",
        ),
        (3, 'x\n{"decision": "allow"}', "e", "Hook exited with unexpected code 3 after emitting an allow decision: e"),
        (3, '{"decision": "ask"}', "e", "Hook exited with unexpected code 3: e"),
    ],
)
def test_an_unexpected_code_is_a_failure_whose_reason_names_it(
    code: int, stdout: str, stderr: str, reason: str
) -> None:
    with pytest.raises(HookFailure) as caught:
        read_exit(stdout, stderr, code)

    assert caught.value.reason == reason
    assert parse_command_output(stdout, stderr, code).reason == reason


def test_every_field_of_a_verdict_is_taken() -> None:
    result = read_exit(
        json.dumps(
            {
                "decision": "modify",
                "reason": "r",
                "modified_input": {"q": "y"},
                "additional_context": "c",
                "suppress_output": True,
                "system_message": "s",
            }
        ),
        "",
        0,
    )

    assert (result.decision, result.reason, result.modified_input) == ("modify", "r", {"q": "y"})
    assert (result.additional_context, result.suppress_output, result.system_message) == ("c", True, "s")
    assert read_exit('{"decision": "allow", "modified_data": {"q": 1}}', "", 0).modified_input == {"q": 1}


def test_an_answer_without_a_decision_is_told_from_a_clear_allow() -> None:
    assert isinstance(read_exit("", "", 0), Undecided)
    assert isinstance(read_exit("text", "", 0), Undecided)
    assert isinstance(read_exit("{}", "", 0), Undecided)
    assert isinstance(read_exit('{"reason": "hm"}', "", 0), Undecided)
    assert not isinstance(read_exit('{"decision": "allow"}', "", 0), Undecided)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
_objects = st.dictionaries(
    st.sampled_from(KEYS) | st.text(max_size=8), _values | st.sampled_from(["deny", "allow"]), max_size=5
)


@given(before=st.text(max_size=20), verdict=_objects, after=st.text(max_size=20), code=st.sampled_from([0, 1, 2, 127]))
def test_no_output_becomes_an_allow_by_accident(before: str, verdict: dict[str, Any], after: str, code: int) -> None:
    stdout = f"{before}\n{json.dumps(verdict)}{after}"

    result = parse_command_output(stdout, "", code)

    assert result.decision in ("allow", "modify", "ask", "deny")
    if result.decision != "deny":
        assert code == 0
        assert verdict.get("decision") not in ("deny", "block")
        assert verdict.get("proceed") is not False
        assert "decision" in verdict or set(verdict) <= set(KEYS)


@given(st.text())
def test_any_text_at_all_has_a_reading(text: str) -> None:
    assert parse_command_output(text, "", 0).decision in ("allow", "modify", "ask", "deny")
    assert parse_command_output(text, "", 2).decision == "deny"
    assert parse_command_output(text, "", 1).decision == "deny"


# --- real processes: how they are called ------------------------------------------------------------------------------


async def test_the_payload_is_one_json_document_on_stdin_and_then_it_is_closed() -> None:
    outcome = await run("cat >&2")

    document = json.loads(outcome.stderr)
    assert document["event_name"] == "before_tool"
    assert document["tool_name"] == "search"
    assert document["tool_input"] == {"q": "x"}
    assert outcome.exit_code == 0
    assert outcome.result.is_allowed()


async def test_a_payload_built_by_hand_is_told_with_the_name_of_its_event() -> None:
    outcome = await run("cat >&2", payload=BeforeToolInput())

    assert json.loads(outcome.stderr)["event_name"] == "before_tool"


async def test_cat_gives_the_payload_back_which_is_no_verdict() -> None:
    problem = await failure("cat")

    assert problem.failure_type == "bad_output"
    assert "without a decision" in problem.reason


async def test_args_are_passed_as_they_are_and_values_never_enter_the_command_line(tmp_path: Path) -> None:
    evil = "$(touch pwned); `touch pwned` && touch pwned"
    program = script(tmp_path, '#!/bin/sh\nprintf "%s\\n" "$@"\n')

    outcome = await run(args=[program, evil, "a b", ""], payload=BeforeToolInput(tool_input={"q": evil}), cwd=tmp_path)

    assert outcome.result.additional_context == f"{evil}\na b"
    assert not (tmp_path / "pwned").exists()


async def test_a_line_is_a_shell_line_and_without_shell_it_is_split_into_words() -> None:
    assert (await run("printf a; printf b")).result.additional_context == "ab"
    assert (await run("printf 'a; printf b'", shell=False)).result.additional_context == "a; printf b"


async def test_it_runs_in_the_folder_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()

    assert (await run("pwd -P", cwd=tmp_path)).result.additional_context == str(tmp_path.resolve())
    assert (await run(args=["pwd", "-P"], cwd=tmp_path)).result.additional_context == str(tmp_path.resolve())
    in_sub = CommandHook(event="before_tool", command="pwd -P", cwd="sub")
    outcome = await run_command(in_sub, PAYLOAD, cwd=str(tmp_path), limit=20)
    assert outcome.result.additional_context == str((tmp_path / "sub").resolve())


async def test_only_the_safe_base_is_inherited_and_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LD_PRELOAD_LIKE", "x")
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("LANG", "C.UTF-8")

    outcome = await run("env", env={"MINE": "1", "HOME": "/elsewhere"}, pass_env=["WANTED", "NOT_SET"])

    seen = dict(line.split("=", 1) for line in outcome.stdout.splitlines())
    assert seen["MINE"] == "1"
    assert seen["HOME"] == "/elsewhere"
    assert seen["WANTED"] == "yes"
    assert seen["LANG"] == "C.UTF-8"
    assert seen["PATH"]
    allowed = {*process.SAFE_ENVIRONMENT, "MINE", "WANTED", "PWD", "OLDPWD", "SHLVL", "_"}
    assert set(seen) <= allowed


# --- real processes: the table ----------------------------------------------------------------------------------------


async def test_real_exit_codes(tmp_path: Path) -> None:
    assert (await run("exit 0")).result.decision == "allow"
    assert (await run("echo no >&2; exit 2")).result.reason == "no"
    assert (await run(f"echo '{DENY}'; exit 7")).result.reason == "policy"
    assert (await failure("exit 1")).reason == "Hook exited with unexpected code 1: no output"
    assert (await failure("echo gone >&2; exit 3")).reason == "Hook exited with unexpected code 3: gone"


async def test_a_program_that_is_missing_or_may_not_run_is_a_failure_with_a_shells_codes(tmp_path: Path) -> None:
    not_executable = script(tmp_path, "#!/bin/sh\nexit 0\n", mode=0o644)
    no_interpreter = script(tmp_path, "#!/no/such/interpreter\n", "odd.sh")
    no_shebang = script(tmp_path, "exit 0\n", "plain.sh")

    for code, options in (
        (127, {"args": ["/no/such/program"]}),
        (127, {"line": "/no/such/program"}),
        (127, {"args": ["no-such-program-anywhere"]}),
        (127, {"args": [no_interpreter]}),
        (126, {"args": [not_executable]}),
        (126, {"line": not_executable}),
        (126, {"args": [str(tmp_path)]}),
    ):
        problem = await failure(**options)
        assert (problem.exit_code, problem.failure_type) == (code, "exit_code"), options
        assert problem.reason.startswith(f"Hook exited with unexpected code {code}: "), options
    assert (await failure(args=[no_shebang])).reason == "Hook could not be started: Exec format error"
    assert "/no/such/folder" in (await failure("true", cwd="/no/such/folder")).reason
    assert not_executable in (await failure("true", cwd=not_executable)).reason


async def test_death_by_signal_is_a_failure_and_counts_128_and_the_signal() -> None:
    problem = await failure("kill -9 $$")

    assert problem.exit_code == 137
    assert problem.reason == "Hook exited with unexpected code 137: no output"
    assert (await run(f"echo '{DENY}'; kill -TERM $$")).result.reason == "policy"


async def test_output_that_is_not_utf_8_is_a_failure_at_exit_0_and_no_way_around_a_deny() -> None:
    problem = await failure("printf 'caf\\351'")

    assert problem.reason == "Hook answered with bytes that are not UTF-8"
    assert (await run("printf 'caf\\351'; exit 2")).result.decision == "deny"
    assert (await run("printf '\\351' >&2")).stderr == "\ufffd"


async def test_more_than_one_mebibyte_of_output_is_a_failure_and_one_is_not() -> None:
    assert len((await run(f"head -c {MAX_ANSWER} /dev/zero | tr '\\0' x")).stdout) == MAX_ANSWER
    problem = await failure(f"head -c {MAX_ANSWER + 1} /dev/zero | tr '\\0' x")
    assert problem.reason == "Hook answered with more than 1,048,576 bytes"
    assert (await run(f"head -c {MAX_ANSWER + 1} /dev/zero | tr '\\0' x; exit 2")).result.decision == "deny"


async def test_a_deny_printed_before_the_limit_is_a_deny_and_anything_else_a_failure(
    tmp_path: Path, clock: Clock
) -> None:
    said = await past_its_limit(run(f"echo '{DENY}'; echo $$ > pid; sleep 600", cwd=tmp_path), tmp_path, clock)
    assert said.result.reason == "policy"
    (tmp_path / "pid").unlink()
    line = 'echo \'{"decision": "allow"}\'; echo $$ > pid; sleep 600'
    problem = await past_its_limit(failure(line, cwd=tmp_path), tmp_path, clock)
    assert (problem.reason, problem.failure_type) == (f"Hook '{NAME}' timed out after 60.0s", "timeout")
    assert '"allow"' in problem.stdout


async def test_an_exit_status_that_another_part_of_the_program_took_is_no_allow() -> None:
    """With SIGCHLD ignored the system reaps children by itself and nobody learns how they ended."""
    code = (
        "import asyncio, signal\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from agent_engine.hooks.command import run_command\n"
        "from agent_engine.hooks.definition import CommandHook\n"
        "from agent_engine.hooks.payloads import BeforeToolInput\n"
        "hook = CommandHook(event='before_tool', command='exit 1', name='h')\n"
        "try:\n"
        "    print(asyncio.run(run_command(hook, BeforeToolInput(), limit=20)).result)\n"
        "except Exception as problem:\n"
        "    print(problem)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert ran.stdout.strip() == "Hook 'h' has no exit code: another part of this program took it", ran.stderr


# --- an interpreter without its script --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"args": ["python3", "gone.py"]},
        {"args": ["/usr/bin/python3.11", "gone.py", "--flag"]},
        {"args": ["sh", "gone.sh"]},
        {"args": ["env", "A=1", "bash", "gone.sh"]},
        {"args": ["/usr/bin/env", "python3", "gone.py"]},
        {"command": "python3 gone.py"},
        {"command": "node gone.js --x"},
        {"command": "perl 'gone gone.pl'"},
        {"command": "A=1 ruby gone.rb"},
        {"command": "exec python3 gone.py"},
        {"command": "bash /tmp"},
        {"command": "python3 gone.py", "shell": False},
    ],
)
def test_an_interpreter_whose_script_is_missing_is_refused_at_registration(fields: dict[str, Any]) -> None:
    with pytest.raises(HookRegistrationError, match=r"cannot open its script"):
        CommandHook(event="before_tool", name=NAME, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"args": ["python3", "-c", "pass"]},
        {"args": ["python3", "-u", "gone.py"]},
        {"command": "python3 -m gone"},
        {"command": "sh -c 'exit 0'"},
        {"command": "python3 gone.py || exit 2"},
        {"command": "python3 $SCRIPT"},
        {"command": "grep python gone"},
        {"command": "python3"},
        {"command": "pythonic gone.py"},
        {"args": ["/bin/echo", "python3", "gone.py"]},
    ],
)
def test_what_the_check_cannot_know_is_let_through(fields: dict[str, Any]) -> None:
    CommandHook(event="before_tool", name=NAME, **fields)


async def test_a_script_that_went_missing_is_a_broken_hook_and_no_refusal(tmp_path: Path) -> None:
    path = script(tmp_path, "exit 0\n", "gate.sh")
    registered = hook(args=["sh", "gate.sh"], cwd=str(tmp_path))
    assert (await run_command(registered, PAYLOAD, limit=20)).result.is_allowed()
    Path(path).unlink()

    with pytest.raises(CommandFailure) as caught:
        await run_command(registered, PAYLOAD, limit=20)

    assert caught.value.failure_type == "missing_script"
    assert caught.value.reason.startswith("Hook exited with unexpected code 2: sh cannot open its script 'gate.sh'")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"args": ["sh", "gate.sh"]}, "gate.sh"),
        ({"args": ["python3", "rules/gate.py", "--strict"]}, "gate.py"),
        ({"args": ["bash", "-euo", "pipefail", "gate.sh"]}, "gate.sh"),
        ({"args": ["python3", "-m", "rules.gate"]}, "rules.gate"),
        ({"args": ["/usr/bin/env", "A=1", "python3", "rules/gate.py"]}, "gate.py"),
        ({"command": "sh ./gate.sh"}, "gate.sh"),
        ({"command": "A=1 /opt/policy/check --key s3cret.txt"}, "check"),
        ({"args": ["sh", "-c", "echo s3cret; exit 2"]}, "sh"),
        ({"args": ["python3"]}, "python3"),
        ({"command": "cat | jq -e .tool_name"}, "cat"),
    ],
)
def test_a_command_is_called_after_what_it_runs(
    fields: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules").mkdir()
    for path in ("gate.sh", "rules/gate.py"):
        (tmp_path / path).touch()
    monkeypatch.chdir(tmp_path)
    made = CommandHook(event="before_tool", **fields)
    assert made.name == name
    assert made.id.startswith(f"before_tool:{name}:")
    assert CommandHook(event="before_tool", name="mine", **fields).name == "mine"


def test_what_cannot_work_is_refused_at_registration() -> None:
    for fields, says in (
        ({"command": "a\0b"}, "NUL"),
        ({"command": "true", "env": {"A=B": "1"}}, "names of variables"),
        ({"command": "true", "env": {"A": "1\0"}}, "NUL"),
        ({"args": [" "]}, "nothing to run"),
        ({"args": ["sh", 5]}, "Hook 'command' .*list of words"),
        ({"args": "sh gate.sh"}, "list of words"),
        ({"command": ["sh", "x"]}, r"one line of text; a list of words is args=\[…\]"),
        ({"command": "echo 'open", "shell": False}, "cannot be split"),
    ):
        with pytest.raises(HookRegistrationError, match=says):
            CommandHook(event="before_tool", **fields)


# --- pipes ------------------------------------------------------------------------------------------------------------

BIG = BeforeToolInput(tool_input={"q": "x" * 50_000_000})


async def test_50_mb_for_a_child_that_never_reads_is_no_deadlock() -> None:
    assert (await run("exit 0", payload=BIG)).exit_code == 0
    assert (await run("sleep 0.2; echo no >&2; exit 2", payload=BIG)).result.reason == "no"
    assert (await failure("sleep 60", payload=BIG, limit=0.3)).failure_type == "timeout"


async def test_50_mb_on_both_outputs_is_read_and_kept_within_bounds() -> None:
    problem = await failure("head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2; echo done >&2", limit=60)

    assert problem.reason.startswith("Hook answered with more than")
    assert len(problem.stdout) == MAX_ANSWER
    assert len(problem.stderr) == 64 << 10


async def test_50_mb_in_and_out_at_once() -> None:
    assert (await failure("cat", payload=BIG, limit=60)).reason.startswith("Hook answered with more than")


async def test_a_child_that_closes_its_pipes_and_lives_on_is_waited_for() -> None:
    assert (await failure("exec <&- >&- 2>&-; sleep 0.2; exit 4", payload=BIG)).exit_code == 4


# --- nobody is left ---------------------------------------------------------------------------------------------------


async def group_of(pid_file: Path) -> int:
    while not pid_file.exists() or not pid_file.read_text().strip():
        await asyncio.sleep(0.01)
    return int(pid_file.read_text())


async def past_its_limit(work: Coroutine[Any, Any, T], folder: Path, clock: Clock) -> T:
    """What comes of a command whose limit of a minute is over once it has written its pid."""
    task = asyncio.create_task(work)
    await group_of(folder / "pid")
    clock.put_forward(60)
    return await task


@pytest.mark.parametrize("trap", ["", "trap '' TERM HUP INT; "])
async def test_at_the_limit_the_whole_group_is_killed(tmp_path: Path, trap: str, clock: Clock) -> None:
    line = f"{trap}echo $$ > pid; sleep 600 & sleep 600"

    problem = await past_its_limit(failure(line, cwd=tmp_path), tmp_path, clock)

    assert problem.failure_type == "timeout"
    assert not alive_in_group(await group_of(tmp_path / "pid"))


async def test_what_a_command_leaves_in_the_background_does_not_outlive_it(tmp_path: Path) -> None:
    outcome = await run("echo $$ > pid; sleep 600 & sleep 600 & echo hello", cwd=tmp_path)

    assert outcome.result.additional_context == "hello"
    assert not alive_in_group(await group_of(tmp_path / "pid"))


async def test_a_grandchild_in_a_session_of_its_own_does_not_hold_the_answer_back(tmp_path: Path) -> None:
    if subprocess.run(["which", "setsid"], capture_output=True).returncode:
        pytest.fail("setsid (util-linux) is needed")
    outcome = await run(
        "setsid sh -c 'echo $$ > pid; sleep 600' & while [ ! -s pid ]; do :; done; echo hello", cwd=tmp_path
    )

    assert outcome.result.additional_context == "hello"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(await group_of(tmp_path / "pid"), signal.SIGKILL)


async def test_cancellation_kills_the_group_and_is_not_swallowed(tmp_path: Path) -> None:
    task = asyncio.create_task(run("echo $$ > pid; sleep 60 & sleep 60", cwd=tmp_path))
    group = await group_of(tmp_path / "pid")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not alive_in_group(group)


async def test_a_second_cancellation_does_not_cut_the_clean_up_short(tmp_path: Path) -> None:
    task = asyncio.create_task(run("echo $$ > pid; sleep 60 & sleep 60", cwd=tmp_path))
    group = await group_of(tmp_path / "pid")

    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not alive_in_group(group)


async def test_a_coroutine_that_nobody_drives_any_more_still_kills_its_process(tmp_path: Path) -> None:
    work = run("echo $$ > pid; sleep 60", cwd=tmp_path)
    work.send(None)
    group = await group_of(tmp_path / "pid")

    work.close()

    assert not alive_in_group(group)


def pidfds() -> int:
    """How many descriptors of processes are open."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them, for one
            found += "pidfd" in os.readlink(f"/proc/self/fd/{fd}")
    return found


@pytest.mark.parametrize("cancelled", [False, True])
async def test_one_that_nobody_drives_any_more_while_its_group_ends_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """Its number may soon be another group's, which is not to be killed when the interpreter exits."""
    lives = process._Exchange._lives
    monkeypatch.setattr(process._Exchange, "_lives", lambda exchange: True)
    before = pidfds()
    work = run("echo $$ > pid; exec sleep 600", cwd=tmp_path)
    awaited: Any = work.send(None)
    group = await group_of(tmp_path / "pid")
    assert group in process.live_groups
    assert pidfds() == before + 1
    if cancelled:
        work.throw(asyncio.CancelledError())
    else:
        os.killpg(group, signal.SIGKILL)
        while not awaited.done():
            await asyncio.sleep(0.01)
        work.send(None)

    monkeypatch.setattr(process._Exchange, "_lives", lives)
    work.close()

    assert group not in process.live_groups
    assert pidfds() == before
    assert not alive_in_group(group)


def test_a_loop_that_ends_with_a_command_running_leaves_nobody(tmp_path: Path) -> None:
    async def main() -> int:
        asyncio.get_running_loop().create_task(run("echo $$ > pid; sleep 60", cwd=tmp_path))
        return await group_of(tmp_path / "pid")

    assert not alive_in_group(asyncio.run(main()))


def test_an_interpreter_that_exits_in_the_middle_takes_its_commands_along(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, pathlib, threading, time\n"
        "from agent_engine.hooks.process import run_process, safe_environment\n"
        "line = ['sh', '-c', 'echo $$ > pid; sleep 60']\n"
        "work = lambda: asyncio.run(run_process(line, environment=safe_environment()))\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "while not os.path.exists('pid') or not pathlib.Path('pid').read_text().strip(): time.sleep(0.01)\n"
        "if os.fork() == 0:\n"
        "    raise SystemExit(0)\n"
        "os.wait()\n"
        "os.killpg(int(pathlib.Path('pid').read_text()), 0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0, ran.stderr
    group = int((tmp_path / "pid").read_text())
    while alive_in_group(group):  # it was killed, and dies in its own time
        time.sleep(0.01)


async def test_no_descriptor_task_thread_or_child_is_left_after_many_of_all_kinds() -> None:
    async def one(number: int) -> None:
        with contextlib.suppress(CommandFailure, asyncio.CancelledError):
            if number % 4 == 0:
                await run("sleep 30 & exit 0")
            elif number % 4 == 1:
                await run("sleep 30", limit=0.05)
            elif number % 4 == 2:
                task = asyncio.create_task(run("sleep 30"))
                await asyncio.sleep(0.02)
                task.cancel()
                await task
            else:
                await run("/no/such/program")

    await one(0)
    gc.collect()
    files, threads, tasks = os.listdir("/proc/self/fd"), threading.active_count(), asyncio.all_tasks()
    children = own_children()
    for _ in range(4):
        await asyncio.gather(*(one(number) for number in range(12)))
    gc.collect()

    # What earlier tests of this process have left may end meanwhile: a connection, an idle thread.
    assert set(os.listdir("/proc/self/fd")) <= set(files)
    assert threading.active_count() <= threads
    assert asyncio.all_tasks() == tasks
    assert own_children() <= children  # other tests of this process may have servers of their own


def own_children() -> set[str]:
    """The children of every thread of this process, zombies included."""
    lists = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return {child for listed in lists for child in listed}


async def test_orphans_are_reaped_where_they_become_children_of_this_process() -> None:
    """As the first process of a container does: it adopts what its hooks leave behind."""
    code = (
        "import asyncio, ctypes, os\n"
        "assert ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) == 0\n"
        "from agent_engine.hooks.process import run_process, safe_environment\n"
        "line = 'sleep 60 & sleep 60 & echo hi'\n"
        "print(asyncio.run(run_process(['sh', '-c', line], environment=safe_environment())).stdout)\n"
        "try:\n"
        "    print(os.waitpid(-1, os.WNOHANG))\n"
        "except ChildProcessError:\n"
        "    print('no child')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert ran.stdout.splitlines() == ["b'hi\\n'", "no child"], ran.stderr


# --- loops and threads ------------------------------------------------------------------------------------------------


def test_it_works_on_a_loop_of_any_thread() -> None:
    results: list[str | None] = []

    def work() -> None:
        results.append(asyncio.run(run("echo from a thread")).result.additional_context)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert results == ["from a thread"] * 4


async def test_fifty_at_once_are_independent() -> None:
    same = hook("cat >&2; exit 2")

    outcomes = await asyncio.gather(
        *(run_command(same, BeforeToolInput(call_id=str(number)), limit=60) for number in range(50))
    )

    assert [json.loads(outcome.result.reason or "")["call_id"] for outcome in outcomes] == [str(n) for n in range(50)]


async def test_where_the_system_has_no_descriptor_for_a_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError("not on this system")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    threads = threading.active_count()

    assert (await run("echo fine; sleep 600 &")).result.additional_context == "fine"
    assert (await failure("exit 3")).exit_code == 3
    late = failure("echo $$ > pid; sleep 600", cwd=tmp_path)
    assert (await past_its_limit(late, tmp_path, clock)).failure_type == "timeout"
    assert not alive_in_group(await group_of(tmp_path / "pid"))
    while threading.active_count() > threads:
        await asyncio.sleep(0.01)


# --- payloads that JSON cannot carry ----------------------------------------------------------------------------------


async def test_a_payload_without_a_json_form_is_a_failure_that_names_the_field() -> None:
    problem = await failure("exit 0", payload=BeforeToolInput(tool_input={"rows": [1, {"x": float("nan")}]}))

    assert problem.failure_type == "no_json_form"
    assert problem.reason == f"Hook '{NAME}' was not run: tool_input['rows'][1]['x'] is nan, which JSON cannot carry"


async def test_a_20_mb_payload_arrives_whole() -> None:
    payload = BeforeToolInput(tool_input={"q": "é" * 10_000_000})

    outcome = await run("echo bytes: $(wc -c)", payload=payload)

    assert int((outcome.result.additional_context or "").split()[-1]) > 20_000_000


# --- through the dispatcher: a broken hook and a refusal are told apart -----------------------------------------------

BROKEN = {
    "exit 1": {"command": "exit 1"},
    "missing program": {"args": ["/no/such/program"]},
    "killed": {"command": "kill -9 $$"},
    "half an object": {"command": "echo '{not json'"},
    "a list": {"command": "echo '[1,2]'"},
    "an unknown word": {"command": """echo '{"decision":"DENY"}'"""},
    "a deny and then a log line": {"command": f"echo '{DENY}'; echo log"},
    "a deny and then an allow": {"command": f"echo '{DENY}'; echo '{{\"decision\": \"allow\"}}'"},
    "a misspelt key": {"command": """echo '{"descision":"deny"}'"""},
    "time-out": {"command": "sleep 60", "timeout": 0.2},
}
REFUSING = {
    "exit 2": {"command": "echo policy >&2; exit 2"},
    "an empty object, then exit 2": {"command": "echo '{}'; echo policy >&2; exit 2"},
    "a log line, then a deny": {"command": f"echo log; echo '{DENY}'"},
    "an indented deny": {"command": f"echo '   {DENY}'"},
    "a deny and exit 1": {"command": f"echo '{DENY}'; exit 1"},
}


async def verdict_of(fields: dict[str, Any], **more: Any) -> Any:
    registry = HookRegistry()
    registry.register(CommandHook(event="before_tool", name=NAME, **fields, **more))
    return await arun_hook(registry, "before_tool", tool_name="t")


@pytest.mark.parametrize("what", BROKEN)
async def test_a_broken_command_refuses_and_is_known_to_be_broken(what: str) -> None:
    verdict = await verdict_of(BROKEN[what])

    assert verdict.denied
    assert verdict.broke
    assert verdict.public_reason is None
    assert (await verdict_of(BROKEN[what], failure_policy="warn")).decision == "allow"
    with pytest.raises(HookExecutionError):
        await verdict_of(BROKEN[what], failure_policy="fail")


@pytest.mark.parametrize("what", REFUSING)
@pytest.mark.parametrize("policy", ["fail", "deny", "warn"])
async def test_a_refusal_is_a_refusal_under_every_policy(what: str, policy: str) -> None:
    verdict = await verdict_of(REFUSING[what], failure_policy=policy)

    assert verdict.denied
    assert not verdict.broke
    assert verdict.public_reason == "policy"


async def test_a_script_without_execute_bit_or_gone_since_is_a_broken_hook(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/bin/sh\nexit 0\n", mode=0o644)
    assert (await verdict_of({"args": [path]})).broke
    gone = CommandHook(event="before_tool", name=NAME, command=f"sh {path}")
    assert (await arun_hook(gone, "before_tool")).decision == "allow"
    Path(path).unlink()

    verdict = await arun_hook(gone, "before_tool")

    assert (verdict.denied, verdict.broke) == (True, True)


def test_the_rows_of_a_runner_tell_output_code_and_error(tmp_path: Path) -> None:
    registry = HookRegistry()
    registry.register_command("before_tool", "pwd -P; echo e >&2; exit 3", name="broken")
    registry.register_command("before_tool", "echo fine", name="healthy")

    rows = HookRunner(registry, cwd=str(tmp_path)).execute_sync("before_tool", {"tool_name": "t"})

    broken, healthy = sorted(rows, key=lambda row: row.hook_name)
    assert (broken.success, broken.stderr, broken.exit_code) == (False, "e\n", 3)
    assert broken.stdout.strip() == str(tmp_path.resolve())
    assert broken.error == "Hook exited with unexpected code 3: e"
    assert HookRunner.get_blocking_reason(rows) == broken.error
    assert (healthy.success, healthy.exit_code, HookRunner.aggregate_context(rows)) == (True, 0, "fine")


async def test_a_sequential_command_changes_what_it_may_and_nothing_else() -> None:
    rewrite = """echo '{"decision": "modify", "modified_input": {"q": "[masked]"}}'"""
    registry = HookRegistry()
    registry.register_command("before_tool", rewrite, sequential=True)

    verdict = await arun_hook(registry, "before_tool", tool_input={"q": "secret", "n": 1})

    assert_modified(verdict, tool_input={"q": "[masked]", "n": 1})
    registry.register_command("after_agent", """echo '{"modified_input": {"prompt": "other"}}'""")
    assert (await arun_hook(registry, "after_agent")).broke


async def test_a_command_at_a_managed_point_changes_the_context() -> None:
    registry = HookRegistry()
    registry.register_command("before_mcp_request", """echo '{"modified_input": {"headers": {"X-Team": "a"}}}'""")
    registry.register_command("transform_tool_result", "sed 's/secret/[masked]/' >/dev/null; exit 2")

    verdict = await arun_hook(registry, "before_mcp_request", server_id="s")

    assert dict(verdict.payload.headers) == {"X-Team": "a"}
    assert (await arun_hook(registry, "transform_tool_result", result="x")).denied


def test_a_command_hears_of_an_error_by_its_type_and_of_a_result_by_its_text() -> None:
    registry = HookRegistry()
    registry.register_command("on_run_error", "cat >&2")
    registry.register_command("transform_tool_result", 'cat >&2; echo \'{"modified_input": {"result": "short"}}\'')

    (row,) = HookRunner(registry).execute_sync("on_run_error", ValueError("user input"))
    assert json.loads(row.stderr) == {"error_type": "ValueError", "event_name": "on_run_error"}
    (row,) = HookRunner(registry).execute_sync("transform_tool_result", {"result": "long"})
    assert json.loads(row.stderr)["result"] == "long"
    assert run_hook(registry, "transform_tool_result", result="long").payload.result == "short"


async def test_silence_is_no_yes_where_leave_is_asked_for() -> None:
    for line, decision in (
        ("exit 0", "ask"),
        ("echo sure", "ask"),
        ("echo '{}'", "ask"),
        ("""echo '{"decision": "allow"}'""", "allow"),
        ("exit 2", "deny"),
        ("exit 1", "deny"),
    ):
        registry = HookRegistry()
        registry.register_command("on_permission_ask", line)
        assert (await arun_hook(registry, "on_permission_ask", tool_name="t")).decision == decision, line


@pytest.mark.parametrize("sequential", [True, False])
async def test_a_dispatch_that_is_cancelled_leaves_no_process(tmp_path: Path, sequential: bool) -> None:
    registry = HookRegistry()
    registry.register_command(
        "before_tool", f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 60 & sleep 60", sequential=sequential
    )
    task = asyncio.create_task(arun_hook(registry, "before_tool"))
    group = await group_of(tmp_path / "pid")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not alive_in_group(group)


@pytest.mark.parametrize("sequential", [True, False])
async def test_a_dispatch_is_back_at_the_limit_with_nobody_left(tmp_path: Path, sequential: bool, clock: Clock) -> None:
    registry = HookRegistry()
    registry.register_command(
        "before_tool",
        f"echo $$ > {tmp_path}/pid; sleep 600 & sleep 600",
        sequential=sequential,
        timeout=60,
        name="slow",
    )

    verdict = await past_its_limit(arun_hook(registry, "before_tool"), tmp_path, clock)

    assert (verdict.denied, verdict.broke, verdict.reason) == (True, True, "Hook 'slow' timed out after 60s")
    assert not alive_in_group(await group_of(tmp_path / "pid"))
