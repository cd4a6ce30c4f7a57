"""What a collective costs on a cluster: `collective_time`, the one question with its answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from simulator.cluster import Cluster
from simulator.cluster.nccl import Nccl, Wires, candidates, facts_of, time_s
from simulator.cluster.traffic import ALGORITHMS, OPS, Group, Op, bus_factor
from simulator.errors import FieldError, InputError

_SPELLINGS: Final = {op.replace("_", ""): op for op in OPS}
# What a library that is not NCCL is assumed to choose from.
_PLAIN: Final = ("ring", "halving_doubling", "hierarchical", "pairwise")


def parse_op(text: str) -> Op:
    """The collective that 'allreduce', 'all-reduce', 'AllReduce' or 'all_reduce' names. Raises InputError."""
    op = _SPELLINGS.get(text.lower().replace("_", "").replace("-", "").replace(" ", ""))
    if op is None:
        raise InputError(f"no collective is called {text!r}; use one of {', '.join(OPS)}")
    return op


def collective_time(op: str, size_bytes: float, ranks: int, cluster: Cluster, algorithm: str | None = None) -> float:
    """Seconds that one collective takes on `ranks` ranks which fill the cluster's nodes one after the other.

    size_bytes: as nccl-tests counts it, see `simulator.cluster.traffic`. algorithm: the one to use; the fastest, as the
    library would choose, if absent. On GPUs that is by NCCL's tuning model, elsewhere latency and bytes of the links, or what
    `calibrate` measured. One rank takes no time.
    Raises InputError for an unknown collective or algorithm and a bad size or number of ranks, FieldError for a cluster
    that lacks ranks or a link.
    """
    known = parse_op(op)
    if algorithm is not None:
        _check_algorithm(known, algorithm)
    if not 0 <= size_bytes <= 2**63:
        raise InputError(f"a collective of {size_bytes} bytes; give a size of zero or more, up to 2^63")
    if ranks < 1:
        raise InputError(f"a collective over {ranks} ranks; give at least one")
    if ranks > cluster.devices:
        nodes = -(-ranks // cluster.node.devices)
        message = f"{ranks} ranks for {cluster.devices} devices; give at most {cluster.devices}, or set nodes to {nodes}"
        raise FieldError(("cluster", "nodes"), message)
    if ranks == 1:
        return 0.0
    group = Group.of(ranks, cluster.node.devices)
    wires = _wires(group, cluster)
    measured = cluster.collectives.measured_allreduce(ranks) if group.nodes == 1 and known == "all_reduce" else None
    if measured is not None and algorithm is None:
        return measured.latency_s + size_bytes / measured.bandwidth_Bps
    facts = cluster.collectives.nccl or facts_of(cluster.device.name)
    if facts is None:
        return _plain_s(known, size_bytes, group, wires, cluster, algorithm)
    return _nccl_s(known, size_bytes, group, wires, facts, algorithm, cluster)


def _check_algorithm(op: Op, algorithm: str) -> None:
    known = [name for name, (_, ops) in ALGORITHMS.items() if op in ops]
    if algorithm not in known:
        raise InputError(f"no algorithm {algorithm!r} for {op}; use one of {', '.join(known)}")


def _wires(group: Group, cluster: Cluster) -> Wires:
    """The links that the group uses; those it does not use are infinitely fast."""
    if group.per_node > 1 and cluster.node.link is None:
        raise FieldError(("cluster", "node", "link"), "several devices and no link between them; give bandwidth and latency")
    if group.nodes > 1 and cluster.network is None:
        raise FieldError(("cluster", "network"), "several nodes and no network between them; give bandwidth and latency")
    return Wires(
        port_Bps=cluster.node.link.bandwidth_Bps if cluster.node.link else math.inf,
        network_Bps=cluster.network.bandwidth_Bps if cluster.network else math.inf,
        cards=min(cluster.node.cards, cluster.node.devices),  # further cards serve the same devices
    )


def _nccl_s(
    op: Op, size_bytes: float, group: Group, wires: Wires, facts: Nccl, algorithm: str | None, cluster: Cluster
) -> float:
    """By NCCL's model; an algorithm that NCCL does not have, but is asked for, by the links alone."""
    usable = candidates(op, group, facts)
    if algorithm is None:
        return min(time_s(op, size_bytes, group, wires, facts, name) for name in usable)
    if algorithm in usable:
        return time_s(op, size_bytes, group, wires, facts, algorithm)
    if algorithm.startswith("nvls"):
        raise InputError(f"{algorithm} does not work on {group.ranks} ranks here; use one of {', '.join(usable)}")
    return _plain_s(op, size_bytes, group, wires, cluster, algorithm)


def _plain_s(op: Op, size_bytes: float, group: Group, wires: Wires, cluster: Cluster, algorithm: str | None) -> float:
    """Latency of the steps that follow one another, plus the time of the busiest wire."""
    if algorithm is not None and algorithm.startswith("nvls"):
        raise InputError(f"{algorithm} needs NVSwitch, which {cluster.device.name} does not have; use another algorithm")
    names = [algorithm] if algorithm else [name for name in _PLAIN if op in ALGORITHMS[name][1]]
    link_s = cluster.node.link.latency_s if cluster.node.link else 0.0
    network_s = cluster.network.latency_s if cluster.network else 0.0

    def seconds(name: str) -> float:
        traffic = ALGORITHMS[name][0](op, group, size_bytes)
        cards = min(1.0, traffic.crossing / wires.cards)
        wire_s = max(traffic.port_bytes / wires.port_Bps, traffic.node_bytes / (wires.network_Bps * cards))
        return traffic.inside_steps * link_s + traffic.between_steps * network_s + wire_s

    return min(seconds(name) for name in names)


def sweep_sizes(largest_bytes: int, factor: int = 2) -> list[int]:
    """8 bytes and on by `factor`, up to `largest_bytes`."""
    sizes = [8]
    while sizes[-1] * factor <= largest_bytes:
        sizes.append(sizes[-1] * factor)
    return sizes


def describe_times(op: str, sizes_bytes: Sequence[int], ranks: int, cluster: Cluster, algorithm: str | None = None) -> str:
    """A table in nccl-tests' columns: a size in bytes, its count of 4-byte elements, time, algorithm and bus bandwidth.

    Raises what `collective_time` raises.
    """
    known = parse_op(op)
    shared = ranks if known in ("all_gather", "reduce_scatter", "alltoall") else 1
    lines = [
        f"# {known} on {ranks} ranks of {cluster.name or 'the cluster'}, {algorithm or 'algorithm as the library chooses'}",
        f"{'size':>14} {'count':>14} {'time':>12} {'algbw':>9} {'busbw':>9}",
        f"{'(B)':>14} {'(elements)':>14} {'(us)':>12} {'(GB/s)':>9} {'(GB/s)':>9}",
    ]
    for size_bytes in sizes_bytes:
        seconds = collective_time(known, size_bytes, ranks, cluster, algorithm)
        alg_GBps = size_bytes / seconds / 1e9 if seconds else 0.0
        bus_GBps = alg_GBps * bus_factor(known, ranks)
        time_us = f"{seconds * 1e6:.2f}"
        lines.append(f"{size_bytes:>14} {size_bytes // 4 // shared:>14} {time_us:>12} {alg_GBps:>9.2f} {bus_GBps:>9.2f}")
    return "\n".join(lines)
