"""Verification: what each check looks at, and what it is as a hook on after_agent."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_engine.hooks import (
    BaseVerificationHook,
    CommandVerificationHook,
    FileCheckHook,
    HookRegistry,
    VerificationHook,
    VerificationResult,
)
from agent_engine.testing import arun_hook, assert_denied


async def error_of(check: BaseVerificationHook) -> str | None:
    result = await check.verify()
    assert result.success == (result.error is None)
    return result.error


async def test_a_command_that_ends_with_0_succeeds_and_any_other_end_fails(tmp_path: Path) -> None:
    good = await CommandVerificationHook("tests", "echo 3 passed; pwd -P", cwd=str(tmp_path)).verify()
    assert (good.success, good.error, good.blocked) == (True, None, False)
    assert good.output == f"3 passed\n{tmp_path.resolve()}\n"
    assert good.metadata == {"exit_code": 0}
    assert good.duration_ms > 0

    bad = await CommandVerificationHook("tests", "echo out; echo 1 failed >&2; exit 2").verify()
    assert (bad.success, bad.blocked) == (False, True)
    assert bad.error == "Verification 'tests' failed with exit code 2: 1 failed"
    assert bad.metadata == {"exit_code": 2}
    assert (
        await error_of(CommandVerificationHook("tests", "exit 1"))
        == "Verification 'tests' failed with exit code 1: no output"
    )
    assert await error_of(CommandVerificationHook("x", ["/no/such/program"])) == (
        "Verification 'x' could not be started: /no/such/program: not found"
    )
    assert "137" in (await error_of(CommandVerificationHook("x", "kill -9 $$")) or "")


async def test_a_command_past_its_limit_is_killed_with_all_it_started(tmp_path: Path) -> None:
    started = time.monotonic()

    error = await error_of(CommandVerificationHook("slow", "sleep 60 & sleep 60", timeout=0.2))

    assert error == "Verification 'slow' timed out after 0.2s"
    assert time.monotonic() - started < 50


async def test_a_command_list_needs_no_shell_and_secrets_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "s3cret")

    result = await CommandVerificationHook("env", ["env"]).verify()

    assert "s3cret" not in result.output
    assert "PATH=" in result.output


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"path": "there.txt"}, None),
        ({"path": "gone.txt"}, "gone.txt is not there"),
        ({"path": "gone.txt", "exists": False}, None),
        ({"path": "there.txt", "exists": False}, "there.txt is there, and must not be"),
        ({"path": "folder"}, "folder is not there"),
        ({"path": "there.txt", "non_empty": True}, None),
        ({"path": "empty.txt"}, None),
        ({"path": "empty.txt", "non_empty": True}, "empty.txt is empty"),
        ({"path": "there.txt", "contains": "ell"}, None),
        ({"path": "there.txt", "contains": "bye"}, "there.txt does not contain 'bye'"),
        ({"path": "there.txt", "equals": "hello"}, None),
        ({"path": "there.txt", "equals": "hell"}, "there.txt does not hold exactly what it must"),
        ({"path": "binary"}, "binary is not UTF-8 text"),
        ({"path": "data.json", "json_field": "a.b.1.c"}, None),
        ({"path": "data.json", "json_field": "a.b.1.c", "equals": "deep"}, None),
        ({"path": "data.json", "json_field": "ok", "equals": True}, None),
        ({"path": "data.json", "json_field": "ok", "equals": 1}, "data.json: ok is True, and must be 1"),
        ({"path": "data.json", "json_field": "n", "equals": 2}, "data.json: n is 3, and must be 2"),
        ({"path": "data.json", "json_field": "a.x"}, "data.json has no field 'a.x'"),
        ({"path": "data.json", "json_field": "a.b.7"}, "data.json has no field 'a.b.7'"),
        ({"path": "there.txt", "json_field": "a"}, "there.txt is not JSON"),
    ],
)
async def test_what_a_file_must_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: str | None
) -> None:
    (tmp_path / "there.txt").write_text("hello")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.json").write_text(json.dumps({"a": {"b": [0, {"c": "deep"}]}, "ok": True, "n": 3}))
    monkeypatch.chdir(tmp_path)

    assert await error_of(FileCheckHook("file", **options)) == error


async def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("x")

    def refuse(self: Path, encoding: str) -> str:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "read_text", refuse)

    assert await error_of(FileCheckHook("file", path)) == f"{path} cannot be read: Permission denied"


class Own(BaseVerificationHook):
    """A check of one's own."""

    async def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
        result.output = f"looked at {sorted(context)[:1]}"
        if self.name == "breaks":
            raise KeyError("user text")
        return None if self.name == "fine" else "not good enough"


