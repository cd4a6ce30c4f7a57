"""Workers that train separately for a period equal one process that simulates each of them in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.predict import predict
from scaleproof.validator.measure import MeasureOptions, measure, train_here
from scaleproof.validator.record.emulation_lateness import MOST_LATE_S
from tests.validator import faults_data_parallel as faults
from tests.validator.conftest import GPT, MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation, in_bulk, paced

ALONE = {"kind": "local_sgd", "workers": 2, "period": 3}
NESTEROV = {**ALONE, "outer": "nesterov"}
CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (ALONE, TINY_GPT, "adam"),
    ({**ALONE, "workers": 4, "overlap": True}, MLP, "momentum"),
    ({**ALONE, "workers": 1, "overlap": True}, MLP, "momentum"),
    ({**NESTEROV, "workers": 4}, MLP, "adam"),
    ({**NESTEROV, "overlap": True}, TINY_GPT, "sgd"),
]


@pytest.mark.parametrize(("strategy", "model", "optimizer"), [*CASES[3:], *in_bulk(*CASES[:3])])
def test_parameters_equal_those_of_one_process_training_each_worker(
    strategy: dict[str, Any], model: dict[str, Any], optimizer: str, make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, model, precision="fp64", optimizer=optimizer)) < 1e-9


@pytest.mark.parametrize(
    ("fault", "strategy", "optimizer"),
    [
        (train_here, {**NESTEROV, "overlap": True}, "sgd"),
        (faults.begins_with_a_large_scale_on_a_worker, ALONE, "momentum"),
        *in_bulk((train_here, {**ALONE, "overlap": True}, "adam"), (train_here, {**NESTEROV, "workers": 4}, "momentum")),
    ],
)
def test_parameters_in_16_bits_equal_those_in_64_bits_up_to_rounding(
    fault: Any, strategy: dict[str, Any], optimizer: str, make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's own scale of losses is halved where its gradients are not finite, and it leaves that step out alone."""
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    scenario = make_scenario(strategy, precision="fp16", optimizer=optimizer)
    run = measure(scenario, watch=MeasureOptions(verify=True))

    assert run.verified is not None
    assert run.verified.is_right


@pytest.mark.parametrize("strategy", [NESTEROV, *in_bulk({**ALONE, "overlap": True})])
def test_emulated_workers_are_averaged(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    assert deviation(paced(make_scenario(strategy, precision="fp64"))) < 1e-9


@pytest.mark.parametrize(
    ("fault", "strategy"),
    [
        (faults.averages_after_every_step, ALONE),
        (faults.forgets_the_outer_momentum, NESTEROV),
        (faults.applies_the_last_average_twice, {**ALONE, "overlap": True}),
    ],
)
def test_verification_detects_wrong_periods(
    fault: Any, strategy: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    assert deviation(make_scenario(strategy, MLP, precision="fp64", optimizer="momentum")) > 1e-3


def test_a_period_of_one_step_of_plain_sgd_is_data_parallelism(make_scenario: MakeScenario) -> None:
    averaged = measure(make_scenario({**ALONE, "period": 1}, MLP, precision="fp64", optimizer="sgd"))
    parallel = measure(make_scenario({"kind": "data_parallel", "workers": 2}, MLP, precision="fp64", optimizer="sgd"))

    assert averaged.losses == pytest.approx(parallel.losses, rel=1e-12)


@pytest.mark.parametrize(("overlap", "precision", "element_bytes"), [(False, "fp32", 4), (True, "fp32", 4), (True, "fp16", 2)])
def test_parameters_are_averaged_once_a_period(
    overlap: bool, precision: str, element_bytes: int, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario({**ALONE, "overlap": overlap}, GPT, precision=precision)

    spans = measure(scenario).spans

    assert spans is not None
    own = spans.where((spans.rank == 1) & (spans.step == 2))
    main = own.where(own.stream == Stream.MAIN)
    step = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert main.phase.tolist() == [*step * 3, Phase.SYNCHRONISE, Phase.OPTIMIZER]
    assert (main.arrival_s[1:] >= main.end_s[:-1] - 1e-9).all(), "a rank does one thing at a time"
    sums = own.where(own.stream == Stream.COMMUNICATION)
    assert sums.size_bytes.tolist() == [float(element_bytes) * sum(layer.parameters for layer in scenario.model.build_layers())]
    assert (sums.arrival_s[0] < main.arrival_s[1]) == overlap


def test_times_are_means_over_a_period_like_predicted_ones(make_scenario: MakeScenario) -> None:
    scenario = paced(make_scenario({**ALONE, "period": 4}, GPT, batch=64))

    predicted, measured = predict(scenario), measure(scenario)

    assert measured.samples == predicted.samples
    # a whole period has four passes; a loaded machine wakes sleepers late, never early, but for what was late before
    assert measured.spans is not None
    passes = measured.spans.where(measured.spans.phase == Phase.FORWARD)
    pass_s = np.mean(passes.end_s - passes.start_s)
    share = measured.phase_s["forward"] / measured.step_time_s
    assert share == pytest.approx(pass_s / np.mean(measured.step_times_s), rel=0.5), "not four times as much"
    assert pass_s > predicted.phase_s["forward"] - MOST_LATE_S
    assert sum(measured.breakdown_s.values()) == pytest.approx(measured.step_time_s)
    assert len(measured.losses) == len(measured.step_times_s) == scenario.steps
