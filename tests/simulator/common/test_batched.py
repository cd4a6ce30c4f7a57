"""Varying numbers: what is computed once for many points is what each of them alone would have come to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.batched import BatchedPoints, NotVaryingError, numbers, put

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
def test_points_that_decide_alike_get_what_each_alone_would(formula: Callable[[Any, Any], Any], points: Any) -> None:
    crowd = BatchedPoints(len(points))
    first, second = (crowd.number(np.array(values)) for values in zip(*points, strict=True))
    found = numbers([formula(first, second)], np.float64)
    assert crowd.agrees[0]
    each = np.broadcast_to(found, (1, len(points))) if found.ndim == 2 else np.repeat(found[:, None], len(points), axis=1)
    for point, value, agrees in zip(points, each[0], crowd.agrees, strict=True):
        if agrees:
            assert value == formula(*point)


def test_a_comparison_is_the_first_points() -> None:
    crowd = BatchedPoints(3)
    assert crowd.number(np.array([1.0, 2.0, 3.0])) < 2.5
    assert crowd.agrees.tolist() == [True, True, False]


def test_nothing_is_taken_for_a_plain_number() -> None:
    number = BatchedPoints(2).number(np.array([1.0, 2.0]))
    for wants in (float, math.sqrt, lambda value: np.array([value], dtype=np.float64)):
        with pytest.raises(NotVaryingError):
            wants(number)


def test_columns_get_the_points_as_their_last_axis() -> None:
    number = BatchedPoints(2).number(np.array([1.0, 2.0]))
    assert numbers([3, number], np.float64).tolist() == [[3, 3], [1, 2]]
    assert numbers([3, 4], np.float64).tolist() == [3, 4]
    column = put(np.zeros(3), np.array([1]), np.array([number]))
    assert column.tolist() == [[0, 0], [1, 2], [0, 0]]
    assert put(column, np.array([0, 2]), np.array([5.0, 6.0])).tolist() == [[5, 5], [1, 2], [6, 6]]
    assert put(np.zeros(2), np.array([1]), np.array([4.0])).tolist() == [0, 4]
