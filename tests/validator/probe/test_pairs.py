"""Pairs for link probes: every end of every class, and few pairs of many hosts."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.validator.probe.pairs import (
    ACROSS,
    MOST_PAIRS,
    SAME_LEAF,
    SAME_NODE,
    SAME_SOCKET,
    RankPlace,
    choose,
    group_of,
    places,
    socket,
)
from tests.validator.netlabs import lab_cluster


def test_classes_of_pairs_follow_from_placement() -> None:
    here = RankPlace(node=0, leaf=0, socket=1)
    assert group_of(here, RankPlace(0, 0, 1)) == SAME_SOCKET
    assert group_of(here, RankPlace(0, 0, 0)) == SAME_NODE
    assert group_of(here, RankPlace(1, 0, 1)) == SAME_LEAF
    assert group_of(here, RankPlace(2, 1, 1)) == ACROSS
    assert group_of(RankPlace(0), RankPlace(0)) == SAME_NODE, "nobody knows their sockets"


def test_leaves_follow_from_the_cluster_description() -> None:
    tree = lab_cluster(4, topology={"kind": "leaf_spine", "per_leaf": 2})
    assert [place.leaf for place in places([0, 1, 2, 3, 3], tree)] == [0, 0, 1, 1, 1]
    assert {place.leaf for place in places([0, 1, 2, 3], lab_cluster(4))} == {0}, "one switch joins all"


def test_all_pairs_of_few_ranks_are_probed() -> None:
    found = choose([RankPlace(rank) for rank in range(8)])
    assert [(pair.first, pair.second) for pair in found] == list(itertools.combinations(range(8), 2))
    assert len(found) == MOST_PAIRS


any_places = st.lists(
    st.builds(
        lambda node, leaves, socket: RankPlace(node, node % leaves, socket), st.integers(0, 12), st.just(3), st.integers(0, 1)
    ),
    max_size=40,
)


@given(any_places)
def test_pairs_are_ordered_unique_and_of_their_class(where: list[RankPlace]) -> None:
    found = choose(where)
    assert found == sorted(set(found))
    for first, second, group in found:
        assert first < second
        assert group == group_of(where[first], where[second])


@given(any_places)
def test_each_end_of_a_class_is_probed_twice_if_possible(where: list[RankPlace]) -> None:
    found = choose(where)
    turns: Counter[tuple[str, int]] = Counter()
    possible: Counter[tuple[str, int]] = Counter()
    for first, second in itertools.combinations(range(len(where)), 2):
        group = group_of(where[first], where[second])
        for rank in (first, second):
            possible[group, _end(where, group, rank)] += 1
    for first, second, group in found:
        turns.update([(group, _end(where, group, rank)) for rank in (first, second)])
    assert all(turns[end] >= min(2, count) for end, count in possible.items())


def _end(where: list[RankPlace], group: str, rank: int) -> int:
    return where[rank].node if group in (SAME_LEAF, ACROSS) else rank


@pytest.mark.parametrize("nodes", [64, 300])
def test_few_pairs_of_many_hosts_are_probed(nodes: int) -> None:
    found = choose([RankPlace(node, node // 16) for node in range(nodes)])
    assert Counter(pair.group for pair in found).keys() == {SAME_LEAF, ACROSS}
    assert len(found) <= 2 * (nodes + 4)


def test_the_socket_follows_from_the_allowed_cores(tmp_path: Path) -> None:
    for cpu, package in enumerate([0, 0, 1]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
    assert socket([0, 1], tmp_path) == 0
    assert socket([2], tmp_path) == 1
    assert socket([1, 2], tmp_path) is None, "it may use either"
    assert socket([7], tmp_path) is None, "unknown"
