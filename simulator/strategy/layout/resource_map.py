"""Fabric: the resources of the nodes that a program uses, and the paths of messages through them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op, bus_factor
from scaleproof.simulator.cluster.collectives.cost import CollectiveCost, Costing, costing, modelled_costing, rotates
from scaleproof.simulator.cluster.collectives.settings import MeasuredCollective
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.wiring import Channel, Wiring
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.program import Path, ProgramBuilder, Use
from scaleproof.simulator.program.perturbations import Perturbations
from scaleproof.simulator.strategy.layout.link_loads import Load, Shapes, of_modelled, shapes
from scaleproof.simulator.strategy.layout.sendrecv import as_sent

# Bytes through each member of a collective and their path, by the bytes of its size.
Moving = Callable[[float], tuple[float, Path]]


class ResourceMap:
    """Adds what programs share to them as it is needed: the cores of nodes, and the links inside and between nodes.

    Where any two endpoints of a network are joined like any other two, a node may stand for several alike ones; `alike`
    counts then say for how many messages one stands.
    """

    def __init__(self, cluster: Cluster, builder: ProgramBuilder) -> None:
        self.cluster = cluster
        self._builder = builder
        self._resources: dict[str, int] = {}
        self._nodes_like: dict[int, float] = {}
        self._channels: dict[tuple[str, Channel], int] = {}
        self._is_uniform = cluster.is_uniform
        self._cards_used = cluster.node.cards_used
        self._ends: dict[tuple[str, int, bool], tuple[int, float]] = {}
        self._costings: dict[tuple[object, ...], Costing] = {}
        self._told: dict[Group, object] = {}
        self._uses: dict[tuple[object, ...], tuple[Use, ...]] = {}
        self._paths: dict[tuple[object, ...], Path] = {}

    @functools.cached_property
    def _in_node(self) -> Wiring:
        return _given(self.cluster.node.link).wiring(self.cluster.node.devices)

    @functools.cached_property
    def _in_network(self) -> Wiring:
        return _given(self.cluster.network).wiring(self.cluster.nodes, self._cards_used)

    def _resource(self, name: str, capacity: float, incast: float = 0.0) -> int:
        if name not in self._resources:
            self._resources[name] = self._builder.resource(name, capacity, incast)
        return self._resources[name]

    def add_rank(
        self, name: str, unevenness: Perturbations, rank: int, node: int,
        each: int = 1, multiplicity: int = 1, is_server: bool = False, lockstep: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """Adds a class of ranks to the program, as fast and as late as the first of them, `rank`; returns its number.

        each: ranks of the class on `node`; multiplicity: on all nodes. lockstep: all that go in lockstep with the first, which
        is as slow and as late as the slowest and latest of them.
        """
        together = lockstep or (rank,)
        paces = tuple(map(unevenness.pace, together))
        self._nodes_like[node] = multiplicity / each
        return self._builder.rank(
            name,
            multiplicity=multiplicity,
            is_server=is_server,
            uses=self._compute_uses(node, each),
            slowdown=max(map(unevenness.slowdown, together)),
            late_s=max(map(unevenness.late_s, together)),
            lockstep=len(together),
            paces=paces if any(paces) else (),
        )

    def _compute_uses(self, node: int, alike: int) -> tuple[Use, ...]:
        """What computing uses when `alike` ranks of the node do it together: its cores, where ranks share them."""
        return tuple(Use(cores, alike * nodes) for cores, nodes in self._cores(node))

    def _core_use(self, node: int, link_cores: float, bandwidth_Bps: float, alike: float) -> tuple[Use, ...]:
        if link_cores == 0:
            return ()
        return tuple(Use(cores, link_cores / bandwidth_Bps * alike * nodes) for cores, nodes in self._cores(node))

    def _cores(self, node: int) -> Iterator[tuple[int, float]]:
        """The cores that do a node's work, its own and those that all nodes share, and how many nodes like it use them."""
        if self.cluster.node.cores is not None:
            yield self._resource(f"node {node} cores", self.cluster.node.cores), 1.0
        if self.cluster.shared_cores is not None:
            yield self._resource("shared cores", self.cluster.shared_cores), self._nodes_like.get(node, 1.0)

    def _host_use(self, name: str, link: Link, size_bytes: float, alike: float) -> tuple[Use, ...]:
        """A host handles its messages one after another, each for the link's overhead, however large it is."""
        if link.overhead_s == 0 or size_bytes == 0:
            return ()
        return (Use(self._resource(f"{name} host", 1.0), link.overhead_s / size_bytes * alike),)

    def message(self, source: tuple[int, int], target: tuple[int, int], size_bytes: float) -> Path:
        """Path of one message between two ranks by the links alone, each rank given as node and device."""
        if source[0] == target[0]:
            names = (f"node {source[0]} device {source[1]}", f"node {target[0]} device {target[1]}")
            return self.inside(source[0], *names, size_bytes, devices=(source[1], target[1]))
        return self.between(source[0], target[0], size_bytes, devices=(source[1], target[1]))

    def alike_messages(self, source: tuple[int, int], target: tuple[int, int], size_bytes: float, alike: int = 1) -> Path:
        """Path of one of `alike` messages between two places and those next to them, all at once, as the library sends it."""
        (node, device), (to_node, to_device) = source, target
        if alike == 1:
            path = self.message(source, target, size_bytes)
        elif node == to_node:
            names = f"node {node} device {device}", f"node {node} device {to_device}"
            path = self.inside(node, *names, size_bytes, together=alike, devices=(device, to_device))
        else:
            count = min(alike, self.cluster.node.devices)
            path = self.between(node, to_node, size_bytes, count, count)
        return as_sent(path, self.cluster, crosses=node != to_node)

    def half(self, place: tuple[int, int], size_bytes: float, outward: bool, inside: bool) -> Path:
        """Of a message between a rank and a switch that takes part itself: inside its node, or of the network."""
        node, device = place
        link = _given(self.cluster.node.link if inside else self.cluster.network)
        wiring = self._in_node if inside else self._in_network
        if wiring.access_Bps is None:
            raise InputError(
                f"ranks of a {link.topology.kind} are attached to no switch that could reduce; use another algorithm"
            )
        apart = not inside and link.topology.tells_cards_apart
        endpoint = device if inside else node * self._cards_used + self._card(device) if apart else node
        channel = wiring.out_of(endpoint) if outward else wiring.into(endpoint)
        capacity_Bps = wiring.capacity_Bps(channel)
        if inside and wiring.is_switch:
            resource = self._resource(f"node {node} device {device} {channel[0]}", capacity_Bps, _incast(link, channel))
        else:
            resource = self._channel(f"node {node} " if inside else "network ", link, wiring, channel)
        alone_Bps = capacity_Bps if inside or apart else capacity_Bps / self._cards_used
        host = self._host_use(f"node {node} device {device}" if inside else f"node {node}", link, size_bytes, 1)
        return Path(link.latency_s / 2, alone_Bps, (Use(resource), *host), _weight(link))

    def inside(
        self, node: int, source: str, target: str, size_bytes: float,
        out_of_source: int = 1, into_target: int = 1, together: int = 1, devices: tuple[int, int] = (0, 0),
    ) -> Path:  # fmt: skip
        """From one rank of a node to another, each by the name of its port and its device.

        out_of_source, into_target, together: how many alike messages leave the source's port, reach the target's, and move
        in the node at the same time.
        """
        counts = out_of_source, into_target, together
        key = node, source, target, _told_bytes(self.cluster.node.link, size_bytes), *counts, devices
        if key not in self._paths:
            self._paths[key] = self._inside(node, source, target, size_bytes, *counts, devices)
        return self._paths[key]

    def _inside(
        self, node: int, source: str, target: str, size_bytes: float, out_of_source: int, into_target: int, together: int,
        devices: tuple[int, int],
    ) -> Path:  # fmt: skip
        link, wiring = _given(self.cluster.node.link), self._in_node
        if wiring.is_switch:
            ports = [(wiring.out_of(devices[0]), source, out_of_source), (wiring.into(devices[1]), target, into_target)]
            shared = [(f"{name} {channel[0]}", wiring.capacity_Bps(channel), channel, count) for channel, name, count in ports]
            uses = tuple(Use(self._resource(name, Bps, _incast(link, at)), count) for name, Bps, at, count in shared)
            further_s, alone_Bps = 0.0, min(Bps for _, Bps, _, _ in shared)
        else:
            uses, further_s, alone_Bps = self._routed(link, wiring, f"node {node} ", *devices, together, together)
        uses += self._host_use(source, link, size_bytes, out_of_source) + self._host_use(target, link, size_bytes, into_target)
        uses += self._core_use(node, link.cores_busy, link.bandwidth_Bps, together)
        return Path(link.latency_s + further_s, alone_Bps, uses, _weight(link))

    def between(
        self, source_node: int, target_node: int, size_bytes: float,
        out_of_source: float = 1, into_target: float = 1, devices: tuple[int, int] | None = None,
    ) -> Path:  # fmt: skip
        """From a rank of one node to a rank of another; the counts are alike messages that share the network cards.

        devices: the ranks', where it is one message; a message goes over the card that its device is nearest to.
        """
        sent_bytes = _told_bytes(self.cluster.network, size_bytes)
        key = source_node, target_node, sent_bytes, out_of_source, into_target, devices
        if key not in self._paths:
            self._paths[key] = self._between(source_node, target_node, size_bytes, out_of_source, into_target, devices)
        return self._paths[key]

    def _between(
        self, source_node: int, target_node: int, size_bytes: float, out_of_source: float, into_target: float,
        devices: tuple[int, int] | None,
    ) -> Path:  # fmt: skip
        link, cards, wiring = _given(self.cluster.network), self._cards_used, self._in_network
        uses: tuple[Use, ...] = ()
        further_s, alone_Bps = 0.0, math.inf
        pairs = self._cards(source_node, target_node, devices)
        for source, target in pairs:
            counts = out_of_source / len(pairs), into_target / len(pairs)
            more, hops_s, card_Bps = self._routed(link, wiring, "network ", source, target, *counts)
            uses, further_s, alone_Bps = uses + more, max(further_s, hops_s), min(alone_Bps, card_Bps)
            if wiring.access_Bps is not None and not link.topology.tells_cards_apart:
                own_Bps = (wiring.capacity_Bps(channel) for channel in (wiring.out_of(source), wiring.into(target)))
                alone_Bps = min(alone_Bps, *(Bps / cards for Bps in own_Bps))
        if devices is not None and link.topology.tells_cards_apart:
            uses += self._to_rail(source_node, *devices)
        elif devices is not None and cards > 1 and wiring.access_Bps is not None:
            ends = (source_node, devices[0], wiring.out_of(source_node)), (target_node, devices[1], wiring.into(target_node))
            for node, device, channel in ends:
                name = f"node {node} card {self._card(device)} {channel[0]}"
                uses += (Use(self._resource(name, wiring.capacity_Bps(channel) / cards, _incast(link, channel))),)
        cores: tuple[Use, ...] = ()
        for node, count in ((source_node, out_of_source), (target_node, into_target)):
            uses += self._host_use(f"node {node}", link, size_bytes, count)
            cores += self._core_use(node, link.cores_busy / 2, link.bandwidth_Bps, count)
        return Path(link.latency_s + further_s, alone_Bps, uses + _added_up(cores), _weight(link))

    def _cards(self, source_node: int, target_node: int, devices: tuple[int, int] | None) -> list[tuple[int, int]]:
        """The endpoints of the network between which messages go: nodes, or cards where they are told apart."""
        cards = self._cards_used
        if not _given(self.cluster.network).topology.tells_cards_apart:
            return [(source_node, target_node)]
        used = range(cards) if devices is None else [self._card(devices[1])]
        return [(source_node * cards + card, target_node * cards + card) for card in used]

    def _card(self, device: int) -> int:
        """The card that a device is nearest to."""
        return device * self._cards_used // self.cluster.node.devices

    def _to_rail(self, node: int, device: int, target_device: int) -> tuple[Use, ...]:
        """The way inside a node to a device on the card of the target's rail."""
        rail = self._card(target_device)
        if self._card(device) == rail:
            return ()
        there = -(-rail * self.cluster.node.devices // self._cards_used)
        names = f"node {node} device {device}", f"node {node} device {there}"
        return self.inside(node, *names, 0.0, devices=(device, there)).uses

    def _routed(
        self, link: Link, wiring: Wiring, prefix: str, source: int, target: int, out_of_source: float, into_target: float
    ) -> tuple[tuple[Use, ...], float, float]:
        """What messages use on their way, the latency of what is beyond the shortest way, the rate of one alone."""
        if wiring.is_switch and source != target:
            first, out_Bps = self._end(prefix, link, wiring, source, True)
            last, in_Bps = self._end(prefix, link, wiring, target, False)
            return (Use(first, out_of_source), Use(last, into_target)), 0.0, min(out_Bps, in_Bps)
        route = wiring.route(source, target)
        into = wiring.into(target)
        ends = {wiring.out_of(source): out_of_source}
        # both, where a half-duplex node stands for several that send to one another
        ends[into] = ends.get(into, 0.0) + into_target
        uses = [
            Use(self._channel(prefix, link, wiring, channel), share * ends.get(channel, out_of_source))
            for channel, share in route.shares.items()
        ]
        # a rank's message to another on its own device passes no link
        alone_Bps = wiring.alone_Bps(route) if uses else link.bandwidth_Bps
        return tuple(uses), route.further_hops * link.topology.hop_latency_s, alone_Bps

    def _end(self, prefix: str, link: Link, wiring: Wiring, endpoint: int, outward: bool) -> tuple[int, float]:
        """An endpoint's own link, one way, and what it carries."""
        key = prefix, endpoint, outward
        if key not in self._ends:
            channel = wiring.out_of(endpoint) if outward else wiring.into(endpoint)
            self._ends[key] = self._channel(prefix, link, wiring, channel), wiring.capacity_Bps(channel)
        return self._ends[key]

    def _channel(self, prefix: str, link: Link, wiring: Wiring, channel: Channel) -> int:
        key = prefix, channel
        if key not in self._channels:
            own = channel[0] in ("out", "in", "both")
            name = f"{prefix}{channel[1]} {channel[0]}" if own else f"{prefix}{channel[0]} to {channel[1]}"
            self._channels[key] = self._resource(name, wiring.capacity_Bps(channel), _incast(link, channel))
        return self._channels[key]

    def collective(
        self, op: Op, group: Group, size_bytes: float, nodes: Sequence[int], alike: int = 1, algorithm: str | None = None
    ) -> tuple[float, Path]:
        """Of one size; see `moving`."""
        return self.moving(op, group, nodes, alike, algorithm)(size_bytes)

    def moving(self, op: Op, group: Group, nodes: Sequence[int], alike: int = 1, algorithm: str | None = None) -> Moving:
        """A collective over a group, as the library does it.

        nodes: those whose resources are modelled (alike nodes may be folded away). alike: groups like it on other devices of
        the same nodes, at the same time. algorithm: the library's choice, if None.
        """
        if group.size == 1:
            return lambda size_bytes: (0.0, Path(0.0, 1.0))
        cost_of, factor = self._costing(op, group, algorithm), bus_factor(op, group.size)
        between, inside = [self.cluster.network] * (group.nodes > 1), [self.cluster.node.link] * (group.per_node > 1)
        links = [_given(link) for link in between + inside]
        weight, used = min(map(_weight, links)), dict[str, tuple[Use, ...]]()

        def moved(size_bytes: float) -> tuple[float, Path]:
            cost = cost_of(size_bytes)
            moved_bytes = factor * size_bytes
            moving_s = cost.seconds - cost.latency_s
            max_Bps = moved_bytes / moving_s if moving_s else 1.0
            is_measured = cost.algorithm == "measured" and group.nodes == 1
            measured = self.cluster.collectives.exactly(op, group.size, group.nodes, size_bytes) if is_measured else None
            if measured is not None:
                scale = moved_bytes / size_bytes if size_bytes else 1.0
                uses = self._core_use(nodes[0], measured.cores_busy, measured.bandwidth_Bps * scale, 1)
                return moved_bytes, Path(cost.latency_s, max_Bps, uses, _weight(measured) * group.size * scale)
            crosses = group.nodes > 1 and size_bytes > 0
            chosen = self._algorithm(cost, op, group, size_bytes) if crosses else ""
            if chosen not in used:
                network = self._network_uses(op, group, chosen, tuple(nodes), alike) if crosses else ()
                used[chosen] = network + self._cores_used(group, links, nodes, alike)
            return moved_bytes, Path(cost.latency_s, max_Bps, used[chosen], weight)

        return moved

    def told(self, group: Group) -> object:
        """What tells a group's collectives from those of others: its shape, wherever it is, where any two devices and nodes are
        joined like any other two."""
        if group not in self._told:
            self._told[group] = group.shape if self._is_uniform else group
        return self._told[group]

    def _costing(self, op: Op, group: Group, algorithm: str | None) -> Costing:
        key = op, algorithm, self.told(group)
        if key not in self._costings:
            try:
                self._costings[key] = functools.cache(costing(op, group, self.cluster, algorithm))
            except InputError as error:
                if algorithm is None:
                    raise
                raise FieldError(("strategy", "algorithm"), str(error)) from None
        return self._costings[key]

    def _algorithm(self, cost: CollectiveCost, op: Op, group: Group, size_bytes: float) -> str:
        """What loads the network: of a measured collective the algorithm that the library is known to choose."""
        measured = cost.algorithm == "measured"
        return modelled_costing(op, group, self.cluster)(size_bytes).algorithm if measured else cost.algorithm

    def _cores_used(self, group: Group, links: Sequence[Link], nodes: Sequence[int], alike: int) -> tuple[Use, ...]:
        """The cores that move a collective over links, and those like it."""
        cores: tuple[Use, ...] = ()
        for node in nodes:
            for link in links:
                sends = alike * (group.per_node if link is self.cluster.node.link else 1)
                cores += self._core_use(node, link.cores_busy, link.bandwidth_Bps, sends)
        return _added_up(cores)

    def _network_uses(self, op: Op, group: Group, algorithm: str, nodes: tuple[int, ...], alike: int) -> tuple[Use, ...]:
        """The network's channels that a collective and those like it load; of alike nodes those of the modelled."""
        key = op, algorithm, self.told(group), nodes
        if key not in self._uses:
            self._uses[key] = self._loaded(op, group, algorithm, nodes)
        if _given(self.cluster.network).topology.tells_cards_apart:
            # groups of other devices have other cards, as far as there are any
            alike = min(alike, -(-self.cluster.node.devices // self._cards_used))
        return tuple(Use(use.resource, alike * use.per_unit) for use in self._uses[key])

    def _loaded(self, op: Op, group: Group, algorithm: str, nodes: tuple[int, ...]) -> tuple[Use, ...]:
        """The same of one collective, for what moves through a member."""
        link, wiring = _given(self.cluster.network), self._in_network
        load = Load(algorithm, op, group, self._shapes, rotates(self.cluster, algorithm))
        loads = of_modelled(load, nodes) if link.is_uniform else load.by_channel
        bus = bus_factor(op, group.size)
        return tuple(Use(self._channel("network ", link, wiring, channel), load / bus) for channel, load in loads.items())

    @functools.cached_property
    def _shapes(self) -> Shapes:
        return shapes(self.cluster.node, _given(self.cluster.network))


def _added_up(uses: tuple[Use, ...]) -> tuple[Use, ...]:
    """One use of each resource: both ends of a message may be on the cores that all nodes share."""
    total: dict[int, float] = {}
    for resource, per_unit in uses:
        total[resource] = total.get(resource, 0.0) + per_unit
    return tuple(itertools.starmap(Use, total.items()))


def _incast(link: Link, channel: Channel) -> float:
    return link.incast if channel[0] in ("in", "both") else 0.0


def _given(link: Link | None) -> Link:
    """Scenario validation has made sure that a needed link is there."""
    assert link is not None
    return link


def _told_bytes(link: Link | None, size_bytes: float) -> float:
    """What of a message's size tells its path: nothing where no host takes as long for each, however large."""
    return size_bytes if _given(link).overhead_s else 0.0


def _weight(link: Link | MeasuredCollective) -> float:
    """Bytes per second that make one core's worth, where cores move them: equals share cores fairly with compute."""
    return link.bandwidth_Bps / link.cores_busy if link.cores_busy else 1.0
