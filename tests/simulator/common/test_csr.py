"""Lists of different lengths in CSR arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.csr import CsrLists

_LISTS = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6)


@given(_LISTS, st.data())
def test_take_returns_the_lists_in_the_given_order(lists: list[list[int]], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))

    assert CsrLists.from_lists(lists).take(np.array(indices, dtype=np.int64)).lists() == [lists[i] for i in indices]


@given(st.lists(st.integers(0, 9), max_size=8), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=6))
def test_slices_equal_python_slices(values: list[int], bounds: list[tuple[int, int]]) -> None:
    cut = [(min(a, len(values)), min(b, len(values))) for a, b in bounds]
    begins, stops = np.array(cut, dtype=np.int64).reshape(-1, 2).T

    found = CsrLists.slices(np.array(values, dtype=np.int64), begins, stops)

    assert found.lists() == [values[a:b] for a, b in cut]


@given(_LISTS)
def test_keys_are_the_list_indices_of_values(lists: list[list[int]]) -> None:
    found = CsrLists.from_lists(lists)

    assert found.keys().tolist() == [i for i, one in enumerate(lists) for _ in one]
    assert CsrLists.grouped(found.keys(), found.values, len(lists)).lists() == lists
