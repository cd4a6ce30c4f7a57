"""Counts of alike stages, chunks and ranks are those that are found one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.pipeline.equivalent_stages import EquivalentStages

OF = st.integers(1, 5).flatmap(
    lambda ranks: st.tuples(st.lists(st.integers(0, 3), min_size=ranks, max_size=4 * ranks), st.just(ranks))
)


def drawn(of: list[int], ranks: int) -> EquivalentStages:
    """As many stages as fill all ranks, and numbers without gaps."""
    whole = of[: len(of) // ranks * ranks]
    known = dict.fromkeys(whole)
    return EquivalentStages([list(known).index(one) for one in whole], ranks)


@given(case=OF)
def test_what_is_between_stages_is_counted(case: tuple[list[int], int]) -> None:
    alike = drawn(*case)
    told = alike.of.max() + 1
    for begin in range(len(alike) + 1):
        for end in range(begin, len(alike) + 1):
            assert alike.between(begin, end).tolist() == np.bincount(alike.of[begin:end], minlength=told).tolist()
    assert alike.of[alike.first].tolist() == list(range(told))
    assert (alike.first[alike.of] <= np.arange(len(alike))).all()


@given(case=OF, seed=st.integers(0, 99))
def test_the_slowest_of_chunks_and_ranks_are_those_of_all_their_stages(case: tuple[list[int], int], seed: int) -> None:
    alike = drawn(*case)
    seconds = np.random.default_rng(seed).random((alike.of.max() + 1, 2))
    each = seconds[alike.of].reshape(-1, alike.ranks, 2)
    chunks, ranks = alike.by_chunk, alike.by_rank
    assert chunks.slowest(seconds)[chunks.kind].tolist() == each.max(axis=1).tolist()
    assert (chunks.every.sum(), chunks.before.sum(), chunks.behind.sum()) == (len(each), len(each) - 1, len(each) - 1)
    work_s = each.sum(axis=0)
    behind_s = np.maximum.accumulate(work_s[::-1], axis=0)[::-1]
    assert np.allclose(ranks.slowest(ranks.counts @ seconds, range(alike.ranks)), behind_s)
    assert (alike.of[: alike.ranks][ranks.last] == ranks.first).all()
