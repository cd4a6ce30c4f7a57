"""Codes: equal rows have one code, given as columns or as combinations of halves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.factorize import Distinct, combined, distinct, taken

_COLUMN = st.lists(st.integers(0, 3), min_size=5, max_size=5)


def groups(found: Distinct) -> list[list[int]]:
    """The rows of each code, in the order of their first rows."""
    return sorted(np.flatnonzero(found.code == code).tolist() for code in range(len(found)))


@given(_COLUMN, _COLUMN)
def test_rows_have_equal_codes_where_all_columns_are_equal(one: list[int], other: list[int]) -> None:
    found = distinct(np.array(one), np.array(other))

    pairs = list(zip(one, other, strict=True))
    assert groups(found) == sorted([i for i, pair in enumerate(pairs) if pair == each] for each in set(pairs))
    assert found.code[found.first].tolist() == list(range(len(found)))


@given(_COLUMN, _COLUMN, st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=20))
def test_combined_halves_have_the_codes_of_their_rows(one: list[int], other: list[int], rows: list[tuple[int, int]]) -> None:
    places = np.array(rows).T
    halves = [(distinct(np.array(half)).code, place) for half, place in zip((one, other), places, strict=True)]

    found = combined(halves)

    whole = distinct(*(np.array(half)[place] for half, place in zip((one, other), places, strict=True)))
    assert groups(found) == groups(whole)
    assert found.code[found.first].tolist() == list(range(len(found)))


@given(_COLUMN, _COLUMN)
def test_codes_of_codes_are_those_of_all_rows(one: list[int], other: list[int]) -> None:
    grouped = distinct(np.array(one), np.array(other))

    over = distinct(np.array(one)[grouped.first]).over(grouped)

    assert groups(over) == groups(distinct(np.array(one)))
    assert np.array(one)[over.first][over.code].tolist() == one


@given(st.lists(st.integers(0, 3), max_size=9))
def test_taken_returns_the_rows_that_an_index_returns(rows: list[int]) -> None:
    values, at = np.arange(24.0).reshape(2, 3, 4), np.array(rows, dtype=np.int64)
    assert taken(values, at, axis=2).tolist() == values[:, :, at].tolist()
    assert taken(values[0, 0], at).tolist() == values[0, 0, at].tolist()
