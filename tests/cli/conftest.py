"""Calling agentctl in this process, as the installed command does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from agent_engine.cli import main as cli


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def agentctl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Done]]:
    """``agentctl("validate", path)`` -> exit code, stdout and stderr. What it sets in the environment is undone."""
    before = dict(os.environ)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["agentctl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        captured = capsys.readouterr()
        return Done(code if isinstance(code, int) else 1 if code else 0, captured.out, captured.err)

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    yield call
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
