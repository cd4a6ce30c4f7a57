"""Times of collectives by operation, group and size, of the slowest rank.

All ranks call the probe, and each gets all its points.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import Step, by_size, timed
from scaleproof.validator.probe.peers import GroupPeers, named
from scaleproof.validator.probe.points import UNEVEN_ALL_TO_ALL, Point
from scaleproof.validator.probe.rounds import groups_in_turn

# torch before 2.13 has only the old names; from 2.13 on those warn
_ALL_GATHER: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Final[Callable[..., Any]] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _ProbeBuffers(NamedTuple):
    """whole: buffer of the collective's size; other: a second one of that size; part: each rank's part of it."""

    whole: Tensor
    other: Tensor
    part: Tensor


# buffers, first rank of the group, process group
_Run = Callable[[_ProbeBuffers, int, dist.ProcessGroup | None], object]

_RUNS: Final[dict[Op, _Run]] = {
    "all_reduce": lambda buffers, first, group: dist.all_reduce(buffers.whole, group=group),
    "all_gather": lambda buffers, first, group: _ALL_GATHER(buffers.whole, buffers.part, group=group),
    "reduce_scatter": lambda buffers, first, group: _REDUCE_SCATTER(buffers.part, buffers.whole, group=group),
    "broadcast": lambda buffers, first, group: dist.broadcast(buffers.whole, first, group=group),
    "alltoall": lambda buffers, first, group: dist.all_to_all_single(buffers.other, buffers.whole, group=group),
    "reduce": lambda buffers, first, group: dist.reduce(buffers.whole, first, group=group),
}
OPS: Final = tuple(_RUNS)
# In these a rank need not wait for all others, and could begin the next repetition before them.
_UNEVEN: Final[tuple[Op, ...]] = ("broadcast", "reduce")
# In gloo's all-to-all and all-gather two ranks that arrive at once both send; if one is later, as in training, they take
# turns, since it announces behind its own data that it can receive (gloo/alltoall.cc, gloo/allgather.cc). So ranks arrive one
# after the other, at this interval.
_IN_ORDER: Final[tuple[Op, ...]] = ("alltoall", "all_gather")
_INTERVAL_S: Final = 5e-4


def collectives(
    groups: Sequence[Sequence[int]],
    nodes_of_ranks: Sequence[int],
    ops: Sequence[Op],
    sizes_bytes: Sequence[int],
    budget_s: float,
) -> list[dict[str, Any]]:
    """Points of collectives over 32-bit floats. A point's size is that of the whole buffer, as in the simulator, rounded up to
    equal parts per rank.

    groups: ranks in ascending order, at least two each. budget_s: seconds in total; sizes that do not fit into a group's time
    are left out.
    """

    def probe(peers: GroupPeers, budget_s: float) -> Iterable[Point]:
        nodes = len({nodes_of_ranks[rank] for rank in peers.ranks})
        for op in ops:
            yield from _points(op, partial(_step, op, peers), peers, nodes, sizes_bytes, budget_s / len(ops))

    return groups_in_turn(groups, probe, budget_s)


def uneven_all_to_alls(
    groups: Sequence[Sequence[int]], nodes_of_ranks: Sequence[int], sizes_bytes: Sequence[int], budget_s: float
) -> list[dict[str, Any]]:
    """Points of all-to-alls in which the first rank of a group receives twice the mean, and the others equal parts of the rest
    ("alltoall uneven"), as experts do that more tokens choose. Arguments and sizes are as in `collectives`."""

    def probe(peers: GroupPeers, budget_s: float) -> Iterable[Point]:
        nodes = len({nodes_of_ranks[rank] for rank in peers.ranks})
        return _points(UNEVEN_ALL_TO_ALL, partial(_uneven_step, peers), peers, nodes, sizes_bytes, budget_s)

    return groups_in_turn(groups, probe, budget_s)


def _points(
    what: str, step: Callable[[int], Step], peers: GroupPeers, nodes: int, sizes_bytes: Sequence[int], budget_s: float
) -> list[Point]:
    ranks = peers.ranks
    group = f"{len(ranks)} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}"
    # 32-bit floats, the same number for each rank
    whole_bytes = [-(-size // (4 * len(ranks))) * 4 * len(ranks) for size in sizes_bytes]
    return [
        samples.point("collective", what, named(ranks), ranks, size, "bytes", group, nodes=nodes)
        for size, samples in by_size(step, whole_bytes, budget_s, peers)
    ]


def _uneven_step(peers: GroupPeers, size_bytes: int) -> Step:
    count, ranks = size_bytes // 4, len(peers.ranks)
    busiest = 2 * count // ranks
    rest, more = divmod(count - busiest, ranks - 1)
    sent = [busiest, *(rest + (other < more) for other in range(ranks - 1))]
    received = [sent[peers.ranks.index(here().rank)]] * ranks
    arriving, leaving = (torch.zeros(sum(parts), device=here().device) for parts in (received, sent))
    return timed(partial(dist.all_to_all_single, arriving, leaving, received, sent, group=peers.group))


def _step(op: Op, peers: GroupPeers, size_bytes: int) -> Step:
    counts = (size_bytes // 4, size_bytes // 4, size_bytes // 4 // len(peers.ranks))
    buffers = _ProbeBuffers(*(torch.zeros(count, device=here().device) for count in counts))
    run = timed(partial(_RUNS[op], buffers, peers.ranks[0], peers.group))
    arrive_in_order = op in _IN_ORDER and here().device.type == "cpu"
    if op not in _UNEVEN and not arrive_in_order:
        return run
    place = peers.ranks.index(here().rank)
    interval_s = _INTERVAL_S if arrive_in_order else 0.0

    def run_synchronised() -> float:
        peers.settle([0.0])
        time.sleep(place * interval_s)
        # from the arrival of the last rank
        return run() - (len(peers.ranks) - 1 - place) * interval_s

    return run_synchronised
