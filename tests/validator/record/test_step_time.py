"""Confidence intervals of step times have their nominal coverage for any kind of steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from scaleproof.simulator.run.breakdown import slope
from scaleproof.validator.record.step_time import slope_interval_s
from tests.validator.verdicts import in_bulk

Steps = NDArray[np.float64]
DRAWS = 300


def noisy(random: Generator, count: int) -> Steps:
    return np.asarray(1 + 0.05 * random.standard_normal(count))


def skewed(random: Generator, count: int) -> Steps:
    return np.asarray(1 + 0.05 * random.lognormal(0.0, 1.0, count))


def interrupted(random: Generator, count: int) -> Steps:
    """One step in twenty takes half as long again."""
    return np.asarray(1 + 0.01 * random.standard_normal(count) + 0.5 * (random.random(count) < 0.05))


def long_and_short(random: Generator, count: int) -> Steps:
    return np.asarray(1 + 0.2 * (-1.0) ** np.arange(count) + 0.02 * random.standard_normal(count))


def compensated(random: Generator, count: int) -> Steps:
    """What a step takes longer the next takes shorter."""
    ends = np.arange(count + 1) + 0.02 * random.standard_normal(count + 1)
    return np.asarray(np.diff(ends))


def ends_of(steps_s: Steps) -> Steps:
    return np.concatenate([[3.0], 3.0 + np.cumsum(steps_s)])


@pytest.mark.parametrize("count", [10, *in_bulk(30)])
@pytest.mark.parametrize("draw", [noisy, skewed, interrupted, long_and_short, compensated])
def test_the_interval_contains_the_true_value_in_at_least_90_percent(
    draw: Callable[[Generator, int], Steps], count: int
) -> None:
    truth_s = slope(ends_of(draw(np.random.default_rng(1), 200_000)))

    covered = 0
    for seed in range(DRAWS):
        interval_s = slope_interval_s(ends_of(draw(np.random.default_rng(seed + 10), count)))
        assert interval_s is not None
        covered += interval_s[0] <= truth_s <= interval_s[1]

    assert covered >= 0.9 * DRAWS


def autocorrelated(random: Generator, count: int) -> Steps:
    """Neighbours correlate by 0.7."""
    noise = random.standard_normal(count + 50)
    for step in range(1, len(noise)):
        noise[step] += 0.7 * noise[step - 1]
    return np.asarray(1 + 0.05 * noise[50:])


def test_lasting_slow_periods_widen_the_interval() -> None:
    intervals_s = [slope_interval_s(ends_of(autocorrelated(np.random.default_rng(seed), 20))) for seed in range(DRAWS)]

    assert 0.65 * DRAWS < sum(one is not None and one[0] <= 1 <= one[1] for one in intervals_s) < 0.85 * DRAWS


def test_more_steps_give_a_narrower_interval() -> None:
    widths = []
    for count in (10, 100, 1000):
        low_s, high_s = slope_interval_s(ends_of(noisy(np.random.default_rng(0), count))) or (0.0, 0.0)
        widths.append(high_s - low_s)

    assert widths == sorted(widths, reverse=True)
    assert widths[2] < widths[0] / 4


def test_equal_steps_give_zero_width_and_too_few_give_none() -> None:
    equal = slope_interval_s(np.arange(11) * 0.5)

    assert equal == pytest.approx((0.5, 0.5))
    assert slope_interval_s(np.arange(7) * 0.5) is not None
    assert slope_interval_s(np.arange(6) * 0.5) is None, "five steps"
