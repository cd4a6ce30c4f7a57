"""Functions that all charts share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.reports.charts.chart import log_ticks, looks


def test_ticks_are_one_two_and_five_of_each_power_of_ten() -> None:
    assert log_ticks(3, 60) == ((5.0, "5"), (10.0, "10"), (20.0, "20"), (50.0, "50"))
    assert [words for _, words in log_ticks(0.15, 1.5)] == ["0.2", "0.5", "1"]
    assert [place for place, _ in log_ticks(1, 1e6)] == [10.0**power for power in range(7)]


@given(st.floats(1e-6, 1e9), st.floats(1.5, 1e6))
def test_ticks_are_ascending_and_within_the_limits(low: float, factor: float) -> None:
    places = [place for place, _ in log_ticks(low, low * factor)]
    assert places == sorted(set(places))
    assert all(low <= place <= low * factor for place in places)


@pytest.mark.parametrize("count", [0, 1, 6, 7, 42])
def test_series_are_distinguishable_by_colour_and_symbol(count: int) -> None:
    assert len(set(looks(count))) == count
