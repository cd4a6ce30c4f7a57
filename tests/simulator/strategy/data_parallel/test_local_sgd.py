from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import FieldError, ScenarioError
from scaleproof.simulator.engine import Variation, simulate
from scaleproof.simulator.predict import predict
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import compiled

Make = Callable[..., Scenario]
ONE_BUCKET = "strategy={{kind: data_parallel, workers: {}, overlap: false, bucket: 1 GiB, first_bucket: 1 GiB}}"


def period_s(scenario: Scenario, periods: int = 3) -> float:
    ends_s = simulate(compiled(scenario), periods).step_ends_s()
    return float(ends_s[-1] - ends_s[-2])


def moved_bytes(scenario: Scenario) -> float:
    """Bytes through each worker in one step of the Program."""
    program = compiled(scenario)
    return float(program.amount[program.kind == Kind.COLLECTIVE].sum())


@pytest.mark.parametrize("workers", [1, 2, 8, 10])
def test_a_period_of_one_communicates_like_data_parallelism(small: Make, workers: int) -> None:
    """The average of parameters after the optimizer's step has the size of the gradients before it."""
    batch = "batch={per_worker: 2}"
    local = small(f"strategy={{kind: local_sgd, workers: {workers}}}", batch)
    averaged = small(ONE_BUCKET.format(workers), batch)
    assert moved_bytes(local) == moved_bytes(averaged)
    assert period_s(local) == pytest.approx(period_s(averaged), rel=1e-9)


@given(period=st.integers(1, 200), outer=st.sampled_from(["none", "nesterov"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_local_sgd_communicates_once_per_period(small: Make, period: int, outer: str) -> None:
    """DiLoCo's traffic is 1/H of data parallelism's (arXiv 2311.08105, section 2)."""
    batch = "batch={per_worker: 2}"
    local = small(f"strategy={{kind: local_sgd, workers: 8, period: {period}, outer: {outer}}}", batch)
    every_step = small(ONE_BUCKET.format(8), batch)
    assert moved_bytes(local) == moved_bytes(every_step)
    once = small("strategy={kind: local_sgd, workers: 8}", batch)
    alone = small("strategy={kind: local_sgd, workers: 1}", batch)
    communication_s = period_s(once) - period_s(alone)
    outer_s = 0.0 if outer == "none" else 8 * 4 * once.model.parameters() / 100e9
    assert period_s(local) == pytest.approx(period * period_s(alone) + communication_s + outer_s)


@pytest.mark.parametrize("period", [1, 4, 40, 400])
def test_with_overlap_the_maximum_of_compute_and_communication_counts(small: Make, period: int) -> None:
    strategy = "strategy={{kind: local_sgd, workers: 8, period: {}, overlap: {}}}"
    separate, overlapped = (
        period_s(small(strategy.format(period, flag), "batch={per_worker: 2}")) for flag in ("false", "true")
    )
    alone = period * period_s(small("strategy={kind: local_sgd, workers: 1}", "batch={per_worker: 2}"))
    assert overlapped == pytest.approx(max(alone, separate - alone), rel=1e-9)


def test_workers_synchronise_once_per_period(small: Make) -> None:
    """Maximum of sums versus sum of maxima: jitter costs less if workers synchronise less often."""
    jitter, steps = "unevenness={compute_jitter: 0.5, seed: 3}", 200

    def mean_step_s(period: int) -> float:
        scenario = small(f"strategy={{kind: local_sgd, workers: 8, period: {period}}}", "batch={per_worker: 2}", jitter)
        timeline = simulate(compiled(scenario), 1 + steps // period, Variation(np.zeros(8), compute_jitter=0.5, seed=3))
        ends_s = timeline.step_ends_s()
        return float(ends_s[-1] - ends_s[0]) / (period * (len(ends_s) - 1))

    even = small("strategy={kind: local_sgd, workers: 1}", "batch={per_worker: 2}")
    assert mean_step_s(1) > mean_step_s(20) > period_s(even)


def test_equivalent_workers_are_folded_without_changing_the_result(small: Make) -> None:
    strategy, separate = (
        "strategy={kind: local_sgd, workers: 32, period: 5}",
        "unevenness={stragglers: [{ranks: 9, slowdown: 1}]}",
    )
    folded, unfolded = small(strategy, "batch=64"), small(strategy, "batch=64", separate)
    assert len(compiled(folded).ranks.names) == 1
    assert len(compiled(unfolded).ranks.names) == 3
    assert period_s(folded) == pytest.approx(period_s(unfolded), rel=1e-9)


def test_impossible_values_are_rejected(small: Make) -> None:
    with pytest.raises(ScenarioError, match=r"strategy.period: must be greater than 0"):
        small("strategy={kind: local_sgd, period: 0}")
    with pytest.raises(ScenarioError, match=r"strategy.outer: 'adam' is not known; give 'none' or 'nesterov'"):
        small("strategy={kind: local_sgd, outer: adam}")
    with pytest.raises(
        FieldError, match=r"strategy.period: 100000 steps of 32 different workers are too many .* at most 10416"
    ):
        compiled(small("strategy={kind: local_sgd, workers: 32, period: 100000}", "batch=32", "unevenness={compute_jitter: 1}"))


def test_a_step_of_the_run_is_one_local_step(small: Make) -> None:
    """The mean over a period; samples are those that all workers train on in one such step."""
    local, alone = (small(f"strategy={{kind: local_sgd, workers: {n}, period: 20}}", "batch={per_worker: 2}") for n in (8, 1))
    run = predict(local)
    assert run.samples == 16
    assert run.step_time_s == pytest.approx(period_s(local) / 20)
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    assert run.breakdown_s["compute"] == pytest.approx(predict(alone).step_time_s)
    assert run.efficiency is not None
    assert run.efficiency["weak"] == pytest.approx(run.breakdown_s["compute"] / run.step_time_s)
