"""Linear regions of convex functions, compared with the functions themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.uncertainty.linearity import LinearBox, Values, linear_box

# Relative error of rounding.
EXACT = 1e-12

numbers = st.floats(-5, 5).map(lambda number: round(number, 3))


def longest(paths: Values, places: Values) -> Values:
    """The longest of paths; each has a length at zero, and how much longer it is along each axis."""
    return np.asarray((paths[:, :1] + paths[:, 1:] @ places).max(axis=0))[None]


some_paths = st.integers(1, 3).flatmap(
    lambda axes: st.lists(st.lists(numbers, min_size=1 + axes, max_size=1 + axes), min_size=1, max_size=4).map(np.array)
)


@given(some_paths, st.integers(0, 100))
def test_linear_functions_are_recovered_exactly(paths: Values, seed: int) -> None:
    paths[:, 0] += 20
    low, high = -np.ones(paths.shape[1] - 1), np.ones(paths.shape[1] - 1) * 0.5
    found = linear_box(lambda places: longest(paths, places), low, high, EXACT)
    places = np.random.default_rng(seed).uniform(low[:, None], high[:, None], (len(low), 20))
    if found is not None:
        assert found.at(places) == pytest.approx(longest(paths, places), rel=1e-9)
        assert not found.outside(places).any()
    else:
        # not linear: no path is the longest at all corners
        assert len(paths) > 1


@given(some_paths, st.integers(0, 100), st.floats(0.01, 1))
def test_the_error_is_within_the_tolerance(paths: Values, seed: int, tolerance: float) -> None:
    paths[:, 0] += 20
    low, high = -np.ones(paths.shape[1] - 1), np.ones(paths.shape[1] - 1) * 0.5
    found = linear_box(lambda places: longest(paths, places), low, high, tolerance)
    if found is not None:
        places = np.random.default_rng(seed).uniform(low[:, None], high[:, None], (len(low), 20))
        middle = longest(paths, (low + high)[:, None] / 2)
        assert np.abs(found.at(places) - longest(paths, places)).max() <= tolerance * middle * (1 + 1e-9)


def test_crossing_paths_are_not_linear() -> None:
    low, high = np.array([-1.0]), np.array([1.0])
    line = linear_box(lambda places: longest(np.array([[3.0, 2.0]]), places), low, high, EXACT)
    assert line is not None
    assert (line.values.tolist(), line.slopes.tolist()) == ([3.0], [[2.0]])
    assert linear_box(lambda places: longest(np.array([[3.0, 2.0], [3.0, 1.0]]), places), low, high, EXACT) is None
    # crossings outside the box do not matter
    assert linear_box(lambda places: longest(np.array([[3.0, 2.0], [3.0, 1.0]]), places), np.zeros(1), high, EXACT) is not None


def test_all_functions_must_be_linear() -> None:
    both = np.array([[3.0, 2.0], [3.0, 1.0]])

    def functions(places: Values) -> Values:
        return np.concatenate([longest(both[:1], places), longest(both, places)])

    assert linear_box(functions, np.array([-1.0]), np.array([1.0]), EXACT) is None


def test_places_outside_the_box_are_found() -> None:
    line = LinearBox(np.array([0.0, 0.0]), np.array([1.0, 1.0]), np.array([1.0]), np.array([[1.0, 1.0]]))
    assert line.outside(np.array([[0.5, 2.0, 1.0], [0.5, 0.5, -0.1]])).tolist() == [False, True, True]
