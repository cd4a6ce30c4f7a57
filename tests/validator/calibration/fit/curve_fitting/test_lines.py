from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.validator.calibration.fit import curve_fitting

positive = st.floats(1e-6, 1e3)


@given(base=positive, slope=positive)
def test_an_exact_line_is_recovered(base: float, slope: float) -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert curve_fitting.line(x, [base + slope * v for v in x]) == pytest.approx((base, slope), rel=1e-5)


@given(st.lists(positive, min_size=3, max_size=6))
def test_base_and_slope_are_never_negative(seconds: list[float]) -> None:
    base, slope = curve_fitting.line([float(2**i) for i in range(len(seconds))], seconds)
    assert base >= 0
    assert slope >= 0


def test_small_and_large_messages_have_equal_weight() -> None:
    """A relative error: the large point is off by a tenth, and must not drag the small one off by multiples."""
    base, slope = curve_fitting.line([1, 1e6, 2e6], [1e-4, 1.1e-1, 2e-1])
    assert base == pytest.approx(1e-4, rel=0.2)
    assert slope == pytest.approx(1.05e-7, rel=0.05)


def test_weights_select_the_points_that_count() -> None:
    x, seconds = [1.0, 2.0, 4.0], [3.0, 3.0, 6.0]
    assert curve_fitting.line(x, seconds, [1.0, 1.0, 1.0]) == pytest.approx(curve_fitting.line(x, seconds))
    # points of zero weight have no effect
    assert curve_fitting.line(x, seconds, [0.0, 1.0, 1.0]) == pytest.approx((0.0, 1.5))


def test_the_slope_respects_its_lower_bound() -> None:
    x, seconds = [1.0, 2.0, 3.0], [11.0, 12.0, 13.0]
    assert curve_fitting.line(x, seconds, least_slope=0.5) == pytest.approx((10.0, 1.0))
    base, slope = curve_fitting.line(x, seconds, least_slope=2.0)
    assert slope == 2.0
    assert base == pytest.approx(8.0, rel=0.05)
    assert curve_fitting.line(x, seconds, least_slope=20.0) == (0.0, 20.0)
