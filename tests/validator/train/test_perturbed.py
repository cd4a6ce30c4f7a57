"""Perturbations are imposed on ranks as they are predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from scaleproof.simulator.common.spans import COMPUTE_PHASES, Stream
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import measure
from scaleproof.validator.record import emulation_lateness
from scaleproof.validator.record.steps import warmup_steps
from scaleproof.validator.train import emulated_compute, perturbed
from scaleproof.validator.train.emulated_compute import Pace
from scaleproof.validator.train.perturbed import RankPerturbations
from tests.validator.conftest import CLUSTER
from tests.validator.train.test_emulated_compute import RING, FakeTime
from tests.validator.train.test_emulated_compute import scenario as even_scenario
from tests.validator.verdicts import in_bulk

PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 2}
SERVERS = {"kind": "parameter_server", "workers": 2, "servers": 1}
STRATEGIES = [RING, *in_bulk(PIPELINE, SERVERS)]
# Runs may be a little shorter than predicted where ranks make up for waking up late; other work makes them longer.
LEAST, MOST = 0.9, 1.6


def scenario(unevenness: dict[str, Any], strategy: dict[str, Any] = RING, steps: int = 8, **more: Any) -> Scenario:
    """A paced scenario, of which a step of even ranks takes about 50 ms, with perturbations."""
    one = even_scenario(strategy, steps=steps)
    return Scenario.model_validate(
        {name: getattr(one, name) for name in one.model_fields_set} | {"unevenness": unevenness} | more
    )


def computed_s(run: Run, rank: int) -> float:
    """Least of all steps of the seconds for which a rank computes: other work on the machine makes some longer."""
    assert run.spans is not None
    own = run.spans.where((run.spans.rank == rank) & (run.spans.stream == Stream.MAIN))
    own = own.where(np.isin(own.phase, COMPUTE_PHASES))
    return float(np.bincount(own.step, own.end_s - own.arrival_s)[1:].min())


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    for module in (emulated_compute, emulation_lateness, perturbed):
        monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.mark.full
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "unevenness",
    [
        {"stragglers": [{"ranks": [1], "slowdown": 2.5}]},
        {"noise": [{"period": "30 ms", "lasts": "15 ms"}]},
        {"throttled": [{"ranks": [1], "slowdown": 3, "after": "150 ms"}]},
    ],
    ids=lambda unevenness: next(iter(unevenness)),
)
def test_steps_take_about_the_predicted_time(unevenness: dict[str, Any], strategy: dict[str, Any]) -> None:
    one = scenario(unevenness, strategy, steps=12)
    predicted_s, even_s = (predict(each, interval=False).step_time_s for each in (one, scenario({}, strategy)))
    assert LEAST * predicted_s > 1.2 * even_s, "the perturbation can be noticed"

    assert LEAST * predicted_s < measure(one).step_time_s < MOST * predicted_s


@pytest.mark.full
@pytest.mark.parametrize("assignment", ["fixed", "dynamic"])
def test_a_late_rank_delays_a_run_of_units_as_predicted(assignment: str) -> None:
    late = {"late": [{"ranks": [1], "delay": "600 ms"}]}
    one = scenario(late, {**SERVERS, "mode": "asynchronous", "units": 8, "assignment": assignment})
    predicted, measured = (run.step_time_s for run in (predict(one, interval=False), measure(one)))
    assert LEAST * predicted < measured < MOST * predicted
    # others take the units of a late worker where they can
    assert (measured > 0.6 / 4) == (assignment == "fixed")


def test_a_late_rank_begins_before_the_counted_steps() -> None:
    """A prediction does not count the step that is late, where all ranks then wait for one another."""
    one = scenario({"late": [{"ranks": [1], "delay": "600 ms"}]})
    run = measure(one)
    assert max(run.step_times_s) < 0.5
    assert run.step_time_s < MOST * predict(one, interval=False).step_time_s


def test_steps_in_the_tail_are_longer_as_drawn() -> None:
    one = scenario({"tail": {"share": 0.3, "slowdown": 4, "shape": 20}})
    work_s = sum(predict(scenario({}), interval=False).phase_s[phase.label] for phase in COMPUTE_PHASES)
    steps_s = np.max([_steps_s(one, rank, work_s) for rank in range(2)], axis=0)
    assert max(steps_s) > 3.9 * work_s

    run = measure(one)

    assert LEAST * steps_s.mean() < run.step_time_s < MOST * steps_s.mean()
    assert all(LEAST * drawn_s < measured_s for drawn_s, measured_s in zip(steps_s, run.step_times_s, strict=True))


def _steps_s(one: Scenario, rank: int, work_s: float) -> list[float]:
    """Seconds of the compute of a rank's measured steps."""
    draws = RankPerturbations(one, rank)
    durations_s = []
    for _ in range(warmup_steps(one) + one.steps):
        draws.begin_step()
        durations_s.append(draws.lasts_s(0.0, work_s))
    return durations_s[-one.steps :]


