"""Unions of stretches of time, against counting every instant."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.spans import Stretches

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 5)), max_size=20)


@given(ROWS)
def test_a_union_covers_what_any_stretch_covers_and_nothing_else(rows: list[tuple[int, int, int]]) -> None:
    owner, start, length = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    union = Stretches(owner, start.astype(float), (start + length).astype(float)).union()
    for who in range(4):
        covered = {second for o, s, d in rows if o == who for second in range(s, s + d)}
        mine = union.owner == who
        found = [range(int(s), int(e)) for s, e in zip(union.start_s[mine], union.end_s[mine], strict=True)]
        assert {second for stretch in found for second in stretch} == covered
        # in order, and apart
        assert all(a.stop < b.start for a, b in itertools.pairwise(found))
