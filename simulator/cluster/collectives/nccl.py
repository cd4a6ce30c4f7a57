"""NCCL's choice of algorithm and protocol for a collective, and the collective's time, by NCCL's own tuning model.

Latencies and limits are those of NCCL's src/graph/tuning.cc in releases that know Blackwell (2.27 and later); link efficiencies
are those of src/graph/topo.h and search.cc. RCCL is NCCL ported to AMD's GPUs: the same rings, trees and protocols, with the
latencies, links and channels of its own copies of these files (ROCm/rccl, 2.27).
Steps and bytes come from `traffic`, which is finer than NCCL's count: the time of NVLS depends on the number of devices.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from scaleproof.simulator.cluster.collectives.algorithms import Group, Op, bus_factor, names_for
from scaleproof.simulator.cluster.collectives.link_traffic import Traffic, traffic
from scaleproof.simulator.cluster.network.links import Link, Node
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Seconds

Generation = Literal["volta", "ampere", "hopper", "blackwell", "cdna"]
Protocol = Literal["ll", "ll128", "simple"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("ll", "ll128", "simple")


class Nccl(Spec):
    """Parameters of NCCL's model for a cluster, in addition to the speeds of its links; of RCCL's with the generation cdna."""

    generation: Generation = Field(
        description="of the GPUs; older ones than Volta count as Volta, as in NCCL; cdna: AMD Instinct from MI200 on"
    )
    interconnect: Literal["nvlink", "pcie"] = Field("nvlink", description="nvlink: also AMD's Infinity Fabric")
    nvls: bool = Field(True, description="use NVLink SHARP where the generation has it")
    ll128: bool = Field(True, description="whether the network keeps 128-byte stores in order, as the LL128 protocol needs")
    network_latency_s: Seconds = Field(
        0.0, alias="network_latency", description="latency that the network plugin states, added to NCCL's own for InfiniBand"
    )


@dataclass(frozen=True)
class GroupLinks:
    """The links that a group uses, at their nominal bandwidth."""

    group: Group
    node: Node
    network: Link | None

    @property
    def cards(self) -> int:
        """Number of network cards in use per node."""
        return self.node.cards_used

    def traffic(self, algorithm: str, op: Op) -> Traffic:
        """Traffic of an algorithm on these links."""
        return traffic(algorithm, op, self.group, self.node, self.network, rotate=True)

    def latency_s(self, traffic: Traffic) -> float:
        """Seconds of latency of the traffic's consecutive messages on the links alone."""
        inside_s, between_s = (link.latency_s if link else 0.0 for link in (self.node.link, self.network))
        return traffic.inside_steps * inside_s + traffic.between_steps * between_s + traffic.further_s


