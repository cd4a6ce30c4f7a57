"""Resources that a program's ranks share, and the paths of messages and collectives through them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import CollectiveCost, Costing, costing, modelled_costing, rotates
from scaleproof.simulator.cluster.collectives.groups import Group, Op, bus_factor, passed_bytes
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.wiring import Channel, Wiring
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.program import Path, ResourceTable, Use
from scaleproof.simulator.strategy.layout.link_uses import (
    CollectiveLoad,
    core_weight,
    incast,
    library_path,
    merged,
    modelled_loads,
    with_pauses,
)

# Function from the size of a collective in bytes to the bytes through each member and their path.
CollectivePaths = Callable[[float], tuple[float, Path]]
# Name of the link that stands for its class of equivalent links, and their number, by the name of each link.
LinkClasses = Mapping[str, tuple[str, int]]


def required(link: Link | None) -> Link:
    """The link, which scenario validation has made sure exists."""
    assert link is not None
    return link


def relevant_bytes(link: Link | None, size_bytes: float) -> float:
    """The size of a message if its path depends on it, else 0: paths depend on it if hosts have an overhead per message."""
    return size_bytes if required(link).overhead_s else 0.0


class ResourceMap:
    """Adds shared resources to a table when they are first needed: cores of nodes, and links inside and between nodes.

    On networks where all pairs of endpoints are equivalent, a node may represent several equivalent ones; `concurrent` counts
    then give the number of messages that one message represents. On others, a link may stand for equivalent ones; see
    `of_class`.
    """

    def __init__(self, cluster: Cluster, table: ResourceTable, link_classes: LinkClasses | None = None) -> None:
        self.cluster = cluster
        self._table = table
        self._resources: dict[str, int] = {}
        self._link_classes = link_classes or {}
        self._equivalent_links: dict[int, int] = {}
        self._nodes_represented: dict[int, float] = {}
        self._channels: dict[tuple[str, Channel], int] = {}
        self._is_uniform = cluster.is_uniform
        self._cards_used = cluster.node.cards_used
        self._endpoints: dict[tuple[str, int, bool], tuple[int, float]] = {}
        self._uses: dict[tuple[object, ...], tuple[Use, ...]] = {}
        self._paths: dict[tuple[object, ...], Path] = {}

    @functools.cached_property
    def _node_wiring(self) -> Wiring:
        return required(self.cluster.node.link).wiring(self.cluster.node.installed)

    @functools.cached_property
    def _network_wiring(self) -> Wiring:
        return required(self.cluster.network).wiring(self.cluster.nodes, self._cards_used)

    def _resource(self, name: str, capacity: float, incast: float = 0.0) -> int:
        if name not in self._resources:
            first, count = self._link_classes.get(name, (name, 1))
            if first not in self._resources:
                self._resources[first] = self._table.add(first, capacity, incast)
                self._equivalent_links[self._resources[first]] = count
            self._resources[name] = self._resources[first]
        return self._resources[name]

    def of_class(self, uses: tuple[Use, ...], transfers: int = 1) -> tuple[Use, ...]:
        """Uses of the links that stand for their classes by `transfers` equivalent transfers, one of which has the given
        uses."""
        if not self._link_classes:
            return uses
        return merged(tuple(Use(use.resource, use.per_unit * transfers / self._equivalent_links[use.resource]) for use in uses))

    def compute_uses(self, node: int, each: int, multiplicity: int, computes: bool = True) -> tuple[Use, ...]:
        """Resources that a class of ranks uses when it computes: the cores of its nodes, if ranks share them.

        each: ranks of the class on `node`; multiplicity: on all nodes. computes: whether they compute on cores.
        """
        self._nodes_represented[node] = multiplicity / each
        return tuple(Use(cores, each * nodes) for cores, nodes in self._cores(node)) if computes else ()

    def _core_use(self, node: int, link_cores: float, bandwidth_Bps: float, concurrent: float) -> tuple[Use, ...]:
        if link_cores == 0:
            return ()
        return tuple(Use(cores, link_cores / bandwidth_Bps * concurrent * nodes) for cores, nodes in self._cores(node))

    def _cores(self, node: int) -> Iterator[tuple[int, float]]:
        """Core resources of a node, its own and those that all nodes share, each with the number of equivalent nodes that use
        it."""
        if self.cluster.node.cores is not None:
            yield self._resource(f"node {node} cores", self.cluster.node.cores), 1.0
        if self.cluster.shared_cores is not None:
            yield self._resource("shared cores", self.cluster.shared_cores), self._nodes_represented.get(node, 1.0)

    def _host_use(self, name: str, link: Link, size_bytes: float, concurrent: float) -> tuple[Use, ...]:
        """Use of a host, which handles messages one after another, each for the link's overhead, whatever its size."""
        if link.overhead_s == 0 or size_bytes == 0:
            return ()
        return (Use(self._resource(f"{name} host", 1.0), link.overhead_s / size_bytes * concurrent),)

    def message(self, source: tuple[int, int], target: tuple[int, int], size_bytes: float) -> Path:
        """Path of one message between two ranks by the links alone; ranks are given as (node, device)."""
        if source[0] == target[0]:
            names = (f"node {source[0]} device {source[1]}", f"node {target[0]} device {target[1]}")
            return self.inside(source[0], *names, size_bytes, devices=(source[1], target[1]))
        return self.between(source[0], target[0], size_bytes, devices=(source[1], target[1]))

    def concurrent_messages(
        self, source: tuple[int, int], target: tuple[int, int], size_bytes: float, concurrent: int = 1, stall_s: float = 0.0
    ) -> Path:
        """Path of one of `concurrent` simultaneous messages between two places and their neighbours, as the library sends
        it. stall_s: additional latency between nodes."""
        (node, device), (to_node, to_device) = source, target
        if concurrent == 1:
            path = self.message(source, target, size_bytes)
        elif node == to_node:
            names = f"node {node} device {device}", f"node {node} device {to_device}"
            path = self.inside(node, *names, size_bytes, concurrent=concurrent, devices=(device, to_device))
        else:
            count = min(concurrent, self.cluster.node.devices)
            path = self.between(node, to_node, size_bytes, count, count)
        path = library_path(path, self.cluster, node != to_node, size_bytes)
        return replace(path, latency_s=path.latency_s + stall_s) if node != to_node else path

    def half(self, place: tuple[int, int], size_bytes: float, outward: bool, inside: bool) -> Path:
        """Path of a message between a rank and a switch that computes reductions, inside its node or in the network."""
        node, device = place
        link = required(self.cluster.node.link if inside else self.cluster.network)
        wiring = self._node_wiring if inside else self._network_wiring
        if wiring.access_Bps is None:
            raise InputError(f"a {link.topology.kind} has no switch that could reduce; choose another algorithm")
        separate_cards = not inside and link.topology.endpoints_are_cards
        endpoint = device if inside else node * self._cards_used + self._card(device) if separate_cards else node
        channel = wiring.out_of(endpoint) if outward else wiring.into(endpoint)
        capacity_Bps = wiring.capacity_Bps(channel)
        if inside and wiring.is_switch:
            resource = self._resource(f"node {node} device {device} {channel[0]}", capacity_Bps, incast(link, channel))
        else:
            resource = self._channel(f"node {node} " if inside else "network ", link, wiring, channel)
        single_Bps = capacity_Bps if inside or separate_cards else capacity_Bps / self._cards_used
        host = self._host_use(f"node {node} device {device}" if inside else f"node {node}", link, size_bytes, 1)
        return Path(link.latency_s / 2, single_Bps, (Use(resource), *host), core_weight(link))

    def inside(
        self, node: int, source: str, target: str, size_bytes: float,
        out_of_source: int = 1, into_target: int = 1, concurrent: int = 1, devices: tuple[int, int] = (0, 0),
    ) -> Path:  # fmt: skip
        """Path between two ranks of a node, each given by the name of its port and its device.

        out_of_source, into_target, concurrent: number of concurrent equivalent messages that leave the source's port, reach the
        target's port, and move inside the node.
        """
        counts = out_of_source, into_target, concurrent
        key = node, source, target, relevant_bytes(self.cluster.node.link, size_bytes), *counts, devices
        if key not in self._paths:
            self._paths[key] = self._inside(node, source, target, size_bytes, *counts, devices)
        return self._paths[key]

    def _inside(
        self, node: int, source: str, target: str, size_bytes: float, out_of_source: int, into_target: int, concurrent: int,
        devices: tuple[int, int],
    ) -> Path:  # fmt: skip
        link, wiring = required(self.cluster.node.link), self._node_wiring
        if wiring.is_switch:
            ports = [(wiring.out_of(devices[0]), source, out_of_source), (wiring.into(devices[1]), target, into_target)]
            shared = [(f"{name} {channel[0]}", wiring.capacity_Bps(channel), channel, count) for channel, name, count in ports]
            uses = tuple(Use(self._resource(name, Bps, incast(link, at)), count) for name, Bps, at, count in shared)
            hop_s, single_Bps = 0.0, min(Bps for _, Bps, _, _ in shared)
        else:
            uses, hop_s, single_Bps = self._routed(link, wiring, f"node {node} ", *devices, concurrent, concurrent)
        uses += self._host_use(source, link, size_bytes, out_of_source) + self._host_use(target, link, size_bytes, into_target)
        uses += self._core_use(node, link.cores_busy, link.bandwidth_Bps, concurrent)
        return Path(link.latency_s + hop_s, single_Bps, uses, core_weight(link))

    def between(
        self, source_node: int, target_node: int, size_bytes: float,
        out_of_source: float = 1, into_target: float = 1, devices: tuple[int, int] | None = None,
    ) -> Path:  # fmt: skip
        """Path from a rank of one node to a rank of another; the counts are equivalent messages that share the network cards.

        devices: the devices of both ranks, for a single message, which uses the card nearest to its device.
        """
        sent_bytes = relevant_bytes(self.cluster.network, size_bytes)
        key = source_node, target_node, sent_bytes, out_of_source, into_target, devices
        if key not in self._paths:
            self._paths[key] = self._between(source_node, target_node, size_bytes, out_of_source, into_target, devices)
        return self._paths[key]

    def _between(
        self, source_node: int, target_node: int, size_bytes: float, out_of_source: float, into_target: float,
        devices: tuple[int, int] | None,
    ) -> Path:  # fmt: skip
        link, cards, wiring = required(self.cluster.network), self._cards_used, self._network_wiring
        uses: tuple[Use, ...] = ()
        hop_s, single_Bps = 0.0, math.inf
        pairs = self._endpoint_pairs(source_node, target_node, devices)
        for source, target in pairs:
            counts = out_of_source / len(pairs), into_target / len(pairs)
            more, hops_s, card_Bps = self._routed(link, wiring, "network ", source, target, *counts)
            uses, hop_s, single_Bps = uses + more, max(hop_s, hops_s), min(single_Bps, card_Bps)
            if wiring.access_Bps is not None and not link.topology.endpoints_are_cards:
                own_Bps = (wiring.capacity_Bps(channel) for channel in (wiring.out_of(source), wiring.into(target)))
                single_Bps = min(single_Bps, *(Bps / cards for Bps in own_Bps))
        if devices is not None and link.topology.endpoints_are_cards:
            uses += self._to_rail(source_node, *devices)
        elif devices is not None and cards > 1 and wiring.access_Bps is not None:
            ends = (source_node, devices[0], wiring.out_of(source_node)), (target_node, devices[1], wiring.into(target_node))
            for node, device, channel in ends:
                name = f"node {node} card {self._card(device)} {channel[0]}"
                uses += (Use(self._resource(name, wiring.capacity_Bps(channel) / cards, incast(link, channel))),)
        cores: tuple[Use, ...] = ()
        for node, count in ((source_node, out_of_source), (target_node, into_target)):
            uses += self._host_use(f"node {node}", link, size_bytes, count)
            cores += self._core_use(node, link.cores_busy / 2, link.bandwidth_Bps, count)
        return Path(link.latency_s + hop_s, single_Bps, uses + merged(cores), core_weight(link))

    def _endpoint_pairs(self, source_node: int, target_node: int, devices: tuple[int, int] | None) -> list[tuple[int, int]]:
        """Pairs of network endpoints that exchange the messages: nodes, or cards where the topology distinguishes them."""
        cards = self._cards_used
        if not required(self.cluster.network).topology.endpoints_are_cards:
            return [(source_node, target_node)]
        cards_of_pairs = range(cards) if devices is None else [self._card(devices[1])]
        return [(source_node * cards + card, target_node * cards + card) for card in cards_of_pairs]

    def _card(self, device: int) -> int:
        """The network card nearest to a device."""
        return self.cluster.node.card_of(device)

    def _to_rail(self, node: int, device: int, target_device: int) -> tuple[Use, ...]:
        """Uses of the path inside a node to a device at the card of the target's rail."""
        rail = self._card(target_device)
        if self._card(device) == rail:
            return ()
        rail_device = -(-rail * self.cluster.node.installed // self._cards_used)
        names = f"node {node} device {device}", f"node {node} device {rail_device}"
        return self.inside(node, *names, 0.0, devices=(device, rail_device)).uses

    def _routed(
        self, link: Link, wiring: Wiring, prefix: str, source: int, target: int, out_of_source: float, into_target: float
    ) -> tuple[tuple[Use, ...], float, float]:
        """Uses of messages on their route, the latency of additional hops, and the rate of a single message."""
        if wiring.is_switch and source != target:
            first, out_Bps = self._endpoint(prefix, link, wiring, source, True)
            last, in_Bps = self._endpoint(prefix, link, wiring, target, False)
            return (Use(first, out_of_source), Use(last, into_target)), 0.0, min(out_Bps, in_Bps)
        route = wiring.route(source, target)
        into = wiring.into(target)
        ends = {wiring.out_of(source): out_of_source}
        # both directions, where a half-duplex node represents several that exchange messages
        ends[into] = ends.get(into, 0.0) + into_target
        uses = [
            Use(self._channel(prefix, link, wiring, channel), share * ends.get(channel, out_of_source))
            for channel, share in route.shares.items()
        ]
        # a message to a rank on the same device uses no link
        single_Bps = wiring.unshared_Bps(route) if uses else link.bandwidth_Bps
        return tuple(uses), route.extra_hops * link.topology.hop_latency_s, single_Bps

    def _endpoint(self, prefix: str, link: Link, wiring: Wiring, endpoint: int, outward: bool) -> tuple[int, float]:
        """Resource and capacity of an endpoint's own link in one direction."""
        key = prefix, endpoint, outward
        if key not in self._endpoints:
            channel = wiring.out_of(endpoint) if outward else wiring.into(endpoint)
            self._endpoints[key] = self._channel(prefix, link, wiring, channel), wiring.capacity_Bps(channel)
        return self._endpoints[key]

    def _channel(self, prefix: str, link: Link, wiring: Wiring, channel: Channel) -> int:
        key = prefix, channel
        if key not in self._channels:
            is_endpoint = channel[0] in ("out", "in", "both")
            name = f"{prefix}{channel[1]} {channel[0]}" if is_endpoint else f"{prefix}{channel[0]} to {channel[1]}"
            self._channels[key] = self._resource(name, wiring.capacity_Bps(channel), incast(link, channel))
        return self._channels[key]

    def path_of(self, op: Op, group: Group, size_bytes: float, nodes: Sequence[int]) -> Path:
        """Path of a collective of one size; see `moving`."""
        return self.collective(op, group, size_bytes, nodes)[1]

    def collective(
        self, op: Op, group: Group, size_bytes: float, nodes: Sequence[int], concurrent: int = 1, algorithm: str | None = None
    ) -> tuple[float, Path]:
        """Bytes through each member of a collective of one size, and their path; see `moving`."""
        return self.moving(op, group, nodes, concurrent, algorithm)(size_bytes)

    def moving(
        self, op: Op, group: Group, nodes: Sequence[int], concurrent: int = 1, algorithm: str | None = None
    ) -> CollectivePaths:
        """Bytes and path of a collective over a group as functions of its size, as the library executes it.

        nodes: nodes whose resources are modelled (equivalent nodes may be folded). concurrent: number of equivalent groups on
        other devices of the same nodes that communicate at the same time. algorithm: the library's choice if None.
        """
        if group.size == 1:
            return lambda size_bytes: (0.0, Path(0.0, 1.0))
        cost_of = self._costing(op, self.equivalent(group), algorithm)
        between, inside = [self.cluster.network] * (group.nodes > 1), [self.cluster.node.link] * (group.per_node > 1)
        links = [required(link) for link in between + inside]
        weight, uses_of = min(map(core_weight, links)), dict[tuple[str, float], tuple[Use, ...]]()

        def size_and_path(size_bytes: float) -> tuple[float, Path]:
            cost = cost_of(size_bytes)
            moved_bytes = passed_bytes(op, group, size_bytes)
            moving_s = cost.seconds - cost.latency_s
            max_Bps = moved_bytes / moving_s if moving_s else 1.0
            is_measured = cost.algorithm == "measured" and group.nodes == 1
            measured = self.cluster.collectives.exactly(op, group.size, group.nodes, size_bytes) if is_measured else None
            if measured is not None:
                scale = moved_bytes / size_bytes if size_bytes else 1.0
                uses = self._core_use(nodes[0], measured.cores_busy, measured.bandwidth_Bps * scale, 1)
                return moved_bytes, Path(cost.latency_s, max_Bps, uses, core_weight(measured) * group.size * scale)
            crosses = group.nodes > 1 and size_bytes > 0
            network_algorithm = self._algorithm(cost, op, group, size_bytes) if crosses else ""
            takes_turns = network_algorithm == "in_turns" and concurrent == 1
            key = network_algorithm, max_Bps if takes_turns else 0.0
            if key not in uses_of:
                network = self._network_uses(op, group, network_algorithm, tuple(nodes), concurrent) if crosses else ()
                network = with_pauses(network, required(self.cluster.network), max_Bps) if takes_turns else network
                uses_of[key] = network + self._cores_used(group, links, nodes, concurrent)
            return moved_bytes, Path(cost.latency_s, max_Bps, uses_of[key], weight)

        return size_and_path

    def equivalent(self, group: Group) -> Group:
        """A group with identical collectives: on the first nodes if all pairs of devices and nodes are equivalent."""
        return group.on_first_nodes if self._is_uniform else group

    def _costing(self, op: Op, group: Group, algorithm: str | None) -> Costing:
        try:
            return costing(op, group, self.cluster, algorithm)
        except InputError as error:
            if algorithm is None:
                raise
            raise FieldError(("strategy", "algorithm"), str(error)) from None

    def _algorithm(self, cost: CollectiveCost, op: Op, group: Group, size_bytes: float) -> str:
        """Algorithm that loads the network; for a measured collective, the one that the library is known to choose."""
        measured = cost.algorithm == "measured"
        return modelled_costing(op, group, self.cluster)(size_bytes).algorithm if measured else cost.algorithm

    def _cores_used(self, group: Group, links: Sequence[Link], nodes: Sequence[int], concurrent: int) -> tuple[Use, ...]:
        """Cores that move a collective and its concurrent equivalents over the links."""
        cores: tuple[Use, ...] = ()
        for node in nodes:
            for link in links:
                concurrent_sends = concurrent * (group.per_node if link is self.cluster.node.link else 1)
                cores += self._core_use(node, link.cores_busy, link.bandwidth_Bps, concurrent_sends)
        return merged(cores)

    def _network_uses(self, op: Op, group: Group, algorithm: str, nodes: tuple[int, ...], concurrent: int) -> tuple[Use, ...]:
        """Network channels that a collective and its concurrent equivalents load, of the modelled nodes."""
        if required(self.cluster.network).topology.endpoints_are_cards:
            # groups of other devices use other cards, as far as there are any
            concurrent = min(concurrent, -(-self.cluster.node.installed // self._cards_used))
        key = op, algorithm, self.equivalent(group), nodes, concurrent
        if key not in self._uses:
            self._uses[key] = self._collective_uses(op, group, algorithm, nodes, concurrent)
        return self._uses[key]

    def _collective_uses(
        self, op: Op, group: Group, algorithm: str, nodes: tuple[int, ...], concurrent: int
    ) -> tuple[Use, ...]:
        """Network channels that `concurrent` equivalent collectives load, per byte through a member."""
        link, wiring = required(self.cluster.network), self._network_wiring
        load = CollectiveLoad(algorithm, op, group, self.cluster.node.unit, link.unit, rotates(self.cluster, algorithm))
        loads = modelled_loads(load, nodes) if link.is_uniform else load.by_channel
        bus = bus_factor(op, group.size)
        uses = (
            Use(self._channel("network ", link, wiring, channel), concurrent * (load / bus)) for channel, load in loads.items()
        )
        return self.of_class(tuple(uses))
