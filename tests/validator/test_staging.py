"""Whatever goes through the host arrives as if it had not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator import staged
from tests.validator.conftest import MakeScenario
from validator.launch import run_on_ranks
from validator.measure import Watch, measure

RANKS = 3


def test_collectives_and_messages_leave_what_they_leave_on_the_host() -> None:
    for rank, left in enumerate(run_on_ranks(staged.exchange_all, RANKS)):
        assert left["summed"] == left["in place"] == [float(sum(range(RANKS)))] * 3
        assert left["told"] == [1.0] * 3
        assert left["gathered"] == [float(other) for other in range(RANKS)]
        assert left["received"] == [float((rank - 1) % RANKS)] * 3
        assert left["backend"] == "staged"


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "data_parallel", "workers": 2, "bucket": "4 KiB", "first_bucket": "1 KiB"},
        {"kind": "parameter_server", "workers": 2, "servers": 2},
        {"kind": "pipeline", "stages": 2, "microbatches": 4, "schedule": "1f1b"},
        {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2, "bucket": "4 KiB"},
    ],
    ids=lambda strategy: strategy["kind"],
)
def test_training_comes_to_the_parameters_of_one_process(
    strategy: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validator.measure.train_here", staged.train_staged)

    run = measure(make_scenario(strategy, precision="fp64"), "local", Watch(verify=True))

    assert run.provenance["backend"] == "staged"
    assert run.verified is not None
    assert run.verified["deviation"] < run.verified["tolerance"]
