"""Number of simulated steps, and warnings about perturbations beyond them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions.runs import describe
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import ONLY_COMPUTE

Make = Callable[..., Scenario]
ONE = ("strategy={kind: data_parallel, workers: 1}", *ONLY_COMPUTE)


def throttling(even_s: float, part: float, period: float) -> str:
    return f"unevenness={{throttled: [{{slowdown: 2, lasts: {part * even_s} s, period: {period * even_s} s}}]}}"


@pytest.fixture
def even_s(small: Make) -> float:
    return timed(small(*ONE)).step_time_s


@pytest.mark.parametrize("period", [7.3, 55.5, 201.9])
def test_periodic_perturbations_are_simulated_over_several_whole_cycles(small: Make, even_s: float, period: float) -> None:
    run = timed(small(*ONE, throttling(even_s, period / 3, period)))
    # at half the speed for a third of the time: five sixths of the steps
    cycles = sum(run.step_times_s) / (period * even_s)
    assert cycles > 2
    assert abs(cycles - round(cycles)) * period < 2
    assert run.step_time_s == pytest.approx(even_s * 6 / 5, rel=0.02)
    assert not run.warnings


def test_given_step_numbers_are_rounded_to_whole_cycles(small: Make, even_s: float) -> None:
    run = timed(small(*ONE, throttling(even_s, 10, 30), "steps=70"))
    assert 48 <= len(run.step_times_s) <= 52


def test_too_few_steps_for_a_cycle_give_a_warning(small: Make, even_s: float) -> None:
    run = timed(small(*ONE, throttling(even_s, 100, 300), "steps=10"))
    assert len(run.step_times_s) == 10
    (warning,) = run.warnings
    assert warning.startswith("unevenness.throttled.0 recurs every")
    assert "set steps=" in warning
    assert warning.split(";")[0] in described(describe(run)).replace("\n                 ", " ")


def test_perturbations_after_the_simulated_steps_give_a_warning_with_a_remedy(small: Make, even_s: float) -> None:
    late = f"unevenness={{throttled: [{{slowdown: 2, after: {100 * even_s} s}}]}}"
    first = timed(small(*ONE, late))
    (warning,) = first.warnings
    assert first.step_time_s == pytest.approx(even_s)
    steps = warning.rpartition("set ")[2].partition(" ")[0]
    seen = timed(small(*ONE, late, steps))
    assert not seen.warnings
    assert seen.step_time_s > 1.3 * even_s


def test_cycles_longer_than_the_step_limit_give_a_warning(small: Make, even_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.simulator.prediction.steps._MOST_ADDED", 1000)
    assert timed(small(*ONE, throttling(even_s, 1e4, 1e5))).warnings


def test_asynchronous_workers_are_simulated_for_several_cycles(small: Make, even_s: float) -> None:
    servers = "strategy={kind: parameter_server, workers: 4, servers: 1, mode: asynchronous}"
    plain = timed(small(servers, *ONLY_COMPUTE)).step_time_s
    run = timed(small(servers, *ONLY_COMPUTE, throttling(plain, 20, 60)))
    assert run.step_time_s == pytest.approx(plain * 6 / 5, rel=0.1)
