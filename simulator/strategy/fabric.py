"""Fabric: the resources of the nodes that a program uses, and the paths of messages through them."""

from __future__ import annotations

from simulator.cluster import Cluster
from simulator.cluster.collectives import MeasuredCollective, ring_allreduce_bytes, ring_allreduce_steps
from simulator.cluster.network import Link
from simulator.program import Path, ProgramBuilder, Use


class Fabric:
    """Adds nodes to a program as they are needed: each has its cores, and its network card in both directions.

    Ranks of a node talk over the node's link (a port for each rank and direction), ranks of different nodes through both
    nodes' network cards and a switch that never limits.
    """

    def __init__(self, cluster: Cluster, builder: ProgramBuilder) -> None:
        self.cluster = cluster
        self._builder = builder
        self._resources: dict[str, int] = {}

    def _resource(self, name: str, capacity: float) -> int:
        if name not in self._resources:
            self._resources[name] = self._builder.resource(name, capacity)
        return self._resources[name]

    def compute_uses(self, node: int, alike: int = 1) -> tuple[Use, ...]:
        """What computing uses when `alike` ranks of the node do it together: its cores, where ranks share them."""
        cores = self.cluster.node.cores
        return () if cores is None else (Use(self._resource(f"node {node} cores", cores), alike),)

    def _core_use(self, node: int, link_cores: float, bandwidth_Bps: float, alike: float) -> tuple[Use, ...]:
        cores = self.cluster.node.cores
        if cores is None or link_cores == 0:
            return ()
        return (Use(self._resource(f"node {node} cores", cores), link_cores / bandwidth_Bps * alike),)

    def inside(
        self, node: int, source: str, target: str, out_of_source: int = 1, into_target: int = 1, together: int = 1
    ) -> Path:
        """From one rank of a node to another.

        out_of_source, into_target, together: how many alike messages leave the source's port, reach the target's, and move
        in the node at the same time.
        """
        link = _given(self.cluster.node.link)
        uses = (
            Use(self._resource(f"{source} out", link.bandwidth_Bps), out_of_source),
            Use(self._resource(f"{target} in", link.bandwidth_Bps), into_target),
            *self._core_use(node, link.cores_busy, link.bandwidth_Bps, together),
        )
        return Path(link.latency_s, link.bandwidth_Bps, uses, _weight(link))

    def between(self, source_node: int, target_node: int, out_of_source: float = 1, into_target: float = 1) -> Path:
        """From a rank of one node to a rank of another; the counts are alike messages that share the network cards."""
        link = _given(self.cluster.network)
        uses = (
            self._card_use(source_node, "out", out_of_source),
            self._card_use(target_node, "in", into_target),
            *self._core_use(source_node, link.cores_busy / 2, link.bandwidth_Bps, out_of_source),
            *self._core_use(target_node, link.cores_busy / 2, link.bandwidth_Bps, into_target),
        )
        return Path(link.latency_s, link.bandwidth_Bps / self.cluster.node.cards, uses, _weight(link))

    def _card_use(self, node: int, direction: str, alike: float) -> Use:
        link = _given(self.cluster.network)
        return Use(self._resource(f"node {node} network {direction}", link.bandwidth_Bps), alike)

    def allreduce(self, ranks: int, size_bytes: float, nodes: list[int], ranks_per_node: int) -> tuple[float, Path]:
        """Bytes through each member and their path, for an allreduce of `size_bytes` over `ranks` ranks.

        nodes: those whose resources are modelled (alike nodes may be folded away); ranks_per_node: members in each.
        A ring passes through a node once, over as many network cards as the node has members.
        """
        if ranks == 1:
            return 0.0, Path(0.0, 1.0)
        spans_nodes = ranks > ranks_per_node
        measured = None if spans_nodes else self.cluster.collectives.measured_allreduce(ranks)
        if measured is not None:
            uses = self._core_use(nodes[0], measured.cores_busy, measured.bandwidth_Bps, 1)
            return size_bytes, Path(measured.latency_s, measured.bandwidth_Bps, uses, _weight(measured) * ranks)
        links = [_given(self.cluster.network)] if spans_nodes else []
        links += [_given(self.cluster.node.link)] if ranks_per_node > 1 else []
        uses = tuple(self._card_use(node, way, 1) for node in nodes for way in ("out", "in")) if spans_nodes else ()
        for node in nodes:
            for link in links:
                sends = ranks_per_node if link is self.cluster.node.link else 1
                uses += self._core_use(node, link.cores_busy, link.bandwidth_Bps, sends)
        latency_s = ring_allreduce_steps(ranks) * max(link.latency_s for link in links)
        cards = min(1.0, ranks_per_node / self.cluster.node.cards)
        slowest_Bps = min(link.bandwidth_Bps * (cards if link is self.cluster.network else 1) for link in links)
        return ring_allreduce_bytes(ranks, size_bytes), Path(latency_s, slowest_Bps, uses, min(map(_weight, links)))


def _given(link: Link | None) -> Link:
    """Scenario validation has made sure that a needed link is there."""
    assert link is not None
    return link


def _weight(link: Link | MeasuredCollective) -> float:
    """Bytes per second that make one core's worth, where cores move them: equals share cores fairly with compute."""
    return link.bandwidth_Bps / link.cores_busy if link.cores_busy else 1.0
