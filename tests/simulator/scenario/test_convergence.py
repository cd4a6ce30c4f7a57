"""Steps to a target: limits and trade-off of the model, its application to runs, and rankings by time to target.

Theory: (S / S_min − 1) · (E / E_min − 1) = 1 of steps and samples; a batch of the critical size takes twice the fewest of both;
staleness adds in proportion, and the less the more gradients' noise rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleproof
from scaleproof.simulator.analysis.study.sweep import sweep
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.prediction.accounting import to_target
from scaleproof.simulator.scenario.convergence import Convergence
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]
STEPS, CRITICAL, PENALTY = 1000.0, 96.0, 0.3
GIVEN = f"convergence={{minimum_steps: {STEPS}, critical_batch: {CRITICAL}, staleness_penalty: {PENALTY}}}"
SERVERS = "strategy={kind: parameter_server, workers: 4, servers: 2}"
ASYNCHRONOUS = "strategy={kind: parameter_server, workers: 4, servers: 2, mode: asynchronous}"
numbers = st.floats(1.0, 1e6)


@given(minimum=numbers, critical=numbers, batch=numbers)
def test_steps_and_samples_follow_the_trade_off_formula(minimum: float, critical: float, batch: float) -> None:
    model = Convergence(minimum_steps=minimum, critical_batch=critical)
    steps = model.steps(batch)
    more_steps, more_samples = steps / minimum - 1, steps * batch / model.minimum_samples - 1
    assert more_steps == pytest.approx(critical / batch, rel=1e-6, abs=1e-9)
    assert more_samples == pytest.approx(batch / critical, rel=1e-6, abs=1e-9)


@given(batch=numbers, larger=st.floats(1.1, 100), staleness=st.floats(0, 100), more=st.floats(0.1, 100))
def test_larger_batches_take_fewer_steps_and_staler_gradients_more(
    batch: float, larger: float, staleness: float, more: float
) -> None:
    model = Convergence(minimum_steps=STEPS, critical_batch=CRITICAL, staleness_penalty=PENALTY)
    steps = model.steps(batch, staleness)
    assert model.steps(batch * larger, staleness) < steps
    assert model.steps(batch * larger, staleness) * batch * larger > steps * batch
    assert model.steps(batch, staleness + more) > steps
    # where noise rules, delay costs a smaller share
    shares = [model.steps(size, staleness + more) / model.steps(size, staleness) for size in (batch, batch * larger)]
    assert shares[0] < shares[1]


@given(batch=numbers, workers=st.integers(1, 1000))
def test_staleness_penalty_one_makes_n_stale_updates_equal_one_larger_batch(batch: float, workers: int) -> None:
    """n updates, the last of which is n − 1 behind, come to what one of n times the batch does: the penalty is 1 then."""
    model = Convergence(minimum_steps=STEPS, critical_batch=CRITICAL, staleness_penalty=1.0)
    assert model.steps(batch, workers - 1) / workers == pytest.approx(model.steps(workers * batch))


def test_synchronous_runs_update_once_per_step_with_all_samples(small: Make) -> None:
    for strategy in ("strategy.workers=4", SERVERS, "strategy={kind: hybrid, workers: 2, stages: 3, microbatches: 6}"):
        run = predict(small(strategy, GIVEN))
        assert run.to_target is not None
        assert run.to_target.batch == pytest.approx(48)
        assert run.to_target.staleness == pytest.approx(0, abs=1e-9)
        assert run.to_target.steps == pytest.approx(STEPS * (1 + CRITICAL / 48))
        assert run.time_to_target_s == pytest.approx(run.to_target.steps * run.step_time_s)
        assert run.to_target.steps_over_fewest == pytest.approx(3)
        assert run.to_target.samples_over_fewest == pytest.approx(1.5)


def test_asynchronous_servers_update_with_each_push(small: Make) -> None:
    run = predict(small(ASYNCHRONOUS, GIVEN))
    assert run.to_target is not None
    assert run.servers is not None
    # who waits for nobody is behind by what the others do meanwhile
    behind = run.to_target.staleness
    assert behind == pytest.approx(3)
    assert run.servers.version_staleness.mean == pytest.approx(behind, abs=0.2)
    assert run.to_target.batch == pytest.approx(12)
    assert run.to_target.steps == pytest.approx(STEPS * (1 + PENALTY * behind + CRITICAL / 12))
    assert run.time_to_target_s == pytest.approx(run.to_target.steps / run.servers.updates_per_s)


def test_the_fastest_batch_to_target_minimises_steps_times_step_time(small: Make) -> None:
    """Where steps take longer by t per sample in addition to a fixed c, S(B) · (c + t B) is least at B = √(B_crit · c / t)."""
    base = predict(small(GIVEN), interval=False)
    fixed_s, sample_s = 2.0, 0.01
    best = math.sqrt(CRITICAL * fixed_s / sample_s)

    def time_s(batch: float) -> float:
        run = replace(base, samples=round(batch), step_time_s=fixed_s + sample_s * round(batch))
        reported = replace(run, to_target=to_target(Convergence(minimum_steps=STEPS, critical_batch=CRITICAL), run))
        return reported.time_to_target_s or 0.0

    assert time_s(best) < time_s(best / 1.5)
    assert time_s(best) < time_s(best * 1.5)


def test_the_interval_combines_step_count_and_step_time(small: Make) -> None:
    exact = predict(small(GIVEN))
    assert exact.prediction_interval_s is not None
    assert exact.time_to_target_s is not None
    ratio = exact.time_to_target_s / exact.step_time_s
    assert exact.time_to_target_interval_s == pytest.approx(tuple(edge * ratio for edge in exact.prediction_interval_s))
    unsure = predict(small(GIVEN, "convergence.uncertainty=0.2"))
    low, high = unsure.time_to_target_interval_s or (0.0, 0.0)
    reach = math.hypot(math.log(exact.prediction_interval_s[1] / exact.step_time_s), 1.6449 * 0.2)
    assert math.log(high / exact.time_to_target_s) == pytest.approx(reach)
    assert low < (exact.time_to_target_interval_s or (0.0, 0.0))[0]
    # of a step time that is known, steps alone are uncertain; where nothing is, there is no interval
    alone = replace(unsure, prediction_interval_s=None).time_to_target_interval_s or (0.0, 0.0)
    assert math.log(alone[1] / alone[0]) == pytest.approx(2 * 1.6449 * 0.2)
    assert replace(exact, prediction_interval_s=None).time_to_target_interval_s is None


@pytest.mark.parametrize(
    ("overrides", "reported"),
    [
        ((ASYNCHRONOUS, "convergence={minimum_steps: 5, critical_batch: 8}"), "convergence.staleness_penalty: missing"),
        (("strategy={kind: local_sgd, workers: 4, period: 4}", GIVEN), "take several steps alone, as in local_sgd"),
        (("strategy={kind: local_sgd, workers: 4}", GIVEN), "take several steps alone, as in local_sgd"),
        (
            ("strategy={kind: data_parallel, workers: 4, compression: {kind: fp16}}", GIVEN),
            "compressed gradients",
        ),
        (("convergence={minimum_steps: 0, critical_batch: 8}",), "convergence.minimum_steps: must be greater than 0"),
        (("convergence={minimum_steps: 5, critical_batch: .inf}",), "convergence.critical_batch: "),
        (("convergence={minimum_steps: 5}",), "convergence.critical_batch: missing"),
    ],
)
def test_unsupported_combinations_are_rejected(overrides: tuple[str, ...], reported: str, small: Make) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(*overrides)
    assert reported in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def _soonest_batch(path: Path) -> int:
    axes = {"batch": [8, 64, 512, 4096]}
    found = sweep({"scenario": str(path), "axes": axes}, overrides=[GIVEN])
    runs = [predict(scaleproof.load(path, [GIVEN, f"batch={batch}"])) for batch in axes["batch"]]
    assert found["time_to_target_s"].tolist() == pytest.approx([run.time_to_target_s for run in runs])
    return int(found.loc[found["time_to_target_s"].idxmin(), "batch"])


def test_sweeps_have_a_time_to_target_column_if_modelled(small: Make, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    # steps pay for themselves up to a batch, and samples cost beyond it
    assert _soonest_batch(path) in (64, 512)
    plain = sweep({"scenario": str(path), "axes": {"batch": [8, 64]}})
    assert "time_to_target_s" not in plain
    axis = {"convergence": [{"minimum_steps": 5, "critical_batch": 8}, {"minimum_steps": 10, "critical_batch": 8}]}
    first, second = sweep({"scenario": str(path), "axes": axis})["time_to_target_s"].tolist()
    assert second == pytest.approx(2 * first)
