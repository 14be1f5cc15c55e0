"""HooksManager: what the file means, what runs on execute, and that nothing runs by itself."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_engine.hooks import GuardrailBlocked, HookResult
from agent_engine.hooks.definition import is_async_callable
from agent_engine.memory.hooks_config import EVENTS
from agent_engine.memory.hooks_manager import HooksConfigError, HooksManager, create_hooks_manager


def manager(folder: Path, hooks: Any = None, **top: Any) -> HooksManager:
    if hooks is not None or top:
        (folder / ".agent_engine").mkdir(exist_ok=True)
        (folder / ".agent_engine" / "hooks.json").write_text(json.dumps({"hooks": hooks or {}, **top}))
    return HooksManager(folder)


def test_the_ten_events() -> None:
    assert EVENTS == (
        "pre_read_code",
        "post_read_code",
        "pre_write_code",
        "post_write_code",
        "pre_run_command",
        "post_run_command",
        "pre_user_prompt",
        "post_user_prompt",
        "pre_mcp_tool_use",
        "post_mcp_tool_use",
    )


def test_without_a_file_there_is_nothing_to_run(tmp_path: Path) -> None:
    made = create_hooks_manager(tmp_path, verbose=1)

    assert made.verbose == 1
    assert not made.has_hooks()
    result = made.execute("pre_write_code", {"path": "a.py"})
    assert (result.success, result.blocked, result.reports) == (True, False, [])
    assert not (tmp_path / ".agent_engine").exists()


def test_nothing_runs_before_execute_is_called(tmp_path: Path) -> None:
    made = manager(tmp_path, {"pre_write_code": "touch ran"})
    assert made.has_hooks("pre_write_code")
    made.get_stats()
    made.list_hooks()
    made.reload()
    assert not (tmp_path / "ran").exists()

    assert made.execute("pre_write_code").success
    assert (tmp_path / "ran").exists()


def test_every_shape_of_an_entry(tmp_path: Path) -> None:
    made = manager(
        tmp_path,
        {
            "pre_write_code": "echo line",
            "post_write_code": {"command": "echo object", "timeout": 5},
            "pre_read_code": ["echo one", {"command": "echo two", "enabled": False}, {"command": "echo three"}],
        },
    )

    assert made.execute("pre_write_code").output == "line"
    assert made.execute("post_write_code").output == "object"
    assert made.execute("pre_read_code").output == "one\nthree"
    assert [row["enabled"] for row in made.list_hooks()["pre_read_code"]] == [True, False, True]
    assert made.list_hooks()["post_write_code"][0]["timeout"] == 5
    assert made.list_hooks()["pre_write_code"][0]["timeout"] == 30


def test_the_context_is_on_stdin_unless_it_is_not_to_be_passed(tmp_path: Path) -> None:
    made = manager(
        tmp_path, {"pre_write_code": ["cat", {"command": "cat", "pass_input": False}], "post_write_code": "pwd -P; env"}
    )

    first, second = made.execute("pre_write_code", {"path": "a.py", "event": "mine"}).reports

    assert json.loads(first.output) == {"path": "a.py", "event": "pre_write_code"}
    assert second.output == ""
    said = made.execute("post_write_code").output.splitlines()
    assert said[0] == str(tmp_path.resolve())
    assert "AGENT_ENGINE_EVENT=post_write_code" in said


def test_secrets_of_the_environment_are_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "s3cret")

    assert "s3cret" not in manager(tmp_path, {"pre_write_code": "env"}).execute("pre_write_code").output


def test_a_failure_blocks_only_where_it_is_told_to(tmp_path: Path) -> None:
    made = manager(
        tmp_path,
        {
            "pre_write_code": ["echo a; exit 1", "echo b"],
            "pre_run_command": [{"command": "echo no >&2; exit 3", "block_on_failure": True}, "touch ran"],
            "pre_read_code": {"command": "exit 3", "block_on_failure": True},
            "post_read_code": {"command": "sleep 60 & sleep 60", "block_on_failure": True, "timeout": 0.2},
            "pre_user_prompt": {"command": "/no/such/program", "block_on_failure": True},
        },
    )

    result = made.execute("pre_write_code")
    assert (result.success, result.blocked, result.output, bool(result)) == (False, False, "a\nb", True)
    result = made.execute("pre_run_command")
    assert (result.success, result.blocked, result.reason, bool(result)) == (False, True, "no", False)
    assert (result.reports[0].exit_code, len(result.reports)) == (3, 1)
    assert not (tmp_path / "ran").exists()
    assert made.execute("pre_read_code").reason == "Hook 'exit 3' exited with code 3"
    started = time.monotonic()
    assert made.execute("post_read_code").reason == "Hook 'sleep 60 & sleep 60' timed out after 0.2s"
    assert time.monotonic() - started < 50
    assert "not found" in (made.execute("pre_user_prompt").reason or "")


def test_the_files_limit_holds_where_an_entry_has_none(tmp_path: Path) -> None:
    made = manager(tmp_path, {"pre_write_code": "sleep 60"}, timeout=0.2)

    assert made.timeout == 0.2
    assert made.execute("pre_write_code").reports[0].error == "Hook 'sleep 60' timed out after 0.2s"


def test_switched_off_as_a_whole(tmp_path: Path) -> None:
    made = manager(tmp_path, {"pre_write_code": "touch ran"}, enabled=False)

    assert not made.has_hooks()
    assert made.execute("pre_write_code").reports == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("is_async", [True, False])
def test_functions_are_registered_and_taken_out(tmp_path: Path, is_async: bool) -> None:
    seen: list[dict[str, Any]] = []
    context = {"path": "a.py"}
    made = manager(tmp_path, {"pre_write_code": "echo file"})

    def note(given: dict[str, Any]) -> None:
        seen.append(dict(given))
        given["path"] = "changed"

    async def async_note(given: dict[str, Any]) -> None:
        note(given)

    function = made.register("pre_write_code", async_note if is_async else note)
    assert is_async_callable(function) == is_async
    result = made.execute("pre_write_code", context)

    assert seen == [{"path": "a.py"}]
    assert context == {"path": "a.py"}
    assert [report.name for report in result.reports] == ["echo file", function.__name__]
    made.reload()
    assert made.has_hooks("pre_write_code")
    assert made.unregister("pre_write_code", function)
    assert not made.unregister("pre_write_code", function)
    assert len(made.execute("pre_write_code").reports) == 1


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (None, None),
        (True, None),
        ({"any": 1}, None),
        (False, "Hook 'function' said no"),
        ("a reason", "a reason"),
        (KeyError("user text"), "Hook 'function' raised: KeyError"),
    ],
)
def test_how_a_function_fails(tmp_path: Path, said: Any, error: str | None) -> None:
    def function(context: dict[str, Any]) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    made = manager(tmp_path)
    made.register("pre_run_command", function, block_on_failure=True)

    result = made.execute("pre_run_command")

    assert (result.reason, result.blocked) == (error, error is not None)


def test_a_function_past_its_limit_has_failed(tmp_path: Path) -> None:
    release = threading.Event()
    made = manager(tmp_path)
    made.register("pre_run_command", lambda context: release.wait(20), timeout=0.1)

    result = made.execute("pre_run_command")
    release.set()

    assert result.reports[0].error == "Hook '<lambda>' timed out after 0.1s"


async def test_execute_works_inside_a_running_loop_and_has_an_async_twin(tmp_path: Path) -> None:
    made = manager(tmp_path, {"pre_write_code": "echo hi"})

    assert made.execute("pre_write_code").output == "hi"
    assert (await made.aexecute("pre_write_code")).output == "hi"


def test_an_unknown_event_lists_the_valid_ones_and_the_nearest(tmp_path: Path) -> None:
    made = manager(tmp_path)

    for call in (made.execute, made.has_hooks, lambda event: made.register(event, print)):
        with pytest.raises(
            ValueError, match=r"Unknown hook event: 'pre_wite_code', did you mean 'pre_write_code'\?"
        ) as caught:
            call("pre_wite_code")
        assert all(event in str(caught.value) for event in EVENTS)
    with pytest.raises(TypeError, match="cannot be called with one argument"):
        made.register("pre_write_code", lambda: None)  # type: ignore[arg-type, misc]  # on purpose


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "hooks.json:1:2 is not JSON"),
        ('{"hooks": {\n"pre_write_code": "a",}}', "hooks.json:2:"),
        ("[]", "the file must be an object"),
        ('{"hook": {}}', "hook is no known key, did you mean 'hooks'?"),
        ('{"hooks": []}', "hooks must be an object"),
        ('{"hooks": {"pre_wite_code": "a"}}', "hooks.pre_wite_code is no known key, did you mean 'pre_write_code'?"),
        ('{"hooks": {"pre_write_code": 5}}', "hooks.pre_write_code must be a command line, an object with a command"),
        ('{"hooks": {"pre_write_code": ""}}', "hooks.pre_write_code.command must be a command line"),
        ('{"hooks": {"pre_write_code": {}}}', "hooks.pre_write_code.command must be a command line"),
        ('{"hooks": {"pre_write_code": ["a", null]}}', "hooks.pre_write_code[1] must be a command line, an object"),
        (
            '{"hooks": {"pre_write_code": {"command": "a", "block": true}}}',
            "hooks.pre_write_code.block is no known key",
        ),
        ('{"hooks": {"pre_write_code": {"command": "a", "enabled": "false"}}}', "enabled must be true or false"),
        (
            '{"hooks": {"pre_write_code": {"command": "a", "timeout": 0}}}',
            "timeout must be a number of seconds above 0",
        ),
        ('{"hooks": {"pre_write_code": {"command": "a", "timeout": true}}}', "timeout must be a number"),
        ('{"timeout": "30"}', "timeout must be a number of seconds above 0"),
        ('{"timeout": NaN}', "timeout must be a number of seconds above 0"),
        ('{"enabled": "yes"}', "enabled must be true or false"),
        ('{"enabled": true, "enabled": false}', "the key 'enabled' stands twice"),
        ("\udcff", "is not UTF-8 text: byte 0 cannot be read as such"),
    ],
)
def test_a_broken_file_is_an_error_that_says_where(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / ".agent_engine").mkdir()
    (tmp_path / ".agent_engine" / "hooks.json").write_text(text, errors="surrogateescape")

    with pytest.raises(HooksConfigError) as caught:
        HooksManager(tmp_path)

    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / ".agent_engine").mkdir()
    (tmp_path / ".agent_engine" / "hooks.json").write_text('{"hooks": {"pre_write_code": "true"}}', "utf-8-sig")
    assert HooksManager(tmp_path).has_hooks("pre_write_code")


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / ".agent_engine" / "hooks.json").mkdir(parents=True)
    with pytest.raises(HooksConfigError, match=r"hooks\.json cannot be read: Is a directory$"):
        HooksManager(tmp_path)


def test_reload_takes_the_new_file_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    made = manager(tmp_path, {"pre_write_code": "echo old"})
    manager(tmp_path, {"pre_write_code": "echo new"})
    made.reload()
    assert made.execute("pre_write_code").output == "new"
    made.config_path.write_text("{")
    with pytest.raises(HooksConfigError):
        made.reload()

    assert made.execute("pre_write_code").output == "new"


def test_a_file_with_an_example_can_be_made_and_is_not_overwritten(tmp_path: Path) -> None:
    made = manager(tmp_path)

    path = made.create_config()

    assert path == tmp_path / ".agent_engine" / "hooks.json"
    assert made.has_hooks("pre_run_command")
    assert made.execute("pre_run_command", {"command": "ls"}).success
    path.write_text('{"hooks": {}}')
    with pytest.raises(FileExistsError, match="it was left as it is"):
        made.create_config()
    assert path.read_text() == '{"hooks": {}}'
    made.create_config(force=True)
    assert "pre_run_command" in path.read_text()


def test_stats_count_what_is_there_and_what_was_run(tmp_path: Path) -> None:
    made = manager(
        tmp_path,
        {"pre_write_code": ["true", "false"], "pre_run_command": {"command": "false", "block_on_failure": True}},
    )
    made.execute("pre_write_code")
    made.execute("pre_run_command")
    made.execute("post_run_command")

    stats = made.get_stats()

    assert stats["hooks"] == {"pre_write_code": 2, "pre_run_command": 1}
    counted = {key: stats[key] for key in ("total_hooks", "executions", "hooks_run", "failures", "blocked")}
    assert counted == {"total_hooks": 3, "executions": 2, "hooks_run": 3, "failures": 2, "blocked": 1}
    assert (stats["enabled"], stats["timeout"], stats["config_exists"]) == (True, 30, True)
    json.dumps(stats)


def test_a_context_without_a_json_form_fails_the_command_and_names_the_field(tmp_path: Path) -> None:
    made = manager(tmp_path, {"pre_write_code": {"command": "cat", "block_on_failure": True}})

    assert made.execute("pre_write_code", {"size": float("nan")}).reason == (
        "Hook 'cat' was not run: size is nan, which JSON cannot carry"
    )


def test_verbose_says_what_ran(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = manager(tmp_path, {"pre_write_code": "echo hi; exit 1"})
    made.verbose = 2

    with caplog.at_level(logging.INFO, "agent_engine.memory.hooks_manager"):
        made.execute("pre_write_code")

    assert [record.getMessage() for record in caplog.records] == [
        "pre_write_code hook echo hi; exit 1: hi",
        "pre_write_code hook echo hi; exit 1 said: hi",
    ]


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), asyncio.CancelledError(), KeyboardInterrupt()])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_function_raises_it_has_failed(tmp_path: Path, error: BaseException, is_async: bool) -> None:
    def in_thread(context: dict[str, Any]) -> None:
        raise error

    async def on_loop(context: dict[str, Any]) -> None:
        raise error

    hooks = HooksManager(tmp_path)
    hooks.register("pre_run_command", on_loop if is_async else in_thread, block_on_failure=True)

    result = hooks.execute("pre_run_command", {})

    assert result.blocked
    assert str(result.reason).endswith(f"raised: {type(error).__name__}")


def test_a_function_that_does_not_listen_to_cancellation_is_given_up(tmp_path: Path) -> None:
    ended = threading.Event()

    async def stubborn(context: dict[str, Any]) -> None:
        while not ended.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    hooks = HooksManager(tmp_path)
    hooks.register("pre_run_command", stubborn, block_on_failure=True, timeout=0.05)
    try:
        result = hooks.execute("pre_run_command", {})
    finally:
        ended.set()

    assert result.reason == "Hook 'stubborn' timed out after 0.05s"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (HookResult.deny("not today"), "not today"),
        (HookResult.ask("sure?"), "sure?"),
        ({"decision": "block", "reason": "not today"}, "not today"),
        ({"decision": "maybe"}, "Hook 'answer' said no"),
        ("", "Hook 'answer' said no"),
        (HookResult.allow(), None),
        ({"decision": "allow"}, None),
        ({}, None),
    ],
)
def test_a_decision_that_is_no_allow_is_a_failure(tmp_path: Path, said: Any, reason: str | None) -> None:
    def answer(context: dict[str, Any]) -> Any:
        return said

    hooks = HooksManager(tmp_path)
    hooks.register("pre_run_command", answer, block_on_failure=True)

    result = hooks.execute("pre_run_command", {})

    assert (result.blocked, result.reason) == (reason is not None, reason)


def test_a_guardrail_gives_its_reason(tmp_path: Path) -> None:
    def guard(context: dict[str, Any]) -> None:
        raise GuardrailBlocked("not today")

    hooks = HooksManager(tmp_path)
    hooks.register("pre_run_command", guard, block_on_failure=True)

    assert hooks.execute("pre_run_command", {}).reason == "not today"


def test_a_no_from_a_task_group_is_one_and_a_forgotten_await_is_no_yes(tmp_path: Path) -> None:
    async def guard(context: dict[str, Any]) -> None:
        raise ExceptionGroup("tasks", [GuardrailBlocked("not today")])

    async def forgot(context: dict[str, Any]) -> Any:
        return asyncio.get_running_loop().create_future()

    for function, says in ((guard, "not today"), (forgot, "still have to be awaited")):
        hooks = HooksManager(tmp_path)
        hooks.register("pre_run_command", function, block_on_failure=True)
        result = hooks.execute("pre_run_command", {})
        assert result.blocked
        assert says in (result.reason or "")


def test_an_edit_deep_in_the_context_reaches_nobody(tmp_path: Path) -> None:
    seen: list[Any] = []

    def edit(context: dict[str, Any]) -> None:
        seen.append(context["file"]["name"])
        context["file"]["name"] = "edited"

    hooks = HooksManager(tmp_path)
    hooks.register("pre_run_command", edit)
    hooks.register("pre_run_command", lambda context: edit(context))
    context = {"file": {"name": "original"}}

    hooks.execute("pre_run_command", context)

    assert seen == ["original", "original"]
    assert context == {"file": {"name": "original"}}
