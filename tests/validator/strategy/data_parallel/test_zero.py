"""Ranks that shard optimizer states and gradients train like one process, and send as many bytes as predicted."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.predict import predict
from scaleproof.validator.measure import measure
from tests.validator import faults_sharded
from tests.validator.conftest import MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import collectives, deviation, in_bulk, in_turn, main_of, paced

WORKERS = {"kind": "data_parallel", "workers": 2, "bucket": "4 KiB", "first_bucket": "1 KiB"}
GROUPS = {**WORKERS, "workers": 4, "shard_over": 2}
HYBRID = {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2, "bucket": "4 KiB"}
MIXED = TINY_GPT | {"experts": {"count": 4, "active": 2, "feedforward": 24}}
Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
CASES: list[Case] = [
    (WORKERS, TINY_GPT, {"zero": 1, "optimizer": "adam"}),
    ({**HYBRID, "overlap_gather": True}, TINY_GPT, {"zero": 2, "optimizer": "adam"}),
]
MORE_CASES: list[Case] = [
    ({**WORKERS, "microbatches": 2}, TINY_GPT, {"zero": 2}),
    ({**WORKERS, "workers": 4, "overlap": False, "microbatches": 2}, MLP, {"zero": 1, "optimizer": "momentum"}),
    ({**GROUPS, "microbatches": 2, "scatter": "step"}, TINY_GPT, {"zero": 2, "optimizer": "adam"}),
    ({**GROUPS, "algorithm": "ring"}, MLP, {"zero": 1}),
    ({**WORKERS, "shares": [4, 12]}, TINY_GPT, {"zero": 2}),
    ({**HYBRID, "overlap": True, "overlap_gather": True}, TINY_GPT, {"zero": 1}),
    ({**HYBRID, "workers": 4, "stages": 1, "shard_over": 2}, TINY_GPT, {"zero": 2, "optimizer": "adam"}),
    ({**HYBRID, "stages": 1, "tensor": 2, "sequence_parallel": True}, TINY_GPT, {"zero": 2, "optimizer": "adam"}),
    ({**HYBRID, "stages": 1, "context": 2, "order": ["context", "tensor", "workers", "stages"]}, TINY_GPT, {"zero": 1}),
    ({**HYBRID, "stages": 1, "workers": 4, "expert": 2}, MIXED, {"zero": 2, "optimizer": "adam"}),
    (
        {**HYBRID, "chunks": 2, "microbatches": 4, "schedule": "interleaved_1f1b", "overlap_sends": True},
        TINY_GPT,
        {"zero": 2, "optimizer": "adam"},
    ),
    ({**HYBRID, "schedule": "zb_h1", "overlap": False, "overlap_sends": True}, TINY_GPT, {"zero": 1}),
]


@pytest.mark.parametrize(("strategy", "model", "training"), [*CASES, *in_bulk(*MORE_CASES)])
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, model, precision="fp64", **training)) < 1e-9


@pytest.mark.full
@pytest.mark.parametrize("strategy", [WORKERS, {**HYBRID, "overlap_gather": True}])
def test_emulated_ranks_pass_verification(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    assert deviation(paced(make_scenario(strategy, precision="fp64", zero=2))) < 1e-9


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "precision", "zero"),
    [
        (WORKERS, {"accumulate_precision": "fp32"}, 1),
        (WORKERS, {"reduce_precision": "fp32"}, 2),
        ({**HYBRID, "stages": 1}, {"accumulate_precision": "fp32"}, 2),
    ],
)
def test_rounding_is_that_of_the_lower_precision(
    strategy: dict[str, Any], precision: dict[str, Any], zero: int, make_scenario: MakeScenario
) -> None:
    assert 1e-10 < deviation(make_scenario({**strategy, "microbatches": 2}, precision="fp64", zero=zero, **precision)) < 5e-4


@pytest.mark.parametrize(
    ("strategy", "zero"),
    [
        ({**HYBRID, "overlap": True}, 1),
        *in_bulk(
            ({**WORKERS, "microbatches": 2}, 2),
            ({**WORKERS, "microbatches": 2, "scatter": "step"}, 2),
        ),
    ],
)
def test_scattered_and_gathered_bytes_equal_predicted_ones(
    strategy: dict[str, Any], zero: int, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario(strategy, TINY_GPT, zero=zero)

    predicted = collectives(predict(scenario, interval=False, remedy=False))
    # each of two ranks sends half of what is gathered or scattered
    assert collectives(measure(scenario)) == {2 * size: count for size, count in predicted.items()}


@pytest.mark.full
@pytest.mark.parametrize(("fault", "zero"), [(faults_sharded.keep_own_gradients, 1), (faults_sharded.forget_a_shard, 2)])
@pytest.mark.parametrize("strategy", [WORKERS, {**HYBRID, "overlap_gather": True}])
def test_verification_detects_missing_sums_and_gathers(
    fault: Any, zero: int, strategy: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    assert deviation(make_scenario(strategy, precision="fp64", zero=zero)) > 1e-3


@pytest.mark.full
def test_gathers_overlap_with_the_forward_pass(make_scenario: MakeScenario) -> None:
    run = measure(make_scenario({**HYBRID, "stages": 1, "overlap_gather": True}, zero=1))

    main = main_of(run, 0).where(main_of(run, 0).step == 2)
    assert in_turn(main)
    spans = run.spans
    assert spans is not None
    first_forward_s = float(main.arrival_s[main.phase == Phase.FORWARD].min())
    optimizer_s = float(main.arrival_s[main.phase == Phase.OPTIMIZER].min())
    moved = spans.where((spans.rank == 0) & (spans.step == 2) & (spans.stream == Stream.COMMUNICATION))
    gathers = moved.where(moved.arrival_s <= first_forward_s)
    assert len(gathers.end_s) > 1
    assert moved.end_s.max() < optimizer_s, "no collective follows the update"
