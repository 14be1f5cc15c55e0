"""A small declared system for the tests of run, chat and approvals, and a terminal to run agentctl at."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

AGENTS = """\
system:
  name: office
defaults:
  model: {provider: offline}
agents:
  clerk:
    description: Looks after orders.
    tools: [order_status, cancel_order, slow_report]
tools:
  order_status: Tell the status of an order.
  cancel_order: {description: Cancel an order., approval: required}
  slow_report: Write the slow yearly report.
hooks:
  before_agent:
    - {plugin: rules, method: gate}
  before_tool:
    - {plugin: rules, method: watch, matcher: order_status}
  on_run_error:
    - {plugin: rules, method: failed}
graph: {clerk: {}}
"""

RULES = """\
import logging

from agent_engine.hooks import BeforeAgentInput, HookResult
from agent_engine.runtime.hooks import HookInvocation

logger = logging.getLogger("rules")


class RulesHook:
    async def gate(self, event: HookInvocation):
        prompt = event.payload_as(BeforeAgentInput).prompt
        if "salary" in prompt:
            return HookResult.deny("salaries are not discussed here")
        if "break" in prompt:
            raise ValueError("text-of-the-exception")
        return None

    async def watch(self, event: HookInvocation):
        return None

    async def failed(self, event: HookInvocation):
        logger.info("failed error_type=%s", type(event.payload).__name__)
"""

TOOLS = {
    "order_status": '''
def order_status(number: str) -> str:
    """Look an order up.

    Args:
        number: the order's number, such as A-17
    """
    return f"Order {number} is on its way."
''',
    "cancel_order": '''
from pathlib import Path


def cancel_order(number: str) -> str:
    """Cancel an order.

    Args:
        number: the order's number, such as A-17
    """
    Path(__file__).with_name("cancelled.txt").write_text(number)
    return f"Order {number} is cancelled."
''',
    "slow_report": '''
import asyncio


async def slow_report() -> str:
    """Write the report."""
    await asyncio.sleep(60)
    return "done"
''',
}

MANIFEST = """\
[hooks.plugins]
rules = "plugins.hooks.rules:RulesHook"

[tools]
order_status = "plugins.tools.order_status:order_status"
cancel_order = "plugins.tools.cancel_order:cancel_order"
slow_report = "plugins.tools.slow_report:slow_report"
"""

AGENTCTL = [sys.executable, "-m", "agent_engine.cli.main"]


def write_office(folder: Path) -> Path:
    """The system's files; returns its agents.yaml."""
    files = {
        "agents.yaml": AGENTS,
        "plugins/plugins.toml": MANIFEST,
        "plugins/hooks/rules.py": RULES,
        **{f"plugins/tools/{name}.py": text for name, text in TOOLS.items()},
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "agents.yaml"


def cancelled(config: Path) -> str | None:
    """The number of the order that was really cancelled, or None."""
    path = config.parent / "plugins" / "tools" / "cancelled.txt"
    return path.read_text(encoding="utf-8") if path.exists() else None


def agentctl(*arguments: object, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """agentctl in a process of its own, its output piped."""
    return subprocess.run(
        [*AGENTCTL, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "160", **more},
    )


class Terminal:
    """agentctl at a terminal of 120 columns: ``wait_for`` text on the screen, then ``type`` an answer."""

    def __init__(self, *arguments: object) -> None:
        self.main, side = pty.openpty()
        environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "PROMPT_TOOLKIT_NO_CPR": "1"}
        environ.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [*AGENTCTL, *map(str, arguments)],
            stdin=side,
            stdout=side,
            stderr=side,
            env=environ,
            start_new_session=True,
            close_fds=True,
        )
        os.close(side)
        self.raw = ""

    @property
    def screen(self) -> str:
        """What was written so far, without the codes for colours and the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r", "", self.raw)

    def wait_for(self, text: str, seconds: float = 120, times: int = 1) -> None:
        until = time.monotonic() + seconds
        while self.screen.count(text) < times:
            assert time.monotonic() < until, f"{text!r} was never shown:\n{self.screen}"
            assert self._read(1.0) or self.process.poll() is None or text in self.screen, (
                f"it ended without {text!r}:\n{self.screen}"
            )

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.main], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.main, 65536)
        except OSError:  # the other side of a terminal that is gone
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)

    def type(self, keys: str) -> None:
        os.write(self.main, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C, as the terminal sends it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ends(self) -> int:
        """The exit code, once it has ended."""
        until = time.monotonic() + 120
        while self.process.poll() is None:
            assert time.monotonic() < until, f"it goes on:\n{self.screen}"
            self._read(0.2)
        while self._read(0.2):
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.main)
