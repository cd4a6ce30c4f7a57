from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.validator.calibration.fit.curve_fitting import robust

X = np.array([4.0**k for k in range(1, 11)])
DESIGN = np.stack([np.ones_like(X), X], 1)

few = settings(max_examples=20, deadline=None, derandomize=True)


def curve(coefficients: robust.Array) -> tuple[robust.Array, robust.Array]:
    parts = DESIGN * coefficients[..., None, :]
    seconds = parts.sum(-1)
    return seconds, parts / seconds[..., None]


@few
@given(st.floats(1e-7, 1e-2), st.floats(1e-11, 1e-7), st.floats(0.3, 3.0), st.floats(0.3, 3.0))
def test_a_search_from_nearby_recovers_the_coefficients(base: float, slope: float, off: float, other: float) -> None:
    truth = np.array([base, slope])
    fitted = robust.solve(curve, curve(truth)[0], truth * [off, other])
    assert curve(fitted)[0] == pytest.approx(curve(truth)[0], rel=1e-3)


def test_coefficients_stay_positive_if_times_fall_with_size() -> None:
    fitted = robust.solve(curve, 1e-3 / X, np.array([1e-5, 1e-9]))
    assert (fitted > 0).all()


def test_one_outlier_hardly_changes_the_result() -> None:
    truth = np.array([2e-5, 1e-9])
    seconds = curve(truth)[0]
    seconds[7] *= 30
    assert robust.solve(curve, seconds, truth * 2) == pytest.approx(truth, rel=0.03)


@few
@given(st.integers(0, 1000))
def test_jackknife_steps_equal_a_full_search(seed: int) -> None:
    """Scipy's search is the oracle: rows of weights one and zero are fits to fewer times."""
    random = np.random.default_rng(seed)
    seconds = curve(np.array([2e-5, 1e-9]))[0] * np.exp(random.normal(0, 0.05, len(X)))
    full = robust.solve(curve, seconds, np.array([1e-5, 1e-9]))
    weights = np.ones((1, len(X)))
    weights[0, random.integers(len(X))] = 0
    kept = weights[0] > 0

    def without(coefficients: robust.Array) -> tuple[robust.Array, robust.Array]:
        fitted, shares = curve(coefficients)
        return fitted[kept], shares[kept]

    carried = robust.carry(curve, seconds, weights, full, steps=6)[0]
    assert carried == pytest.approx(robust.solve(without, seconds[kept], full), rel=1e-2)


def test_the_loss_is_quadratic_near_zero_and_linear_far_away() -> None:
    small, large = np.array([0.001, 0.002]), np.array([5.0, 10.0])
    assert np.divide(*robust.losses(small)[::-1]) == pytest.approx(4, rel=0.01)
    assert np.divide(*robust.losses(large)[::-1]) == pytest.approx(2, rel=0.01)
