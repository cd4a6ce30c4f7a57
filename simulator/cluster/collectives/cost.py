"""Cost of a collective on a cluster: the algorithm that the library chooses, its latency and its duration."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS, names_for
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import Traffic, traffic, traffic_by_round
from scaleproof.simulator.cluster.collectives.nccl import (
    Choice,
    GroupLinks,
    Nccl,
    TimingConstants,
    candidates,
    channels,
    choices,
    constants_of,
    default_transport,
    facts_of,
    nccl_choice,
    rccl_facts_of,
)
from scaleproof.simulator.cluster.collectives.settings import Library
from scaleproof.simulator.common.errors import FieldError, InputError

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster

# gloo's algorithms (gloo/{allreduce,reduce,broadcast,allgather,gather,scatter,alltoall}.cc; ProcessGroupGloo's reduce_scatter).
GLOO: Final[dict[Op, str]] = {
    "all_reduce": "ring",
    "reduce_scatter": "whole_ring",
    "all_gather": "ring",
    "broadcast": "binomial",
    "reduce": "ring_gather",
    "alltoall": "pairwise",
    "sendrecv": "pairwise",
    "gather": "linear",
    "scatter": "linear",
}
# Copies of the whole buffer on the host before or after it moves: an all-gather is received into one tensor and copied to those
# of the ranks, a reduce-scatter sums a copy of its input (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp).
_GLOO_COPIES: Final[dict[Op, int]] = {"all_gather": 1, "reduce_scatter": 1}
# Those in which two ranks take turns on the connection that they share.
_GLOO_OF_TWO: Final[dict[Op, str]] = {"all_gather": "in_turns", "alltoall": "in_turns"}
# Messages of a rendezvous in addition to the data.
_RENDEZVOUS_MESSAGES: Final = 2
# Power of a group's ratio of measured to modelled time that groups of other sizes share with NCCL, which chooses algorithm and
# protocol by the group. On nodes of 8 A100, H100 and B200, whose groups of 2 and 4 were given, 0.5 erred less than 0 and 1.
_CARRIED: Final = 0.5
# Algorithms of NCCL alone by the start of their names, and what they need.
_NCCL_ONLY: Final = {
    "nvls": "NVSwitch from Hopper on and, over several nodes, network.in_network_reduction",
    "collnet": "network.in_network_reduction",
    "symmetric": "collectives.nccl.buffers: symmetric, on one NVLink domain",
}
# Algorithms that an unknown library is assumed to choose from.
_COMMON: Final = ("ring", "halving_doubling", "hierarchical", "binomial", "pairwise", "linear")


@dataclass(frozen=True)
class CollectiveCost:
    """Cost of a collective. seconds: the whole duration; latency_s: the part of it before the busiest link is busy."""

    algorithm: str
    latency_s: float
    seconds: float


def library_of(cluster: Cluster) -> Library:
    """The library that chooses the algorithms on a cluster."""
    if cluster.collectives.library is not None:
        return cluster.collectives.library
    if nccl_facts(cluster):
        return "nccl"
    return "gloo" if cluster.node.cores is not None else "fastest"


def nccl_facts(cluster: Cluster) -> Nccl | None:
    """Parameters of NCCL's or RCCL's model: the cluster's own, else those for its device's name; None if they are unknown."""
    name = cluster.device.name
    return cluster.collectives.nccl or facts_of(name) or rccl_facts_of(name)


def chosen_nccl(cluster: Cluster) -> Nccl | None:
    """Parameters of NCCL's model if NCCL or RCCL is the cluster's library, else None. Raises FieldError if they are unknown."""
    if library_of(cluster) != "nccl":
        return None
    facts = nccl_facts(cluster)
    if facts is None:
        message = f"NCCL's model does not know {cluster.device.name}; give collectives.nccl, or another library"
        raise FieldError(("cluster", "collectives", "library"), message)
    return facts


def transport_of(cluster: Cluster) -> str:
    """Name of the transport between nodes: the network's own, else the usual one of such a network."""
    return cluster.network.transport or default_transport(cluster.network, cluster.node) if cluster.network else "infiniband"


