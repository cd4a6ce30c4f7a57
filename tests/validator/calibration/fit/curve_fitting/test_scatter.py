from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.fit.curve_fitting import scatter


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=20), st.floats(1e-6, 1e6))
def test_relative_intervals_do_not_depend_on_scale(errors: list[float], unit: float) -> None:
    low, high = scatter.shares(errors, [1.0] * len(errors))
    assert low <= high
    assert scatter.shares([e * unit for e in errors], [unit] * len(errors)) == pytest.approx((low, high))


def test_a_new_case_is_inside_the_interval_in_90_percent() -> None:
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(1000):
        errors = np.exp(random.normal(0.05, 0.1, 6))
        low, high = scatter.shares(errors[:-1], np.ones(5))
        inside += bool(low <= errors[-1] <= high)
    assert inside == pytest.approx(900, abs=30)


def test_intervals_are_written_as_shares() -> None:
    found = scatter.interval([0.98, 1.0, 1.02, 1.0], [1.0] * 4)
    assert (found.low, found.high, found.measurements) == ("95.8 %", "104.4 %", 4)


def test_two_cases_give_no_interval() -> None:
    with pytest.raises(InputError, match="2 held-out cases are too few for an interval; give at least 3"):
        scatter.shares([1.0, 1.1], [1.0, 1.0])
