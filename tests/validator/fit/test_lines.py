from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator import fit

positive = st.floats(1e-6, 1e3)


@given(base=positive, slope=positive)
def test_a_line_is_found_exactly(base: float, slope: float) -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert fit.line(x, [base + slope * v for v in x]) == pytest.approx((base, slope), rel=1e-5)


@given(st.lists(positive, min_size=3, max_size=6))
def test_neither_base_nor_slope_is_ever_negative(seconds: list[float]) -> None:
    base, slope = fit.line([float(2**i) for i in range(len(seconds))], seconds)
    assert base >= 0
    assert slope >= 0


def test_small_and_large_messages_count_alike() -> None:
    """A relative error: the large point is off by a tenth, and must not drag the small one off by multiples."""
    base, slope = fit.line([1, 1e6, 2e6], [1e-4, 1.1e-1, 2e-1])
    assert base == pytest.approx(1e-4, rel=0.2)
    assert slope == pytest.approx(1.05e-7, rel=0.05)
