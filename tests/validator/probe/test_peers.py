"""Ranks of a probe use common numbers."""

from __future__ import annotations

from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.probe.peers import ALONE, named
from tests.validator.probe import onranks


def test_all_peers_get_the_same_values() -> None:
    everybody, some, pair = zip(*run_on_ranks(onranks.settle, 3), strict=True)
    assert everybody == ([[20.0, 0.0], 30.0],) * 3, "each number is the largest of all"
    assert some == ([[20.0, 0.0], 20.0], None, [[20.0, 0.0], 20.0])
    assert pair == (None, [[20.0], 30.0], [[20.0], 30.0]), "the first one's count"


def test_a_single_rank_keeps_its_own_values() -> None:
    assert ALONE.settle([3.0, 4.0]) == [3.0, 4.0]
    assert ALONE.total(3.0) == 3.0


def test_lists_of_ranks_are_abbreviated() -> None:
    assert named([3]) == "rank 3"
    assert named([0, 1, 2, 3]) == "ranks 0-3"
    assert named([0, 2, 5]) == "ranks 0, 2, 5"
