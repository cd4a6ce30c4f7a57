from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.estimation.lines import held_out_interval, held_out_shares, straight_line

positive = st.floats(1e-6, 1e3)


@given(base=positive, slope=positive)
def test_an_exact_line_is_recovered(base: float, slope: float) -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert straight_line(x, [base + slope * v for v in x]) == pytest.approx((base, slope), rel=1e-5)


@given(st.lists(positive, min_size=3, max_size=6))
def test_base_and_slope_are_never_negative(seconds: list[float]) -> None:
    base, slope = straight_line([float(2**i) for i in range(len(seconds))], seconds)
    assert base >= 0
    assert slope >= 0


def test_small_and_large_messages_have_equal_weight() -> None:
    """A relative error: the large point is off by a tenth, and must not drag the small one off by multiples."""
    base, slope = straight_line([1, 1e6, 2e6], [1e-4, 1.1e-1, 2e-1])
    assert base == pytest.approx(1e-4, rel=0.2)
    assert slope == pytest.approx(1.05e-7, rel=0.05)


def test_weights_select_the_points_that_count() -> None:
    x, seconds = [1.0, 2.0, 4.0], [3.0, 3.0, 6.0]
    assert straight_line(x, seconds, [1.0, 1.0, 1.0]) == pytest.approx(straight_line(x, seconds))
    # points of zero weight have no effect
    assert straight_line(x, seconds, [0.0, 1.0, 1.0]) == pytest.approx((0.0, 1.5))


def test_the_slope_respects_its_lower_bound() -> None:
    x, seconds = [1.0, 2.0, 3.0], [11.0, 12.0, 13.0]
    assert straight_line(x, seconds, least_slope=0.5) == pytest.approx((10.0, 1.0))
    base, slope = straight_line(x, seconds, least_slope=2.0)
    assert slope == 2.0
    assert base == pytest.approx(8.0, rel=0.05)
    assert straight_line(x, seconds, least_slope=20.0) == (0.0, 20.0)


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=20), st.floats(1e-6, 1e6))
def test_shares_do_not_depend_on_how_long_things_take(errors: list[float], unit: float) -> None:
    low, high = held_out_shares(errors, [1.0] * len(errors))
    assert low <= high
    assert held_out_shares([e * unit for e in errors], [unit] * len(errors)) == pytest.approx((low, high))


def test_one_more_case_lies_inside_nine_times_in_ten() -> None:
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(1000):
        errors = np.exp(random.normal(0.05, 0.1, 6))
        low, high = held_out_shares(errors[:-1], np.ones(5))
        inside += bool(low <= errors[-1] <= high)
    assert inside == pytest.approx(900, abs=30)


def test_an_interval_is_written_as_shares() -> None:
    found = held_out_interval([0.98, 1.0, 1.02, 1.0], [1.0] * 4)
    assert found == ("95.8 %", "104.4 %")


def test_two_cases_are_too_few() -> None:
    with pytest.raises(InputError, match="2 held-out cases are too few for an interval; give at least 3"):
        held_out_shares([1.0, 1.1], [1.0, 1.0])
