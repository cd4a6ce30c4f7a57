from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.fit.choice import ALPHA_BETA, LOGGP
from scaleproof.validator.calibration.fit.curves import FittedCurve, fit_curve

SIZES = [4.0**k for k in range(1, 13)]
LATENCY_S, PER_BYTE_S = 2e-5, 1e-9
LINE = (ALPHA_BETA,)
few = settings(max_examples=10, deadline=None, derandomize=True)
seeds = st.integers(0, 10_000)


def drawn(
    seed: int,
    sizes: Sequence[float] = SIZES,
    latency_s: float = LATENCY_S,
    per_byte_s: float = PER_BYTE_S,
    spread: float = 0.02,
) -> list[list[float]]:
    """Fifty repetitions each: sizes that scatter about the law, lognormal noise, and a tenth that take four times as long."""
    random = np.random.default_rng(seed)
    medians = (latency_s + np.array(sizes) * per_byte_s) * np.exp(random.normal(0, spread, len(sizes)))
    seconds = medians[:, None] * np.exp(random.normal(0, 0.03, (len(sizes), 50)))
    seconds[random.random(seconds.shape) < 0.1] *= 4
    return [row.tolist() for row in seconds]


@few
@given(seeds, st.floats(1e-6, 1e-3), st.floats(1e-10, 1e-8))
def test_latency_and_rate_are_found_despite_noise_and_outliers(seed: int, latency_s: float, per_byte_s: float) -> None:
    crossing = latency_s / per_byte_s
    sizes = [crossing * 4.0**k for k in range(-6, 6)]
    fitted = fit_curve(sizes, drawn(seed, sizes, latency_s, per_byte_s), LINE)
    assert fitted.latency_s == pytest.approx(latency_s, rel=0.08)
    assert fitted.seconds_per_byte == pytest.approx(per_byte_s, rel=0.08)
    assert fitted.at(crossing) == pytest.approx(2 * latency_s, rel=0.08)


@few
@given(seeds)
def test_the_order_of_points_does_not_matter(seed: int) -> None:
    seconds = drawn(seed)
    order = np.random.default_rng(seed).permutation(len(SIZES))
    assert fit_curve([SIZES[i] for i in order], [seconds[i][::-1] for i in order]) == fit_curve(SIZES, seconds)


@few
@given(seeds, st.sampled_from([1e-3, 8.0, 1e6]), st.sampled_from([1e-6, 60.0]))
def test_results_scale_with_units(seed: int, of_size: float, of_time: float) -> None:
    seconds = drawn(seed)
    fitted = fit_curve(SIZES, seconds)
    other = fit_curve([size * of_size for size in SIZES], [[s * of_time for s in row] for row in seconds])
    assert other.model == fitted.model
    assert other.latency_s == pytest.approx(fitted.latency_s * of_time, rel=1e-4)
    assert other.seconds_per_byte == pytest.approx(fitted.seconds_per_byte * of_time / of_size, rel=1e-4)
    assert other.latency_interval_s == pytest.approx([end * of_time for end in fitted.latency_interval_s], rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_intervals_contain_the_true_value_in_90_percent_of_cases(spread: float) -> None:
    trials = 60
    contained = np.zeros(2)
    for seed in range(trials):
        fitted = fit_curve(SIZES, drawn(seed, spread=spread), LINE)
        for i, (truth, (low, high)) in enumerate(
            [(LATENCY_S, fitted.latency_interval_s), (PER_BYTE_S, fitted.seconds_per_byte_interval)]
        ):
            contained[i] += low <= truth <= high
    assert (contained >= 0.82 * trials).all()
    assert (contained <= 0.99 * trials).all()


def test_outlier_sizes_are_excluded_and_reported() -> None:
    seconds = drawn(1)
    seconds[6] = [3 * s for s in seconds[6]]
    fitted = fit_curve(SIZES, seconds)
    assert [outlier.index for outlier in fitted.outliers] == [6]
    assert fitted.outliers[0].why.endswith("times as long as the fit")
    assert fitted.latency_s == pytest.approx(LATENCY_S, rel=0.05)


def test_an_overhead_is_found_in_a_stream() -> None:
    moving = [max(1e-5, size * PER_BYTE_S) for size in SIZES]
    gaps = [[s] * 5 if size < 1e5 else [] for s, size in zip(moving, SIZES, strict=True)]
    fitted = fit_curve(SIZES, [[LATENCY_S + s] * 5 for s in moving], gaps=gaps)
    assert fitted.model == LOGGP
    assert fitted.overhead_s == pytest.approx(1e-5, rel=0.01)
    assert fitted.latency_s == pytest.approx(LATENCY_S, rel=0.01)
    assert fitted.overhead_interval_s[0] <= fitted.overhead_s <= fitted.overhead_interval_s[1]
    assert fitted.at(4) == pytest.approx(LATENCY_S + 1e-5, rel=0.01)


def width(fitted: FittedCurve) -> float:
    """Ratio of the largest to the smallest seconds per byte of an interval."""
    low, high = fitted.seconds_per_byte_interval
    return high / low


def test_fewer_sizes_give_wider_intervals() -> None:
    assert width(fit_curve(SIZES[::4], drawn(5, SIZES[::4]), LINE)) > width(fit_curve(SIZES, drawn(5), LINE))
    assert width(fit_curve(SIZES, drawn(5))) < 1.25


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [
        ([4, 16], [[1.0], [2.0]], "links: 2 sizes are too few to fit; give 3"),
        ([4, 4, 4, 16], [[1.0], [1.0], [1.0], [2.0]], "links: 2 sizes are too few to fit; give 3"),
        ([4], [[1.0]], "links: 1 size is too few to fit; give 3"),
        ([4, 16, 64], [[1.0], [], [2.0]], "links: 2 sizes are too few to fit; give 3"),
        ([4, 16, 64], [[1.0], [-1.0], [2.0]], "links: -1 s at size 16 is not a valid time; remove it"),
        ([4, 16, 64], [[1.0], [float("nan")], [2.0]], "links: nan s at size 16 is not a valid time; remove it"),
        ([0, 16, 64], [[1.0], [1.0], [2.0]], "links: 0 is not a valid size; remove it"),
        ([4, 16, 64], [[1.0], [1.0]], "links: 3 sizes for 2 times; give one list of times per size"),
    ],
)
def test_unfittable_points_give_an_error(sizes: list[float], seconds: list[list[float]], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        fit_curve(sizes, seconds, what="links")
