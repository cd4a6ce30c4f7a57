"""Batched numbers: a result computed once for many points equals the results of the points computed one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.batched_numbers import BatchedPoints, PlainNumberNeededError, numbers, put

FORMULAS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: 2 + a * 3 - b / 4 + 1 / a,
    lambda a, b: max(a, b) + min(a / 2, 5.0, b),
    lambda a, b: (7 - a) * (a - b) ** 2,
    lambda a, b: a / b if a - b else 1.0,
    lambda a, b: sum(sorted([a, b, 4.0])[:2]) if a >= b or a <= 3 else b,
    lambda a, b: max((np.array([1.0, 2.0]) / a + np.float64(2) * b).tolist()),
]
positive = st.floats(0.1, 10)


@given(st.sampled_from(FORMULAS), st.lists(st.tuples(positive, positive), min_size=1, max_size=20))
def test_points_with_equal_outcomes_get_their_separate_results(formula: Callable[[Any, Any], Any], points: Any) -> None:
    batch = BatchedPoints(len(points))
    first, second = (batch.number(np.array(values)) for values in zip(*points, strict=True))
    result = numbers([formula(first, second)], np.float64)
    assert batch.agrees[0]
    expanded = (
        np.broadcast_to(result, (1, len(points))) if result.ndim == 2 else np.repeat(result[:, None], len(points), axis=1)
    )
    for point, value, agrees in zip(points, expanded[0], batch.agrees, strict=True):
        if agrees:
            assert value == formula(*point)


def test_a_comparison_returns_the_outcome_of_the_first_point() -> None:
    batch = BatchedPoints(3)
    assert batch.number(np.array([1.0, 2.0, 3.0])) < 2.5
    assert batch.agrees.tolist() == [True, True, False]


def test_conversion_to_a_plain_number_is_an_error() -> None:
    number = BatchedPoints(2).number(np.array([1.0, 2.0]))
    for convert in (float, math.sqrt, lambda value: np.array([value], dtype=np.float64)):
        with pytest.raises(PlainNumberNeededError):
            convert(number)


def test_columns_get_the_points_as_last_axis() -> None:
    number = BatchedPoints(2).number(np.array([1.0, 2.0]))
    assert numbers([3, number], np.float64).tolist() == [[3, 3], [1, 2]]
    assert numbers([3, 4], np.float64).tolist() == [3, 4]
    column = put(np.zeros(3), np.array([1]), np.array([number]))
    assert column.tolist() == [[0, 0], [1, 2], [0, 0]]
    assert put(column, np.array([0, 2]), np.array([5.0, 6.0])).tolist() == [[5, 5], [1, 2], [6, 6]]
    assert put(np.zeros(2), np.array([1]), np.array([4.0])).tolist() == [0, 4]
