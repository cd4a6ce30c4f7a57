"""Collectives are timed by operation, group and size."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.probe import collectives
from scaleproof.validator.probe.peers import GroupPeers
from tests.validator.probe.onranks import probed

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


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_first_rank_of_an_uneven_all_to_all_receives_twice_the_mean(ranks: int) -> None:
    group = list(range(ranks))
    [point] = probed(collectives.uneven_all_to_alls, ranks, [group], [0] * ranks, (2**12,), 0.5)
    assert (point.probe, point.what, point.group) == ("collective", "alltoall uneven", f"{ranks} ranks on 1 node")
    received = run_on_ranks(received_bytes, ranks, point.size)
    assert received[0] == 2 * point.size
    assert sum(received) == ranks * point.size
    assert max(received[1:]) - min(received[1:]) <= 4 * ranks


def received_bytes(size_bytes: float) -> int:
    """Bytes that this rank receives in an uneven all-to-all."""
    buffers: list[torch.Tensor] = []
    exchanged = dist.all_to_all_single
    dist.all_to_all_single = lambda arriving, *rest, **group: buffers.append(arriving) or exchanged(arriving, *rest, **group)
    collectives._uneven_step(GroupPeers(tuple(range(dist.get_world_size()))), int(size_bytes))()
    return buffers[0].nbytes
