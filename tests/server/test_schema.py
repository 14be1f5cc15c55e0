"""The API against its own description: whatever is sent, the answer is one that the description allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.server.kit import Served, office_hooks, served

from agent_engine.models.offline import OfflineModel


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api"), OfflineModel(), hooks=office_hooks(), capture="") as running:
        yield running


OPERATIONS = {
    "GET /health",
    "POST /invoke",
    "POST /stream",
    "GET /runs",
    "GET /runs/{run_id}",
    "GET /approvals",
    "POST /runs/{run_id}/resume",
}


def test_the_description_names_every_operation(server: Served) -> None:
    api = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    assert {found.ok().label for found in api.get_all_operations()} == OPERATIONS


GOOD, BAD = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
# What takes no input cannot be given a wrong one.
CASES = [(label, mode) for label in sorted(OPERATIONS) for mode in (GOOD, BAD)]
CASES = [(label, mode) for label, mode in CASES if mode is GOOD or label not in ("GET /health", "GET /approvals")]


@pytest.mark.parametrize(("label", "mode"), CASES)
def test_every_answer_is_one_that_the_description_allows(server: Served, label: str, mode: Any) -> None:
    api = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    # A message beyond the body's limit is refused as too large before anybody looks at its shape.
    refusals = api.config.checks.negative_data_rejection.expected_statuses
    api.config.checks.negative_data_rejection.expected_statuses = [*refusals, "413"]
    operation = next(found.ok() for found in api.get_all_operations() if found.ok().label == label)

    @settings(max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def answer(case: Any) -> None:
        case.call_and_validate(timeout=120)

    answer()
