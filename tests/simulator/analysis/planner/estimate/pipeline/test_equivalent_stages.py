"""Counts of classes of stages, chunks and ranks equal those found one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate.pipeline.equivalent_stages import EquivalentStages

OF = st.integers(1, 5).flatmap(
    lambda ranks: st.tuples(st.lists(st.integers(0, 3), min_size=ranks, max_size=4 * ranks), st.just(ranks))
)


def drawn(of: list[int], ranks: int) -> EquivalentStages:
    """As many stages as fill all ranks, with classes numbered without gaps."""
    whole = of[: len(of) // ranks * ranks]
    known = dict.fromkeys(whole)
    return EquivalentStages([list(known).index(one) for one in whole], ranks)


@given(case=OF)
def test_members_of_each_class_between_two_stages_are_counted(case: tuple[list[int], int]) -> None:
    equivalence = drawn(*case)
    classes = equivalence.representative.max() + 1
    for begin in range(len(equivalence) + 1):
        for end in range(begin, len(equivalence) + 1):
            assert (
                equivalence.between(begin, end).tolist()
                == np.bincount(equivalence.representative[begin:end], minlength=classes).tolist()
            )
    assert equivalence.representative[equivalence.first].tolist() == list(range(classes))
    assert (equivalence.first[equivalence.representative] <= np.arange(len(equivalence))).all()


@given(case=OF, seed=st.integers(0, 99))
def test_slowest_chunks_and_ranks_equal_those_over_all_stages(case: tuple[list[int], int], seed: int) -> None:
    equivalence = drawn(*case)
    seconds = np.random.default_rng(seed).random((equivalence.representative.max() + 1, 2))
    each = seconds[equivalence.representative].reshape(-1, equivalence.ranks, 2)
    chunks, ranks = equivalence.by_chunk, equivalence.by_rank
    assert chunks.slowest(seconds)[chunks.kind].tolist() == each.max(axis=1).tolist()
    assert (chunks.total.sum(), chunks.without_last.sum(), chunks.without_first.sum()) == (
        len(each),
        len(each) - 1,
        len(each) - 1,
    )
    work_s = each.sum(axis=0)
    suffix_max_s = np.maximum.accumulate(work_s[::-1], axis=0)[::-1]
    assert np.allclose(ranks.slowest(ranks.counts @ seconds, range(equivalence.ranks)), suffix_max_s)
    assert (equivalence.representative[: equivalence.ranks][ranks.last] == ranks.first).all()