# tuning.cc, baseLatencies, then hwLatencies: seconds to start, and per step, by protocol (LL, LL128, Simple).
_US: Final = 1e-6
_BASE_US: Final = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "nvls": (0.0,) * 3, "nvls_tree": (0.0,) * 3}
_STEP_US: Final[dict[str, dict[str, tuple[float, float, float]]]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "nvls": (0, 0, 25.0), "nvls_tree": (0, 0, 25.0)},
    "pcie": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    "network": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "nvls_tree": (0, 0, 20.9)},
}
# RCCL's counterparts: baseLat, then hwLat of tuning_model_5, which its MI300X nodes use; "nvlink" is Infinity Fabric. There a
# ring's Simple step between nodes has 320 us, which no real step has: it keeps RCCL from choosing the ring. It is an assumption
# that the ring has the tree's latency, as in NCCL's own model with one rank per node.
_RCCL_BASE_US: Final = {"tree": (12.0, 12.0, 17.0), "ring": (12.0, 12.0, 17.0)}
_RCCL_STEP_US: Final[dict[str, dict[str, tuple[float, float, float]]]] = {
    "nvlink": {"tree": (0.9, 0.9, 2.3), "ring": (0.8, 0.8, 2.1)},
    "pcie": {"tree": (2.2, 2.2, 5.7), "ring": (2.2, 2.2, 5.7)},
    "network": {"tree": (10.5, 10.5, 25.0), "ring": (10.5, 10.5, 25.0)},
}
# tuning.cc, getNetOverhead: time of a proxy to post one message (Simple: a chunk of three), on Intel hosts.
_POST_US: Final = {"ll": 1.0, "ll128": 1.0, "simple": 3.0}
# tuning.cc, limits in GB/s for 1 node, 2 nodes, more: of LL (several nodes: Intel hosts), and per channel. RCCL has no limits
# but tables of ratios that rank its algorithms; it is an assumption that it has Ampere's limits.
_GBps: Final = 1e9
_LL_MAX: Final = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0, "cdna": 87.7}
_LL_NETWORK_MAX: Final = (39.0, 20.4)
_RING_LL128_MAX: Final = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0, "cdna": 20.0}
_TREE_LL128_MAX: Final = {
    "volta": (20.0, 20.0, 20.0), "ampere": (20.0, 20.0, 20.0), "hopper": (36.7, 36.7, 29.0), "blackwell": (55.6, 31.67, 20.0),
    "cdna": (20.0, 20.0, 20.0),
}  # fmt: skip
_TREE_MAX: Final = {
    "volta": (26.5, 18.5, 10.0), "ampere": (24.0, 23.6, 17.8), "hopper": (38.7, 41.4, 36.0), "blackwell": (70.0, 42.8, 24.0),
    "cdna": (24.0, 23.6, 17.8),
}  # fmt: skip
_NVLS_TREE_MAX: Final = {"hopper": (0.0, 57.7, 45.5), "blackwell": (0.0, 96.0, 43.8)}
# tuning.cc, nvlsEfficiency: share of NVLink's bandwidth that NVLS reaches.
_NVLS_SHARE: Final = {"hopper": 0.85, "blackwell": 0.74}
# topo.h: effective over nominal GB/s of one NVLink (25 from Volta to Hopper, then 50), of Infinity Fabric (64 on MI300X; MI200:
# 36 of 50) and of PCIe 3 x16 (12 of 15.75).
_NVLINK_SHARE: Final = {"volta": 20 / 25, "ampere": 20 / 25, "hopper": 20.6 / 25, "blackwell": 40.1 / 50, "cdna": 48 / 64}
_PCIE_SHARE: Final = 12 / 15.75
# search.cc: channels get 12, 24 or 48 GB/s of cards with nominally 12.5, 25 or 50.
_NETWORK_SHARE: Final = 0.96
# Largest rate from a node to one rank of another node, however fast the card. NCCL gives such a rank two channels (paths.cc,
# ncclTopoGetNchannels) and cuts messages into chunks of 128 KiB (NCCL_P2P_NET_CHUNKSIZE), each of which has a fixed cost
# (NVIDIA/nccl, issue 2409): one channel reached 18.3 GB/s, two 24.2 on cards of 25 (issue 1272). Messages to several ranks are
# concurrent, so that an alltoall over many nodes fills its cards (NVIDIA/nccl-tests, issue 267). Fitted to CALIBRATION alone.
_PEER_Bps: Final = 19.82e9
CALIBRATION: Final = "sendrecv of 512 MiB between two nodes of eight B200 (19.82 GB/s over a card of 400 Gbit/s)"
# Channels on one node; between nodes two for each card that the node's ranks use, the usual result of NCCL's search.
# RCCL: four for each of the 14 rings of eight fully joined MI300X, 16 rings for eight cards (rome_models.cc, 79 and 81).
_CHANNELS: Final = {"volta": 12, "ampere": 24, "hopper": 24, "blackwell": 32, "cdna": 56}
_NVLS_CHANNELS: Final = 16
# tuning.cc, treeCorrectionFactor: share of the bandwidth that pipelined chunks reach, for sizes of 64 B · 2^i.
_FILL: Final[dict[Protocol, tuple[float, ...]]] = {
    "ll": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9),
    "ll128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9),
    "simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip
