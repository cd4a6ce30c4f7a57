"""CollNet: NCCL's algorithms on networks whose switches reduce (SHARP), and what its tuner expects of them.

Latencies and bandwidths are those of NCCL's src/graph/tuning.cc, 2.27; limits of ranks those of src/enqueue.cc.
"""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.cluster.collectives.algorithms import Op
from scaleproof.simulator.cluster.collectives.nccl.facts import GroupLinks, Nccl

_US: Final = 1e-6
# hwLatencies: inside nodes and between them, of Simple; with one rank per node that of a tree.
_INSIDE_US: Final = {"collnet_direct": 3.7, "collnet_chain": 2.8, "nvls": 25.0}
_BETWEEN_US: Final = {"collnet_direct": 31.0, "collnet_chain": 30.0, "nvls": 18.0}
_ONE_PER_NODE_US: Final = 14.0
# "arity serialization latency" of each message between the ranks of a node
_EACH_PEER_US: Final = 0.4
# Most ranks of a node with CollNetDirect (NCCL_MAX_DIRECT_ARITY + 1), and with NVLS but for all-reduces (NCCL_MAX_NVLS_ARITY).
_MOST_DIRECT: Final = 8
_MOST_NVLS: Final = 32
# Share of the rate expected of CollNetDirect on Hopper and later GPUs, and of the network's rate in gathers and scatters.
_HOPPER_SHARE: Final = 0.85
_GATHER_SHARE: Final = 0.9


def candidates(op: Op, links: GroupLinks, facts: Nccl) -> list[str]:
    """The algorithms on the network's switches that NCCL has for an operation; none if the switches do not reduce.

    CollNetDirect needs NVSwitch. Gathers and scatters need a network card for each rank, and a plugin that offers them.
    """
    if not links.reduces or facts.generation == "cdna":
        return []
    per_node, node_link = links.group.per_node, links.node.link
    is_sum, each_has_card = op == "all_reduce", links.heads == links.group.per_node
    found = ["collnet_chain"] if is_sum else []
    is_switched = facts.interconnect == "nvlink" and node_link is not None and node_link.topology.kind == "switch"
    if is_switched and per_node <= _MOST_DIRECT and (is_sum or (each_has_card and facts.is_at_least(2, 20))):
        found.append("collnet_direct")
    gathers_by_nvls = each_has_card and per_node <= _MOST_NVLS and facts.is_at_least(2, 27)
    if facts.has_nvls_on(links.group) and facts.is_at_least(2, 18) and (is_sum or gathers_by_nvls):
        found.append("nvls")
    return found


def heads_factor(links: GroupLinks) -> float:
    """Time of CollNetDirect over that on nodes with a network card for each rank: ranks without send all their data."""
    return 1 + (links.group.per_node / links.heads - 1) / 2


def expected_latency_s(algorithm: str, links: GroupLinks, facts: Nccl) -> float:
    """Seconds that the tuner expects of the smallest sizes."""
    others = links.group.per_node - 1
    inside_us = _INSIDE_US[algorithm]
    if algorithm == "collnet_direct":
        inside_us = 2 * (min(1, others) * inside_us + others * _EACH_PEER_US)
    elif algorithm == "collnet_chain":
        inside_us *= 2 * others
    between_us = _BETWEEN_US[algorithm] if others else _ONE_PER_NODE_US
    return _US * (inside_us + between_us) + facts.network_latency_s


def expected_Bps(algorithm: str, op: Op, links: GroupLinks, facts: Nccl, inside_Bps: float, between_Bps: float) -> float:
    """Algorithm bandwidth that the tuner expects. It counts half of the bus bandwidth, as if data crossed the network twice.

    inside_Bps, between_Bps: of a rank inside its node, and of a node's cards, as NCCL expects them.
    """
    group = links.group
    others = (links.heads - 1) / links.heads
    if algorithm == "nvls" and op == "all_reduce":
        bus_Bps = min(2 * others * inside_Bps, between_Bps)
        return bus_Bps * group.size / (2 * (group.size - 1))
    if op != "all_reduce":
        return min(others * inside_Bps, _GATHER_SHARE * between_Bps) if others else _GATHER_SHARE * between_Bps
    bus_Bps = min(inside_Bps, between_Bps)
    if algorithm == "collnet_direct":
        bus_Bps *= (_HOPPER_SHARE if facts.generation in ("hopper", "blackwell") else 1.0) / heads_factor(links)
    return bus_Bps / 2
