"""Paced compute: passes take as long as predicted, messages have the scenario's sizes, gradients are real."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simulator.predict import predict
from simulator.run import Phase, Stream
from simulator.scenario import Scenario
from tests.validator.conftest import CLUSTER, GPT
from validator import paced
from validator.measure import Watch, measure
from validator.paced import Pace

# A pass of its layers takes milliseconds, next to which waking up late is little.
SLOW = {
    "nodes": 4,
    "node": {"devices": 1},
    "network": {"bandwidth": "20 Gbit/s", "latency": "50 us"},
    "device": CLUSTER["device"] | {"peak": {"fp32": "2 GFLOP/s", "fp64": "1 GFLOP/s"}},  # type: ignore[operator]
}
FAST = CLUSTER["device"] | {"peak": {"fp32": "50 TFLOP/s", "fp64": "1 TFLOP/s"}}  # type: ignore[operator]
RING = {"kind": "data_parallel", "workers": 2}


def scenario(
    strategy: dict[str, Any] = RING, model: Any = GPT, steps: int = 4, device: Any = SLOW["device"], **training: Any
) -> Scenario:
    plain = {
        "name": "paced",
        "model": model,
        "cluster": SLOW | {"device": device},
        "strategy": strategy,
        "batch": {"total": 4},
        "steps": steps,
    }
    return Scenario.model_validate(plain | {"compute": "paced", "training": {"warmup_steps": 2, **training}})


@pytest.mark.parametrize("strategy", [RING, {"kind": "pipeline", "stages": 2, "microbatches": 2}])
def test_passes_take_as_long_as_predicted(strategy: dict[str, Any]) -> None:
    one = scenario(strategy)
    predicted, run = predict(one), measure(one)

    assert run.compute == "paced"
    for phase in ("forward", "backward"):
        # a loaded machine wakes sleepers late, never early
        assert run.phase_s[phase] == pytest.approx(predicted.phase_s[phase], rel=0.2)


def test_messages_have_the_sizes_of_the_scenario() -> None:
    one = scenario()

    spans = measure(one).spans

    assert spans is not None
    moved = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.rank == 0) & (spans.step == 2))
    assert moved.size_bytes.sum() == 4 * one.model.parameters()


def test_activations_have_the_sizes_of_the_scenario() -> None:
    one = scenario({"kind": "pipeline", "stages": 2, "microbatches": 2})

    spans = measure(one).spans

    assert spans is not None
    sent = spans.where((spans.phase == Phase.SEND) & (spans.rank == 0) & (spans.step == 2))
    assert sent.size_bytes.tolist() == [2 * 64 * 32 * 4] * 2, "two samples of hidden × tokens, twice"


@pytest.mark.parametrize(
    "strategy", [RING, {"kind": "parameter_server", "workers": 2}, {"kind": "pipeline", "stages": 2, "microbatches": 2}]
)
def test_the_small_model_trains_rightly(strategy: dict[str, Any]) -> None:
    verified = measure(scenario(strategy, precision="fp64"), watch=Watch(verify=True)).verified

    assert verified is not None
    assert verified["deviation"] < 1e-9


def test_models_without_a_twin_are_paced_too() -> None:
    assert measure(scenario(model={"kind": "alexnet", "name": "alexnet"}, steps=2, device=FAST)).losses


def test_gradients_of_padding_are_zero_and_the_rest_is_trained() -> None:
    layers = torch.nn.Sequential(*paced.build(scenario(), range(6), None))
    layers(torch.randn(3, 4)).square().sum().backward()

    for parameter in layers.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0
        assert not parameter.grad[16:].any()


@given(delays_s=st.lists(st.floats(0, 0.002), min_size=5, max_size=15))
def test_what_was_late_is_made_up_for(delays_s: list[float]) -> None:
    pace, duration_s = Pace(scenario()), 0.004
    began_s = time.perf_counter()
    for delay_s in delays_s:
        begin_s = time.perf_counter()
        time.sleep(delay_s)
        pace.wait(begin_s, duration_s)
    took_s = time.perf_counter() - began_s

    assert took_s >= len(delays_s) * duration_s - 1e-4
    assert pace.paced_s == pytest.approx(len(delays_s) * duration_s)
    # late by one wake-up at most, and by what cannot be made up for, which is told
    assert took_s <= len(delays_s) * duration_s + pace.overrun_s + 0.006


def test_what_takes_longer_than_it_should_is_told() -> None:
    pace = Pace(scenario())

    begin_s = time.perf_counter()
    time.sleep(0.05)
    pace.wait(begin_s, 0.01)

    assert pace.note()["overrun_s"] > 0.03
