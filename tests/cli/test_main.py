from __future__ import annotations

import subprocess
import sys

import pytest

from agent_engine.cli import main as cli
from agent_engine.cli.options import load_env_file

HELP = """
import sys
sys.argv = ["agentctl", "--help"]
from agent_engine.cli.main import main
try:
    main()
except SystemExit:
    pass
heavy = {"pydantic", "mcp", "httpx2", "sqlalchemy", "fastapi", "libcst", "ruamel.yaml", "prompt_toolkit"}
print(sorted(heavy & set(sys.modules)))
"""


def test_help_names_every_command_and_what_the_exit_codes_mean(agentctl):
    done = agentctl("--help")
    assert done.code == 0
    for name in ("validate", "inspect", "generate", "schema", "run", "chat", "approvals"):
        assert f" {name} " in done.out
    assert "3 approval needed" in done.out


def test_help_imports_no_library_that_only_a_run_needs():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_has_its_module_and_its_own_help(agentctl):
    for name in cli.Commands().list_commands(None):
        done = agentctl(name, "--help")
        assert done.code == 0, (name, done.err)
        assert f"Usage: agentctl {name} " in done.out


def test_a_wrong_command_or_option_is_wrong_usage(agentctl):
    assert agentctl("runn").code == 2
    done = agentctl("validate")
    assert done.code == 2
    assert "Missing argument 'FILE'" in done.err


def test_a_missing_file_is_one_clear_sentence(agentctl, tmp_path):
    for command in (["validate"], ["inspect"], ["generate"], ["run", "-m", "hello", "--config"], ["chat", "--config"]):
        done = agentctl(*command, tmp_path / "none.yaml")
        assert done.code == 1, command
        assert len(done.err.strip().splitlines()) <= 2
        assert "none.yaml" in done.err
        assert "Traceback" not in done.err


def test_a_file_that_is_no_text_is_a_problem_and_no_traceback(agentctl, tmp_path):
    path = tmp_path / "agents.yaml"
    path.write_bytes(b"system:\n  name: \xff\xfe\n")
    done = agentctl("run", "--config", path, "--message", "hello")
    assert done.code == 1
    assert "UTF-8" in done.err
    assert "Traceback" not in done.err


def test_an_unknown_failure_keeps_its_text_to_itself(capsys):
    assert cli.report(ZeroDivisionError("secret-text")) == 4
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert "secret-text" not in err


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("DEMO_NAME=plain", "plain"),
        ("export DEMO_NAME=exported", "exported"),
        ("DEMO_NAME='with blanks # kept'", "with blanks # kept"),
        ("DEMO_NAME=cut # a comment", "cut"),
        ("DEMO_NAME=\"quoted\"  # a 'comment'", "quoted"),
        ('DEMO_NAME=\'{"a": "b"}\' # "c"', '{"a": "b"}'),
        ("DEMO_NAME=dos\r", "dos"),
        ("\ufeffDEMO_NAME=a=b", "a=b"),
        ("# a comment\n\nDEMO_NAME=", ""),
    ],
)
def test_an_env_file_sets_what_is_not_set(tmp_path, monkeypatch, line, value):
    monkeypatch.delenv("DEMO_NAME", raising=False)
    path = tmp_path / "keys.env"
    path.write_bytes(f"{line}\n".encode())
    load_env_file(path)
    import os

    assert os.environ.pop("DEMO_NAME") == value


def test_an_env_file_leaves_what_is_set_and_names_a_wrong_line_without_its_value(agentctl, tmp_path, monkeypatch):
    monkeypatch.setenv("DEMO_NAME", "from outside")
    path = tmp_path / "keys.env"
    path.write_text("DEMO_NAME=from file\n", encoding="utf-8")
    load_env_file(path)
    import os

    assert os.environ["DEMO_NAME"] == "from outside"

    path.write_text("A=1\nsk-not-a-name\n", encoding="utf-8")
    done = agentctl("run", "--config", tmp_path / "agents.yaml", "--message", "hi", "--env", path)
    assert done.code == 2
    assert f"{path}:2 is not NAME=VALUE" in done.err.replace("\n", "")
    assert "sk-not-a-name" not in done.err