def test_jitter_has_one_factor_for_each_pass_with_the_given_deviation() -> None:
    passes = iter(np.repeat(np.arange(20_000), 4).tolist())
    draws = RankPerturbations(scenario({"compute_jitter": 0.3}), 0, lambda: next(passes))
    # `passes` is read twice for a new pass, and once for another layer of it
    factors = np.array([[draws.lasts_s(0.0, 1.0) for _ in range(3)] for _ in range(20_000)])
    assert (factors == factors[:, :1]).all()
    assert factors[:, 0].mean() == pytest.approx(1, abs=0.01)
    assert factors[:, 0].std() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(("each", "in_a_step"), [("step", 1), ("pass", 5)])
def test_a_tail_is_drawn_for_each_step_or_pass(each: str, in_a_step: int) -> None:
    entered = [0]
    draws = RankPerturbations(scenario({"tail": {"share": 0.5, "slowdown": 2, "each": each}}), 0, lambda: entered[0])
    different = []
    for _ in range(50):
        draws.begin_step()
        factors = []
        for _ in range(5):
            entered[0] += 1
            factors.append(draws.lasts_s(0.0, 1.0))
        different.append(len(set(factors)))
    assert max(different) == 1 if in_a_step == 1 else max(different) > 1


def test_servers_have_no_tail_and_ranks_draw_different_factors() -> None:
    one = scenario({"tail": {"share": 1, "slowdown": 2}}, SERVERS)
    factors = []
    for rank in range(3):
        draws = RankPerturbations(one, rank)
        draws.begin_step()
        factors.append(draws.lasts_s(0.0, 1.0))
    assert factors[2] == 1
    assert 2 <= min(factors[:2]) < max(factors[:2])


def test_noise_stops_emulated_compute_from_the_beginning_of_the_run(fake_time: FakeTime) -> None:
    noise = {"noise": [{"period": "100 ms", "lasts": "40 ms", "after": "20 ms", "phase": "aligned"}]}
    one = scenario(noise | {"late": [{"ranks": [0], "delay": "5 ms"}]})
    perturbations = RankPerturbations(one, 0)
    pace, fake_time.now_s = Pace(one, 0, perturbations), 7.0
    pace.wait(7.0, 0.03)
    assert fake_time.now_s == pytest.approx(7.03), "nothing is perturbed before the beginning"

    perturbations.begin()
    assert fake_time.now_s == pytest.approx(7.035), "the rank is late"
    pace.wait(fake_time.now_s, 0.03)
    assert fake_time.now_s == pytest.approx(7.105), "15 ms of work, 40 ms of noise, 15 ms of work"


def test_real_compute_is_lengthened_by_the_slowdown(fake_time: FakeTime) -> None:
    slow = RankPerturbations(scenario({"stragglers": [{"ranks": [1], "slowdown": 2.5}]}, compute="real"), 1)
    fake_time.now_s = 0.04
    slow.lengthen(0.0)
    assert fake_time.now_s == pytest.approx(0.1)


@pytest.mark.alone
@pytest.mark.parametrize("strategy", [RING | {"overlap": False}, *in_bulk(PIPELINE)])
def test_a_straggler_that_computes_is_slower_than_its_peers(strategy: dict[str, Any]) -> None:
    model = {"kind": "mlp", "layers": 4, "inputs": 512, "hidden": 512, "outputs": 512}
    slow = {"stragglers": [{"ranks": [1], "slowdown": 4}]}
    one = scenario(slow, strategy, compute="real", model=model, cluster=CLUSTER, batch={"total": 128})

    run = measure(one)

    assert computed_s(run, 1) > 2 * computed_s(run, 0)
    assert run.losses == pytest.approx(measure(one.model_copy(update={"unevenness": scenario({}).unevenness})).losses)


def test_optimizers_of_emulated_stragglers_are_slower(fake_time: FakeTime) -> None:
    one = scenario({"stragglers": [{"ranks": [1], "slowdown": 2.5}]})
    took_s = []
    for rank in (0, 1):
        pace, begin_s = Pace(one, rank), fake_time.now_s
        optimizer = torch.optim.SGD(torch.nn.Linear(64, 64).parameters(), lr=0.1)
        pace.slow_down(optimizer, 65 * 64)
        optimizer.step()
        took_s.append(fake_time.now_s - begin_s)
    assert took_s[1] == pytest.approx(2.5 * took_s[0])