_GENERATIONS: Final[dict[str, Generation]] = {
    r"G?B[123]00|RTX[- ]PRO[- ]\d000": "blackwell",
    r"G?H[128]00|H20\b": "hopper",
    r"A[18]00|A[34]0\b|A10G?\b|L40?S?\b|(?:RTX-?)?A[456]000|RTX": "ampere",
    r"V100|P100|K80|M60|T4\b": "volta",
}


# AMD Instinct: MI210, MI250X, MI300X, MI325X, MI355X and the like.
_INSTINCT: Final = re.compile(r"\bMI[2-9]\d\d[AX]?\b")


@functools.lru_cache(maxsize=256)
def rccl_facts_of(device: str) -> Nccl | None:
    """Parameters of RCCL's model for an AMD GPU by its name, such as 'MI300X-192GB-OAM'; None if it is no AMD Instinct."""
    if not _INSTINCT.search(device):
        return None
    return Nccl(generation="cdna", interconnect="pcie" if re.search("PCIe|MI210", device, re.IGNORECASE) else "nvlink")


@functools.lru_cache(maxsize=256)
def facts_of(device: str) -> Nccl | None:
    """Parameters of NCCL's model for a GPU by its name, such as 'H100-80GB-SXM'; None if NCCL does not run on it."""
    matches = [generation for pattern, generation in _GENERATIONS.items() if re.search(rf"\b(?:{pattern})", device)]
    has_nvlink = not re.search(r"PCIe|K80|M60|T4\b|L40?S?\b|A[34]0\b|A10G?\b|RTX|A[456]000", device, re.IGNORECASE)
    return Nccl(generation=matches[0], interconnect="nvlink" if has_nvlink else "pcie") if matches else None


def channels(facts: Nccl, nodes: int, cards: int) -> int:
    """Number of channels over `nodes` nodes that use `cards` network cards each."""
    limit = _CHANNELS[facts.generation]
    return limit if nodes == 1 else min(limit, 2 * cards)


def candidates(op: Op, group: Group, facts: Nccl) -> list[str]:
    """The algorithms that NCCL has for an operation on a group."""
    if op in ("alltoall", "sendrecv"):
        return ["pairwise"]
    has_nvls = facts.nvls and facts.generation in _NVLS_SHARE and facts.interconnect == "nvlink" and group.per_node > 2
    algorithms = ["ring", "tree"] + (["nvls" if group.nodes == 1 else "nvls_tree"] if has_nvls else [])
    return names_for(op, algorithms)


@dataclass(frozen=True)
class Curve:
    """Duration of a collective as a function of its size, for one algorithm and protocol.

    latency_s: until the first byte has passed all steps; `plateau` times as long from `plateau_bytes` on. rate_Bps: algorithm
    bandwidth of large sizes; small sizes reach a share of it, given by `fill` for sizes of 64 B · 2^i.
    """

    latency_s: float
    rate_Bps: float
    fill: tuple[float, ...] = ()
    plateau: float = 1.0
    plateau_bytes: float = math.inf

    def seconds(self, size_bytes: float) -> tuple[float, float]:
        """Latency and whole duration in seconds."""
        latency_s = self.latency_s * self.plateau if size_bytes >= self.plateau_bytes else self.latency_s
        return latency_s, latency_s + size_bytes / (self.rate_Bps * _filled(size_bytes, self.fill))


def curves(op: Op, links: GroupLinks, facts: Nccl, algorithm: str) -> tuple[Curve, ...]:
    """Durations of a collective with one of `candidates`, for each protocol that NCCL may choose; it takes the fastest."""
    if algorithm == "pairwise":
        return (_pairwise(op, links, facts),)
    case = _Case(op, links, facts, algorithm)
    return tuple(case.curve(protocol) for protocol in case.protocols)


