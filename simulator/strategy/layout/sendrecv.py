"""Point-to-point messages between ranks, as the cluster's library sends them."""

from __future__ import annotations

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import chosen_nccl
from scaleproof.simulator.cluster.collectives.nccl import point_to_point
from scaleproof.simulator.program import Path, Use


def as_sent(path: Path, cluster: Cluster, crosses: bool) -> Path:
    """Path of a message by the library, from its path by the links alone. crosses: whether it goes from node to node.

    With NCCL or RCCL it has the latency and the rate of a sendrecv, and uses the links for what is not payload too; it comes no
    sooner than the links allow. Other libraries send as the links allow.
    """
    facts = chosen_nccl(cluster)
    if facts is None:
        return path
    way = point_to_point(facts, crosses)
    uses = tuple(Use(use.resource, use.per_unit / way.share) for use in path.uses)
    return Path(max(path.latency_s, way.latency_s), min(path.max_Bps * way.share, way.most_Bps), uses, path.weight)