async def test_a_check_that_breaks_has_verified_nothing() -> None:
    assert await error_of(Own("breaks")) == "Verification 'breaks' broke: KeyError"
    assert await error_of(BaseVerificationHook("bare")) == "Verification 'bare' broke: NotImplementedError"


def test_sync_code_can_ask_too() -> None:
    assert Own("fine").verify_sync({"a": 1}).output == "looked at ['a']"
    assert isinstance(Own("fine"), VerificationHook)


async def test_as_a_hook_a_blocking_failure_refuses_the_answer_and_another_adds_context() -> None:
    for check, decision, context in (
        (Own("fine"), "allow", ()),
        (Own("bad"), "deny", ()),
        (Own("breaks"), "deny", ()),
        (Own("bad", blocking=False), "allow", ("not good enough",)),
    ):
        registry = HookRegistry()
        registry.register_function("after_agent", check)
        verdict = await arun_hook(registry, "after_agent", response="done")
        assert (verdict.decision, verdict.additional_context) == (decision, context)
    assert_denied(await arun_hook(Own("bad"), "after_agent"), "not good enough")


async def test_a_check_that_wants_to_exit_has_failed() -> None:
    class Exits(BaseVerificationHook):
        async def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
            raise SystemExit(0)

    result = await Exits("exits").verify()

    assert result.blocked
    assert result.error == "Verification 'exits' broke: SystemExit"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: CommandVerificationHook("t", ""), "there is no command, and nothing would be verified"),
        (lambda: CommandVerificationHook("t", " \n"), "there is no command"),
        (lambda: CommandVerificationHook("t", []), "command is one shell line, or a list of words"),
        (lambda: CommandVerificationHook("t", None), "command is one shell line"),  # type: ignore[arg-type]  # on purpose
        (lambda: CommandVerificationHook("t", "true", timeout=0), "timeout is a number of seconds above 0, not 0"),
        (lambda: FileCheckHook("t", "a", contains=""), "contains is text, not ''"),
        (lambda: FileCheckHook("t", "a", json_field=5), "json_field is text, not 5"),  # type: ignore[arg-type]  # likewise
    ],
)
def test_a_verification_of_nothing_is_refused_when_it_is_made(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (True, "its check returned a bool"),
        (False, "its check returned a bool"),
        ("", "its check returned an empty text"),
    ],
)
async def test_a_check_that_says_something_else_has_verified_nothing(said: Any, problem: str) -> None:
    class Says(BaseVerificationHook):
        async def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
            return said  # type: ignore[no-any-return]  # on purpose

    assert await error_of(Says("v")) == (
        f"Verification 'v' broke: {problem}; it returns None where all is well, else what is not, as text"
    )


async def test_a_check_that_is_not_async_or_cancels_itself_has_verified_nothing() -> None:
    class Sync(BaseVerificationHook):
        def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:  # type: ignore[override]
            return None

    class Cancels(BaseVerificationHook):
        async def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
            raise asyncio.CancelledError

    assert "its check is no async method" in (await error_of(Sync("v")) or "")
    assert await error_of(Cancels("v")) == "Verification 'v' broke: CancelledError"


async def test_a_check_that_is_cancelled_from_outside_has_not_ended() -> None:
    began = asyncio.Event()

    class Waits(BaseVerificationHook):
        async def check(self, context: Mapping[str, Any], result: VerificationResult) -> str | None:
            began.set()
            await asyncio.sleep(60)
            raise AssertionError

    task = asyncio.create_task(Waits("v").verify())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
