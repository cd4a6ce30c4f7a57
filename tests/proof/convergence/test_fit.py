"""The fit of steps to a target: it recovers the true parameters within its errors, and reports undetermined ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.proof.convergence.fit import RunToTarget, fit_convergence, solve
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.convergence import Convergence

BATCHES = (4, 8, 16, 32, 64, 128)
BEHIND = (1.0, 3.0, 7.0)
TRUTH = Convergence(minimum_steps=120, critical_batch=24, staleness_penalty=0.4)


def runs(truth: Convergence, scatter: float = 0.0, seed: int = 0, each: int = 2) -> dict[str, list[RunToTarget]]:
    """Synchronous runs with each batch, and stale ones with one of them; steps scatter lognormally."""
    generator = np.random.default_rng(seed)
    settings = {f"batch {batch}": (batch, 0.0) for batch in BATCHES} | {f"{behind} behind": (16, behind) for behind in BEHIND}

    def steps(batch: float, behind: float) -> float:
        return truth.steps(batch, behind) * float(np.exp(scatter * generator.standard_normal()))

    return {name: [RunToTarget(*at, steps(*at)) for _ in range(each)] for name, at in settings.items()}


@settings(max_examples=10)
@given(st.floats(10, 1e5), st.floats(4, 128), st.floats(0.05, 3))
def test_the_fit_recovers_exact_parameters_without_scatter(minimum: float, critical: float, penalty: float) -> None:
    truth = Convergence(minimum_steps=minimum, critical_batch=critical, staleness_penalty=penalty)
    found = fit_convergence(runs(truth))
    assert found.convergence.minimum_steps == pytest.approx(minimum, rel=1e-4)
    assert found.convergence.critical_batch == pytest.approx(critical, rel=1e-4)
    assert found.convergence.staleness_penalty == pytest.approx(penalty, rel=1e-3)
    assert found.scatter < 1e-5
    assert found.convergence.uncertainty < 1e-4
    assert len(found.held_out) == len(BATCHES) + len(BEHIND)
    assert found.vague == []


def test_standard_errors_match_actual_errors() -> None:
    """The root mean square error of each coefficient over many fits equals its standard error within a fifth."""
    ratios = []
    for seed in range(100):
        found, errors, _ = solve([row for rows in runs(TRUTH, 0.08, seed).values() for row in rows])
        got, want = found.model_dump(), TRUTH.model_dump()
        ratios.append([(got[name] - want[name]) / error for name, error in errors.items()])
    assert np.sqrt(np.mean(np.square(ratios), axis=0)) == pytest.approx([1, 1, 1], abs=0.2)


def test_uncertainty_matches_the_error_of_new_settings() -> None:
    found = [fit_convergence(runs(TRUTH, 0.1, seed)) for seed in range(12)]
    assert np.mean([one.scatter for one in found]) == pytest.approx(0.1, rel=0.2)
    # error of a setting's mean of two runs, plus the fit's own error, which is larger outside the other settings
    assert 0.07 < np.median([one.convergence.uncertainty for one in found]) < 0.2


def test_a_penalty_is_never_below_zero() -> None:
    """Where stale runs happen to be faster, there is none."""
    odd = runs(TRUTH, 0.02)
    odd |= {"behind": [RunToTarget(16, 2.0, 0.8 * TRUTH.steps(16)), RunToTarget(16, 2.0, 0.82 * TRUTH.steps(16))]}
    for behind in BEHIND:
        del odd[f"{behind} behind"]
    found = fit_convergence(odd)
    assert found.convergence.staleness_penalty == pytest.approx(0, abs=1e-6)
    assert "staleness_penalty" in found.vague


def test_poorly_determined_parameters_are_reported() -> None:
    """Far above the critical batch steps do not depend on it."""
    far = {f"batch {batch}": [RunToTarget(batch, 0.0, 100.0 * s) for s in (0.95, 1.06)] for batch in (10_000, 20_000, 40_000)}
    assert "critical_batch" in fit_convergence(far).vague


@pytest.mark.parametrize(
    ("given_runs", "reported"),
    [
        ({}, "too few synchronous batch sizes"),
        ({"one": [RunToTarget(8, 0, 100), RunToTarget(8, 0, 101), RunToTarget(8, 0, 99)]}, "too few synchronous batch sizes"),
        ({"one": [RunToTarget(8, 0, 100)], "other": [RunToTarget(16, 0, 70)]}, "2 runs that reached the target are too few"),
        ({"stale": [RunToTarget(8, 1, 100), RunToTarget(16, 1, 90)]}, "too few synchronous batch sizes"),
    ],
)
def test_too_few_runs_are_rejected(given_runs: dict[str, list[RunToTarget]], reported: str) -> None:
    with pytest.raises(InputError, match=reported):
        fit_convergence(given_runs)
