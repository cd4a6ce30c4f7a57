"""Workers that shard parameters train like one process, and record their messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.predict import predict
from scaleproof.validator.measure import MeasureOptions, measure
from tests.validator import faults_sharded
from tests.validator.conftest import GPT, MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import at_night, collectives, in_bulk

WORKERS = {"kind": "data_parallel", "workers": 2}
STAGED = {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}
MIXED = TINY_GPT | {"experts": {"count": 4, "active": 2, "feedforward": 24}}
CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (WORKERS, TINY_GPT, {"zero": 3, "optimizer": "adam"}),
    ({**WORKERS, "workers": 4, "shard_over": 2, "microbatches": 2, "scatter": "step"}, TINY_GPT, {"zero": 3}),
    (STAGED, TINY_GPT, {"zero": 3, "optimizer": "adam"}),
]
MORE_CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({**WORKERS, "microbatches": 2, "reshard": False}, MLP, {"zero": 3}),
    ({**WORKERS, "workers": 4, "shard_over": 2, "prefetch": 2}, TINY_GPT, {"zero": 3, "optimizer": "adam"}),
    ({**STAGED, "reshard": False}, TINY_GPT, {"zero": 3, "optimizer": "adam"}),
    (
        {**STAGED, "scatter": "step", "microbatches": 4, "chunks": 2, "schedule": "interleaved_1f1b", "overlap_sends": True},
        TINY_GPT,
        {"zero": 3, "optimizer": "adam"},
    ),
    ({**STAGED, "stages": 1, "tensor": 2, "sequence_parallel": True}, TINY_GPT, {"zero": 3, "optimizer": "adam"}),
    ({**STAGED, "stages": 1, "context": 2}, TINY_GPT, {"zero": 3, "optimizer": "adam"}),
    ({**STAGED, "stages": 1, "workers": 4, "expert": 2, "shard_over": 2}, MIXED, {"zero": 3, "optimizer": "adam"}),
    # one rank has whole experts, or the whole model
    ({**STAGED, "stages": 1, "expert": 2}, MIXED, {"zero": 3}),
    ({**WORKERS, "shard_over": 1}, MLP, {"zero": 3}),
    (
        {**STAGED, "stages": 1, "tensor": 2, "sequence_parallel": True, "expert_tensor": 1, "expert": 2},
        MIXED,
        {"zero": 3, "optimizer": "adam"},
    ),
    ({**WORKERS, "shares": [4, 12]}, MLP, {"zero": 3, "optimizer": "momentum"}),
]


def deviation(make_scenario: MakeScenario, strategy: dict[str, Any], model: dict[str, Any], **training: Any) -> float:
    verified = measure(make_scenario(strategy, model, precision="fp64", **training), watch=MeasureOptions(verify=True)).verified
    assert verified is not None
    return float(verified.deviation)


@pytest.mark.parametrize(("strategy", "model", "training"), [*CASES, *in_bulk(*MORE_CASES[:6]), *at_night(*MORE_CASES[6:])])
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario, strategy, model, **training) < 1e-9


def test_emulated_workers_shard_parameters(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(WORKERS, TINY_GPT, zero=3, precision="fp64").model_copy(update={"compute": "paced"})

    verified = measure(scenario, watch=MeasureOptions(verify=True)).verified

    assert verified is not None
    assert verified.deviation < 1e-9


@pytest.mark.parametrize("fault", [faults_sharded.sums_in_groups_alone, faults_sharded.stale_parameters])
def test_verification_detects_missing_sums_and_gathers(
    fault: Any, make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)
    strategy = {**WORKERS, "workers": 4, "shard_over": 2}

    assert deviation(make_scenario, strategy, MLP, zero=3) > 1e-3


def test_every_layer_is_gathered_for_each_pass_and_its_gradients_reduce_scattered(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(WORKERS, GPT, zero=3)
    layer_bytes = [4 * layer.parameters for layer in scenario.model.build_layers()]

    spans = measure(scenario).spans

    assert spans is not None
    moved = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.step == 2) & (spans.rank == 1))
    # gathered forward and backward, but for the last layer, which is still there; scattered once
    assert moved.size_bytes.sum() == pytest.approx(3 * sum(layer_bytes), rel=0.1)
    assert len(moved.size_bytes) in (3 * len(layer_bytes), 3 * len(layer_bytes) - 1)


@pytest.mark.parametrize(
    "strategy",
    [
        {**WORKERS, "microbatches": 2, "scatter": "step"},
        *in_bulk(
            {**WORKERS, "microbatches": 2, "reshard": False},
            STAGED,
            {**STAGED, "prefetch": 0, "scatter": "step"},
        ),
    ],
)
def test_gathered_and_scattered_bytes_equal_predicted_ones(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    scenario = make_scenario(strategy, TINY_GPT, zero=3)

    predicted = collectives(predict(scenario, interval=False, remedy=False))
    # each of two ranks sends half of what is gathered or scattered
    assert collectives(measure(scenario)) == {2 * size: count for size, count in predicted.items()}


def test_waiting_interrupts_passes_of_microbatches(make_scenario: MakeScenario) -> None:
    spans = measure(make_scenario({**WORKERS, "microbatches": 2}, GPT, zero=3)).spans

    assert spans is not None
    own = spans.where((spans.stream == Stream.MAIN) & (spans.rank == 0) & (spans.step == 1))
    assert (own.arrival_s[1:] >= own.end_s[:-1] - 1e-9).all(), "a rank does one thing at a time"
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.SYNCHRONISE} == set(map(Phase, own.phase.tolist()))
    passes = own.where(np.isin(own.phase, (Phase.FORWARD, Phase.BACKWARD)))
    assert list(dict.fromkeys(zip(passes.phase.tolist(), passes.microbatch.tolist(), strict=True))) == [
        (phase, number) for number in range(2) for phase in (Phase.FORWARD, Phase.BACKWARD)
    ]


@pytest.mark.parametrize(
    ("strategy", "training", "message"),
    [
        (WORKERS, {"zero": 3, "accumulate_precision": "fp32"}, "training.accumulate_precision with training.zero=3"),
        (
            {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2, "schedule": "zb_h1", "overlap_sends": True},
            {"zero": 2},
            "training.zero: in zb_h1 torch does not report gradients of weights; leave it out",
        ),
        (
            {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2, "schedule": "zb_h1", "overlap_sends": True},
            {},
            "strategy.overlap: in zb_h1 torch does not report gradients of weights; set it to false",
        ),
    ],
)
def test_unsupported_sharding_is_rejected(
    strategy: dict[str, Any], training: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=message):
        measure(make_scenario(strategy, precision="fp64", **training))
