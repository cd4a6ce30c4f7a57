"""Knobs turned a little: by replay as by predictions, and what each tells of doubt."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from scaleproof.simulator.analysis.sensitivity.elasticity import STEP, FiniteDifferences, Turned
from scaleproof.simulator.analysis.sensitivity.parameters import KNOBS, Knob
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import ONLY_COMPUTE

Make = Callable[..., Scenario]


def knob(name: str) -> Knob:
    return next(one for one in KNOBS if one.name == name)


@pytest.mark.parametrize("name", ["FLOP/s", "memory bandwidth", "network bandwidth", "network latency", "node link bandwidth"])
@pytest.mark.parametrize("overlap", [True, False])
def test_replay_tells_what_predictions_of_both_sides_do(small: Make, name: str, overlap: bool) -> None:
    scenario = small(f"strategy={{kind: data_parallel, workers: 8, overlap: {str(overlap).lower()}}}")
    turns, turned = FiniteDifferences(scenario), knob(name)
    assert turns.is_replayed
    slower, faster = (
        timed(scenario.model_copy(update={"cluster": turned.slowed(scenario.cluster, math.exp(step))})).samples_per_s
        for step in (STEP, -STEP)
    )
    assert turns.turned(turned).value == pytest.approx(turned.sign * math.log(faster / slower) / (2 * STEP), abs=1e-6)


def test_what_nothing_follows_from_is_surely_zero(small: Make) -> None:
    assert FiniteDifferences(small(*ONLY_COMPUTE, "strategy.workers=4")).turned(knob("network bandwidth")) == Turned(
        0.0, 0.0, 0.0
    )


def test_where_workers_do_not_wait_events_tell_and_no_interval_is_known() -> None:
    turns = FiniteDifferences(load("resnet50-async-straggler-p100"))
    assert not turns.is_replayed
    found = turns.turned(knob("FLOP/s"))
    assert found.value > 0
    assert (found.low, found.high) == (None, None)
