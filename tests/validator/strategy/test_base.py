"""After training, a rank can train another scenario: no trainer, model or thread is left."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.validator.launch.launch import run_on_ranks
from tests.validator import conftest, left
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import at_night

pytestmark = pytest.mark.full

WORKERS = {"kind": "data_parallel", "workers": 2, "bucket": "4 KiB", "first_bucket": "1 KiB"}
SERVERS = {"kind": "parameter_server", "workers": 2, "servers": 1}
HYBRID = {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2, "bucket": "4 KiB"}
Case = tuple[dict[str, Any], dict[str, Any]]
CASES: list[Case] = [
    (WORKERS, {}),
    (WORKERS, {"zero": 3}),
    ({**SERVERS, "mode": "asynchronous", "overlap": True}, {}),
    ({"kind": "pipeline", "stages": 2, "microbatches": 4}, {}),
    ({**HYBRID, "stages": 1, "tensor": 2, "context": 2}, {}),
    ({"kind": "local_sgd", "workers": 2, "period": 2, "overlap": True}, {}),
]
MORE_CASES: list[Case] = [
    ({**WORKERS, "algorithm": "ring"}, {}),
    ({**WORKERS, "compression": {"kind": "power_sgd", "rank": 1}, "overlap": False}, {}),
    (SERVERS, {}),
    ({**HYBRID, "servers": 1}, {}),
    ({**HYBRID, "overlap": True}, {}),
    ({"kind": "gather_average", "workers": 2}, {}),
]


@pytest.mark.parametrize(("strategy", "training"), [*CASES, *at_night(*MORE_CASES)])
def test_training_leaves_no_global_state(
    strategy: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = {"bandwidth": "10 Gbit/s", "latency": "20 us"}
    monkeypatch.setattr(conftest, "CLUSTER", conftest.CLUSTER | {"nodes": 3, "network": network})
    scenario = make_scenario(strategy, **training)

    reported = run_on_ranks(left.left_by_training, scenario.strategy.ranks, scenario)

    assert reported == [{"trainer": False, "parameters": 0, "threads": 0}] * scenario.strategy.ranks
