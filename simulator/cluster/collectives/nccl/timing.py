"""Duration of what NCCL chose: launch, steps of the protocol inside and between nodes, and a transfer in pipelined chunks.

A transfer of T seconds through links that need a seconds to synchronise a chunk takes p (a + T / p) in p chunks, and the steps
before the first chunk arrives take T / p more. The best p is √(T / a), for which both together are T + 2 √(a T): chunks grow
with the message, and small messages reach a smaller share of the links' rate.

The constants were measured in machine rooms. A link's stated latency, with that of its hops, is the time until a message of a
program arrives, so it counts as far as it is more than NCCL's own time of the smallest message. Every step sends a message and
waits for one, so each step of a collective is later by that excess, whatever its protocol, since what protocols differ by
happens on the GPUs. The tuner knows nothing of it, and chooses as before. Hosts that are occupied by messages set a least
time, as in the model of links; the further messages of a large step are not counted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks
from scaleproof.simulator.cluster.collectives.nccl.constants import TimingConstants
from scaleproof.simulator.cluster.collectives.nccl.tuner import (
    ALL_PAIRS_BYTES,
    NETWORK_SHARE,
    Case,
    Curve,
    SymmetricCurve,
    candidates,
    link_share,
)
from scaleproof.simulator.cluster.collectives.settings import Nccl, Protocol

# enqueue.cc: messages to one rank up to this size use LL, larger ones Simple (NCCL_P2P_LL_THRESHOLD).
_PAIRWISE_LL_BYTES: Final = 16384.0


class Timing(NamedTuple):
    """Duration of a collective by size: latency_s, and per_byte_s for each byte, which chunks extend.

    chunk_s: synchronisation per chunk. hosts_s: least time of the transfer, in which hosts handle all messages.
    """

    latency_s: float
    per_byte_s: float
    chunk_s: float
    hosts_s: float

    def seconds(self, size_bytes: float) -> float:
        """Duration in seconds."""
        transfer_s = size_bytes * self.per_byte_s
        return self.latency_s + max(self.hosts_s, transfer_s + 2 * math.sqrt(self.chunk_s * transfer_s))


@dataclass(frozen=True)
class Choice:
    """One of the algorithms and protocols that NCCL chooses from: its tuner's estimate, and the duration if it is chosen."""

    case: Case
    protocol: Protocol
    constants: TimingConstants

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return self.case.algorithm

    @functools.cached_property
    def estimate(self) -> Curve | SymmetricCurve:
        """The tuner's estimate by size."""
        return self.case.curve(self.protocol)

    @property
    def small_bytes(self) -> float:
        """Largest size that is sent with LL, where the size of messages decides instead of the tuner; -1 elsewhere."""
        if self.algorithm != "pairwise":
            return -1.0
        return _PAIRWISE_LL_BYTES * (self.case.group.size if self.case.op == "alltoall" else 1)

    def at(self, size_bytes: float) -> Timing:
        """The duration that applies to a size."""
        return self._small if size_bytes <= self.small_bytes else self._large

    @functools.cached_property
    def _large(self) -> Timing:
        return timing(self.case, self.protocol, self.constants)

    @functools.cached_property
    def _small(self) -> Timing:
        return timing(self.case, "ll", self.constants)


def choices(op: Op, links: GroupLinks, facts: Nccl, constants: TimingConstants, algorithm: str | None = None) -> list[Choice]:
    """The algorithms and protocols that NCCL has for a collective, or those of one algorithm; none if NCCL does not have it."""
    cases = [Case(op, links, facts, name) for name in candidates(op, links, facts) if algorithm in (None, name)]
    return [Choice(case, protocol, constants) for case in cases for protocol in case.protocols]


def nccl_choice(choices: Sequence[Choice], size_bytes: float) -> Choice:
    """What the library chooses for a size: an algorithm that it has for such sizes, else the tuner's least estimate."""
    if len(choices) == 1:
        return choices[0]
    own = next((one for one in choices if one.algorithm == "all_pairs"), None)
    if own is not None and size_bytes < ALL_PAIRS_BYTES:
        return own
    return min((one for one in choices if one is not own), key=lambda choice: choice.estimate.seconds(size_bytes))


def timing(case: Case, protocol: Protocol, constants: TimingConstants) -> Timing:
    """Duration of a collective with one algorithm and protocol."""
    if case.is_symmetric:
        return _symmetric_timing(case, constants)
    if case.algorithm == "pairwise":
        return _pairwise_timing(case, protocol, constants)
    traffic, crosses = case.traffic, case.group.nodes > 1
    inside_s, between_s, inside_share, between_share = constants.for_protocol(protocol)
    chunk_s = _chunk_s(protocol, crosses, constants)
    if case.is_nvls:
        inside_s, inside_share = constants.nvls_step_s, constants.nvls_share
        if case.facts.registers:
            inside_s, inside_share = inside_s * constants.registered_step, inside_share * constants.registered_rate
            chunk_s = chunk_s if crosses else 0.0  # buffers are not copied in pieces
    elif case.algorithm == "ring":
        # by the steps in which a rank sends
        inside_share /= 1 + constants.local_step / max(1, traffic.inside_steps + traffic.between_steps)
    latency_s = constants.launch_s + traffic.inside_steps * inside_s + _excess_s(case, constants)
    if not case.uses_network_switches:
        latency_s += traffic.between_steps * between_s
    else:
        latency_s += constants.sharp_s
        between_share *= constants.sharp_share
        if case.algorithm == "collnet_direct":
            latency_s += 2 * (case.group.per_node - 1) * constants.peer_s
            inside_share /= case.heads_factor
    rate_Bps = case.rate_Bps(protocol, inside_share, between_share)
    if protocol == "ll" and not crosses:
        rate_Bps = min(rate_Bps, case.most_ll_Bps)
    return Timing(latency_s, 1 / rate_Bps, chunk_s, case.links.hosts_s(traffic))


