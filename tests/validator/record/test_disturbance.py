"""Runs that other work disturbed are repeated, a bounded number of times, and marked."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import measure
from scaleproof.validator.record.cpu_usage import usable
from scaleproof.validator.record.disturbance import MOST_ATTEMPTS, least_disturbed
from scaleproof.validator.record.provenance import disturbance, load_of, load_warning, warned

Make = Callable[..., Scenario]


class Measured:
    """Pretends to measure runs with made-up loads by other work. attempts: numbers with which it was called."""

    def __init__(self, small: Make, *loads: float, step_s: float = 1.0) -> None:
        self._run = replace(predict(small(), interval=False), origin="measured", step_times_s=(step_s, step_s))
        self._loads = iter(loads)
        self.attempts: list[int] = []

    def __call__(self, attempt: int) -> Run:
        self.attempts.append(attempt)
        load = next(self._loads)
        return replace(self._run, provenance=disturbance(load) | warned([load_warning(load)]))


@pytest.mark.parametrize(
    ("loads", "attempts", "counts", "is_disturbed"),
    [
        ((0.1,), 1, 0.1, False),
        ((0.6, 0.2), 2, 0.2, False),
        ((0.9, 0.5, 0.7), 3, 0.5, True),
    ],
)
def test_a_disturbed_run_is_repeated_until_one_is_not_or_attempts_end(
    small: Make, loads: tuple[float, ...], attempts: int, counts: float, is_disturbed: bool
) -> None:
    measured = Measured(small, *loads)
    run = least_disturbed(measured)
    assert measured.attempts == list(range(1, attempts + 1))
    assert load_of(run.provenance) == pytest.approx(counts)
    assert bool(run.disturbed) == is_disturbed
    if is_disturbed:
        assert run.disturbed.endswith(f"(the least disturbed of {MOST_ATTEMPTS} runs)")
        assert run.warnings == (run.disturbed,)


def test_long_runs_and_single_attempts_are_marked_without_being_repeated(small: Make) -> None:
    long, single = Measured(small, 0.6, step_s=600.0), Measured(small, 0.6)
    for run in (least_disturbed(long), least_disturbed(single, attempts=1)):
        assert run.disturbed == "other work used 60 % of the cores during the run; measure on a quiet machine"
    assert (long.attempts, single.attempts) == ([1], [1])


def _work() -> None:
    while True:
        pass


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """Other work on all cores that this process may use."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, daemon=True) for _ in usable()]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.usefixtures("busy_cores")
def test_a_run_next_to_processes_on_all_cores_is_disturbed() -> None:
    run = measure(load("ring-2", ["steps=6"]), "local")
    assert load_of(run.provenance) > 0.3
    assert run.disturbed in run.warnings
