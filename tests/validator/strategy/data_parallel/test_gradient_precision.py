"""Gradients are added up and summed in the precisions that a scenario states, and ranks exchange as many bytes as predicted.

Training in fp64 whose gradients are summed in fp32 deviates by fp32's rounding: more than fp64's, and no more than that.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.training import Training
from scaleproof.validator.measure import measure
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.strategy.data_parallel.gradient_precision import Accumulator, GradientPrecision
from scaleproof.validator.verify.verify import tolerance_of
from tests.validator import conftest
from tests.validator.conftest import MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import at_night, collectives, deviation, paced

pytestmark = pytest.mark.full

ALONE = {"kind": "data_parallel", "microbatches": 4}
WORKERS = {"kind": "data_parallel", "workers": 2, "microbatches": 2, "bucket": "4 KiB", "first_bucket": "1 KiB"}
PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 4}
HYBRID = {"kind": "hybrid", "workers": 2, "microbatches": 2, "bucket": "4 KiB"}
ADDED, SUMMED = {"accumulate_precision": "fp32"}, {"reduce_precision": "fp32"}


@pytest.fixture
def with_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that compute in 16 bits."""
    device: Any = conftest.CLUSTER["device"]
    peak = device["peak"] | {"bf16": "50 GFLOP/s"}
    monkeypatch.setattr(conftest, "CLUSTER", conftest.CLUSTER | {"device": device | {"peak": peak}})


@pytest.mark.parametrize(
    ("strategy", "training"),
    [
        (ALONE, ADDED),
        (WORKERS, SUMMED),
        ({**WORKERS, "overlap": False}, ADDED),
        (WORKERS, {**SUMMED, "zero": 3}),
        (PIPELINE, ADDED),
        ({**HYBRID, "tensor": 2, "sequence_parallel": True, "overlap": True}, SUMMED),
        *at_night(
            (WORKERS, ADDED | SUMMED),
            ({**WORKERS, "scatter": "step"}, {**SUMMED, "zero": 2}),
            ({**HYBRID, "stages": 2, "schedule": "gpipe"}, {**ADDED, "reduce_precision": "fp64"}),
        ),
    ],
)
def test_rounding_is_that_of_the_lower_precision(
    strategy: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    scenario = make_scenario(strategy, precision="fp64", **training)

    assert 1e-10 < deviation(scenario) < tolerance_of(scenario)


def test_gradients_of_emulated_runs_are_rounded(make_scenario: MakeScenario) -> None:
    assert 1e-10 < deviation(paced(make_scenario(WORKERS, precision="fp64", **SUMMED))) < 5e-4


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize(
    ("strategy", "training"),
    [(WORKERS, SUMMED), ({**WORKERS, "overlap": False}, ADDED), ({**HYBRID, "context": 2, "microbatches": 1}, SUMMED)],
)
def test_summed_bytes_equal_predicted_ones(
    precision: str, strategy: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario, with_bf16: None
) -> None:
    scenario = make_scenario(strategy, MLP if "context" not in strategy else TINY_GPT, precision=precision, **training)
    ranks = scenario.strategy.ranks
    plan = scenario.strategy.plan

    sent = collectives(predict(scenario, interval=False, remedy=False))
    sums = {size / (2 * (ranks - 1) / ranks): count for size, count in sent.items()}
    measured = collectives(measure(scenario))
    if plan.context > 1:
        # keys and values go round, too
        measured = type(measured)({size: count for size, count in measured.items() if size in sums})
    assert measured == sums


def test_an_equal_gradient_precision_has_no_effect(make_scenario: MakeScenario) -> None:
    assert deviation(make_scenario(WORKERS, precision="fp32", **ADDED, **SUMMED)) == deviation(
        make_scenario(WORKERS, precision="fp32")
    )


def test_a_wider_buffer_keeps_small_additions() -> None:
    """Each gradient is less than half of bf16's spacing at 1."""
    sums = []
    for accumulated in ("bf16", "fp32"):
        parameter = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        precision = GradientPrecision.of(Training.model_validate({"precision": "bf16", "accumulate_precision": accumulated}))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        accumulator = Accumulator([parameter], precision, optimizer)
        for slope in [1.0, *[2.0**-9] * 256]:
            (parameter * slope).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        accumulator.close()
        sums.append(-parameter.detach()[0].item())

    assert sums == [1.0, 1.5]


def test_taking_the_gradients_resets_the_accumulator() -> None:
    parameter = nn.Parameter(torch.ones(2, dtype=torch.float64))
    precision = GradientPrecision(torch.float64, torch.float32, torch.float32)
    accumulator = Accumulator([parameter], precision, torch.optim.SGD([parameter]))

    def taken() -> torch.Tensor:
        parameter.sum().backward()  # type: ignore[no-untyped-call]
        parameter.sum().backward()  # type: ignore[no-untyped-call]
        (one,) = accumulator.take([parameter])
        return one

    for one in (taken(), taken()):
        assert one.dtype == torch.float32
        assert one.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("strategy", "training", "message"),
    [
        (
            WORKERS,
            {**ADDED, "zero": 3},
            "training.accumulate_precision with training.zero=3 is predicted but not measured: torch's",
        ),
        (
            {**PIPELINE, "schedule": "zb_h1", "overlap_sends": True},
            ADDED,
            "training.accumulate_precision: in zb_h1 torch does not report gradients of weights; leave it out",
        ),
        (
            WORKERS,
            {"fused_accumulation": True},
            "training.fused_accumulation is predicted but not measured: torch's products do not add",
        ),
    ],
)
def test_precisions_that_torch_does_not_support_are_rejected(
    strategy: dict[str, Any], training: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario(strategy, precision="fp64", **training)

    with pytest.raises(InputError) as caught:
        check_trainable(scenario)
    assert message in str(caught.value)
