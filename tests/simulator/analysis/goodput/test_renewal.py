"""Goodput in closed form, compared with Daly's formula, its limits, and the exact optimum."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import lambertw

from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes, daly_s, optimum_s, ratio
from tests.simulator.analysis.goodput.jobs import times

seconds = st.floats(1.0, 1e5)
jobs = st.builds(
    InterruptionTimes,
    failures_per_s=st.floats(1e-8, 1e-2),
    planned_per_s=st.just(0.0) | st.floats(1e-8, 1e-3),
    detection_s=st.just(0.0) | seconds,
    restart_s=st.just(0.0) | seconds,
    planned_s=st.just(0.0) | seconds,
    stall_s=st.just(0.0) | seconds,
    writing_s=st.just(0.0) | st.floats(1.0, 1e3),
    slowdown=st.floats(0.0, 0.9),
)


@given(jobs, st.floats(1e3, 1e5))
def test_synchronous_checkpoints_without_planned_stops_give_dalys_formula(job: InterruptionTimes, interval_s: float) -> None:
    job = replace(job, planned_per_s=0.0, writing_s=0.0)
    mtbf_s = 1 / job.failures_per_s
    exponent = (job.detection_s + job.restart_s) / mtbf_s
    if exponent < 100 and (interval_s + job.stall_s) / mtbf_s < 100:
        expected_s = mtbf_s * math.exp(exponent) * math.expm1((interval_s + job.stall_s) / mtbf_s)
        assert ratio(job, interval_s) == pytest.approx(interval_s / expected_s, rel=1e-9)


@given(jobs, st.floats(1e3, 1e5))
def test_goodput_is_between_zero_and_one(job: InterruptionTimes, interval_s: float) -> None:
    assert 0 <= ratio(job, interval_s) <= 1 + 1e-12


@given(jobs, st.floats(1e3, 1e5))
def test_rare_failures_leave_only_the_cost_of_checkpoints(job: InterruptionTimes, interval_s: float) -> None:
    job = replace(job, failures_per_s=1e-15, planned_per_s=0.0)
    left = interval_s / (interval_s + job.stall_s + job.slowdown * job.writing_s)
    assert ratio(job, interval_s) == pytest.approx(left, rel=1e-6)


@given(jobs, st.floats(1e3, 1e5), st.floats(1.01, 10))
def test_goodput_never_increases_with_a_worse_parameter(
    job: InterruptionTimes, interval_s: float, times_as_much: float
) -> None:
    now = ratio(job, interval_s)
    for name in ("failures_per_s", "detection_s", "restart_s", "stall_s", "writing_s"):
        worse = replace(job, **{name: getattr(job, name) * times_as_much})
        if interval_s > worse.least_interval_s:
            assert ratio(worse, interval_s) <= now + 1e-12


def test_a_planned_stop_loses_no_work() -> None:
    """Stops that take nothing leave all time useful, where nothing fails and checkpoints cost nothing."""
    free = times(failures_per_s=1e-15, planned_per_s=1e-3, detection_s=0.0, restart_s=0.0, stall_s=0.0)
    assert ratio(free, 3600.0) == pytest.approx(1.0)
    # of 1000 s of training and 500 s of stopping
    assert ratio(replace(free, planned_s=500.0), 3600.0) == pytest.approx(2 / 3)


@pytest.mark.parametrize("stall_s", [1.0, 60.0, 600.0, 3600.0])
def test_the_optimal_interval_equals_the_exact_optimum(stall_s: float) -> None:
    """Of Daly's formula: τ = M (1 + W(−exp(−δ / M − 1)))."""
    job = times(stall_s=stall_s)
    exact_s = job.mtbf_s * (1 + lambertw(-math.exp(-stall_s / job.mtbf_s - 1)).real)
    assert optimum_s(lambda interval_s: ratio(job, interval_s), 1.0, 1e6) == pytest.approx(exact_s, rel=1e-4)
    assert daly_s(stall_s, job.mtbf_s) == pytest.approx(exact_s, rel=0.01)