@dataclass(frozen=True)
class _Case:
    """A collective with one algorithm; protocols differ in the latency of a step and in the share of the bandwidth they
    reach."""

    op: Op
    links: GroupLinks
    facts: Nccl
    algorithm: str

    @property
    def group(self) -> Group:
        return self.links.group

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """Protocols to choose from: only Simple for NVLS; LL128 needs NVLink and a network that keeps stores in order."""
        if self.algorithm.startswith("nvls"):
            return ("simple",)
        return PROTOCOLS if self.facts.ll128 and self.facts.interconnect == "nvlink" else ("ll", "simple")

    @functools.cached_property
    def channels(self) -> int:
        return channels(self.facts, self.group.nodes, min(self.links.cards, self.group.per_node))

    @property
    def scale(self) -> int:
        """Index into NCCL's limits for one node, two nodes and more."""
        return min(self.group.nodes, 3) - 1

    @functools.cached_property
    def traffic(self) -> Traffic:
        return self.links.traffic(self.algorithm, self.op)

    def curve(self, protocol: Protocol) -> Curve:
        """Duration by size with a protocol. NCCL applies its tree correction to trees; here NVLS, which passes chunks through
        several stages too, gets it as well."""
        latency_s, rate_Bps = self._latency_s(protocol), self._rate_Bps(protocol)
        if self.algorithm != "ring":
            return Curve(latency_s, rate_Bps, (*_FILL[protocol], 1.0))
        if self.group.nodes == 1 or (protocol, self.op) != ("simple", "all_reduce"):
            return Curve(latency_s, rate_Bps)
        plateau = 1.9 if self.facts.generation == "volta" else 1.4  # tuning.cc, 'plateau effect of ring'
        return Curve(latency_s, rate_Bps, (), plateau, 64 * self.channels * self.group.size)

    def _latency_s(self, protocol: Protocol) -> float:
        """Seconds until the first byte has passed all steps."""
        traffic, index, multi_node = self.traffic, PROTOCOLS.index(protocol), self.group.nodes > 1
        base_us, step_us = _latencies_us(self.facts)
        inside_us, between_us = step_us[self.facts.interconnect][self.algorithm][index], 0.0
        if multi_node:
            # with one rank per node nothing overlaps the network's latency, and NCCL uses the tree's
            steps_us = step_us["network"]["tree" if self.group.per_node == 1 else self.algorithm]
            between_us = steps_us[index] + self.facts.network_latency_s / _US
        if multi_node and self.algorithm == "ring":
            inside_us = max(inside_us, _POST_US[protocol])
        # NCCL counts both directions over the switch as one step
        inside_steps = min(1, traffic.inside_steps) if self.algorithm.startswith("nvls") else traffic.inside_steps
        return _US * (base_us[self.algorithm][index] + inside_steps * inside_us + traffic.between_steps * between_us)

    def _rate_Bps(self, protocol: Protocol) -> float:
        """Algorithm bandwidth: that of the links, less the protocol's overhead, within NCCL's limits per channel."""
        port_share = _NVLS_SHARE[self.facts.generation] if self.algorithm.startswith("nvls") else 1.0
        links_Bps = 1 / _links_s(self.traffic, self.facts, port_share)
        bus = bus_factor(self.op, self.group.size)
        if self.algorithm == "ring":
            return self._ring_bus_Bps(links_Bps * bus, protocol) / bus
        if self.algorithm == "tree":
            return self._tree_bus_Bps(links_Bps * 2, protocol) / 2
        if self.algorithm == "nvls_tree":
            channel_Bps = _NVLS_TREE_MAX[self.facts.generation][self.scale] * _GBps
            return min(links_Bps, channel_Bps * min(_NVLS_CHANNELS, self.channels) / bus)
        return links_Bps

    def _ring_bus_Bps(self, bus_Bps: float, protocol: Protocol) -> float:
        if protocol == "ll":
            return min(bus_Bps / 2, self._ll_max_Bps)
        if protocol == "ll128":
            return min(bus_Bps * 0.92, self.channels * _RING_LL128_MAX[self.facts.generation] * _GBps)
        return bus_Bps

    def _tree_bus_Bps(self, bus_Bps: float, protocol: Protocol) -> float:
        generation = self.facts.generation
        bus_Bps = min(bus_Bps * 0.92, self.channels * _TREE_MAX[generation][self.scale] * _GBps)
        if protocol == "ll":
            return min(bus_Bps / 3.8, self._ll_max_Bps)
        if protocol == "ll128":
            share = 7 / 9 if self.group.nodes == 1 else 120 / 128
            return min(bus_Bps * share, self.channels * _TREE_LL128_MAX[generation][self.scale] * _GBps)
        return bus_Bps

    @property
    def _ll_max_Bps(self) -> float:
        limit = _LL_MAX[self.facts.generation] if self.group.nodes == 1 else _LL_NETWORK_MAX[self.scale - 1]
        return limit * _GBps


