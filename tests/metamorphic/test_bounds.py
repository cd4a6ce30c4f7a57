"""Bounds that no step time, throughput, utilisation or interval passes."""

from __future__ import annotations

from typing import Final

import pytest

from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.scenario.load import load
from tests.metamorphic.drawn import BLOCKS, CONVNETS, drawn, seeds

SCENARIOS: Final = 10
# Strategies whose workers each train on samples of their own.
REPLICAS: Final = ("data_parallel", "gather_average", "local_sgd", "parameter_server")


@pytest.mark.parametrize("block", BLOCKS)
def test_parts_add_up_to_the_step_and_utilisation_is_a_share(block: int) -> None:
    """HFU counts recomputation, MFU does not. Winograd's algorithm multiplies less often than is counted."""
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed)
        scenario = load(fields)
        run = accounted(timed(scenario), scenario)
        assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s, rel=1e-9), fields
        assert run.samples_per_s == pytest.approx(scenario.total_samples / run.step_time_s), fields
        assert run.mfu is not None
        assert run.hfu is not None
        assert run.mfu <= run.hfu * (1 + 1e-9), fields
        assert run.hfu <= 1 or fields["model"] in CONVNETS, fields


@pytest.mark.parametrize("block", BLOCKS)
def test_workers_are_at_most_as_fast_as_that_number_of_single_workers(block: int) -> None:
    """But for ZeRO, with which workers share the optimizer's update."""
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed, *REPLICAS)
        fields["training"]["zero"] = 0
        scenario = load(fields)
        workers, framework = scenario.strategy.workers, scenario.framework.name
        alone = load(fields, {"strategy.workers": 1, "framework": framework})
        bound_per_s = workers * timed(alone).samples_per_s
        assert timed(load(fields, {"framework": framework})).samples_per_s <= bound_per_s * 1.001, fields


@pytest.mark.parametrize("block", BLOCKS)
def test_intervals_contain_the_prediction(block: int) -> None:
    for seed in range(block * SCENARIOS, block * SCENARIOS + SCENARIOS // 3):
        fields = drawn(seed)
        run = predict(load(fields), remedy=False)
        assert run.prediction_interval_s is not None
        low_s, high_s = run.prediction_interval_s
        assert 0 < low_s <= run.step_time_s * (1 + 1e-9), fields
        assert run.step_time_s <= high_s * (1 + 1e-9), fields
