"""The knowledge assistant's own servers, started as the demo starts them: real processes on free loopback ports."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSISTANT = ROOT / "examples" / "enterprise-knowledge-assistant"
KEY = "a-key-for-these-tests-alone-4711"


def load(name: str) -> ModuleType:
    """A module of the example's folder, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"knowledge_assistant_{name}", ASSISTANT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def addresses() -> Iterator[dict[str, str]]:
    """Addresses of the two running servers, by the names of the variables that agents.yaml reads."""
    before = os.environ.get("PRIVATE_PACKAGES_API_KEY")
    os.environ["PRIVATE_PACKAGES_API_KEY"] = KEY
    try:
        with load("running").servers() as found:
            yield found
    finally:
        os.environ.pop("PRIVATE_PACKAGES_API_KEY", None)
        if before is not None:
            os.environ["PRIVATE_PACKAGES_API_KEY"] = before
