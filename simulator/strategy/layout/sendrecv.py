"""Point-to-point messages between ranks, as the cluster's communication library sends them."""

from __future__ import annotations

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import chosen_nccl
from scaleproof.simulator.cluster.collectives.nccl import point_to_point
from scaleproof.simulator.program import Path, Use


def library_path(path: Path, cluster: Cluster, crosses: bool) -> Path:
    """Path of a message sent by the library. path: by the links alone. crosses: whether the message leaves its node.

    With NCCL or RCCL it has the latency and the rate of a sendrecv, including the protocol's overhead on the links, and is
    never faster than the links. Other libraries are as fast as the links.
    """
    nccl = chosen_nccl(cluster)
    if nccl is None:
        return path
    sendrecv = point_to_point(nccl, crosses)
    uses = tuple(Use(use.resource, use.per_unit / sendrecv.share) for use in path.uses)
    return Path(
        max(path.latency_s, sendrecv.latency_s), min(path.max_Bps * sendrecv.share, sendrecv.most_Bps), uses, path.weight
    )
