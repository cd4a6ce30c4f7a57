"""Elasticities of cluster parameters: by replay as by predictions, with intervals where they are cheap."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from scaleproof.simulator.analysis.sensitivity.elasticity import STEP, FiniteDifferences
from scaleproof.simulator.analysis.sensitivity.parameters import PARAMETERS, StepParameter
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]


def parameter(name: str) -> StepParameter:
    return next(one for one in PARAMETERS if one.name == name)


@pytest.mark.parametrize("name", ["FLOP/s", "memory bandwidth", "network bandwidth", "network latency", "node link bandwidth"])
@pytest.mark.parametrize("overlap", [True, False])
def test_replayed_elasticity_equals_the_difference_of_two_predictions(small: Make, name: str, overlap: bool) -> None:
    scenario = small(f"strategy={{kind: data_parallel, workers: 8, overlap: {str(overlap).lower()}}}")
    differences, tested = FiniteDifferences(scenario), parameter(name)
    assert differences.is_replayed
    slower, faster = (timed(tested.slowed(scenario, math.exp(step))).samples_per_s for step in (STEP, -STEP))
    assert differences.elasticities([tested])[name][0] == pytest.approx(
        tested.sign * math.log(faster / slower) / (2 * STEP), abs=1e-6
    )


def test_asynchronous_steps_use_the_event_engine_without_an_interval() -> None:
    differences = FiniteDifferences(load("resnet50-async-straggler-p100"))
    assert not differences.is_replayed
    value, low, high = differences.elasticities([parameter("FLOP/s")])["FLOP/s"]
    assert value > 0
    assert (low, high) == (None, None)
