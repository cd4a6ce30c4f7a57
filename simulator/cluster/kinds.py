"""Clusters of different machines: nodes that differ from the others in their devices, or in the number of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from scaleproof.simulator.cluster.collectives.settings import facts_of, has_peers
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec

# Fields of an entry of a list of nodes.
_FIELDS: Final = ("count", "devices", "device", "link", "network")


class NodeKind(Spec):
    """Nodes with another device than the cluster's, or with fewer of them. nodes: their numbers."""

    nodes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=100_000)]
    device: Device
    devices: Count | None = Field(None, description="number of devices of each of these nodes; node.devices if absent")


def of_listed_nodes(cluster: Any) -> Any:
    """YAML of a cluster whose nodes are listed, `nodes: [{count: 2}, {devices: 2, device: ..., link: ..., network: ...}]`, as
    the number of nodes, the kinds with other devices, the slowest link inside a node, and exceptions of the network.

    devices: of each of these nodes, by default node.devices, which becomes the largest number of any node. device: of these
    nodes, by default the cluster's. link: inside these nodes; NCCL is that of the device with the slowest.
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
    node, network = cluster.get("node"), cluster.get("network")
    sizes, most = _numbers_of_devices(entries, node)
    kinds, exceptions, first = [], [], 0
    for entry, size in zip(entries, sizes, strict=True):
        numbers = list(range(first, first + entry["count"]))
        first += entry["count"]
        if (device := entry.get("device", own)) != own or size != most:
            kinds.append({"nodes": numbers, "device": device} | ({} if size == most else {"devices": size}))
        if "network" in entry:
            exceptions.append({"at": numbers, "bandwidth": entry["network"]})
    result = cluster | {"nodes": first, "device": own, "kinds": kinds}
    if isinstance(node, dict) and any("devices" in entry for entry in entries):
        node = result["node"] = node | {"devices": most}
    if isinstance(node, dict) and any("link" in entry for entry in entries):
        found = [(entry.get("link", node.get("link")), entry.get("device", own)) for entry in entries]
        links = [(_link(link, device), _name(device)) for link, device in found if link is not None]
        if len(links) == len(entries):
            result["links"] = _links_by_kind([link for link, _ in links], sizes, [device for _, device in found], (most, own))
        slowest, name = min(links, key=lambda one: one[0].speed)
        result["node"] = node | {"link": slowest}
        result["collectives"] = {"nccl": facts_of(name), **(cluster.get("collectives") or {})}
    if exceptions and isinstance(network, dict | str):
        result["network"] = ({"base": network} if isinstance(network, str) else network) | {"exceptions": exceptions}
    return result


def _links_by_kind(
    links: Sequence[Link], sizes: Sequence[Any], devices: Sequence[Any], first: tuple[Any, Any]
) -> tuple[Link, ...]:
    """The link inside the nodes of each kind: the slowest of those with the cluster's own number of devices and device, which
    are `first`, before the others."""
    is_first = [pair == first for pair in zip(sizes, devices, strict=True)]
    own = [link for link, is_own in zip(links, is_first, strict=True) if is_own]
    others = (link for link, is_own in zip(links, is_first, strict=True) if not is_own)
    return min(own, key=lambda link: link.bandwidth_Bps, default=links[0]), *others


def _checked(number: int, entry: Any) -> Mapping[str, Any]:
    """An entry of a list of nodes with its number of nodes. Raises FieldError."""
    example = "give {count: 2, device: rtx-4090}"
    if not isinstance(entry, dict):
        raise FieldError(("nodes", number), f"expected a kind of nodes, got {str(entry)[:40]!r}; {example}")
    if unknown := [name for name in entry if name not in _FIELDS]:
        raise FieldError(("nodes", number), f"a kind of nodes has no field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
    for field, what in (("count", "nodes"), ("devices", "devices")):
        value = entry.get(field, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise FieldError(("nodes", number, field), f"{value!r} is no number of {what}; {example}")
    return {"count": 1, **entry}


def _numbers_of_devices(entries: Sequence[Mapping[str, Any]], node: Any) -> tuple[list[Any], Any]:
    """The number of devices of each kind of nodes, and the largest, which is that of the cluster's node."""
    usual = node.get("devices", 1) if isinstance(node, dict) else 1
    sizes = [entry.get("devices", usual) for entry in entries]
    # what is no number is refused where the node is read
    return sizes, max(sizes) if all(isinstance(size, int) for size in sizes) else usual


def _link(link: Any, device: Any) -> Link:
    """A link inside nodes with a device."""
    if isinstance(link, Link):
        return link
    own = {"base": link} if isinstance(link, str) else link
    known = {} if has_peers(_name(device)) else {"peer_to_peer": False}
    return Link.model_validate(known | own if isinstance(own, dict) else own)


def _name(device: Any) -> str:
    return str(device.get("name", "") if isinstance(device, dict) else getattr(device, "name", ""))