def _excess_s(case: Case, constants: TimingConstants) -> float:
    """Seconds by which the messages of a collective's steps are later than the constants have them."""
    return case.links.latency_s(case.traffic, *constants.known_latencies_s)


def _symmetric_timing(case: Case, constants: TimingConstants) -> Timing:
    """Duration of a symmetric kernel, which stores or loads all data at once: with LL data carry flags, else the ranks wait for
    each other before and after."""
    excess_s, hosts_s = _excess_s(case, constants), case.links.hosts_s(case.traffic)
    latency_s = constants.launch_s + case.traffic.inside_steps * constants.inside_step_s[0] + excess_s
    share = constants.symmetric_share
    if case.algorithm == "symmetric_ll":
        return Timing(latency_s, constants.symmetric_ll_bytes / case.rate_Bps("simple", share), 0.0, hosts_s)
    if case.algorithm == "symmetric_multimem":
        share = constants.nvls_share * constants.registered_rate
    latency_s += 2 * (constants.barrier_s + excess_s / case.traffic.inside_steps)
    return Timing(latency_s, 1 / case.rate_Bps("simple", share), 0.0, hosts_s)


def _chunk_s(protocol: Protocol, crosses: bool, constants: TimingConstants) -> float:
    chunk_s = constants.between_chunk_s if crosses else constants.inside_chunk_s
    return chunk_s if protocol == "simple" else chunk_s * constants.line_chunk


def _pairwise_timing(case: Case, protocol: Protocol, constants: TimingConstants) -> Timing:
    """Duration of concurrent messages to all peers: one step inside and one between nodes; the proxy posts each remote message.

    If NVLink connects a node's ranks, all their messages for one rank of another node use that rank's rail (PXN, NVIDIA's blog
    on NCCL 2.12).
    """
    op, facts, group, traffic = case.op, case.facts, case.group, case.traffic
    _, _, inside_share, between_share = constants.for_protocol("simple")
    peers = group.size - 1 if op == "alltoall" else 1
    inside_s = traffic.inside_s / (link_share(facts) * inside_share) * (1 + constants.local_step / peers)
    per_byte_s = max(inside_s, traffic.between_s / (NETWORK_SHARE * between_share))
    if traffic.remote_messages:
        senders = group.per_node if facts.interconnect == "nvlink" else 1
        per_byte_s = max(per_byte_s, (1.0 if op == "sendrecv" else senders / group.size) / constants.peer_Bps)
    latency_s = _messages_latency_s(constants, protocol, traffic.inside_steps, traffic.remote_messages)
    latency_s += peers * constants.peer_s + _excess_s(case, constants)
    chunk_s = _chunk_s(protocol, traffic.remote_messages > 0, constants)
    return Timing(latency_s, per_byte_s, chunk_s, case.links.hosts_s(traffic))


def _messages_latency_s(constants: TimingConstants, protocol: Protocol, inside: int, remote: int) -> float:
    """Seconds until the first byte of concurrent messages arrives: the kernel's launch, and a step inside and between nodes.

    inside: 1 if there are messages inside the node, else 0; remote: number of messages to other nodes.
    """
    inside_s, between_s, _, _ = constants.for_protocol(protocol)
    between = between_s + remote * constants.post_s if remote else 0.0
    return constants.launch_s + inside * inside_s + between


@dataclass(frozen=True)
class PointToPoint:
    """A message from one rank to another by sendrecv, with the protocol of its size.

    latency_s: time until its first byte arrives. share: of the links' nominal bandwidth that it reaches. most_Bps: its
    largest rate, however fast the links are. chunk_s: synchronisation per chunk.
    """

    latency_s: float
    share: float
    most_Bps: float
    chunk_s: float

    def chunks_s(self, transfer_s: float) -> float:
        """Seconds by which chunks extend a transfer."""
        return 2 * math.sqrt(self.chunk_s * transfer_s)


def point_to_point(
    facts: Nccl, constants: TimingConstants, crosses: bool, size_bytes: float, links_s: float = 0.0
) -> PointToPoint:
    """Parameters of a message between two ranks. crosses: whether they are on different nodes. links_s: latency of the links
    alone."""
    protocol: Protocol = "ll" if size_bytes <= _PAIRWISE_LL_BYTES else "simple"
    _, _, inside_share, between_share = constants.for_protocol("simple")
    latency_s = _messages_latency_s(constants, protocol, int(not crosses), int(crosses)) + constants.peer_s
    latency_s += max(0.0, links_s - constants.known_latencies_s[crosses])
    chunk_s = _chunk_s(protocol, crosses, constants)
    if crosses:
        return PointToPoint(latency_s, NETWORK_SHARE * between_share, constants.peer_Bps, chunk_s)
    return PointToPoint(latency_s, link_share(facts) * inside_share / (1 + constants.local_step), math.inf, chunk_s)
