"""Training with compressed gradients equals one process that compresses each worker's, and sends fewer bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import RankError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.verify.reference.compressed import PowerSgdSum, TopKSum, sum_of
from tests.validator import faults_data_parallel as faults
from tests.validator.conftest import GPT, MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation, in_bulk, paced

pytestmark = pytest.mark.full

WORKERS = {"kind": "data_parallel", "workers": 2, "bucket": "4 KiB", "first_bucket": "1 KiB"}
FP16, BF16 = {"kind": "fp16"}, {"kind": "bf16"}
FACTORS, LARGEST = {"kind": "power_sgd", "rank": 2}, {"kind": "top_k", "share": 0.1}
CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"compression": FP16}, TINY_GPT, {}),
    ({"compression": BF16, "overlap": False}, TINY_GPT, {}),
    ({"compression": FACTORS}, TINY_GPT, {"optimizer": "momentum"}),
    ({"compression": {**FACTORS, "rank": 3}, "overlap": False, "workers": 4}, TINY_GPT, {}),
    ({"compression": LARGEST}, TINY_GPT, {"optimizer": "momentum"}),
    ({"compression": LARGEST, "overlap": False, "workers": 4}, MLP, {}),
    ({"compression": {**FACTORS, "rank": 1}, "shares": [4, 12], "microbatches": 2, "algorithm": "ring"}, MLP, {}),
    ({"compression": LARGEST, "shares": [12, 4]}, MLP, {}),
]


def scenario_of(make_scenario: MakeScenario, strategy: dict[str, Any], model: dict[str, Any], **training: Any) -> Any:
    return make_scenario({**WORKERS, **strategy}, model, precision="fp64", **training)


@pytest.mark.parametrize(("strategy", "model", "training"), CASES)
def test_parameters_equal_those_of_one_process_with_compression(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(scenario_of(make_scenario, strategy, model, **training)) < 1e-9


@pytest.mark.parametrize("compression", [FACTORS, *in_bulk(FP16, LARGEST)])
def test_gradients_of_emulated_runs_are_compressed(compression: dict[str, Any], make_scenario: MakeScenario) -> None:
    assert deviation(paced(scenario_of(make_scenario, {"compression": compression}, TINY_GPT))) < 1e-9


@pytest.mark.parametrize(
    ("fault", "compression"),
    [
        (faults.forgets_what_was_not_sent, LARGEST),
        *in_bulk(
            (faults.forgets_what_was_not_sent, FACTORS),
            (faults.begins_every_iteration_anew, FACTORS),
            (faults.sums_and_does_not_divide, FP16),
        ),
    ],
)
def test_verification_detects_wrong_compression(
    fault: Any, compression: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    assert deviation(scenario_of(make_scenario, {"compression": compression}, TINY_GPT)) > 1e-3


def test_16_bit_sums_differ_only_by_rounding_order(make_scenario: MakeScenario) -> None:
    scenario = scenario_of(make_scenario, {"compression": FP16, "workers": 4}, MLP)

    verified = measure(scenario, watch=MeasureOptions(verify=True)).verified

    assert verified is not None
    assert verified.deviation < verified.tolerance == 0.05


@pytest.mark.parametrize("compression", [FP16, FACTORS, LARGEST])
def test_sent_bytes_equal_the_simulators(compression: dict[str, Any], make_scenario: MakeScenario) -> None:
    """Paced tensors are as square as they divide, of which PowerSGD's factors are nearly as small as a square's."""
    scenario = paced(make_scenario({"kind": "data_parallel", "workers": 2, "compression": compression}, GPT))
    tensors = [tensor for layer in scenario.model.build_layers() for tensor in layer.tensors]
    plan = scenario.strategy.plan
    assert plan.compression is not None
    messages = [wire.collective_bytes(2) for wire in plan.compression.wire(tensors, 4)]

    spans = measure(scenario).spans

    assert spans is not None
    sums = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.rank == 0) & (spans.step == 2))
    assert set(sums.phase.tolist()) == {Phase.SYNCHRONISE}
    assert sums.size_bytes.sum() == pytest.approx(sum(messages), rel=0.1)
    whole_bytes = 4.0 * sum(tensors)
    assert sums.size_bytes.sum() < 0.6 * whole_bytes


def test_a_rank_killed_in_an_exchange_is_named(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.dies_in_an_exchange)

    with pytest.raises(RankError, match=r"rank 1 \(worker 1\) was killed by signal 9 in (synchronise|backward) of step 2"):
        measure(make_scenario({**WORKERS, "compression": FP16}))


@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 2**31))
def test_top_k_residuals_conserve_gradients(count: int, workers: int, seed: int) -> None:
    """What was sent and what is kept add up to all gradients so far."""
    torch.manual_seed(seed)
    picked, sent = TopKSum(count), torch.zeros(30, dtype=torch.float64)
    gradients = [[torch.randn(30, dtype=torch.float64) for _ in range(workers)] for _ in range(3)]
    for own in gradients:
        sent += picked(own)

    everything = sum_of([gradient for own in gradients for gradient in own])
    assert torch.allclose(sent + sum_of(picked.kept), everything)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**31))
def test_power_sgd_residuals_conserve_gradients(rank: int, workers: int, seed: int) -> None:
    torch.manual_seed(seed)
    iterated, sent = PowerSgdSum(6, 5, rank, number=0), torch.zeros(30, dtype=torch.float64)
    gradients = [[torch.randn(30, dtype=torch.float64) for _ in range(workers)] for _ in range(3)]
    for own in gradients:
        sent += iterated(own)

    everything = sum_of([gradient for own in gradients for gradient in own])
    assert torch.allclose(sent + sum_of(iterated.errors).flatten(), everything)


def test_low_rank_matrices_are_sent_exactly() -> None:
    """One power iteration finds the whole of a matrix of rank 2 by two columns."""
    torch.manual_seed(0)
    matrix = torch.randn(8, 2, dtype=torch.float64) @ torch.randn(2, 6, dtype=torch.float64)

    found = PowerSgdSum(8, 6, 2, number=0)([matrix.flatten() / 2] * 2)

    assert math.isclose(float((found - matrix.flatten()).norm()), 0.0, abs_tol=1e-12)
