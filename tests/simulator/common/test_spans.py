"""Unions of time intervals, compared with counting every instant."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.spans import TimeIntervals

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 5)), max_size=20)


@given(ROWS)
def test_the_union_covers_the_same_points_as_the_intervals(rows: list[tuple[int, int, int]]) -> None:
    owner, start, length = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    union = TimeIntervals(owner, start.astype(float), (start + length).astype(float)).union()
    for owner_number in range(4):
        covered = {second for o, s, d in rows if o == owner_number for second in range(s, s + d)}
        mine = union.owner == owner_number
        found = [range(int(s), int(e)) for s, e in zip(union.start_s[mine], union.end_s[mine], strict=True)]
        assert {second for interval in found for second in interval} == covered
        # sorted and disjoint
        assert all(a.stop < b.start for a, b in itertools.pairwise(found))


def test_many_owners_of_32_bits_are_divided() -> None:
    # the number of intervals times the number of owners exceeds 32 bits
    owner = np.repeat(np.arange(50_000, dtype=np.int32), 2)
    start_s = np.tile([0.0, 1.0], 50_000)
    divided, label = TimeIntervals(owner, start_s, start_s + 2).divided(np.tile([7, 8], 50_000))
    assert divided.end_s.reshape(-1, 2).tolist() == [[2.0, 3.0]] * 50_000
    assert label.tolist() == [7, 8] * 50_000
