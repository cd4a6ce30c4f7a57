from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.strategy.data_parallel.uneven_batches import check_shares, place_shares
from scaleproof.simulator.strategy.layout.placement import place

SHARES = st.lists(st.integers(1, 3), min_size=1, max_size=40)


def test_shares_are_one_for_each_worker_and_add_up() -> None:
    check_shares([32, 16, 16], 3, 64)
    with pytest.raises(FieldError, match=r"strategy.shares: 3 shares for 4 workers; .* set strategy.workers=3"):
        check_shares([32, 16, 16], 4, 64)
    with pytest.raises(FieldError, match=r"they add up to 64 samples, the batch has 60; set batch.total=64"):
        check_shares([32, 16, 16], 3, 60)


@given(st.integers(1, 40), st.integers(1, 8), st.sets(st.integers(0, 50), max_size=4))
def test_even_shares_place_workers_as_no_shares_do(workers: int, per_node: int, apart: set[int]) -> None:
    assert place_shares([7] * workers, per_node, apart) == place(workers, per_node, apart)


@given(SHARES, st.integers(1, 8), st.sets(st.integers(0, 50), max_size=4))
def test_every_worker_is_in_one_class_of_its_own_share(shares: list[int], per_node: int, apart: set[int]) -> None:
    placed = place_shares(shares, per_node, apart)
    counted: dict[int, int] = {}
    for alike in placed:
        share = shares[alike.rank]
        counted[share] = counted.get(share, 0) + alike.ranks
        assert alike.rank // per_node == alike.node
        assert alike.ranks == 1 or alike.rank not in apart
    assert counted == {share: shares.count(share) for share in shares}


def test_alike_nodes_of_unlike_workers_are_folded() -> None:
    """Ten thousand workers in two shares, as classes of two kinds."""
    placed = place_shares([2, 1] * 5_000, 4, ())
    assert [(alike.nodes, alike.each) for alike in placed] == [(2_500, 2), (2_500, 2)]
