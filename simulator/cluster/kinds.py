"""Clusters of different machines: nodes whose devices differ from those of the first nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from scaleproof.simulator.cluster.collectives.settings import facts_of, has_peers
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec

# Fields of an entry of a list of nodes.
_FIELDS: Final = ("count", "device", "link", "network")


class NodeKind(Spec):
    """Nodes with another device than the cluster's. nodes: their numbers."""

    nodes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=100_000)]
    device: Device


def of_listed_nodes(cluster: Any) -> Any:
    """YAML of a cluster whose nodes are listed, `nodes: [{count: 2}, {count: 1, device: ..., link: ..., network: 10 Gbit/s}]`,
    as the number of nodes, the kinds with other devices, the slowest link inside a node, and exceptions of the network.

    device: of these nodes, by default the cluster's. link: inside these nodes; NCCL is that of the device with the slowest.
    network: rate of these nodes' network cards.
    Raises FieldError, with the field's path within the cluster.
    """
    listed = cluster.get("nodes") if isinstance(cluster, dict) else None
    if not isinstance(listed, list):
        return cluster
    entries = [_checked(number, entry) for number, entry in enumerate(listed)]
    if not entries:
        raise FieldError(("nodes",), "an empty list; give the number of nodes, or a list such as [{count: 2}]")
    own = cluster.get("device") or entries[0].get("device")
    kinds, exceptions, first = [], [], 0
    for entry in entries:
        numbers = list(range(first, first + entry["count"]))
        first += entry["count"]
        if (device := entry.get("device", own)) != own:
            kinds.append({"nodes": numbers, "device": device})
        if "network" in entry:
            exceptions.append({"at": numbers, "bandwidth": entry["network"]})
    result = cluster | {"nodes": first, "device": own, "kinds": kinds}
    node, network = cluster.get("node"), cluster.get("network")
    if isinstance(node, dict) and any("link" in entry for entry in entries):
        found = [(entry.get("link", node.get("link")), entry.get("device", own)) for entry in entries]
        links = [(_link(link, device), _name(device)) for link, device in found if link is not None]
        slowest, name = min(links, key=lambda one: (one[0].bandwidth_Bps, one[0].peer_to_peer))
        result["node"] = node | {"link": slowest}
        result["collectives"] = {"nccl": facts_of(name), **(cluster.get("collectives") or {})}
    if exceptions and isinstance(network, dict | str):
        result["network"] = ({"base": network} if isinstance(network, str) else network) | {"exceptions": exceptions}
    return result


def _checked(number: int, entry: Any) -> Mapping[str, Any]:
    """An entry of a list of nodes with its number of nodes. Raises FieldError."""
    example = "give {count: 2, device: rtx-4090}"
    if not isinstance(entry, dict):
        raise FieldError(("nodes", number), f"expected a kind of nodes, got {str(entry)[:40]!r}; {example}")
    if unknown := [name for name in entry if name not in _FIELDS]:
        message = f"a kind of nodes has no field {unknown[0]!r}; known: {', '.join(_FIELDS)}. All nodes have the same number"
        raise FieldError(("nodes", number), f"{message} of devices (node.devices, or node.used of them)")
    count = entry.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise FieldError(("nodes", number, "count"), f"{count!r} is no number of nodes; {example}")
    return {**entry, "count": count}


def _link(link: Any, device: Any) -> Link:
    """A link inside nodes with a device."""
    if isinstance(link, Link):
        return link
    own = {"base": link} if isinstance(link, str) else link
    return Link.model_validate({"peer_to_peer": has_peers(_name(device)), **own} if isinstance(own, dict) else own)


def _name(device: Any) -> str:
    return str(device.get("name", "") if isinstance(device, dict) else getattr(device, "name", ""))
