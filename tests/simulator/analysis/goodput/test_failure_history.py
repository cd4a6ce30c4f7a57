"""Simulated failure histories, compared with closed forms and with an event-by-event simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.goodput.failure_history import FailureHistory, FailureMix, FailureSimulation, NodeSupply
from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes, optimum_s, ratio
from tests.simulator.analysis.goodput.jobs import USUAL, PlainSizes, followed, of_nodes, of_the_job, times

DAY_S = 86400.0
ALWAYS = NodeSupply(None, 0.0)
ASYNCHRONOUS = times(stall_s=5.0, writing_s=900.0, slowdown=0.1)
PLANNED = times(planned_per_s=4 / DAY_S, planned_s=1200.0)


def shares(
    job: InterruptionTimes, supply: NodeSupply = ALWAYS, sizes: PlainSizes | None = None, days: float = 20, samples: int = 100
) -> FailureHistory:
    return simulate(job, of_nodes(job), supply, sizes or PlainSizes(), days * DAY_S, samples)


def simulate(
    job: InterruptionTimes, chances: FailureMix, supply: NodeSupply, sizes: PlainSizes, end_s: float, samples: int, **more: Any
) -> FailureHistory:
    return FailureSimulation(job, chances, supply, sizes, end_s, samples, **more).run()  # type: ignore[arg-type]


def near(found: np.ndarray, expected: float, bias: float = 2e-3) -> bool:
    """Equal within four standard errors and the effect of the run's begin and end."""
    return bool(abs(found.mean() - expected) < 4 * found.std() / math.sqrt(len(found)) + bias)


@pytest.mark.parametrize("job", [USUAL, ASYNCHRONOUS, PLANNED, times(failures_per_s=40 / DAY_S)])
@pytest.mark.parametrize("interval_s", [1000.0, 10_000.0])
def test_simulation_equals_the_closed_form_with_unlimited_spares(job: InterruptionTimes, interval_s: float) -> None:
    assert near(shares(job).useful(interval_s), ratio(job, interval_s))


@pytest.mark.parametrize("job", [USUAL, ASYNCHRONOUS])
@pytest.mark.parametrize("supply", [ALWAYS, NodeSupply(2, DAY_S), NodeSupply(0, 7200.0)])
def test_simulation_equals_step_by_step_simulation_of_jobs(job: InterruptionTimes, supply: NodeSupply) -> None:
    one_by_one = np.array([followed(job, supply, 10, 3600.0, 10 * DAY_S, seed) for seed in range(100)])
    found = shares(job, supply, days=10).useful(3600.0)
    error = math.hypot(one_by_one.std(), found.std()) / math.sqrt(100)
    assert found.mean() == pytest.approx(one_by_one.mean(), abs=4 * error)
    assert found.std() == pytest.approx(one_by_one.std(), rel=0.4)


def test_each_failure_waits_for_its_repair_without_spares() -> None:
    """From a failure: detection until it gets through, a repair, and a restart, at whose failures it all begins again."""
    rate, wait_s, interval_s = USUAL.failures_per_s, 7200.0, 3600.0
    through = math.exp(-rate * USUAL.restart_s)
    back_s = (math.expm1(rate * USUAL.detection_s) / rate + wait_s + (1 - through) / rate) / through
    useful_s = interval_s / math.expm1(rate * (interval_s + USUAL.stall_s))
    expected = useful_s / (1 / rate + back_s)
    assert near(shares(USUAL, NodeSupply(0, wait_s)).useful(interval_s), expected)


def test_enough_spares_equal_unlimited_spares() -> None:
    always, many = shares(USUAL).useful(3600.0), shares(USUAL, NodeSupply(100, DAY_S)).useful(3600.0)
    assert many == pytest.approx(always)


def test_waiting_time_equals_erlangs_formula() -> None:
    """Repairs are an M/G/c/c queue, c one more than there are spares: nothing fails while all are in use, which is when
    training waits (Erlang 1917, whatever the distribution of repairs: Sevastyanov 1957)."""
    job, spares, offered = times(detection_s=0.0, restart_s=0.0, failures_per_s=4 / DAY_S), 5, 4
    waited = shares(job, NodeSupply(spares, DAY_S), days=100).parts(3600.0)["waiting for nodes"]
    terms = [offered**n / math.factorial(n) for n in range(spares + 2)]
    assert near(waited, terms[-1] / sum(terms))


