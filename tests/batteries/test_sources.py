"""Secrets are read where they are kept, each time they are needed, and are shown to nobody."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path
from unittest import mock

import pytest

from agent_engine.batteries.credentials import BearerToken, CredentialError, Secret, from_env, from_file
from agent_engine.hooks.managed import AuthContext, HookInvocation, McpRequestContext, RunContext

REQUEST = McpRequestContext(server_id="crm", url="http://h/mcp")


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret("planted")
    shown = f"{secret} {secret!r} {secret:>10} {[secret]} {vars} %s" % secret
    assert "planted" not in shown
    assert secret.reveal() == "planted"
    assert copy.deepcopy(secret) == secret == Secret("planted") != Secret("other")
    assert not Secret("")
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps({"token": secret})


async def test_a_token_from_the_environment_is_read_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    credential = BearerToken(from_env("CRM_TOKEN"))
    monkeypatch.setenv("CRM_TOKEN", " one \n")
    assert (await credential.authorize(REQUEST)).headers == {"Authorization": "Bearer one"}
    monkeypatch.setenv("CRM_TOKEN", "Bearer two")
    assert (await credential.authorize(REQUEST)).headers == {"Authorization": "Bearer two"}
    monkeypatch.delenv("CRM_TOKEN")
    with pytest.raises(CredentialError, match="CRM_TOKEN is not set"):
        await credential.authorize(REQUEST)
    assert repr(credential) == "BearerToken(from_env('CRM_TOKEN'))"


async def test_a_token_in_a_file_is_read_again_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    credential = BearerToken(from_file(path), header="X-Api-Key")
    with pytest.raises(CredentialError, match="No such file"):
        await credential.authorize(REQUEST)
    path.write_text("one\n")
    assert (await credential.authorize(REQUEST)).headers == {"X-Api-Key": "one"}
    renewed = tmp_path / "renewed"
    renewed.write_text("two")
    os.replace(renewed, path)
    assert (await credential.authorize(REQUEST)).headers == {"X-Api-Key": "two"}
    path.write_text("")
    with pytest.raises(CredentialError, match="is empty"):
        await credential.authorize(REQUEST)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CredentialError, match="UTF-8"):
        await credential.authorize(REQUEST)


def test_a_file_written_twice_in_one_tick_of_the_files_clock_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    source, stamp = from_file(path), path.stat()
    assert source.read().reveal() == "old"
    with mock.patch.object(Path, "stat", return_value=stamp):
        path.write_text("new")
        assert source.read().reveal() == "new"


def test_a_file_that_rests_is_read_once_and_again_when_it_is_replaced_with_its_old_times(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    source, stamp = from_file(path), path.stat()
    clock = "agent_engine.batteries.credentials.sources.time.time_ns"
    later = mock.patch(clock, return_value=stamp.st_mtime_ns + 10**10)
    with later, mock.patch.object(Path, "read_text", autospec=True, side_effect=Path.read_text) as reading:
        assert [source.read().reveal() for _ in range(3)] == ["old"] * 3
        assert reading.call_count == 1
        path.write_text("new")
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert source.read().reveal() == "new"


async def test_a_credential_is_for_the_servers_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_TOKEN", "one")
    credential = BearerToken(from_env("CRM_TOKEN"), servers=("crm",))
    other = McpRequestContext(server_id="public")
    assert await credential.authorize(other) is other
    assert (await credential.authorize(REQUEST)).headers == {"Authorization": "Bearer one"}
    with pytest.raises(TypeError, match=r"\('crm',\)"):
        BearerToken(from_env("CRM_TOKEN"), servers="crm")


async def test_a_credential_is_a_hook_by_itself_however_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_TOKEN", "one")
    credential = BearerToken(from_env("CRM_TOKEN"))
    context = RunContext(run_id="r", auth_context=AuthContext(inbound_access_token="inbound"))
    event = HookInvocation(hook_point="before_mcp_request", payload=REQUEST, run_context=context)
    assert (await credential(event)).headers == (await credential(REQUEST)).headers == {"Authorization": "Bearer one"}
