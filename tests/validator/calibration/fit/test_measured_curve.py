from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.validator.calibration.fit.curves import piece_at
from scaleproof.validator.calibration.fit.measured_curve import TOLERANCE, SizeTime, measured_curve, not_rising
from scaleproof.validator.calibration.fit.shapes import Segment

SIZES = [2.0**power for power in range(3, 34)]


def _at(curve: tuple[Segment, ...], size_bytes: float) -> float:
    piece = piece_at(curve, size_bytes)
    return piece.latency_s + size_bytes * piece.seconds_per_byte


def _protocols(size: float) -> float:
    """Three protocols, as NCCL has: each with more latency and more bandwidth than the one before."""
    return min(10e-6 + size / 5e9, 15e-6 + size / 50e9, 40e-6 + size / 200e9)


def test_several_protocols_are_followed_within_the_tolerance() -> None:
    medians = [SizeTime(size, _protocols(size)) for size in SIZES]
    curve = measured_curve(medians)
    assert len(curve) <= 4
    assert max(abs(_at(curve, size) / time_s - 1) for size, time_s in medians) <= TOLERANCE * 1.001


def test_a_slow_smallest_size_does_not_lift_the_others() -> None:
    medians = [SizeTime(size, 30e-6 + size / 200e9) for size in SIZES]
    medians[0] = SizeTime(SIZES[0], 400e-6)
    assert _at(measured_curve(medians), SIZES[1]) == pytest.approx(medians[1].seconds, rel=TOLERANCE)
    assert not_rising(medians) == [0]


def test_noise_of_small_sizes_alone_gives_no_slow_bandwidth() -> None:
    medians = [SizeTime(size, time_s) for size, time_s in zip(SIZES[:5], (30e-6, 30.1e-6, 30e-6, 30.2e-6, 33e-6), strict=True)]
    assert _at(measured_curve(medians), 2 * SIZES[4]) < 40e-6


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.7, 6.0), min_size=1, max_size=25))
def test_any_curve_rises_and_follows_times_that_rise(ratios: list[float]) -> None:
    times_s = [1e-5 * product for product in itertools.accumulate(ratios, lambda a, b: a * b)]
    medians = [SizeTime(size, time_s) for size, time_s in zip(SIZES, times_s, strict=False)]
    curve = measured_curve(medians)
    off = not_rising(medians)
    if all(ratio >= 1 for ratio in ratios[1:]):
        assert not off
        assert all(abs(_at(curve, size) / time_s - 1) <= TOLERANCE * 1.01 for size, time_s in medians)
    dense = [2.0 ** (power / 8) for power in range(8 * 34)]
    assert all(after >= before * (1 - 1e-6) for before, after in itertools.pairwise(_at(curve, size) for size in dense))