def test_shrinking_beats_waiting_for_long_repairs() -> None:
    supply = NodeSupply(0, DAY_S)
    waits, shrinks = (shares(USUAL, supply, PlainSizes(shrinks=shrink)) for shrink in (False, True))
    assert shrinks.useful(3600.0).mean() > 1.5 * waits.useful(3600.0).mean()
    parts = shrinks.parts(3600.0)
    assert parts["fewer workers"].mean() > 0.1
    assert parts["waiting for nodes"].mean() < 0.01
    assert shrinks.growths.mean() > 1


def test_remaining_nodes_continue_if_a_node_is_never_repaired() -> None:
    """Each failure takes a tenth of the speed, of nodes that fail one by one; after the last there is nothing."""
    job = times(failures_per_s=1e-3, detection_s=0.0, restart_s=0.0, stall_s=0.0)
    found = shares(job, NodeSupply(0, 1e9), PlainSizes(shrinks=True), days=30)
    assert found.failures.max() == 10
    # k nodes last 1 / (k · 1e-4) s, at k tenths of the speed: 1000 s for each number of nodes
    work_s = (found.useful(1.0) + found.parts(1.0)["fewer workers"] + found.parts(1.0)["lost work"]) * 30 * DAY_S
    expected_s = sum(1 / (nodes * 1e-4) for nodes in range(1, 11))
    assert work_s.mean() == pytest.approx(expected_s, rel=0.2)


@settings(max_examples=15)
@given(
    st.sampled_from([USUAL, ASYNCHRONOUS, PLANNED]),
    st.floats(0.1, 100),
    st.sampled_from([None, 0, 1, 5]),
    st.floats(60, 1e6),
    st.booleans(),
    st.booleans(),
    st.floats(1000, 1e5),
    st.booleans(),
)
def test_time_shares_add_up_to_one(
    job: InterruptionTimes,
    per_day: float,
    spares: int | None,
    repair_s: float,
    shrinks: bool,
    paired: bool,
    interval_s: float,
    saved: bool,
) -> None:
    job = replace(job, failures_per_s=per_day / DAY_S)
    supply, sizes = NodeSupply(spares, repair_s), PlainSizes(shrinks=shrinks, paired=paired)
    history = simulate(job, of_nodes(job), supply, sizes, 5 * DAY_S, 20, saved=saved)
    parts = history.parts(interval_s)
    assert sum(parts.values()) == pytest.approx(np.ones(20), abs=1e-9)
    assert all((share >= -1e-12).all() for share in parts.values())


def test_failures_that_lose_no_node_need_no_spare() -> None:
    history = simulate(USUAL, of_the_job(USUAL), NodeSupply(0, 1e9), PlainSizes(), 10 * DAY_S, 50)
    assert not history.down_s["waiting"].any()
    assert history.failures.mean() == pytest.approx(80, rel=0.05)


def test_work_after_the_last_checkpoint_is_lost_unless_saved_at_the_end() -> None:
    """In windows of training that goes on."""
    job = times(failures_per_s=1 / 60, restart_s=3600.0)
    ends, goes_on = (
        simulate(job, of_the_job(job), ALWAYS, PlainSizes(), DAY_S / 8, 20, saved=saved) for saved in (True, False)
    )
    assert goes_on.useful(3600.0).max() == 0.0
    assert ends.useful(3600.0).max() >= 0.0


@pytest.mark.parametrize("job", [USUAL, ASYNCHRONOUS, times(stall_s=300.0)])
def test_simulated_and_closed_form_optimum_agree(job: InterruptionTimes) -> None:
    found = shares(job, samples=200)
    simulated_s = optimum_s(lambda interval_s: float(found.useful(interval_s).mean()), 1000.0, DAY_S, 0.01)
    exact_s = optimum_s(lambda interval_s: ratio(job, interval_s), 1000.0, DAY_S)
    assert simulated_s == pytest.approx(exact_s, rel=0.25)
    # it is flat there: what is given away counts
    assert ratio(job, simulated_s) == pytest.approx(ratio(job, exact_s), abs=1e-3)
