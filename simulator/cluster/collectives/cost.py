"""Cost of a collective on a cluster: the algorithm that the library chooses, its latency and its duration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS, names_for
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks, Traffic
from scaleproof.simulator.cluster.collectives.nccl.constants import TimingConstants, constants_of
from scaleproof.simulator.cluster.collectives.nccl.timing import choices, nccl_choice
from scaleproof.simulator.cluster.collectives.nccl.tuner import candidates
from scaleproof.simulator.cluster.collectives.settings import Nccl
from scaleproof.simulator.cluster.network.topology_kinds import Torus
from scaleproof.simulator.common.errors import FieldError, InputError

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster, Interconnect

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


class CollectiveCost(NamedTuple):
    """Cost of a collective. seconds: the whole duration; latency_s: the part of it before the busiest link is busy."""

    algorithm: str
    latency_s: float
    seconds: float


def timing_constants(cluster: Cluster, facts: Nccl, devices: Collection[int]) -> TimingConstants:
    """Constants of the timing of collectives among some devices of a cluster's nodes by NCCL or RCCL."""
    return constants_of(facts, cluster.transport, cluster.collectives.adjust, are_staged(devices, cluster, facts))


def are_staged(devices: Collection[int], cluster: Cluster, facts: Nccl) -> bool:
    """Whether messages among some devices of a node pass the host's memory."""
    link = cluster.node.link
    return link is not None and facts.interconnect == "pcie" and not link.are_peers(devices)


def facts_among(devices: Collection[int], cluster: Cluster) -> Nccl | None:
    """Parameters of NCCL's model among some devices of a node: bridges join them by NVLink where others are on PCIe."""
    facts, link = cluster.nccl, cluster.node.link
    if facts is None or link is None or not link.topology.are_bridged(devices):
        return facts
    return facts.model_copy(update={"interconnect": "nvlink"})


def processors_taken(cluster: Cluster) -> float:
    """Share of a device's processors that move data instead of computing: NCCL occupies one for each of its channels."""
    facts, kernels = cluster.nccl_facts, cluster.device.kernels
    if facts is None or kernels is None:
        return 0.0
    return min(1.0, facts.channels(1, cluster.node.cards_used) / kernels.processors)


def rendezvous_s(group: Group, cluster: Cluster) -> float:
    """Additional seconds of a collective that starts only when its data are ready, with no receives queued before.

    For each node, a network plugin that states its own latency (aws-ofi-nccl for EFA) then sends two more messages that the
    data wait for: the receiver announces its buffer, and the sender reports completion (its RDMA protocol). It is an assumption
    that each has the latency that the plugin states.
    """
    facts = cluster.nccl
    if facts is None or group.nodes == 1:
        return 0.0
    return _RENDEZVOUS_MESSAGES * group.nodes * facts.network_latency_s


def rotates(cluster: Cluster, algorithm: str) -> bool:
    """Whether the order of a node's members is rotated from channel to channel, as NCCL does unless messages are concurrent."""
    return cluster.library == "nccl" and not ALGORITHMS[algorithm].at_once


# Cost of a collective over a group as a function of its size in bytes.
Costing = Callable[[float], CollectiveCost]
# The cost by size of an operation over a group.
CostOf = Callable[[Op, Group, "Cluster"], Costing]
# Seconds of a collective as a function of its size in bytes.
DurationBySize = Callable[[float], float]


def collective_cost(op: Op, size_bytes: float, group: Group, cluster: Cluster, algorithm: str | None = None) -> CollectiveCost:
    """Cost of a collective of one size; see `costing`."""
    return costing(op, group, cluster, algorithm)(size_bytes)


def costing(op: Op, group: Group, cluster: Cluster, algorithm: str | None = None) -> Costing:
    """Cost of a collective by size: as `calibrate` measured it, else by NCCL's model on its GPUs, else by the links' latency
    and bandwidth.

    algorithm: the one to use; the library's choice if absent. Raises InputError for an unsuitable algorithm and FieldError for
    a missing link.
    """
    modelled = modelled_costing(op, group, cluster, algorithm)
    if algorithm is not None or not cluster.collectives.measured or group.size == 1:
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
    if cluster.nccl:
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
    """Cost of a collective by size, by the model alone; errors as in `costing`."""
    if group.size == 1:
        return _nothing
    _check_links(group, cluster)
    devices = set(group.device_of.tolist())
    facts = facts_among(devices, cluster)
    constants = timing_constants(cluster, facts, devices) if facts else None
    return _modelled_costing(op, group, cluster.interconnect, constants, algorithm)


@functools.lru_cache(maxsize=512)
def _modelled_costing(
    op: Op, group: Group, interconnect: Interconnect, constants: TimingConstants | None, algorithm: str | None
) -> Costing:
    """The cost by size; constants: of NCCL's timing, None with other libraries."""
    cluster = interconnect.cluster
    if constants is not None:
        return functools.cache(_nccl_costing(op, group, cluster, constants, algorithm))
    if algorithm is None and cluster.library == "gloo":
        return functools.cache(_gloo_costing(op, group, cluster))
    names = [algorithm] if algorithm else _suitable(op, group, cluster)
    costings = [_link_costing(op, group, cluster, name) for name in names]

    def cheapest(size_bytes: float) -> CollectiveCost:
        return min((cost(size_bytes) for cost in costings), key=lambda cost: cost.seconds)

    return functools.cache(cheapest)


def direct_costing(op: Op, group: Group, cluster: Cluster) -> Costing:
    """Cost by size of a collective in kernels that move data themselves, without a library: the links' latency and
    bandwidth."""
    if group.size == 1:
        return _nothing
    _check_links(group, cluster)
    return _direct_costing(op, group, cluster.interconnect)


