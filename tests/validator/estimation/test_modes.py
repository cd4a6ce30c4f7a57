from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.validator.estimation.modes import bimodal

seeds = st.integers(0, 10_000)
fixed = settings(max_examples=50, deadline=None, derandomize=True)
LAWS = {"normal": (0, 0.05), "uniform": (-0.1, 0.1), "exponential": (1, 0.03)}


@fixed
@given(seeds, st.integers(10, 200), st.sampled_from(sorted(LAWS)))
def test_unimodal_samples_are_not_reported_as_bimodal(seed: int, count: int, law: str) -> None:
    random = np.random.default_rng(seed)
    noise = {"normal": random.normal, "uniform": random.uniform, "exponential": random.gamma}[law](*LAWS[law], count)
    assert bimodal((1e-4 * np.exp(noise)).tolist()) is None


@fixed
@given(seeds, st.floats(1.3, 5.0), st.floats(0.2, 0.8))
def test_two_modes_are_reported_with_their_frequencies(seed: int, ratio: float, share: float) -> None:
    random = np.random.default_rng(seed)
    slow = round(share * 50)
    seconds = 1e-4 * np.exp(random.normal(0, 0.02, 50)) * np.where(np.arange(50) < slow, ratio, 1)
    modes = bimodal(random.permutation(seconds).tolist())
    assert modes is not None
    assert modes.slow_share == pytest.approx(slow / 50)
    assert modes.fast_s == pytest.approx(1e-4, rel=0.05)
    assert modes.slow_s == pytest.approx(1e-4 * ratio, rel=0.05)


def test_few_outliers_do_not_form_a_mode() -> None:
    assert bimodal([1e-4, 1.01e-4, 0.99e-4] * 10 + [5e-4, 9e-4]) is None


def test_modes_are_reported_in_one_line() -> None:
    assert str(bimodal([100e-6] * 15 + [250e-6] * 5)) == ("two modes: 100 us in 75 % of the repetitions, 250 us in 25 %")


@pytest.mark.parametrize("seconds", [[], [1.0], [1.0, 2.0], [1.0, 1.0, 2.0, 2.0]])
def test_too_few_samples_give_no_modes(seconds: list[float]) -> None:
    assert bimodal(seconds) is None
