"""Shared test set-up: one Hypothesis profile for everyone, fast here and thorough on request."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from tests.fakes.idle_clock import Clock, IdleClock

settings.register_profile(
    "default",
    deadline=None,
    max_examples=50,
    derandomize="CI" in os.environ,  # a change is judged by the same examples twice; new ones are sought elsewhere
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job is started deaf to Ctrl-C, and so would be every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that a test can put forward: no limit is over before that, however busy the machine is."""
    return Clock(monkeypatch)


@pytest.fixture
async def idle_clock(monkeypatch: pytest.MonkeyPatch) -> IdleClock:
    """Time that passes only while the loop has nothing to do, and then at once."""
    return IdleClock(monkeypatch)