@functools.lru_cache(maxsize=512)
def _direct_costing(op: Op, group: Group, interconnect: Interconnect) -> Costing:
    """The cost by size, for links that exist."""
    return functools.cache(_link_costing(op, group, interconnect.cluster, GLOO[op]))


def concurrent_collective(op: Op, group: Group, cluster: Cluster, cost_of: CostOf = costing) -> DurationBySize:
    """Seconds by size of a collective in which all ranks of its nodes take part concurrently, each in a group equivalent to
    `group`."""
    cost_by_size, cards = cost_of(op, group, cluster), cluster.node.cards_used
    demand = cluster.node.devices / group.per_node * min(group.per_node, cards)
    oversubscription = max(1.0, demand / cards) if group.nodes > 1 else 1.0

    def seconds(size_bytes: float) -> float:
        cost = cost_by_size(size_bytes)
        return cost.latency_s + oversubscription * (cost.seconds - cost.latency_s)

    return seconds


def copying_s(size_bytes: float, cluster: Cluster) -> float:
    """Seconds in which a processor core copies a buffer: it reads and writes each byte."""
    return cluster.device.moved_s(2 * size_bytes)


def _nothing(size_bytes: float) -> CollectiveCost:
    """Cost of a collective of one rank."""
    return CollectiveCost("none", 0.0, 0.0)


def _check_links(group: Group, cluster: Cluster) -> None:
    if group.per_node > 1 and cluster.node.link is None:
        raise FieldError(("cluster", "node", "link"), "several devices and no link between them; give bandwidth and latency")
    if group.nodes > 1 and cluster.network is None:
        raise FieldError(("cluster", "network"), "several nodes and no network between them; give bandwidth and latency")


def _suitable(op: Op, group: Group, cluster: Cluster) -> list[str]:
    reduces = GroupLinks(group, cluster.node, cluster.network).reduces
    among = (*_COMMON, "in_network") if reduces else _COMMON
    if placed(group, cluster, "torus_axes").box:
        among = (*among, "torus_axes")
    return [name for name in names_for(op, among) if name != "hierarchical" or group.is_even]


def placed(group: Group, cluster: Cluster, algorithm: str) -> Group:
    """The group as an algorithm has it: with the axes of the torus of its node, if it uses them."""
    topology = cluster.node.link.topology if cluster.node.link is not None else None
    is_torus = algorithm == "torus_axes" and isinstance(topology, Torus)
    return replace(group, axes=topology.dimensions) if is_torus else group  # type: ignore[union-attr]


def _nccl_costing(op: Op, group: Group, cluster: Cluster, constants: TimingConstants, algorithm: str | None) -> Costing:
    """Cost of what NCCL's tuner chooses for each size; only the choice is timed. A given algorithm that NCCL does not have uses
    the links' model."""
    links, facts = GroupLinks(group, cluster.node, cluster.network), facts_among(set(group.device_of.tolist()), cluster)
    assert facts is not None
    usable = choices(op, links, facts, constants, algorithm)
    if not usable and algorithm is not None and algorithm.startswith(tuple(_NCCL_ONLY)):
        names = ", ".join(candidates(op, links, facts))
        needs = next(f"; it needs {what}" for start, what in _NCCL_ONLY.items() if algorithm.startswith(start))
        raise InputError(f"{algorithm} does not work on {group.size} ranks here; use one of {names}{needs}")
    if not usable:
        return _link_costing(op, group, cluster, algorithm or GLOO[op])

    def cost(size_bytes: float) -> CollectiveCost:
        choice = nccl_choice(usable, size_bytes)
        timing = choice.at(size_bytes)
        return CollectiveCost(choice.algorithm, timing.latency_s, timing.seconds(size_bytes))

    return cost


def _gloo_costing(op: Op, group: Group, cluster: Cluster) -> Costing:
    """Cost of gloo's algorithm, and of the copies of the whole buffer that processor cores make."""
    moving = _link_costing(op, group, cluster, _GLOO_OF_TWO.get(op, GLOO[op]) if group.size == 2 else GLOO[op])
    copies = _GLOO_COPIES.get(op, 0) if cluster.computes_on_processors else 0

    def cost(size_bytes: float) -> CollectiveCost:
        moved = moving(size_bytes)
        return moved._replace(seconds=moved.seconds + copies * copying_s(size_bytes, cluster))

    return cost


def _link_costing(op: Op, group: Group, cluster: Cluster, algorithm: str) -> Costing:
    """Latency of the consecutive steps plus the busy time of the busiest link: of each round, or of all rounds together if data
    passes in chunks."""
    if algorithm.startswith(tuple(_NCCL_ONLY)):
        raise InputError(f"{algorithm} is NCCL's, which does not run on {cluster.device.name}; use another algorithm")
    links = GroupLinks(placed(group, cluster, algorithm), cluster.node, cluster.network)
    if op in ALGORITHMS[algorithm].pipelined or ALGORITHMS[algorithm].at_once:
        parts: Sequence[Traffic] = [links.traffic(algorithm, op, rotate=False)]
        latency_s = links.latency_s(parts[0])
    else:
        parts = links.traffic_by_round(algorithm, op)
        latency_s = links.rounds_latency_s(parts)
    busy = [(part.inside_s, part.between_s, links.hosts_s(part)) for part in parts]

    def cost(size_bytes: float) -> CollectiveCost:
        transfer_s = sum(max(size_bytes * inside_s, size_bytes * between_s, host_s) for inside_s, between_s, host_s in busy)
        return CollectiveCost(algorithm, latency_s, latency_s + transfer_s)

    return cost
