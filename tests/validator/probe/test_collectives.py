"""Collectives are timed by operation, group and size."""

from __future__ import annotations

import pytest

from scaleproof.validator.probe import collectives
from tests.validator.probe.onranks import least_s, probed

pytestmark = pytest.mark.full


def test_every_operation_is_timed_over_every_group() -> None:
    points = probed(collectives.collectives, 3, [[0, 1], [0, 1, 2]], [0, 0, 1], collectives.OPS, (2**12,), 2.0)
    assert [(p.group, p.what) for p in points] == [
        (group, op) for group in ("2 ranks on 1 node", "3 ranks on 2 nodes") for op in collectives.OPS
    ]
    assert [(p.ranks, p.numbers) for p in points[::6]] == [((0, 1), {"nodes": 1.0}), ((0, 1, 2), {"nodes": 2.0})]


def test_sizes_are_multiples_of_floats_per_rank() -> None:
    points = probed(collectives.collectives, 3, [[0, 1, 2]], [0, 0, 0], ("reduce_scatter",), (4, 2**20, 6), 3.0)
    assert sorted((p.size, p.where) for p in points) == [(12, "ranks 0-2"), (2**20 + 8, "ranks 0-2")]


def test_larger_collectives_take_longer() -> None:
    points = probed(collectives.collectives, 2, [[0, 1]], [0, 0], ("all_reduce",), (8, 2**23), 2.0)
    assert least_s(points, "all_reduce", 2**23) > least_s(points, "all_reduce", 8)
