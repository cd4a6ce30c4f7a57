"""Time of a collective on a cluster: `collective_time`, and `collective_times` over sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import names_for
from scaleproof.simulator.cluster.collectives.cost import collective_cost, modelled_costing
from scaleproof.simulator.cluster.collectives.groups import OPS, Group, Op, bus_factor
from scaleproof.simulator.common.errors import FieldError, InputError

_SPELLINGS: Final = {op.replace("_", ""): op for op in OPS}


def parse_op(text: str) -> Op:
    """The collective that 'allreduce', 'all-reduce', 'AllReduce' or 'all_reduce' names. Raises InputError."""
    op = _SPELLINGS.get(text.lower().replace("_", "").replace("-", "").replace(" ", ""))
    if op is None:
        raise InputError(f"no collective is called {text!r}; use one of {', '.join(OPS)}")
    return op


def collective_time(
    op: str, size_bytes: float, ranks: int | Sequence[int], cluster: Cluster, algorithm: str | None = None
) -> float:
    """Seconds of one collective; 0 on one rank.

    size_bytes: as counted by nccl-tests, see `simulator.cluster.collectives.algorithms`. ranks: their number, filling the
    cluster's nodes in order, or a list of ranks. algorithm: if None, the one that the library would choose: by NCCL's tuning
    model on GPUs, elsewhere by the latency and bandwidth of the links, or by what `calibrate` measured.

    Raises InputError for an unknown collective or algorithm and an invalid size or group, FieldError for a cluster that lacks
    ranks or a link.
    """
    known = parse_op(op)
    check_algorithm(known, algorithm)
    check_size(size_bytes)
    return collective_cost(known, size_bytes, group_on(cluster, ranks), cluster.reached(), algorithm).seconds


def check_size(size_bytes: float) -> None:
    """Raises InputError for a size that is out of range."""
    if not 0 <= size_bytes <= 2**63:
        raise InputError(f"a collective of {size_bytes} bytes; give a size of zero or more, up to 2^63")


def group_on(cluster: Cluster, ranks: int | Sequence[int]) -> Group:
    """The group of the first ranks of a cluster, or of those listed. Raises InputError, FieldError where ranks are lacking."""
    group = Group.of(ranks, cluster.node.devices)
    if (needed := group.ranks[-1] + 1) > cluster.devices:
        nodes = -(-needed // cluster.node.devices)
        message = f"{needed} ranks for {cluster.devices} devices; give at most {cluster.devices}, or set nodes to {nodes}"
        raise FieldError(("cluster", "nodes"), message)
    return group


def check_algorithm(op: Op, algorithm: str | None) -> None:
    """Raises InputError for an algorithm that does not exist or does not support the collective."""
    if algorithm is not None and algorithm not in names_for(op):
        raise InputError(f"no algorithm {algorithm!r} for {op}; use one of {', '.join(names_for(op))}")


def sweep_sizes(largest_bytes: int, factor: int = 2) -> list[int]:
    """Sizes in bytes: 8, multiplied by `factor`, up to `largest_bytes`."""
    sizes = [min(8, largest_bytes)]
    while sizes[-1] * factor <= largest_bytes:
        sizes.append(sizes[-1] * factor)
    return sizes


def parse_ranks(text: str) -> int | list[int]:
    """A number of ranks ('64'), or a list of ranks ('0,8,16-19', in ascending order). Raises InputError."""
    if re.fullmatch("[0-9]{1,9}", text):
        return int(text)
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(" *([0-9]{1,9})(?:-([0-9]{1,9}))? *", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first <= 1_000_000:
            raise InputError(f"cannot read the ranks {text!r}; give their number, such as 64, or a list such as 0,8,16-19")
        ranks += range(first, last + 1)
    return ranks


class CollectiveTime(NamedTuple):
    """Time of a collective of one size. elements: number of 4-byte elements of a rank. bus_factor: bus bandwidth over algorithm
    bandwidth."""

    size_bytes: int
    elements: int
    seconds: float
    algorithm: str
    bus_factor: float

    @property
    def algorithm_Bps(self) -> float:
        """The algorithm bandwidth: size over time."""
        return self.size_bytes / self.seconds if self.seconds else 0.0

    @property
    def bus_Bps(self) -> float:
        """The bus bandwidth, as nccl-tests define it."""
        return self.algorithm_Bps * self.bus_factor


def collective_times(
    op: Op, sizes_bytes: Iterable[int], group: Group, cluster: Cluster, algorithm: str | None = None, messages: bool = False
) -> Iterator[CollectiveTime]:
    """Times of one collective over sizes.

    messages: whether to simulate every message on its route, with the latency and bandwidth of the links. Raises what
    `collective_time` raises.
    """
    from scaleproof.simulator.analysis.collective.messages import message_time

    check_algorithm(op, algorithm)
    cluster = cluster.reached()
    shared = group.size if op in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter") else 1
    for size_bytes in sizes_bytes:
        check_size(size_bytes)
        cost = collective_cost(op, size_bytes, group, cluster, algorithm)
        seconds = cost.seconds
        if messages and group.size > 1:
            cost = modelled_costing(op, group, cluster, algorithm)(size_bytes)
            seconds = message_time(op, size_bytes, group, cluster, cost.algorithm)
        yield CollectiveTime(size_bytes, size_bytes // 4 // shared, seconds, cost.algorithm, bus_factor(op, group.size))
