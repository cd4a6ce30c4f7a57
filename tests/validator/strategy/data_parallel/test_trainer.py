"""Workers that average gradients train like one process: with microbatches, unequal shares, and batch norms."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.strategy.data_parallel.buckets import Gradients
from scaleproof.validator.measure import measure
from scaleproof.validator.verify.reference import rule_of
from tests.validator import faults_data_parallel as faults
from tests.validator.conftest import GPT, MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation, in_bulk, paced

WORKERS = {"kind": "data_parallel", "workers": 2, "bucket": "4 KiB", "first_bucket": "1 KiB"}
UNEQUAL = {**WORKERS, "shares": [4, 12]}
MICROBATCHES = {**WORKERS, "microbatches": 4}
RESNET = {"kind": "resnet", "depth": 50, "image": 64, "classes": 10}
CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (MICROBATCHES, TINY_GPT, "adam"),
    ({**MICROBATCHES, "overlap": False}, MLP, "momentum"),
    ({**MICROBATCHES, "workers": 1}, MLP, "sgd"),
    (UNEQUAL, TINY_GPT, "sgd"),
    ({**UNEQUAL, "overlap": False}, MLP, "momentum"),
    ({**UNEQUAL, "workers": 4, "shares": [2, 6, 4, 4], "microbatches": 2}, MLP, "sgd"),
]


@pytest.mark.parametrize(("strategy", "model", "optimizer"), [*CASES[::3], *in_bulk(*CASES[1::3], *CASES[2::3])])
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], optimizer: str, make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, model, precision="fp64", optimizer=optimizer)) < 1e-9


@pytest.mark.parametrize("overlap", [True, *in_bulk(False)])
def test_emulated_workers_are_averaged(overlap: bool, make_scenario: MakeScenario) -> None:
    strategy = {**UNEQUAL, "microbatches": 2, "overlap": overlap}

    assert deviation(paced(make_scenario(strategy, precision="fp64"))) < 1e-9


@pytest.mark.full
def test_batch_norms_use_each_workers_statistics(make_scenario: MakeScenario) -> None:
    training = {"precision": "fp64", "optimizer": "sgd", "learning_rate": 1e-3}
    scenario = make_scenario({**WORKERS, "bucket": "8 MiB", "shares": [2, 4]}, RESNET, steps=1, batch=6, **training)

    assert "normalises each worker" in rule_of(scenario).words
    assert deviation(scenario) < 1e-9


@pytest.mark.parametrize(
    ("fault", "strategy"),
    [
        (faults.weights_workers_equally, UNEQUAL),
        (faults.weights_workers_equally, {**UNEQUAL, "overlap": False}),
        (faults.averages_no_microbatch_but_the_last, MICROBATCHES),
        (faults.averages_no_microbatch_but_the_last, {**MICROBATCHES, "overlap": False}),
        (faults.sums_and_does_not_divide, WORKERS),
    ],
)
def test_verification_detects_wrong_averages(
    fault: Any, strategy: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    assert deviation(make_scenario(strategy, MLP, precision="fp64", optimizer="momentum")) > 1e-3


@pytest.mark.parametrize("overlap", [True, False])
def test_microbatches_run_in_turn_and_are_averaged_once(overlap: bool, make_scenario: MakeScenario) -> None:
    strategy = {"kind": "data_parallel", "workers": 2, "microbatches": 4, "bucket": "100 KiB", "overlap": overlap}
    scenario = make_scenario(strategy, GPT)
    layers = scenario.model.build_layers()

    spans = measure(scenario).spans

    assert spans is not None
    own = spans.where((spans.rank == 1) & (spans.step == 3))
    main = own.where(own.stream == Stream.MAIN)
    passes = [(Phase(phase), number) for phase, number in zip(main.phase.tolist(), main.microbatch.tolist(), strict=True)]
    expected = [(phase, number) for number in range(4) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    assert passes == [*expected, (Phase.SYNCHRONISE, -1), (Phase.OPTIMIZER, -1)]
    assert (main.arrival_s[1:] >= main.end_s[:-1] - 1e-9).all(), "a rank does one thing at a time"
    sums = own.where(own.stream == Stream.COMMUNICATION)
    gradients = Gradients(layers)
    plan = scenario.strategy.plan
    assert len(set(plan.bucket_limits_bytes)) == 1, "as the others where bucket is given"
    bounds, _ = gradients.buckets(range(len(layers)), 4, *plan.bucket_limits_bytes)
    expected_bytes = [4.0 * (gradients.filled[end] - gradients.filled[begin]) for begin, end in itertools.pairwise(bounds)]
    assert sorted(sums.size_bytes.tolist()) == sorted(expected_bytes)


@pytest.mark.parametrize(
    ("strategy", "training", "message"),
    [
        ({"algorithm": "tree"}, {}, "strategy.algorithm: tree is predicted but not measured; give ring, or leave it out"),
        ({"algorithm": "ring"}, {"zero": 3}, "strategy.algorithm with training.zero"),
    ],
)
def test_settings_that_cannot_be_measured_are_rejected(
    strategy: dict[str, Any], training: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=message):
        measure(make_scenario({**WORKERS, **strategy}, **training))
