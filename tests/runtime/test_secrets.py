"""A planted token, searched for in everything the process wrote, sent or kept."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_engine import AuthContext, RunContext
from agent_engine.hooks import HookResult
from agent_engine.hooks.errors import HookExecutionError
from agent_engine.memory.sqlite import SqliteStore
from agent_engine.records.journal import MemoryJournal
from agent_engine.tools.result import plain

from .run_kit import Made, call, listen, made

TOKEN = "sk-PLANTED-0123456789"
CALLER = "inbound-PLANTED-token"


class Everywhere:
    """Where the token might have gone."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.folder = folder
        self.caplog = caplog
        self.journal = MemoryJournal(wants_payloads=False)
        self.store = SqliteStore(folder / "runs.db")
        self.handler = logging.StreamHandler(io.StringIO())
        logging.getLogger().addHandler(self.handler)
        caplog.set_level(logging.DEBUG)

    def text(self, *more: Any) -> str:
        found = [self.caplog.text, self.handler.stream.getvalue(), *(str(one) for one in more)]
        found += [repr(entry) + json.dumps(plain(entry)) for entry in self.journal.entries]
        for path in self.folder.iterdir():
            found.append(path.read_bytes().decode("utf-8", "replace"))
        with sqlite3.connect(self.folder / "runs.db") as database:
            found += list(database.iterdump())
        return "\n".join(found)


@pytest.fixture
def everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    one = Everywhere(tmp_path, caplog)
    yield one
    logging.getLogger().removeHandler(one.handler)


def who() -> RunContext:
    auth = AuthContext(user_id="u", inbound_access_token=CALLER)
    return RunContext(organization_id="o", user_id="u", conversation_id="c", auth_context=auth)


async def read_file() -> dict[str, Any]:
    """Read."""
    return {"key": TOKEN, "rows": [TOKEN]}


def made_with(everywhere: Everywhere, turns: list[Any], **options: Any) -> Made:
    return made(turns, [read_file], journal=everywhere.journal, store=everywhere.store, **options)


@pytest.mark.parametrize("event", ["after_tool", "transform_tool_result"])
@pytest.mark.parametrize("face", ["run", "stream", "direct", "wait"])
async def test_a_masked_result_is_nowhere(event: str, face: str, everywhere: Everywhere) -> None:
    """Fault 13."""
    one = made_with(everywhere, [call("read_file"), "answer", "more"], approver="later" if face == "wait" else None)
    if event == "after_tool":
        one.registry.register_function(event, lambda seen: json.dumps(seen.tool_output).replace(TOKEN, "***"))
    else:
        one.registry.register_function(event, lambda seen: seen.with_result(seen.result.replace(TOKEN, "***")))
    if face == "wait":
        one.registry.register_function("before_tool", lambda seen: HookResult.ask("?"), sequential=True)
    told: list[Any] = []
    if face == "stream":
        told = [event.to_dict() for event in await one.events(context=who())]
    elif face == "direct":
        told = [(await one.direct("read_file", {}, context=who())).value]
    else:
        result = await one.run(context=who())
        if face == "wait":
            result = await one.resume(result.run_id, {"c1": "yes"})
        told = [result, result.messages]
    requests = [request.messages for request in one.model.requests]
    text = everywhere.text(told, requests)
    await everywhere.store.close()
    assert "***" in text
    assert TOKEN not in text
    assert CALLER not in text


@pytest.mark.parametrize("event", ["after_tool", "after_tool_call", "transform_tool_result"])
async def test_a_withheld_result_is_nowhere(event: str, everywhere: Everywhere) -> None:
    one = made_with(everywhere, [call("read_file"), "answer"])
    one.registry.register_function(event, lambda seen: HookResult.deny("private"))
    result = await one.run(context=who())
    text = everywhere.text(result, result.messages, [request.messages for request in one.model.requests])
    await everywhere.store.close()
    assert TOKEN not in text


async def test_a_masked_answer_is_nowhere(everywhere: Everywhere) -> None:
    one = made_with(everywhere, [{"stream": [TOKEN[:5], TOKEN[5:]], "native": {"parts": [TOKEN]}}, "more"])
    one.registry.register_function(
        "after_llm", lambda seen: HookResult.modify(response=seen.response.replace(TOKEN, "***"))
    )
    told = [event.to_dict() for event in await one.events(context=who())]
    await one.run("again", context=who())
    text = everywhere.text(told, [request.messages for request in one.model.requests])
    await everywhere.store.close()
    assert "***" in text
    assert TOKEN not in text


@pytest.mark.parametrize("policy", ["fail", "deny"])
async def test_the_text_of_a_hooks_exception_does_not_travel(policy: str, everywhere: Everywhere) -> None:
    one = made_with(everywhere, [call("read_file"), "answer"])

    def broken(seen: Any) -> None:
        raise ValueError(f"cannot parse {TOKEN}")

    one.registry.register_function("before_tool", broken, failure_policy=policy)
    trace = listen(one.registry, ["on_error", "after_tool", "on_tool_error", "on_run_error"])
    try:
        told: Any = await one.run(context=who())
    except HookExecutionError as error:
        told = str(error)
    await everywhere.store.close()
    assert TOKEN not in str(told)
    assert TOKEN not in str([request.messages for request in one.model.requests])
    # What hooks hear of an error may leave by a webhook.
    assert TOKEN not in str([payload.to_dict() for name, payload in trace.rows if name == "on_error"])
    assert TOKEN not in str([str(payload) for _, payload in trace.rows])


async def test_the_callers_token_shows_nowhere(everywhere: Everywhere) -> None:
    one = made_with(everywhere, [call("read_file"), "answer"])
    listen(one.registry)
    seen: list[str] = []

    def look(context: Any) -> None:
        seen.append(context.auth_context.inbound_access_token)

    one.registry.register_function("on_run_start", look)
    result = await one.run(context=who())
    text = everywhere.text(result, one.host.contexts)
    await everywhere.store.close()
    assert seen == [CALLER], "asked for by name it is there"
    assert CALLER not in text