def timing_constants(cluster: Cluster, facts: Nccl) -> TimingConstants:
    """Constants of the timing of a cluster's collectives by NCCL or RCCL."""
    return constants_of(facts, transport_of(cluster), cluster.collectives.adjust)


def processors_taken(cluster: Cluster) -> float:
    """Share of a device's processors that move data instead of computing: NCCL occupies one for each of its channels."""
    facts, kernels = nccl_facts(cluster), cluster.device.kernels
    if facts is None or kernels is None:
        return 0.0
    return min(1.0, channels(facts, 1, cluster.node.cards_used) / kernels.processors)


def rendezvous_s(group: Group, cluster: Cluster) -> float:
    """Additional seconds of a collective that starts only when its data are ready, with no receives queued before.

    For each node, a network plugin that states its own latency (aws-ofi-nccl for EFA) then sends two more messages that the
    data wait for: the receiver announces its buffer, and the sender reports completion (its RDMA protocol). It is an assumption
    that each has the latency that the plugin states.
    """
    facts = chosen_nccl(cluster)
    if facts is None or group.nodes == 1:
        return 0.0
    return _RENDEZVOUS_MESSAGES * group.nodes * facts.network_latency_s


def rotates(cluster: Cluster, algorithm: str) -> bool:
    """Whether the order of a node's members is rotated from channel to channel, as NCCL does unless messages are concurrent."""
    return library_of(cluster) == "nccl" and not ALGORITHMS[algorithm].at_once


# Cost of a collective over a group as a function of its size in bytes.
Costing = Callable[[float], CollectiveCost]
# The cost by size of an operation over a group.
CostOf = Callable[[Op, Group, "Cluster"], Costing]


def collective_cost(op: Op, size_bytes: float, group: Group, cluster: Cluster, algorithm: str | None = None) -> CollectiveCost:
    """Cost of a collective of one size; see `costing`."""
    return costing(op, group, cluster, algorithm)(size_bytes)


def costing(op: Op, group: Group, cluster: Cluster, algorithm: str | None = None) -> Costing:
    """Cost of a collective by size: as `calibrate` measured it, else by NCCL's model on its GPUs, else by the links' latency
    and bandwidth.

    algorithm: the one to use; the library's choice if absent. Raises InputError for an unsuitable algorithm and FieldError for
    a missing link.
    """
    if group.size == 1:
        return lambda size_bytes: CollectiveCost("none", 0.0, 0.0)
    _check_links(group, cluster)
    modelled = modelled_costing(op, group, cluster, algorithm)
    if algorithm is not None or not cluster.collectives.measured:
        return modelled

    def cost(size_bytes: float) -> CollectiveCost:
        measured = cluster.collectives.exactly(op, group.size, group.nodes, size_bytes)
        if measured is not None:
            return CollectiveCost("measured", measured.latency_s, measured.seconds(size_bytes))
        return _corrected_cost(modelled(size_bytes), op, size_bytes, group, cluster)

    return cost


