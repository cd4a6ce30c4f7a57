"""Clusters whose collectives can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scaleproof.simulator.cluster import Cluster

Fields = Mapping[str, object]
AS_IT_IS: Final[Fields] = {}


def plain(
    nodes: int = 1, devices: int = 1, cards: int = 1, device: str = "any",
    node: Fields = AS_IT_IS, link: Fields | None = AS_IT_IS, network: Fields | None = AS_IT_IS, collectives: Fields = AS_IT_IS,
    uncertainty: Fields = AS_IT_IS,
) -> Cluster:  # fmt: skip
    """Equal nodes: links of 100 GB/s and 1 us inside, 10 GB/s and 10 us between. `any` is no GPU that NCCL knows.

    node, link, network, collectives: what differs. None: there is no such link.
    """
    inside = None if link is None else {"bandwidth": "100 GB/s", "latency": "1 us", **link}
    between = None if network is None else {"bandwidth": "10 GB/s", "latency": "10 us", **network}
    return Cluster.model_validate(
        {
            "nodes": nodes,
            "node": {"devices": devices, "cards": cards, "link": inside, **node},
            "network": between,
            "device": {"name": device, "peak": {"fp32": "1 TFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "100 GB/s"},
            "collectives": collectives,
            "uncertainty": uncertainty,
        }
    )
