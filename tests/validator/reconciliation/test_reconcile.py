from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import RankError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.files import load_run
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.reconcile import ReconciledCase, describe_strategy, reconcile, with_efficiency

Make = Callable[..., Scenario]


def slower_than_predicted(scenario: Scenario) -> Run:
    """A measurement that takes a quarter longer than predicted."""
    run = predict(scenario)
    return replace(run, origin="measured", step_time_s=run.step_time_s * 1.25, scaling={})


def failing(scenario: Scenario) -> Run:
    raise RankError("rank 1 died")


def test_the_error_is_signed_and_relative_to_the_measurement(small: Make) -> None:
    (case,) = reconcile([small()], slower_than_predicted, None, None, lambda _: None)
    assert case.error == pytest.approx(-0.2)


def test_a_failure_is_recorded_and_the_others_run(small: Make, tmp_path: Path) -> None:
    first, second = (small(f"name={name}") for name in ("first", "second"))
    reported: list[ReconciledCase] = []

    def measure(scenario: Scenario) -> Run:
        return failing(scenario) if scenario is first else slower_than_predicted(scenario)

    reconcile([first, second], measure, tmp_path, 0.1, reported.append)
    assert [case.failure for case in reported] == ["rank 1 died", None]
    plain = json.loads((tmp_path / "reconcile.json").read_text())
    assert [case["failure"] for case in plain["cases"]] == ["rank 1 died", None]
    assert plain["max_error"] == 0.1
    assert load_run(tmp_path / "runs" / "second" / "measured").step_time_s == reported[1].measured.step_time_s  # type: ignore[union-attr]
    assert not (tmp_path / "runs" / "first" / "measured").exists()


def test_scenarios_are_saved_for_repetition(small: Make, tmp_path: Path) -> None:
    scenario = small("cluster.network.bandwidth=33.3 Gbit/s", "name=other")
    for measure in (slower_than_predicted, failing):
        reconcile([scenario], measure, tmp_path / measure.__name__, None, lambda _: None)
        assert load(tmp_path / measure.__name__ / "runs" / "other" / "scenario.yaml") == scenario


def test_measured_efficiency_is_relative_to_a_measured_single_rank(small: Make) -> None:
    many, weak = small(), small("strategy.workers=1", "batch=12")
    # as many microbatches as the baseline has, whose gradients are added
    strong = small("strategy={kind: data_parallel, workers: 1, microbatches: 4}")
    cases = [ReconciledCase(s, predict(s), slower_than_predicted(s)) for s in (many, strong, weak)]
    run, *_ = [case.measured for case in with_efficiency(cases)]
    assert run is not None
    assert run.efficiency is not None
    expected = predict(many).efficiency
    assert expected is not None
    assert run.efficiency == pytest.approx(expected)


def test_runs_of_another_model_are_not_used_as_baseline(small: Make) -> None:
    other = small("strategy.workers=1", "model.layers=3")
    cases = [ReconciledCase(s, predict(s), slower_than_predicted(s)) for s in (small(), other)]
    measured = with_efficiency(cases)[0].measured
    assert measured is not None
    assert measured.efficiency is None


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("{kind: data_parallel, workers: 4}", "data_parallel, 4 workers"),
        ("{kind: parameter_server, workers: 1, servers: 2}", "parameter_server, 1 worker + 2 servers"),
        ("{kind: hybrid, workers: 2, stages: 3, microbatches: 3}", "hybrid, 2 workers × 3 stages"),
    ],
)
def test_strategies_are_described_as_text(small: Make, strategy: str, text: str) -> None:
    assert describe_strategy(small(f"strategy={strategy}")) == text


def test_each_case_has_an_explanation_and_interval_coverage(small: Make, tmp_path: Path) -> None:
    (case,) = reconcile([small()], slower_than_predicted, tmp_path, None, lambda _: None)
    (plain,) = json.loads((tmp_path / "reconcile.json").read_text())["cases"]
    reported = plain["explanation"]
    assert sum(part["difference_s"] for part in reported["parts"]) == pytest.approx(reported["difference_s"])
    assert case.explanation is not None
    assert reported["sentences"] == list(case.explanation.sentences)
    assert plain["inside"] is case.inside


@pytest.mark.parametrize(("interval", "inside"), [((0.9, 1.3), True), ((0.9, 1.2), False), (None, None)])
def test_coverage_is_true_for_measurements_inside_the_interval(
    small: Make, interval: tuple[float, float] | None, inside: bool | None
) -> None:
    predicted = predict(small())
    interval_s = interval and (interval[0] * predicted.step_time_s, interval[1] * predicted.step_time_s)
    case = ReconciledCase(small(), replace(predicted, prediction_interval_s=interval_s), slower_than_predicted(small()))
    assert case.inside is inside
    assert ReconciledCase(small(), predicted, None, "died").inside is None
    assert ReconciledCase(small(), predicted, None, "died").explanation is None