def _corrected_cost(cost: CollectiveCost, op: Op, size_bytes: float, group: Group, cluster: Cluster) -> CollectiveCost:
    """The model, scaled by measured over modelled of the nearest measured group: with NCCL the whole time by a part of the
    ratio, with other libraries latency and transfer time each by its own."""
    measured = cluster.collectives.nearest(op, group.size, group.nodes, size_bytes)
    if measured is None:
        return cost
    per_node = -(-measured.ranks // measured.nodes)
    devices = cluster.node.devices
    if measured.nodes > cluster.nodes or per_node > devices:
        return cost
    ranks = [node * devices + device for node in range(measured.nodes) for device in range(per_node)][: measured.ranks]
    modelled = modelled_costing(op, Group.of(ranks, devices), cluster)(size_bytes)
    if chosen_nccl(cluster):
        ratio = (measured.seconds(size_bytes) / modelled.seconds) ** _CARRIED if modelled.seconds else 1.0
        return CollectiveCost(cost.algorithm, cost.latency_s * ratio, cost.seconds * ratio)
    measured_s = size_bytes / measured.bandwidth_Bps
    latency_s, transfer_s = cost.latency_s, cost.seconds - cost.latency_s
    if modelled.latency_s > 0:
        latency_s *= measured.latency_s / modelled.latency_s
    if modelled.seconds > modelled.latency_s:
        transfer_s *= measured_s / (modelled.seconds - modelled.latency_s)
    return CollectiveCost(cost.algorithm, latency_s, latency_s + transfer_s)


def modelled_costing(op: Op, group: Group, cluster: Cluster, algorithm: str | None = None) -> Costing:
    """Cost of a collective over two or more ranks by size, by the model alone; errors as in `costing`.

    The latest are kept, with the cluster's parts that they depend on.
    """
    # a device's speed counts only where it copies what collectives move
    device = cluster.device if cluster.computes_on_processors else None
    parts = cluster.network, cluster.node, cluster.collectives, device
    key = op, group, algorithm, cluster.device.name, *map(id, parts)
    if key not in _MODELLED:
        _MODELLED[key] = functools.cache(_modelled_costing(op, group, cluster, algorithm)), parts
        if len(_MODELLED) > _MOST_MODELLED:
            _MODELLED.popitem(last=False)
    return _MODELLED[key][0]


_MOST_MODELLED: Final = 512
_MODELLED: Final[OrderedDict[Hashable, tuple[Costing, tuple[object, ...]]]] = OrderedDict()


def _modelled_costing(op: Op, group: Group, cluster: Cluster, algorithm: str | None) -> Costing:
    if facts := chosen_nccl(cluster):
        return _nccl_costing(op, group, cluster, facts, algorithm)
    if algorithm is None and library_of(cluster) == "gloo":
        moving, copies = _link_costing(op, group, cluster, gloo_algorithm(op, group)), _GLOO_COPIES.get(op, 0)
        return _with_copies(moving, copies, cluster) if copies and cluster.computes_on_processors else moving
    names = [algorithm] if algorithm else _suitable(op, group, cluster)
    return _cheapest([_link_costing(op, group, cluster, name) for name in names])


def copying_s(size_bytes: float, cluster: Cluster) -> float:
    """Seconds in which a processor core copies a buffer: it reads and writes each byte."""
    return cluster.device.moved_s(2 * size_bytes)


def _with_copies(moving: Costing, copies: int, cluster: Cluster) -> Costing:
    """Cost of a collective whose whole buffer is copied a number of times as well."""

    def cost(size_bytes: float) -> CollectiveCost:
        moved = moving(size_bytes)
        return replace(moved, seconds=moved.seconds + copies * copying_s(size_bytes, cluster))

    return cost


def gloo_algorithm(op: Op, group: Group) -> str:
    """Name of the algorithm that gloo uses for a group of two or more ranks."""
    return _GLOO_OF_TWO.get(op, GLOO[op]) if group.size == 2 else GLOO[op]


def direct_costing(op: Op, group: Group, cluster: Cluster) -> Costing:
    """Cost by size of a collective in kernels that move data themselves, without a library: the links' latency and
    bandwidth."""
    if group.size == 1:
        return lambda size_bytes: CollectiveCost("none", 0.0, 0.0)
    _check_links(group, cluster)
    return _link_costing(op, group, cluster, GLOO[op])


class ConcurrentCollective:
    """A collective in which all ranks of its nodes take part concurrently, each in a group equivalent to `group`."""

    def __init__(self, op: Op, group: Group, cluster: Cluster, cost_of: CostOf = costing) -> None:
        self._cluster = cluster
        self._cost = functools.cache(cost_of(op, group, cluster))
        cards, devices = cluster.node.cards_used, cluster.node.devices
        demand = devices / group.per_node * min(group.per_node, cards)
        self._oversubscription = max(1.0, demand / cards) if group.nodes > 1 else 1.0

    def seconds(self, size_bytes: float) -> float:
        """Seconds of the collective for `size_bytes` bytes."""
        cost = self._cost(size_bytes)
        return cost.latency_s + self._oversubscription * (cost.seconds - cost.latency_s)


_CONCURRENT_SIZE: Final = 256
_CONCURRENT: Final[OrderedDict[tuple[Op, Group, int, object], ConcurrentCollective]] = OrderedDict()


def concurrent_collective(op: Op, group: Group, cluster: Cluster, cost_of: CostOf = costing) -> ConcurrentCollective:
    """The `ConcurrentCollective` of these arguments. The latest ones are cached by the identity of the cluster, which they
    reference."""
    key = op, group, id(cluster), cost_of
    if key not in _CONCURRENT:
        _CONCURRENT[key] = ConcurrentCollective(op, group, cluster, cost_of)
        if len(_CONCURRENT) > _CONCURRENT_SIZE:
            _CONCURRENT.popitem(last=False)
    return _CONCURRENT[key]


def _check_links(group: Group, cluster: Cluster) -> None:
    if group.per_node > 1 and cluster.node.link is None:
        raise FieldError(("cluster", "node", "link"), "several devices and no link between them; give bandwidth and latency")
    if group.nodes > 1 and cluster.network is None:
        raise FieldError(("cluster", "network"), "several nodes and no network between them; give bandwidth and latency")


def _suitable(op: Op, group: Group, cluster: Cluster) -> list[str]:
    reduces = GroupLinks(group, cluster.node, cluster.network).reduces
    among = (*_COMMON, "in_network") if reduces else _COMMON
    return [name for name in names_for(op, among) if name != "hierarchical" or group.is_even]


def _cheapest(costings: Sequence[Costing]) -> Costing:
    if len(costings) == 1:
        return costings[0]
    return lambda size_bytes: min((cost(size_bytes) for cost in costings), key=lambda cost: cost.seconds)


def _nccl_costing(op: Op, group: Group, cluster: Cluster, facts: Nccl, algorithm: str | None) -> Costing:
    """Cost by NCCL's model; a given algorithm that NCCL does not have uses the links' model."""
    links = GroupLinks(group, cluster.node, cluster.network)
    if usable := choices(op, links, facts, timing_constants(cluster, facts), algorithm):
        return _chosen_costing(usable)
    if algorithm is not None and algorithm.startswith(tuple(_NCCL_ONLY)):
        names = ", ".join(candidates(op, links, facts))
        needs = next(f"; it needs {what}" for start, what in _NCCL_ONLY.items() if algorithm.startswith(start))
        raise InputError(f"{algorithm} does not work on {group.size} ranks here; use one of {names}{needs}")
    return _link_costing(op, group, cluster, algorithm or GLOO[op])


def _chosen_costing(usable: Sequence[Choice]) -> Costing:
    """Cost of what NCCL's tuner chooses for each size; only the choice is timed."""

    def cost(size_bytes: float) -> CollectiveCost:
        choice = nccl_choice(usable, size_bytes)
        timing = choice.at(size_bytes)
        return CollectiveCost(choice.algorithm, timing.latency_s, timing.seconds(size_bytes))

    return cost


def _link_costing(op: Op, group: Group, cluster: Cluster, algorithm: str) -> Costing:
    """Latency of the consecutive steps plus the busy time of the busiest link: of each round, or of all rounds together if data
    passes in chunks."""
    if algorithm.startswith(tuple(_NCCL_ONLY)):
        raise InputError(f"{algorithm} is NCCL's, which does not run on {cluster.device.name}; use another algorithm")
    links = GroupLinks(group, cluster.node, cluster.network)
    if op in ALGORITHMS[algorithm].pipelined or ALGORITHMS[algorithm].at_once:
        parts: Sequence[Traffic] = [traffic(algorithm, op, group, cluster.node, cluster.network, rotate=False)]
        latency_s = links.latency_s(parts[0])
    else:
        parts = traffic_by_round(algorithm, op, group, cluster.node, cluster.network)
        latency_s = links.rounds_latency_s(parts)

    hosts_s = [links.hosts_s(part) for part in parts]

    def cost(size_bytes: float) -> CollectiveCost:
        of_parts = zip(parts, hosts_s, strict=True)
        transfer_s = sum(max(size_bytes * part.inside_s, size_bytes * part.between_s, host_s) for part, host_s in of_parts)
        return CollectiveCost(algorithm, latency_s, latency_s + transfer_s)

    return cost