def _filled(size_bytes: float, table: tuple[float, ...]) -> float:
    """Share of the rate that a size reaches, interpolated in the table so that a larger size never takes less time."""
    if not table:
        return 1.0
    step = min(max(0.0, math.log2(max(size_bytes, 1.0) / 64)), len(table) - 1.0)
    below = min(int(step), len(table) - 2)
    return table[below] + (step - below) * (table[below + 1] - table[below])


# Microseconds by algorithm and protocol.
_Latencies = dict[str, tuple[float, float, float]]


def _latencies_us(facts: Nccl) -> tuple[_Latencies, dict[str, _Latencies]]:
    """Microseconds to start a collective, and of a step by the kind of link."""
    return (_RCCL_BASE_US, _RCCL_STEP_US) if facts.generation == "cdna" else (_BASE_US, _STEP_US)


def _link_share(facts: Nccl) -> float:
    """Effective over nominal bandwidth of a link inside a node."""
    return _NVLINK_SHARE[facts.generation] if facts.interconnect == "nvlink" else _PCIE_SHARE


def _links_s(traffic: Traffic, facts: Nccl, port_share: float = 1.0) -> float:
    """Busy seconds of the busiest link per byte, at the rate that NCCL reaches."""
    return max(traffic.inside_s / (_link_share(facts) * port_share), traffic.between_s / _NETWORK_SHARE)


def _pairwise(op: Op, links: GroupLinks, facts: Nccl) -> Curve:
    """Concurrent messages to all peers: one step inside and one between nodes; the proxy posts each remote message, and the
    latency is at least that of the links.

    If NVLink connects a node's ranks, all their messages for one rank of another node use that rank's rail (PXN, NVIDIA's blog
    on NCCL 2.12).
    """
    group, traffic = links.group, links.traffic("pairwise", op)
    per_byte_s = _links_s(traffic, facts)
    if traffic.remote_messages:
        senders = group.per_node if facts.interconnect == "nvlink" else 1
        per_byte_s = max(per_byte_s, (1.0 if op == "sendrecv" else senders / group.size) / _PEER_Bps)
    latency_s = _messages_latency_s(facts, traffic.inside_steps, traffic.remote_messages)
    return Curve(max(latency_s, links.latency_s(traffic)), 1 / per_byte_s)


def _messages_latency_s(facts: Nccl, inside: int, remote: int) -> float:
    """Seconds until the first byte of concurrent messages arrives: the kernel's launch, and a step inside and between nodes.

    inside: 1 if there are messages inside the node, else 0; remote: number of messages to other nodes.
    """
    base_us, step_us = _latencies_us(facts)
    simple = PROTOCOLS.index("simple")
    latency_us = base_us["ring"][simple] + inside * step_us[facts.interconnect]["ring"][simple]
    if remote:
        latency_us += step_us["network"]["ring"][simple] + facts.network_latency_s / _US + remote * _POST_US["ll"]
    return latency_us * _US


@dataclass(frozen=True)
class PointToPoint:
    """A message from one rank to another by sendrecv.

    latency_s: least time until its first byte arrives. share: of the links' nominal bandwidth that it reaches. most_Bps: its
    largest rate, however fast the links are.
    """

    latency_s: float
    share: float
    most_Bps: float


def point_to_point(facts: Nccl, crosses: bool) -> PointToPoint:
    """Parameters of a message between two ranks. crosses: whether they are on different nodes."""
    if crosses:
        return PointToPoint(_messages_latency_s(facts, inside=0, remote=1), _NETWORK_SHARE, _PEER_Bps)
    return PointToPoint(_messages_latency_s(facts, inside=1, remote=0), _link_share(facts), math.inf)
