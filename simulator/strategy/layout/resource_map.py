"""Resources that a program's ranks share, and the paths of messages and collectives through them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from scaleproof.simulator.cluster import Cluster, Node
from scaleproof.simulator.cluster.collectives.cost import (
    Costing,
    copying_s,
    costing,
    facts_among,
    modelled_costing,
    rotates,
    timing_constants,
)
from scaleproof.simulator.cluster.collectives.groups import Group, Op, bus_factor, passed_bytes
from scaleproof.simulator.cluster.collectives.link_traffic import GroupLinks
from scaleproof.simulator.cluster.collectives.nccl.timing import point_to_point
from scaleproof.simulator.cluster.collectives.settings import MeasuredCollective
from scaleproof.simulator.cluster.host import required_host, with_host
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.wiring import Channel, Vertex, Wiring
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.program import Path, ResourceTable, Use

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


class CopyingThreads(NamedTuple):
    """Threads, one of each process, that copy messages. messages: number that one message of a path represents at this end."""

    name: str
    processes: int
    messages: float
    rate_Bps: float


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

    def host_copy(self, place: tuple[int, int], each: int, to_host: bool, from_drives: bool = False) -> Path:
        """Path of a copy between a device and its host's pinned memory. each: concurrent equivalent copies of neighbours on the
        node. from_drives: whether what is copied is read from the host's drives before."""
        (node, device), host = place, required_host(self._hosted)
        assert host.link_Bps is not None
        name = f"node {node} host link {device // host.devices_per_link} {'in' if to_host else 'out'}"
        uses: tuple[Use, ...] = (
            Use(self._resource(name, host.link_Bps), min(each, host.devices_per_link)),
            Use(self._host_memory(node), each),
        )
        if from_drives and host.nvme is not None:
            uses += (Use(self._resource(f"node {node} drives out", host.nvme.read_Bps), each),)
        return Path(0.0, host.link_Bps, uses, host.link_Bps)

    def host_update(self, node: int, each: int, moved_bytes: float, stored_bytes: float) -> Path:
        """Path of the parameters that a host updates: the rate of one of `each` equivalent ranks of the node, which share its
        memory and its drives. moved_bytes, stored_bytes: see `NodeHost.updated_per_s`."""
        host = required_host(self._hosted)
        rate = host.updated_per_s(moved_bytes)
        uses: tuple[Use, ...] = (Use(self._host_memory(node), each * self._host_Bps / rate),)
        if stored_bytes and host.nvme is not None:
            drives = ("out", host.nvme.read_Bps), ("in", host.nvme.write_Bps)
            uses += tuple(Use(self._resource(f"node {node} drives {way}", Bps), each * stored_bytes) for way, Bps in drives)
        # copies and updates that share a host's memory are slowed by equal factors
        return Path(0.0, rate, uses, rate)

    @functools.cached_property
    def _hosted(self) -> Cluster:
        """The cluster with the rates of its hosts, which scripts with small copies alone do not give."""
        return with_host(self.cluster)

    @property
    def _host_Bps(self) -> float:
        return self._hosted.node.memory_bandwidth_Bps or 0.0

    def _host_memory(self, node: int) -> int:
        """The memory of a host, which copies and updates share."""
        return self._resource(f"node {node} host memory", self._host_Bps)

    def message(self, source: tuple[int, int], target: tuple[int, int], size_bytes: float) -> Path:
        """Path of one message between two ranks by the links alone; ranks are given as (node, device)."""
        if source[0] == target[0]:
            names = (f"node {source[0]} device {source[1]}", f"node {target[0]} device {target[1]}")
            return self.inside(source[0], *names, size_bytes, devices=(source[1], target[1]))
        return self.between(source[0], target[0], size_bytes, devices=(source[1], target[1]))

    def copied(self, path: Path, threads: Sequence[CopyingThreads]) -> Path:
        """A path whose messages threads of processes copy at both ends."""
        uses = tuple(Use(self._resource(one.name, one.processes), one.messages / one.rate_Bps) for one in threads)
        return replace(path, max_Bps=min([path.max_Bps, *(one.rate_Bps for one in threads)]), uses=path.uses + uses)

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
        path = library_path(path, self.cluster, node != to_node, size_bytes, {device, to_device})
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
        if key in self._paths:
            return self._paths[key]
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
        path = self._paths[key] = Path(link.latency_s + hop_s, single_Bps, uses, core_weight(link))
        return path

    def between(
        self, source_node: int, target_node: int, size_bytes: float,
        out_of_source: float = 1, into_target: float = 1, devices: tuple[int, int] | None = None,
    ) -> Path:  # fmt: skip
        """Path from a rank of one node to a rank of another; the counts are equivalent messages that share the network cards.

        devices: the devices of both ranks, for a single message, which uses the card nearest to its device.
        """
        link, cards, wiring = required(self.cluster.network), self._cards_used, self._network_wiring
        key = source_node, target_node, relevant_bytes(link, size_bytes), out_of_source, into_target, devices
        if key in self._paths:
            return self._paths[key]
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
        path = self._paths[key] = Path(link.latency_s + hop_s, single_Bps, uses + merged(cores), core_weight(link))
        return path

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
            own = (wiring.out_of(source), out_of_source), (wiring.into(target), into_target)
            links = tuple(Use(self._channel(prefix, link, wiring, channel), count) for channel, count in own)
            return links, 0.0, min(wiring.capacity_Bps(channel) for channel, _ in own)
        route, into = wiring.route(source, target), wiring.into(target)
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

    def _channel(self, prefix: str, link: Link, wiring: Wiring, channel: Channel) -> int:
        key = prefix, channel
        if key not in self._channels:
            is_endpoint = channel[0] in ("out", "in", "both")
            name = f"{prefix}{channel[1]} {channel[0]}" if is_endpoint else f"{prefix}{channel[0]} to {channel[1]}"
            self._channels[key] = self._resource(name, wiring.capacity_Bps(channel), incast(link, channel))
        return self._channels[key]

    def concurrent_collectives(self, calls: Sequence[tuple[Any, ...]], copied_bytes: float = 0.0) -> Path:
        """Path of concurrent collectives of several groups, each given by arguments of `collective`: the longest of them, with
        the resources of all. copied_bytes: of each rank, before or after they move."""
        results = list(itertools.starmap(self.collective, calls))
        _, longest = max(results, key=lambda result: result[1].latency_s + result[0] / result[1].max_Bps)
        if copied_bytes:
            longest = replace(longest, latency_s=longest.latency_s + copying_s(copied_bytes, self.cluster))
        if len(results) == 1:
            return longest
        return replace(longest, uses=merged(tuple(use for _, path in results for use in path.uses)))

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
            network_algorithm = cost.algorithm if crosses else ""
            if crosses and cost.algorithm == "measured":
                # the one that the library is known to choose
                network_algorithm = modelled_costing(op, group, self.cluster)(size_bytes).algorithm
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

    def _cores_used(self, group: Group, links: Sequence[Link], nodes: Sequence[int], concurrent: int) -> tuple[Use, ...]:
        """Cores that move a collective and its concurrent equivalents over the links."""
        cores: tuple[Use, ...] = ()
        for node in nodes:
            for link in links:
                concurrent_sends = concurrent * (group.per_node if link is self.cluster.node.link else 1)
                cores += self._core_use(node, link.cores_busy, link.bandwidth_Bps, concurrent_sends)
        return merged(cores)

    def _network_uses(self, op: Op, group: Group, algorithm: str, nodes: tuple[int, ...], concurrent: int) -> tuple[Use, ...]:
        """Network channels that a collective and its concurrent equivalents load, of the modelled nodes, per byte through a
        member."""
        link, wiring = required(self.cluster.network), self._network_wiring
        if link.topology.endpoints_are_cards:
            # groups of other devices use other cards, as far as there are any
            concurrent = min(concurrent, -(-self.cluster.node.installed // self._cards_used))
        key = op, algorithm, self.equivalent(group), nodes, concurrent
        if key in self._uses:
            return self._uses[key]
        load = CollectiveLoad(algorithm, op, group, self.cluster.node.unit, link.unit, rotates(self.cluster, algorithm))
        loads = modelled_loads(load, nodes) if link.is_uniform else load.by_channel
        bus = bus_factor(op, group.size)
        channels = ((self._channel("network ", link, wiring, channel), share) for channel, share in loads.items())
        uses = self._uses[key] = self.of_class(tuple(Use(resource, concurrent * (share / bus)) for resource, share in channels))
        return uses


def library_path(path: Path, cluster: Cluster, crosses: bool, size_bytes: float, devices: Collection[int]) -> Path:
    """Path of a message sent by the library. path: by the links alone. crosses: whether the message leaves its node. devices:
    those at its ends.

    With NCCL or RCCL it has the latency and the rate of a sendrecv of that size, with the protocol's overhead on the links, and
    is never faster than the links. Other libraries are as fast as the links.
    """
    nccl = facts_among(devices, cluster)
    if nccl is None:
        return path
    sendrecv = point_to_point(nccl, timing_constants(cluster, nccl, devices), crosses, size_bytes, path.latency_s)
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


class CollectiveLoad(NamedTuple):
    """A collective whose link loads, shares of its size on the network's channels, are to be computed. node, network: with
    links of unit bandwidth, since loads do not depend on it."""

    algorithm: str
    op: Op
    group: Group
    node: Node
    network: Link
    rotates: bool

    @property
    def by_channel(self) -> Mapping[Channel, float]:
        """Share of the collective's size on each channel of the network."""
        return GroupLinks(self.group, self.node, self.network).loads(self.algorithm, self.op, self.rotates)

    @property
    def endpoints_per_node(self) -> int:
        """Number of network endpoints on a node."""
        return self.node.cards_used if self.network.topology.endpoints_are_cards else 1


@functools.lru_cache(maxsize=256)
def modelled_loads(load: CollectiveLoad, nodes: tuple[int, ...]) -> Mapping[Channel, float]:
    """Loads of the links of the modelled nodes. If other nodes are folded into them, each link has the maximum load of its
    equivalents: an approximation, which overestimates contention, for algorithms that do not load all nodes equally, such as
    halving and doubling among nodes that are not a power of two."""
    folded, loads, endpoints_per_node = len(nodes) < load.group.nodes, load.by_channel, load.endpoints_per_node
    busiest = _busiest_endpoints(load) if folded else {}
    directions = ("both",) if load.network.duplex == "half" else ("out", "in")
    result: dict[Channel, float] = {}
    for node, card, direction in itertools.product(nodes, range(endpoints_per_node), directions):
        channel = direction, node * endpoints_per_node + card
        if share := busiest.get((direction, card), 0.0) if folded else loads.get(channel, 0.0):
            result[channel] = share
    return result


@functools.lru_cache(maxsize=256)
def _busiest_endpoints(load: CollectiveLoad) -> Mapping[tuple[Vertex, int], float]:
    """Maximum load of an endpoint of any node, by direction and endpoint number on the node."""
    result: dict[tuple[Vertex, int], float] = {}
    for (direction, end), share in load.by_channel.items():
        key = direction, cast(int, end) % load.endpoints_per_node
        result[key] = max(share, result.get(key, 0.0))
    return result
