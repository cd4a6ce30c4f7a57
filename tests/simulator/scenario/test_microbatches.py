"""Microbatches by their size: their number follows from the batch and the workers, and is not part of what was given."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

HYBRID = {"kind": "hybrid", "tp": 8, "pp": 4, "dp": 2}


def scenario(strategy: dict[str, Any], *overrides: str, **fields: Any) -> Scenario:
    parts = {"model": "llama-3-70b", "cluster": "dgx-h100", "batch": 128, "training": {"precision": "bf16"}}
    return load({**parts, "strategy": strategy, **fields}, list(overrides))


def test_size_and_number_are_the_same_scenario_to_the_simulator() -> None:
    by_size, by_number = scenario(HYBRID | {"mbs": 2}), scenario(HYBRID | {"ga": 32})
    assert by_size.strategy.plan == by_number.strategy.plan
    assert timed(by_size).step_time_s == timed(by_number).step_time_s
    accumulated = scenario({"kind": "fsdp", "dp": 16}, "mbs=4")
    assert accumulated.strategy.microbatches == 2


def test_a_size_is_written_as_a_size() -> None:
    written = yaml.safe_load(dump(by_size := scenario(HYBRID | {"micro_batch_size": 2})))
    assert written["strategy"]["micro_batch_size"] == 2
    assert "microbatches" not in written["strategy"]
    assert load(written) == by_size


def test_an_override_of_one_replaces_the_other() -> None:
    assert scenario(HYBRID | {"mbs": 2}, "strategy.ga=8").strategy.microbatches == 8
    assert scenario(HYBRID | {"ga": 2}, "strategy.mbs=8").strategy.microbatches == 8


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (HYBRID | {"mbs": 3}, "strategy.micro_batch_size: micro-batches of 3 do not divide 64 samples per worker; give 2"),
        (HYBRID | {"mbs": 2, "ga": 3}, "64 samples per worker are 32 micro-batches of 2, not 3; leave out microbatches or"),
        ({"kind": "ddp", "dp": 2, "mbs": 2, "shares": [32, 96]}, "workers have different shares of the samples; give micro"),
    ],
)
def test_a_size_that_does_not_suit_is_refused(strategy: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem.replace("(", r"\(")):
        scenario(strategy)
