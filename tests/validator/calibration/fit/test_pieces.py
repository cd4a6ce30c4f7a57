"""Piecewise linear curves that a cluster file can state."""

from __future__ import annotations

import pytest

from scaleproof.validator.calibration.fit.curves import FittedCurve, fit_curve, pieces

SIZES = [float(4**power) for power in range(2, 14)]
BREAK = 4.0**7


def curve(small: tuple[float, float], large: tuple[float, float]) -> FittedCurve:
    """Through times of messages that take one line up to a size, and another one beyond it."""
    seconds = [[(small if size <= BREAK else large)[0] + size * (small if size <= BREAK else large)[1]] * 3 for size in SIZES]
    return fit_curve(SIZES, seconds)


def test_a_single_line_gives_one_piece() -> None:
    (found,) = pieces(curve((1e-3, 1e-8), (1e-3, 1e-8)), SIZES)
    assert found == pytest.approx((0.0, 1e-3, 1e-8), rel=1e-3)


def test_a_change_of_protocol_gives_a_piece_from_its_smallest_size() -> None:
    first, second = pieces(curve((1e-4, 2e-8), (2e-3, 1e-9)), SIZES)
    assert first == pytest.approx((0.0, 1e-4, 2e-8), rel=0.02)
    assert second == pytest.approx((4 * BREAK, 2e-3, 1e-9), rel=0.02)


def test_pieces_have_nonnegative_latency_and_respect_the_link_rate() -> None:
    fitted = curve((1e-4, 1e-10), (1e-4 - BREAK * 1e-7, 1e-7))
    assert fitted.segments[-1].latency_s < 0
    last = pieces(fitted, SIZES)[-1]
    assert last.latency_s == 0
    assert 0.9e-7 < last.seconds_per_byte < 1e-7
    assert pieces(fitted, SIZES, least_slope=2e-7)[-1].seconds_per_byte == 2e-7
