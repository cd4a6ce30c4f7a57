"""Variability of the effective bandwidth of links: collisions of flows and others' traffic, by kind of fabric.

A flow between two endpoints is slowed by a factor whose logarithm is exponentially distributed, since contention only slows;
its mean and its standard deviation are the link's variability v. A collective over n endpoints is as fast as the slowest of its
n paths. The logarithm of that slowdown is below x with probability (1 − exp(−x / v))^n. Its mean is v · (1 + 1/2 + … + 1/n) and
its standard deviation v · √(1 + 1/4 + … + 1/n²): both grow with the number of endpoints.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common import catalog, yaml_file

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster

Amounts = NDArray[np.float64]

# Kinds of fabric of transports whose name is not the fabric's.
_OF_TRANSPORT: Final = {
    "efa-1": "efa", "efa-2": "efa", "efa-3": "efa", "tcpx": "gpudirect-tcp", "tcpxo": "gpudirect-tcp",
}  # fmt: skip
# Rate of a link inside nodes, per GPU, from which it is NVLink or its like.
_NVLINK_Bps: Final = 70e9


def fabric_of(cluster: Cluster, inside: bool = False) -> str:
    """Kind of fabric between the nodes of a cluster, or inside its nodes: a name in scenarios/network/fabrics.yaml."""
    link = cluster.node.link if inside else cluster.network
    if link is None or cluster.node.cores is not None or cluster.shared_cores is not None:
        return "loopback" if inside else "sockets"
    if link.topology.kind == "torus":
        return "interchip"
    if inside:
        return "nvlink" if link.bandwidth_Bps >= _NVLINK_Bps else "pcie"
    transport = cluster.transport
    return _OF_TRANSPORT.get(transport, transport)


def variability(cluster: Cluster, inside: bool = False) -> float:
    """Standard deviation of the logarithm of a flow's effective bandwidth between nodes, or inside a node: the link's own, by
    default that of its kind of fabric."""
    link = cluster.node.link if inside else cluster.network
    if link is not None and link.variability is not None:
        return link.variability
    return of_fabric(fabric_of(cluster, inside))


def of_fabric(fabric: str) -> float:
    """Variability of a kind of fabric. Raises KeyError."""
    return float(_fabrics()[fabric]["variability"])


def slowest_path_deviation(deviation: float, paths: int) -> float:
    """Standard deviation of the logarithm of the slowdown of the slowest of several paths. deviation: of one path's."""
    return deviation * math.sqrt(sum(1 / path**2 for path in range(1, paths + 1)))


def slowest_path_quantiles(deviation: float, paths: int, probabilities: Amounts) -> Amounts:
    """Quantiles of the logarithm of the slowdown of the slowest of several paths. deviation: of one path's."""
    return np.asarray(-deviation * np.log(-np.expm1(np.log(probabilities) / paths)))


@functools.cache
def _fabrics() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml_file.shipped(catalog.ROOT / "network" / "fabrics.yaml")
    return found
