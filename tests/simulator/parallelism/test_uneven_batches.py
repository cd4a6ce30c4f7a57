from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.parallelism.mesh import place
from scaleproof.simulator.parallelism.replicas import check_shares

SHARES = st.lists(st.integers(1, 3), min_size=1, max_size=40)


def test_shares_are_one_for_each_worker_and_add_up() -> None:
    check_shares([32, 16, 16], 3, 64)
    with pytest.raises(FieldError, match=r"strategy.shares: 3 shares for 4 workers; .* set strategy.workers=3"):
        check_shares([32, 16, 16], 4, 64)
    with pytest.raises(FieldError, match=r"they add up to 64 samples, the batch has 60; set batch.total=64"):
        check_shares([32, 16, 16], 3, 60)


@given(st.integers(1, 40), st.integers(1, 8), st.sets(st.integers(0, 50), max_size=4))
def test_equal_shares_are_placed_like_no_shares(workers: int, per_node: int, distinguishable: set[int]) -> None:
    assert place(workers, per_node, distinguishable, [7] * workers) == place(workers, per_node, distinguishable)


@given(SHARES, st.integers(1, 8), st.sets(st.integers(0, 50), max_size=4))
def test_every_worker_is_in_exactly_one_class_of_its_share(shares: list[int], per_node: int, distinguishable: set[int]) -> None:
    placed = place(len(shares), per_node, distinguishable, shares)
    counted: dict[int, int] = {}
    for one in placed:
        share = shares[one.rank]
        counted[share] = counted.get(share, 0) + one.ranks
        assert one.rank // per_node == one.node
        assert one.ranks == 1 or one.rank not in distinguishable
    assert counted == {share: shares.count(share) for share in shares}


def test_equivalent_nodes_of_different_workers_are_folded() -> None:
    """Ten thousand workers in two shares, as classes of two kinds."""
    placed = place(10_000, 4, (), [2, 1] * 5_000)
    assert [(one.nodes, one.each) for one in placed] == [(2_500, 2), (2_500, 2)]
