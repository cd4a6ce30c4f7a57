"""Fits of parameters: recovery of known ones, influence of outliers and of priors, and their uncertainty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.validator.estimation import posterior
from scaleproof.validator.estimation.posterior import Array, Loss, Prior, cauchy, fit, fit_model, refitted, soft_l1, squares

X = np.array([4.0**k for k in range(1, 11)])
DESIGN = np.stack([np.ones_like(X), X], 1)
NOISE = 0.05

few = settings(max_examples=20, deadline=None, derandomize=True)


def model(logs: Array) -> tuple[Array, Array]:
    """Times of messages with a latency and a rate."""
    parts = DESIGN * np.exp(logs[..., None, :])
    seconds = parts.sum(-1)
    return np.log(seconds), parts / seconds[..., None]


def test_residuals_without_derivatives_are_fitted() -> None:
    x = np.linspace(0, 3, 40)
    found = fit(lambda v: v[0] * np.exp(-v[1] * x) - 2 * np.exp(-0.7 * x), np.array([1.0, 0.1]))
    assert found.values == pytest.approx([2, 0.7], abs=1e-4)


@few
@given(st.floats(1e-7, 1e-2), st.floats(1e-11, 1e-7), st.floats(0.3, 3.0), st.floats(0.3, 3.0))
def test_a_search_from_nearby_recovers_the_coefficients(base: float, slope: float, off: float, other: float) -> None:
    truth = np.log([base, slope])
    found = fit_model(model, model(truth)[0], truth + np.log([off, other]), NOISE).values
    assert model(found)[0] == pytest.approx(model(truth)[0], abs=1e-3)


def test_one_outlier_hardly_changes_the_result() -> None:
    truth = np.log([2e-5, 1e-9])
    logs = model(truth)[0]
    logs[7] += np.log(30)
    assert fit_model(model, logs, truth + 1, NOISE).values == pytest.approx(truth, abs=0.03)
    assert fit_model(model, logs, truth + 1, NOISE, squares).values != pytest.approx(truth, abs=0.3)


@few
@given(st.integers(0, 1000))
def test_jackknife_steps_equal_a_full_search(seed: int) -> None:
    """A full search is the oracle: rows of weights one and zero are fits to fewer times."""
    random = np.random.default_rng(seed)
    logs = model(np.log([2e-5, 1e-9]))[0] + random.normal(0, 0.05, len(X))
    full = fit_model(model, logs, np.log([1e-5, 1e-9]), NOISE).values
    weights = np.ones((1, len(X)))
    weights[0, random.integers(len(X))] = 0
    kept = weights[0] > 0

    def without(values: Array) -> tuple[Array, Array]:
        fitted, slopes = model(values)
        return fitted[kept], slopes[kept]

    found = refitted(model, logs, weights, full, NOISE, steps=6)[0]
    assert found == pytest.approx(fit_model(without, logs[kept], full, NOISE).values, abs=1e-2)


@few
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.lists(st.floats(-3, 3), min_size=1, max_size=9))
def test_normal_errors_give_the_conjugate_posterior(of_prior: float, noise: float, measured: list[float]) -> None:
    prior = Prior(np.array([1.0]), np.array([of_prior]))
    found = fit(lambda v: (v[0] - np.array(measured)) / noise, np.zeros(1), prior=prior)
    precision = 1 / of_prior**2 + len(measured) / noise**2
    assert found.values[0] == pytest.approx((1 / of_prior**2 + sum(measured) / noise**2) / precision, abs=1e-5)
    assert found.deviations[0] == pytest.approx(precision**-0.5, rel=1e-5)
    assert found.freedom == pytest.approx(len(measured) - len(measured) / noise**2 / precision, rel=1e-5)


def test_an_infinite_deviation_is_no_prior() -> None:
    prior = Prior(np.zeros(2), np.array([np.inf, 1.0]))
    found = fit(lambda v: v[:1] - 5.0, np.zeros(2), prior=prior)
    assert found.values == pytest.approx([5.0, 0.0], abs=1e-6)
    assert found.deviations == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("loss", [squares, soft_l1, cauchy, posterior.student(4.0), posterior.weighted(soft_l1, 0.3)])
def test_losses_have_their_derivatives(loss: Loss) -> None:
    squared, step = np.array([0.0, 0.3, 1.0, 30.0]), 1e-6
    value, first, second = loss(squared)
    above = loss(squared + step)
    assert (above[0] - value) / step == pytest.approx(first, rel=1e-4)
    assert (above[1] - first) / step == pytest.approx(second, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(("loss", "ratio"), [(squares, 4.0), (soft_l1, 2.0), (cauchy, 1.0)])
def test_losses_differ_in_the_influence_of_outliers(loss: Callable[[Array], Array], ratio: float) -> None:
    """All are quadratic near zero; a residual of twice the size counts four times, twice, or hardly more."""
    small, large = np.array([0.01, 0.02]) ** 2, np.array([1e6, 2e6]) ** 2
    assert np.divide(*loss(small)[0][::-1]) == pytest.approx(4, rel=0.01)
    assert np.divide(*loss(large)[0][::-1]) == pytest.approx(ratio, rel=0.06)
