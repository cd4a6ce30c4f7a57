"""Replicas of a captured job among its ranks."""

from __future__ import annotations

import pytest

from scaleproof.simulator.captured.groups import GroupRoles, Replicas, replicas_of
from scaleproof.simulator.captured.record import EventKind, ProcessGroup
from scaleproof.simulator.common.errors import FieldError
from tests.simulator.captured.records import Step, capture, rank_class


def test_the_axis_of_the_replicas_follows_from_their_groups() -> None:
    # 2 stages × 4 replicas × 2 tensor-parallel ranks
    assert Replicas.from_groups(4, 16, [(0, 1), (0, 2, 4, 6), (0, 8)]) == Replicas(4, 2)
    assert Replicas.from_groups(8, 8, [range(8)]) == Replicas(8, 1)


def test_groups_of_all_replicas_grow_and_groups_within_one_stay() -> None:
    captured, larger = Replicas(4, 2), Replicas(8, 2)
    assert captured.resized((0, 2, 4, 6), larger) == list(range(0, 16, 2))
    assert captured.resized((0, 1), larger) == [0, 1]
    # ranks of the second stage follow those of the first
    assert captured.resized((0, 8), larger) == [0, 16]
    assert captured.resized(range(16), larger) == list(range(32))


def test_groups_of_some_replicas_need_another_capture() -> None:
    with pytest.raises(FieldError, match="capture the script again"):
        Replicas(8).resized((0, 1, 2, 3), Replicas(16))


def test_the_same_number_of_replicas_changes_nothing() -> None:
    assert Replicas(8).resized((0, 3), Replicas(8)) == [0, 3]


def test_ranks_that_differ_stay_single_and_the_others_grow() -> None:
    classes = [(0,), (7,), range(1, 7)]
    assert Replicas(8).resized_classes(classes, Replicas(16)) == [[0], [15], list(range(1, 15))]
    assert Replicas(8).resized_classes(classes, Replicas(4)) == [[0], [3], [1, 2]]
    # two stages, whose ranks follow one another
    assert Replicas(2, 1).resized_classes([(0, 1), (2, 3)], Replicas(4, 1)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_fewer_workers_than_ranks_that_differ_need_another_capture() -> None:
    with pytest.raises(FieldError, match="too few"):
        Replicas(8).resized_classes([(0,), range(1, 8)], Replicas(1))


def test_groups_that_are_made_again_or_contain_others_count_once() -> None:
    names = {"tp": (0, 1), "mesh_tp": (0, 1), "pipeline": (0, 4), "tensor and pipeline": (0, 1, 4, 5), "mesh_dp": (0, 2)}
    one = rank_class(Step().add(EventKind.STEP), range(8), [ProcessGroup(name, ranks, name) for name, ranks in names.items()])
    assert replicas_of(capture(one), [GroupRoles.from_ranks(one)]).count == 2
