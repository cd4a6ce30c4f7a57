"""Paths of messages: their weights, their uses of resources, and what the communication library adds."""

from __future__ import annotations

import itertools

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import chosen_nccl, timing_constants
from scaleproof.simulator.cluster.collectives.nccl import point_to_point
from scaleproof.simulator.cluster.collectives.settings import MeasuredCollective
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.wiring import Channel
from scaleproof.simulator.program import Path, Use


def library_path(path: Path, cluster: Cluster, crosses: bool, size_bytes: float) -> Path:
    """Path of a message sent by the library. path: by the links alone. crosses: whether the message leaves its node.

    With NCCL or RCCL it has the latency and the rate of a sendrecv of that size, with the protocol's overhead on the links, and
    is never faster than the links. Other libraries are as fast as the links.
    """
    nccl = chosen_nccl(cluster)
    if nccl is None:
        return path
    sendrecv = point_to_point(nccl, timing_constants(cluster, nccl), crosses, size_bytes, path.latency_s)
    uses = tuple(Use(use.resource, use.per_unit / sendrecv.share) for use in path.uses)
    max_Bps = min(path.max_Bps * sendrecv.share, sendrecv.most_Bps)
    latency_s = sendrecv.latency_s + sendrecv.chunks_s(size_bytes / max_Bps)
    return Path(latency_s, max_Bps, uses, path.weight)


def merged(uses: tuple[Use, ...]) -> tuple[Use, ...]:
    """Merges uses of the same resource: both ends of a message may be on cores that all nodes share."""
    total: dict[int, float] = {}
    for resource, per_unit in uses:
        total[resource] = total.get(resource, 0.0) + per_unit
    return tuple(itertools.starmap(Use, total.items()))


def with_pauses(uses: tuple[Use, ...], link: Link, max_Bps: float) -> tuple[Use, ...]:
    """Uses of links by a collective in which two ranks take turns, with the time in which it lets the links idle.

    It does so at any rate of the links, at most as long as if one direction followed the other. max_Bps: rate of each rank's
    bytes. If that is more than the links carry, it was measured between nodes without exceptional links.
    """
    slowest_Bps = min([link.bandwidth_Bps, *(one.bandwidth_Bps for one in link.exceptions)])
    moved_Bps = max_Bps * max((use.per_unit for use in uses), default=0.0)
    carried_Bps = slowest_Bps if moved_Bps <= slowest_Bps else link.bandwidth_Bps
    pauses = min(2.0, max(1.0, carried_Bps / moved_Bps)) if moved_Bps else 1.0
    return tuple(Use(use.resource, use.per_unit * pauses) for use in uses)


def incast(link: Link, channel: Channel) -> float:
    """Incast of a link at a channel: of channels that lead into an endpoint, else 0."""
    return link.incast if channel[0] in ("in", "both") else 0.0


def core_weight(link: Link | MeasuredCollective) -> float:
    """Weight of a transfer: bytes per second moved by one core, where cores move them, so that they share cores fairly with
    compute."""
    return link.bandwidth_Bps / link.cores_busy if link.cores_busy else 1.0


def required(link: Link | None) -> Link:
    """The link, which scenario validation has made sure exists."""
    assert link is not None
    return link


def relevant_bytes(link: Link | None, size_bytes: float) -> float:
    """The size of a message if its path depends on it, else 0: paths depend on it if hosts have an overhead per message."""
    return size_bytes if required(link).overhead_s else 0.0
