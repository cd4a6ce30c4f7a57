"""NCCL's choice of algorithm and protocol for a collective, by its own tuning model. How long the choice takes: timing.py.

Latencies and limits are those of NCCL's src/graph/tuning.cc in releases that know Blackwell (2.27 and later); link efficiencies
are those of src/graph/topo.h and search.cc. RCCL is NCCL ported to AMD's GPUs: the same rings, trees and protocols, with the
latencies, links and channels of its own copies of these files (ROCm/rccl, 2.27).
Steps and bytes come from `traffic`, which is finer than NCCL's count: the time of NVLS depends on the number of devices.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from scaleproof.simulator.cluster.collectives.algorithms import names_for
from scaleproof.simulator.cluster.collectives.groups import Group, Op, bus_factor
from scaleproof.simulator.cluster.collectives.link_traffic import FurtherSteps, GroupLinks, Traffic
from scaleproof.simulator.cluster.collectives.settings import PROTOCOLS, Nccl, Protocol

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
NETWORK_SHARE: Final = 0.96
_NVLS_CHANNELS: Final = 16
# tuning.cc: share of the ring's bandwidth that NCCL expects from PAT.
_PAT_SHARE: Final = 0.75
# tuning.cc, treeCorrectionFactor: share of the bandwidth that pipelined chunks reach, for sizes of 64 B · 2^i.
_FILL: Final[dict[Protocol, tuple[float, ...]]] = {
    "ll": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9),
    "ll128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9),
    "simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip

# Symmetric kernels: one-sided collectives of ranks on one NVLink domain, whose buffers are in windows of symmetric memory. NCCL
# has them from 2.27 on. Which one runs follows from its model in src/sym_kernels.cc, 2.28; how long it takes does not.
# sym_kernels.cc: GB/s counted in 2^30 bytes, here in bytes per microsecond.
_BINARY_GBps: Final = 2**30 / 1e6
_MOST_BLOCKS: Final = 64
# Blocks of multimem kernels of all ranks together, by generation.
_MULTIMEM_BLOCKS: Final = {"hopper": 16, "blackwell": 32}
# Time by which a kernel counts as longer for each processor that it occupies.
_EACH_BLOCK: Final = 0.025
# The fewest blocks are taken that need at most this much longer than the most.
_TOLERATED: Final = 1.025
# Bytes that LL counts as, and buffers from which on its kernels cannot count.
_LL_BYTES: Final = 9
_LL_MOST_BYTES: Final = 2**31
# Rate of a block of multimem gathers and scatters over ranks times that of others, which makes NCCL prefer multimem.
_MULTIMEM_GAIN: Final = 0.55


class _SymmetricModel(NamedTuple):
    """Parameters of symmetric kernels. ll_us, base_us: of the smallest sizes, with LL and without. block_GBps, peak_GBps: of a
    block and at most; multimem_GBps: the latter of multimem."""

    ll_us: float
    base_us: float
    block_GBps: float
    peak_GBps: float
    multimem_GBps: float


# By whether the GPUs are Blackwell's, and by operation.
_SYMMETRIC: Final[dict[bool, dict[Op, _SymmetricModel]]] = {
    False: {
        "all_reduce": _SymmetricModel(4.5, 7.8, 65, 320, 480),
        "all_gather": _SymmetricModel(4.5, 7.8, 44, 320, 320),
        "reduce_scatter": _SymmetricModel(4.5, 7.8, 44, 320, 320),
    },
    True: {
        "all_reduce": _SymmetricModel(11.0, 19.5, 55, 600, 1000),
        "all_gather": _SymmetricModel(8.5, 13.0, 55, 600, 600),
        "reduce_scatter": _SymmetricModel(11.0, 13.0, 55, 600, 600),
    },
}

# CollNet: algorithms on networks whose switches reduce (SHARP). Limits of ranks are those of src/enqueue.cc.
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

# RCCL: ranks and sizes that have algorithms of their own on MI300X, instead of what the tuner would choose, in which all ranks
# send to all others with LL (tools/msccl-algorithms/allreduce-allpairs-8n-ll*.xml and allgather_8n_direct*.xml).
_ALL_PAIRS_RANKS: Final = 8
ALL_PAIRS_BYTES: Final = 2**20


def candidates(op: Op, links: GroupLinks, facts: Nccl) -> list[str]:
    """The algorithms that NCCL has for an operation on a group."""
    group = links.group
    if op in ("alltoall", "sendrecv"):
        return ["pairwise"]
    if kernels := symmetric_kernels(op, links, facts):
        return kernels
    link = links.node.link
    is_joined = link is not None and link.topology.joins_all_pairs
    has_pairs = facts.generation == "cdna" and is_joined and group.nodes == 1 and group.size == _ALL_PAIRS_RANKS
    algorithms = ["ring", "tree", *(["all_pairs"] if has_pairs else [])]
    if facts.has_nvls_on(group) and facts.is_at_least(2, 18):
        algorithms.append("nvls" if group.nodes == 1 else "nvls_tree")
    if group.per_node == 1 and facts.generation != "cdna" and facts.is_at_least(2, 23):
        algorithms.append("pat")
    return names_for(op, [*algorithms, *collnet_algorithms(op, links, facts)])


def symmetric_kernels(op: Op, links: GroupLinks, facts: Nccl) -> list[str]:
    """The symmetric kernels that NCCL has for an operation on a group; none if it has no windows on one NVLink domain."""
    is_available = facts.buffers == "symmetric" and facts.is_at_least(2, 27) and facts.generation != "cdna"
    if not is_available or op not in _SYMMETRIC[False] or links.group.nodes > 1 or facts.interconnect != "nvlink":
        return []
    return ["symmetric_ll", "symmetric_direct", *(["symmetric_multimem"] if facts.has_nvls_on(links.group) else [])]


def collnet_algorithms(op: Op, links: GroupLinks, facts: Nccl) -> list[str]:
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


@dataclass(frozen=True)
class Curve:
    """Duration of a collective as NCCL's tuner estimates it, as a function of its size, for one algorithm and protocol.

    latency_s: until the first byte has passed all steps; `plateau` times as long from `plateau_bytes` on. rate_Bps: algorithm
    bandwidth of large sizes; small sizes reach a share of it, given by `fill` for sizes of 64 B · 2^i.
    """

    latency_s: float
    rate_Bps: float
    fill: tuple[float, ...] = ()
    plateau: float = 1.0
    plateau_bytes: float = math.inf

    def seconds(self, size_bytes: float) -> float:
        """Estimated duration in seconds."""
        latency_s = self.latency_s * self.plateau if size_bytes >= self.plateau_bytes else self.latency_s
        return latency_s + size_bytes / (self.rate_Bps * _filled(size_bytes, self.fill))


def _filled(size_bytes: float, table: tuple[float, ...]) -> float:
    """Share of the rate that a size reaches, interpolated in the table so that a larger size never takes less time."""
    if not table:
        return 1.0
    step = min(max(0.0, math.log2(max(size_bytes, 1.0) / 64)), len(table) - 1.0)
    below = min(int(step), len(table) - 2)
    return table[below] + (step - below) * (table[below + 1] - table[below])


@dataclass(frozen=True)
class SymmetricCurve:
    """Duration of a symmetric kernel as NCCL estimates it, as a function of its size; longer the more processors it occupies.

    base_us: of the smallest sizes. bus: bytes sent or received by a rank, per byte of the size. block_rate, peak: bytes per
    microsecond of a block, and at most. gain: factor on the rate of blocks. blocks: most blocks. most_bytes: the sizes that it
    can have.
    """

    base_us: float
    bus: float
    block_rate: float
    gain: float
    peak: float
    blocks: int
    most_bytes: float = math.inf

    def seconds(self, size_bytes: float) -> float:
        """Estimated duration in seconds, by which NCCL compares symmetric kernels."""
        if size_bytes >= self.most_bytes:
            return math.inf
        most_us = self._blocks_us(size_bytes, self.blocks)
        few = next(n for n in range(1, self.blocks + 1) if self._blocks_us(size_bytes, n) <= _TOLERATED * most_us)
        return _US * self._blocks_us(size_bytes, few) * (1 + _EACH_BLOCK * few)

    def _blocks_us(self, size_bytes: float, blocks: int) -> float:
        """Microseconds with a number of blocks, by smooth versions of a minimum of rates and of a sum of times."""
        peak, smooth = self.peak, self.block_rate
        rate = peak - smooth * math.log1p(math.expm1(peak / smooth) * math.exp(-blocks * self.block_rate * self.gain / smooth))
        over = size_bytes * self.bus / rate - 1
        return self.base_us + (over if over > 100 else math.log1p(math.exp(over)))


@dataclass(frozen=True)
class Case:
    """A collective with one algorithm; protocols differ in the latency of a step and in the share of the bandwidth they
    reach."""

    op: Op
    links: GroupLinks
    facts: Nccl
    algorithm: str

    @property
    def group(self) -> Group:
        """The ranks that take part."""
        return self.links.group

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """Protocols to choose from: only Simple but for rings and trees.

        LL128 needs NVLink and a network that keeps stores in order.
        """
        if self.algorithm == "all_pairs":
            return ("ll",)
        if self.algorithm not in ("ring", "tree"):
            return ("simple",)
        has_ll128 = self.facts.ll128 and self.facts.interconnect == "nvlink" and self.facts.is_at_least(2, 5)
        return PROTOCOLS if has_ll128 else ("ll", "simple")

    @property
    def is_symmetric(self) -> bool:
        """Whether a symmetric kernel runs."""
        return self.algorithm.startswith("symmetric")

    @property
    def is_nvls(self) -> bool:
        """Whether NVSwitch reduces and multicasts for NVLS, with or without the network's switches."""
        return self.algorithm.startswith("nvls")

    @property
    def uses_network_switches(self) -> bool:
        """Whether the network's switches reduce."""
        return self.algorithm.startswith("collnet") or (self.algorithm == "nvls" and self.group.nodes > 1)

    @property
    def heads_factor(self) -> float:
        """Time of CollNetDirect over that on nodes with a network card for each rank: ranks without send all their data."""
        return 1 + (self.group.per_node / self.links.heads - 1) / 2

    @functools.cached_property
    def traffic(self) -> Traffic:
        """Traffic of the algorithm on the links. Both directions over a switch that reduces are one step, as NCCL counts."""
        found = self.links.traffic(self.algorithm, self.op, rotate=True)
        if self.is_nvls:
            found = replace(found, inside_steps=min(1, found.inside_steps))
        if self.uses_network_switches:
            further = tuple(FurtherSteps(2 * extra_s, steps / 2) for extra_s, steps in found.between_further)
            found = replace(found, between_steps=found.between_steps // 2, between_further=further)
        return found

    def curve(self, protocol: Protocol) -> Curve | SymmetricCurve:
        """Duration by size with a protocol. NCCL applies its tree correction to trees; here NVLS, which passes chunks through
        several stages too, gets it as well."""
        if self.is_symmetric:
            return self._symmetric_curve()
        if self.uses_network_switches:
            return Curve(self._collnet_latency_s(), self._collnet_Bps())
        if self.algorithm == "all_pairs":
            return Curve(0.0, self.rate_Bps(protocol))
        latency_s, rate_Bps = self._latency_s(protocol), self.rate_Bps(protocol)
        if self.algorithm == "pat":
            return Curve(latency_s, rate_Bps * _PAT_SHARE)
        if self.algorithm != "ring":
            return Curve(latency_s, rate_Bps, (*_FILL[protocol], 1.0))
        if self.group.nodes == 1 or (protocol, self.op) != ("simple", "all_reduce"):
            return Curve(latency_s, rate_Bps)
        plateau = 1.9 if self.facts.generation == "volta" else 1.4  # tuning.cc, 'plateau effect of ring'
        return Curve(latency_s, rate_Bps, (), plateau, 64 * self._channels * self.group.size)

    def _latency_s(self, protocol: Protocol) -> float:
        """Seconds until the first byte has passed all steps."""
        traffic, index, multi_node = self.traffic, PROTOCOLS.index(protocol), self.group.nodes > 1
        if self.algorithm == "pat":
            return _US * (8.0 + math.log2(self.group.nodes) * _STEP_US["network"]["ring"][index] / 3.5 + 2.8 * self.group.size)
        is_rccl = self.facts.generation == "cdna"
        base_us, step_us = (_RCCL_BASE_US, _RCCL_STEP_US) if is_rccl else (_BASE_US, _STEP_US)
        inside_us, between_us = step_us[self.facts.interconnect][self.algorithm][index], 0.0
        if multi_node:
            # with one rank per node nothing overlaps the network's latency, and NCCL uses the tree's
            network_us = step_us["network"]["tree" if self.group.per_node == 1 else self.algorithm]
            between_us = network_us[index] + self.facts.network_latency_s / _US
        if multi_node and self.algorithm == "ring":
            inside_us = max(inside_us, _POST_US[protocol])
        steps_us = traffic.inside_steps * inside_us + traffic.between_steps * between_us
        return _US * (base_us[self.algorithm][index] + steps_us)

    def rate_Bps(self, protocol: Protocol, inside_share: float = 1.0, between_share: float = 1.0) -> float:
        """Algorithm bandwidth: that of the links, less the protocol's overhead, within NCCL's limits per channel.

        inside_share, between_share: of the rates that NCCL expects from the links inside nodes and between them.
        """
        generation, nodes, channels = self.facts.generation, self.group.nodes, self._channels
        inside_share *= link_share(self.facts) * self._port_share
        links_Bps = 1 / max(self.traffic.inside_s / inside_share, self.traffic.between_s / (NETWORK_SHARE * between_share))
        bus, scale = bus_factor(self.op, self.group.size), min(nodes, 3) - 1
        ll_max_Bps = (_LL_MAX[generation] if nodes == 1 else _LL_NETWORK_MAX[scale - 1]) * _GBps
        if self.algorithm == "ring":
            bus_Bps = links_Bps * bus
            if protocol == "ll":
                bus_Bps = min(bus_Bps / 2, ll_max_Bps)
            elif protocol == "ll128":
                bus_Bps = min(bus_Bps * 0.92, channels * _RING_LL128_MAX[generation] * _GBps)
            return bus_Bps / bus
        if self.algorithm == "tree":
            bus_Bps = min(links_Bps * 2 * 0.92, channels * _TREE_MAX[generation][scale] * _GBps)
            if protocol == "ll":
                bus_Bps = min(bus_Bps / 3.8, ll_max_Bps)
            elif protocol == "ll128":
                share = 7 / 9 if nodes == 1 else 120 / 128
                bus_Bps = min(bus_Bps * share, channels * _TREE_LL128_MAX[generation][scale] * _GBps)
            return bus_Bps / 2
        if self.algorithm == "nvls_tree":
            return min(links_Bps, _NVLS_TREE_MAX[generation][scale] * _GBps * min(_NVLS_CHANNELS, channels) / bus)
        return links_Bps / 2 if protocol == "ll" else links_Bps

    @property
    def most_ll_Bps(self) -> float:
        """Algorithm bandwidth that the node's channels reach with LL; the tuner expects that of NVLink's on any node."""
        bus = 2.0 if self.algorithm == "tree" else bus_factor(self.op, self.group.size)
        return _LL_MAX[self.facts.generation] * self.facts.channels_share * _GBps / bus

    @property
    def _channels(self) -> int:
        return self.facts.channels(self.group.nodes, self.links.heads)

    @property
    def _port_share(self) -> float:
        """Share of the bandwidth of NVLink that NVSwitch reaches, if it reduces."""
        return _NVLS_SHARE[self.facts.generation] if self.is_nvls or self.algorithm == "symmetric_multimem" else 1.0

    def _collnet_latency_s(self) -> float:
        """Seconds that the tuner expects of the smallest sizes where the network's switches reduce."""
        others, inside_us = self.group.per_node - 1, _INSIDE_US[self.algorithm]
        if self.algorithm == "collnet_direct":
            inside_us = 2 * (min(1, others) * inside_us + others * _EACH_PEER_US)
        elif self.algorithm == "collnet_chain":
            inside_us *= 2 * others
        between_us = _BETWEEN_US[self.algorithm] if others else _ONE_PER_NODE_US
        return _US * (inside_us + between_us) + self.facts.network_latency_s

    def _collnet_Bps(self) -> float:
        """Algorithm bandwidth that the tuner expects where the network's switches reduce. It counts half of the bus bandwidth,
        as if data crossed the network twice."""
        network, node_link, heads = self.links.network, self.links.node.link, self.links.heads
        assert network is not None
        inside_Bps = math.inf if node_link is None else node_link.bandwidth_Bps * link_share(self.facts) * self._port_share
        between_Bps = network.bandwidth_Bps * NETWORK_SHARE * heads / self.links.cards
        others = (heads - 1) / heads
        if self.algorithm == "nvls" and self.op == "all_reduce":
            bus_Bps = min(2 * others * inside_Bps, between_Bps)
            return bus_Bps * self.group.size / (2 * (self.group.size - 1))
        if self.op != "all_reduce":
            return min(others * inside_Bps, _GATHER_SHARE * between_Bps) if others else _GATHER_SHARE * between_Bps
        bus_Bps = min(inside_Bps, between_Bps)
        if self.algorithm == "collnet_direct":
            bus_Bps *= (_HOPPER_SHARE if self.facts.generation in ("hopper", "blackwell") else 1.0) / self.heads_factor
        return bus_Bps / 2

    def _symmetric_curve(self) -> SymmetricCurve:
        model, ranks = _SYMMETRIC[self.facts.generation == "blackwell"][self.op], self.group.size
        block_rate, peak = model.block_GBps * _BINARY_GBps, model.peak_GBps * _BINARY_GBps
        is_sum, parts = self.op == "all_reduce", (ranks - 1) / ranks
        if self.algorithm == "symmetric_ll":
            bus = _LL_BYTES * (ranks if is_sum else 1.0)
            return SymmetricCurve(model.ll_us, bus, block_rate, 1.0, peak, _MOST_BLOCKS, _LL_MOST_BYTES)
        if self.algorithm == "symmetric_direct":
            return SymmetricCurve(model.base_us, (2 if is_sum else 1) * parts, block_rate, 1.0, peak, _MOST_BLOCKS)
        blocks, peak = -(-_MULTIMEM_BLOCKS[self.facts.generation] // ranks), model.multimem_GBps * _BINARY_GBps
        bus, gain = (1 + 1 / ranks, 1.0) if is_sum else (parts, _MULTIMEM_GAIN)
        return SymmetricCurve(model.base_us, bus, block_rate, gain * ranks, peak, blocks)


def link_share(facts: Nccl) -> float:
    """Effective over nominal bandwidth of a link inside a node, as NCCL expects it."""
    return _NVLINK_SHARE[facts.generation] if facts.interconnect == "nvlink" else _PCIE_SHARE
