from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.validator.calibration.fit.shapes import MeasuredRows, Segment, Shape

SIZES = np.array([4.0**k for k in range(1, 13)])
SHAPES = (Shape(), Shape(has_overhead=True), Shape((1024.0,)), Shape((256.0, 65536.0), has_overhead=True))


def rows(streamed: bool = False, seconds: float = 1.0) -> MeasuredRows:
    return MeasuredRows(np.arange(len(SIZES)), SIZES, np.full(len(SIZES), seconds), np.full(len(SIZES), streamed))


def curve(shape: Shape, of: MeasuredRows, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds, and shares of the coefficients in them."""
    logs, shares = shape.model(of)(np.log(at))
    return np.exp(logs), shares


def coefficients(shape: Shape) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(1e-9, 1e-3), min_size=shape.coefficients, max_size=shape.coefficients)


@settings(deadline=None)
@given(st.data())
def test_a_larger_message_never_takes_less_time(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    seconds, _ = curve(shape, rows(), np.array(data.draw(coefficients(shape))))
    assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()


@settings(deadline=None)
@given(st.data())
def test_shares_are_the_derivative_and_add_up_to_one(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    at = np.array(data.draw(coefficients(shape)))
    seconds, shares = curve(shape, rows(), at)
    assert shares.sum(-1) == pytest.approx(1)
    assert curve(shape, rows(), at * 1.1)[0] == pytest.approx(seconds * 1.1)


def test_protocols_apply_beyond_their_break() -> None:
    shape = Shape((1024.0,))
    at = np.array([1e-5, 4e-5, 2e-9, 1e-9])
    first, second = shape.segments(at)
    assert first == Segment(0.0, pytest.approx(1e-5), pytest.approx(2e-9))
    assert second == Segment(1024.0, pytest.approx(1e-5 + 1024 * 2e-9 + 4e-5 - 1024 * 1e-9), pytest.approx(1e-9))
    expected = [
        segment.latency_s + size * segment.seconds_per_byte for size in SIZES for segment in [second if size > 1024 else first]
    ]
    assert curve(shape, rows(), at)[0] == pytest.approx(expected)


def test_stream_rate_is_the_minimum_of_host_and_link() -> None:
    seconds, _ = curve(Shape(has_overhead=True), rows(streamed=True), np.array([1e-3, 1e-9, 1e-5]))
    assert seconds == pytest.approx(np.maximum(1e-5, SIZES * 1e-9))
