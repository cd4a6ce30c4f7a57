"""Which nodes of a cluster of different machines a job uses, and in which order its ranks fill them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from scaleproof.simulator.cluster import Cluster, Link
from scaleproof.simulator.cluster.collectives.settings import facts_of


def arrangements(cluster: Cluster, ranks: int) -> Iterator[Cluster]:
    """Yields the selections of a cluster's nodes that a plan considers: all nodes of some kinds, in each order of the kinds, if
    they have at most `ranks` devices; of a single kind the fewest nodes with that number."""
    nodes: dict[int, list[int]] = {}
    for node in range(cluster.nodes):
        nodes.setdefault(cluster.kind_of(node), []).append(node)
    for number in range(1, len(nodes) + 1):
        for kinds in itertools.permutations(nodes, number):
            used = [node for kind in kinds for node in nodes[kind]]
            if number == 1:
                yield of_nodes(cluster, used[: -(-ranks // cluster.devices_of(used[0]))])
            elif sum(map(cluster.devices_of, used)) <= ranks:
                yield of_nodes(cluster, used)


def of_nodes(cluster: Cluster, nodes: Sequence[int]) -> Cluster:
    """The cluster with some of its nodes, numbered in this order."""
    kinds = list(dict.fromkeys(cluster.kind_of(node) for node in nodes))
    sizes = {kind: cluster.devices_of(next(node for node in nodes if cluster.kind_of(node) == kind)) for kind in kinds}
    # the first of the kinds with the most devices is the cluster's own
    own = max(sorted(kinds), key=lambda kind: sizes[kind])
    places = {kind: tuple(at for at, node in enumerate(nodes) if cluster.kind_of(node) == kind) for kind in kinds}
    device_of = cluster.all_devices
    others = [
        {"nodes": places[kind], "device": device_of[kind], "devices": None if sizes[kind] == sizes[own] else sizes[kind]}
        for kind in kinds
        if kind != own
    ]
    node, collectives = _node(cluster, sizes[own]), cluster.collectives
    if cluster.links:
        slowest = min(kinds, key=lambda kind: cluster.links[kind].speed)
        node = node.model_copy(update={"link": cluster.links[slowest]})
        if collectives.nccl in [facts_of(device.name) for device in device_of]:
            collectives = collectives.model_copy(update={"nccl": facts_of(device_of[slowest].name)})
    return cluster.rebuilt(
        nodes=len(nodes), node=node, device=device_of[own], kinds=tuple(others), links=(), collectives=collectives,
        network=None if cluster.network is None else _network(cluster.network, nodes),
    )  # fmt: skip


def node_words(cluster: Cluster) -> str:
    """'2 A100-40GB-PCIe, 1 RTX-4090': nodes in the order of ranks, by their device."""
    runs = itertools.groupby(cluster.with_device_of(cluster.kind_of(node)).device.name for node in range(cluster.nodes))
    return ", ".join(f"{len(list(run))} {name}" for name, run in runs)


def _node(cluster: Cluster, devices: int) -> Any:
    """A node with fewer devices than the cluster's, which costs and draws less in proportion."""
    node = cluster.node
    if devices == node.devices:
        return node
    share = devices / node.devices
    names = ("price_USD_per_s", "power_W", "idle_power_W")
    scaled = {name: share * value for name in names if (value := getattr(node, name)) is not None}
    return node.model_copy(update={"installed": devices, "used": None} | scaled)


def _network(network: Link, nodes: Sequence[int]) -> Link:
    """The network between some nodes, numbered in this order; without exceptions if all nodes have the same one."""
    rates = dict.fromkeys(nodes, network.bandwidth_Bps)
    for one in network.exceptions:
        rates |= {node: one.bandwidth_Bps for node in one.at if node in rates}
    if len(set(rates.values())) == 1:
        return network.model_copy(update={"bandwidth_Bps": rates[nodes[0]], "exceptions": ()})
    changed = []
    for one in network.exceptions:
        at = tuple(place for place, node in enumerate(nodes) if node in one.at)
        changed += [one.model_copy(update={"at": at})] if at else []
    return network.model_copy(update={"exceptions": tuple(changed)})
