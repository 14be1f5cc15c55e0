"""``agentctl serve`` as a process: it says where it is, stops cleanly, and says in a sentence why it cannot start."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.records.build import record, run, tool_step
from tests.server.kit import write_system
from typer.testing import CliRunner

from agent_engine.cli.main import app
from agent_engine.records.query import RecordReader
from agent_engine.records.settings import default_store


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "agent_engine.cli.main", *words]


@contextmanager
def serving(*words: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server as a process of its own, and the address it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_ENGINE")} | environ
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    try:
        found = None
        for line in process.stderr:
            if found := re.search(r"http://[\d.]+:\d+", line):
                break
        assert found is not None
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_stops_cleanly_and_its_records_stay(tmp_path: Path, how: signal.Signals) -> None:
    config = write_system(tmp_path / "50% off? #1 & two words")
    with serving("serve", "--config", str(config), "--port", "0", "--model", "offline") as (process, url):
        with httpx2.Client(base_url=url, timeout=20) as http:
            assert http.post("/invoke", json={"message": "search for tea"}).json()["status"] == "completed"
            assert "Runs" in http.get("/ui/runs").text
        process.send_signal(how)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "Traceback" not in said
    with RecordReader.open(default_store(config, {})) as reader:
        assert [row.status for row in reader.runs()] == ["completed"]
        assert [mark.kind for mark in reader.marks()] == []


def test_the_pages_alone_are_served_over_a_store(tmp_path: Path) -> None:
    config = write_system(tmp_path)
    store = f"sqlite:{tmp_path / 'r.db'}"
    asyncio.run(record(store, run("the-run", tool_step("the-run"))))
    with (
        serving("inspect", str(config), "--ui", "--store", store, "--port", "0") as (_, url),
        httpx2.Client(base_url=url, timeout=20) as http,
    ):
        assert "the-run" in http.get("/ui/runs").text


@pytest.mark.parametrize(
    ("words", "environ", "code", "says"),
    [
        (["--host", "0.0.0.0"], {}, 2, "0.0.0.0 can be reached from other machines"),
        (["--port", "{taken}"], {}, 1, "cannot listen at 127.0.0.1"),
        (["--records", "mysql://u:secret@h/d"], {}, None, "is no store of records"),
        (["--records", "sqlite:/proc/nowhere/x.db"], {}, None, "cannot be made"),
        ([], {"AGENT_ENGINE_TOKEN": "short"}, 2, "too short"),
    ],
)
def test_what_keeps_it_from_serving_is_one_sentence(
    tmp_path: Path, words: list[str], environ: dict[str, str], code: int | None, says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = [word.replace("{taken}", port) for word in words]
        options = ["serve", "--config", str(write_system(tmp_path)), "--model", "offline", *words]
        if "--port" not in words:
            options += ["--port", "0"]
        done = CliRunner().invoke(app, options, env={**environ})
    said = done.output if done.exception is None or isinstance(done.exception, SystemExit) else str(done.exception)
    assert done.exit_code == code if code is not None else done.exit_code != 0
    assert says in said
    assert "secret" not in said
