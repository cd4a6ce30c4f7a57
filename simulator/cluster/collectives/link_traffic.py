"""Traffic of a collective's messages on a cluster's links: consecutive steps, and how long links are busy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS
from scaleproof.simulator.cluster.collectives.groups import NETWORK_SWITCH, Group, Op, Round
from scaleproof.simulator.cluster.network.links import Link, Node
from scaleproof.simulator.cluster.network.wiring import Channel, Wiring
from scaleproof.simulator.common.errors import InputError

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]
# A round, and whether each of its messages goes between nodes.
_RoundOnLinks = tuple[Round, NDArray[np.bool_]]
# Operations with a root, which is the first member.
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


class FurtherSteps(NamedTuple):
    """Consecutive messages whose route is longer than the shortest between any two endpoints.

    extra_s: additional latency of each, by the topology's hop latency. steps: their number.
    """

    extra_s: float
    steps: float


@dataclass(frozen=True)
class Traffic:
    """Traffic of a collective on the links that its group uses.

    inside_steps, between_steps: consecutive messages inside a node and between nodes. inside_s, between_s: busy seconds of the
    busiest link inside a node and of the network, at the nominal rate, per byte of the collective's size. inside_messages,
    between_messages: largest number of messages that a device, and a node's host, handles. inside_further, between_further:
    those of the steps that take longer routes. remote_messages: largest number of messages of one member to other nodes, if all
    messages are concurrent.
    """

    inside_steps: int
    between_steps: int
    inside_s: float
    between_s: float
    inside_messages: int
    between_messages: int
    inside_further: tuple[FurtherSteps, ...] = ()
    between_further: tuple[FurtherSteps, ...] = ()
    remote_messages: int = 0


@dataclass(frozen=True)
class GroupLinks:
    """The links that a group uses, at their nominal bandwidth, and the traffic of collectives on them."""

    group: Group
    node: Node
    network: Link | None

    @property
    def cards(self) -> int:
        """Number of network cards in use per node."""
        return self.node.cards_used

    @property
    def heads(self) -> int:
        """Number of ranks of a node that have a network card of their own."""
        return min(self.cards, self.group.per_node)

    @property
    def reduces(self) -> bool:
        """Whether the network's switches reduce for the group."""
        group, network = self.group, self.network
        return network is not None and network.in_network_reduction and group.nodes > 1 and group.is_even

    def traffic(self, algorithm: str, op: Op, rotate: bool) -> Traffic:
        """Traffic of a whole collective. rotate: whether channels rotate the order of a node's members, as NCCL's do.

        Raises InputError if the algorithm does not suit the group or the links.
        """
        # the time on uniform links is inverse to their bandwidth, so the cached traffic is that of links of unit bandwidth
        inside, between = (link if link and link.is_uniform else None for link in (self.node.link, self.network))
        node, network = self.node.unit if inside else self.node, between.unit if between else self.network
        scaled = _traffic(algorithm, op, GroupLinks(self.group, node, network), rotate)
        inside_s = scaled.inside_s / inside.bandwidth_Bps if inside else scaled.inside_s
        between_s = scaled.between_s / between.bandwidth_Bps if between else scaled.between_s
        return replace(scaled, inside_s=inside_s, between_s=between_s)

    def traffic_by_round(self, algorithm: str, op: Op) -> tuple[Traffic, ...]:
        """Traffic of each round of a collective including its repetitions; errors as in `traffic`."""
        return _traffic_by_round(algorithm, op, self)

    def loads(self, algorithm: str, op: Op, rotate: bool) -> Mapping[Channel, float]:
        """Load of each channel of the network by a collective, as a share of its size; errors as in `traffic`."""
        return _loads_of(algorithm, op, self, rotate)

    def latency_s(self, traffic: Traffic, inside_known_s: float = 0.0, between_known_s: float = 0.0) -> float:
        """Seconds of latency of the traffic's consecutive messages on the links alone.

        inside_known_s, between_known_s: latency of a message that is counted elsewhere; only what a message has in addition
        counts.
        """
        inside_s = _latency_s(self.node.link, traffic.inside_steps, traffic.inside_further, inside_known_s)
        return inside_s + _latency_s(self.network, traffic.between_steps, traffic.between_further, between_known_s)

    def rounds_latency_s(self, rounds: Sequence[Traffic]) -> float:
        """Seconds of latency of consecutive rounds, each of whose steps waits for its slowest message."""
        seconds = 0.0
        for part in rounds:
            inside_s = _farthest_s(self.node.link, part.inside_further) if part.inside_messages else 0.0
            between_s = _farthest_s(self.network, part.between_further) if part.between_messages else 0.0
            seconds += (part.inside_steps + part.between_steps) * max(inside_s, between_s)
        return seconds

    def hosts_s(self, traffic: Traffic) -> float:
        """Busy seconds of the host, or of the device inside a node, that handles the most of the traffic's messages."""
        inside_s, between_s = (link.overhead_s if link else 0.0 for link in (self.node.link, self.network))
        return max(traffic.inside_messages * inside_s, traffic.between_messages * between_s)


@functools.lru_cache(maxsize=4096)
def _traffic(algorithm: str, op: Op, links: GroupLinks, rotate: bool) -> Traffic:
    described = ALGORITHMS[algorithm]
    used = _RoundTraffic(op, links, rotate and not described.at_once)
    return used.traffic(described.rounds(op, links.group), described.at_once)


@functools.lru_cache(maxsize=4096)
def _traffic_by_round(algorithm: str, op: Op, links: GroupLinks) -> tuple[Traffic, ...]:
    used = _RoundTraffic(op, links, rotate=False)
    return tuple(used.traffic([step]) for step in ALGORITHMS[algorithm].rounds(op, links.group))


@functools.lru_cache(maxsize=4096)
def _loads_of(algorithm: str, op: Op, links: GroupLinks, rotate: bool) -> Mapping[Channel, float]:
    used, group = _RoundTraffic(op, links, rotate), links.group
    source, target, share = used.between([(step, _crosses(step, group)) for step in ALGORITHMS[algorithm].rounds(op, group)])
    source, target = (np.where(end < 0, -1, end // used.cards) for end in (source, target))
    return _loads(used.wiring, source, target, share)


def channels_of(op: Op, group: Group, node: Node, rotate: bool) -> list[Numbers]:
    """Orders of the members, node by node, one for each channel, which all carry equal parts of the data; shape (size,).

    The order within a node is that of its topology's rings, from the first device on. If channels rotate, each member of a node
    is first in one of them, except in the root's node, where the root stays first. A sendrecv goes to the next rank, and what
    goes along axes to the neighbour.
    """
    if op == "sendrecv" or group.axes:
        return [np.arange(group.size)]
    slot = np.arange(group.size) - group.first[group.node_of]
    base, count = group.first[group.node_of], group.members[group.node_of]
    link = node.link
    has_rings = link is not None and (group.per_node == node.installed or link.topology.joins_all_pairs) and group.is_even
    rings = _from_first(link.topology.rings(group.per_node)) if link and has_rings else [list(range(group.per_node))]
    root = (group.node_of == 0) & (op in _ROOTED)
    channels = []
    for ring in rings:
        for shift in range(group.per_node) if rotate else range(1):
            rotated = (slot + shift) % count
            rotated_after_root = np.where(slot == 0, 0, 1 + (slot - 1 + shift) % np.maximum(count - 1, 1))
            channels.append(base + np.array(ring)[np.where(root, rotated_after_root, rotated)])
    return channels


def node_orders(op: Op, group: Group, network: Link | None) -> list[Numbers]:
    """Orders of the members by the rings of the network's topology, which all carry equal parts of the data; shape (size,).

    The order of the numbers if the group does not use all of the first nodes evenly.
    """
    everyone = np.arange(group.size)
    if op == "sendrecv" or network is None or not group.is_even or group.node_numbers[-1] + 1 != group.nodes:
        return [everyone]
    rings = _from_first(network.topology.rings(group.nodes))
    return [np.array(ring)[group.node_of] * group.per_node + everyone % group.per_node for ring in rings]


def _from_first(rings: Sequence[Sequence[int]]) -> list[list[int]]:
    """The rings, each from its endpoint 0 on."""
    return [[*ring[ring.index(0) :], *ring[: ring.index(0)]] for ring in rings]


def _crosses(step: Round, group: Group) -> NDArray[np.bool_]:
    """Whether each message of a round goes between nodes; shape (messages,)."""
    both = (step.source >= 0) & (step.target >= 0)
    node_of = group.node_of
    crosses = both & (node_of[step.source] != node_of[step.target])
    result: NDArray[np.bool_] = crosses | (step.source == NETWORK_SWITCH) | (step.target == NETWORK_SWITCH)
    return result


class _EndpointShares(NamedTuple):
    """Messages by endpoint, negative for a switch; share: of the collective's size. Arrays of shape (messages,)."""

    source: Numbers
    target: Numbers
    share: Amounts


class _RoundTraffic:
    """The traffic of rounds on the links of a group, and the orders of its members by channels and rings."""

    def __init__(self, op: Op, links: GroupLinks, rotate: bool) -> None:
        group, node, network = links.group, links.node, links.network
        self.group, self.node, self.network, self.rotate = group, node, network, rotate
        self.channels = channels_of(op, group, node, rotate)
        self.orders = node_orders(op, group, network)
        self._node_numbers = group.node_numbers[group.node_of]
        self._endpoint = group.node_of * node.installed + group.device_of

    def traffic(self, rounds: Sequence[Round], at_once: bool = False) -> Traffic:
        """Traffic of consecutive rounds, or of a single one whose messages are all concurrent."""
        if not rounds:
            return Traffic(0, 0, 0.0, 0.0, 0, 0)
        crossing = [(step, _crosses(step, self.group)) for step in rounds]
        each = [(step, c, *_steps(step, c, at_once)) for step, c in crossing]
        first, crosses = crossing[0]
        return Traffic(
            inside_steps=sum(inside for _, _, inside, _ in each),
            between_steps=sum(between for _, _, _, between in each),
            inside_s=self._inside_s(crossing),
            between_s=self._between_s(crossing),
            inside_messages=sum(_most_messages(step, ~c, np.arange(self.group.size)) for step, c in crossing),
            between_messages=sum(_most_messages(step, c, self.group.node_of) for step, c in crossing),
            inside_further=tuple(f for step, c, inside, _ in each for f in self._inside_further(step, ~c, inside)),
            between_further=tuple(f for step, c, _, between in each for f in self._between_further(step, c, between)),
            remote_messages=int(np.bincount(first.source[crosses & (first.source >= 0)]).max(initial=0)) if at_once else 0,
        )

    def _inside_further(self, step: Round, chosen: NDArray[np.bool_], steps: int) -> Iterator[FurtherSteps]:
        """Those of a round's steps inside a node with longer routes. chosen: messages inside nodes, shape (messages,)."""
        between_members = chosen & (step.source >= 0) & (step.target >= 0)
        ends = np.stack([step.source[between_members], step.target[between_members]])
        positions = [self.group.device_of[members] for members in self.channels]
        return _further(self.node.link, self.node.installed, 1, ends, positions, steps, step.times)

    def _between_further(self, step: Round, chosen: NDArray[np.bool_], steps: int) -> Iterator[FurtherSteps]:
        """The same between nodes. A message to a switch that reduces, or back, is half of one to the farthest node."""
        ends = np.stack([np.maximum(end[chosen], 0) for end in (step.source, step.target)])
        is_half = bool((np.minimum(step.source, step.target)[chosen] < 0).any())
        nodes = int(self.group.node_numbers[-1]) + 1
        found = _further(self.network, nodes, self.node.cards_used, ends, self._nodes_in_order(), steps, step.times)
        return (FurtherSteps(extra_s / 2, count) for extra_s, count in found) if is_half else found

    def _inside_s(self, rounds: Sequence[_RoundOnLinks]) -> float:
        link = self.node.link
        messages = [some for some in self._inside(rounds) if len(some.share)]
        if link is None or not messages:
            return 0.0
        slowdown = None
        if link.incast:
            ends = ("source", "target") if link.duplex == "half" else ("target",)
            endpoints = self.group.nodes * self.node.installed
            counts = [_counts(step, ~c, self._endpoint, ends, endpoints) for step, c in rounds]
            slowdown = 1 + link.incast * np.maximum(0, np.max(counts, axis=0) - 1)
        return _busiest_s(link.wiring(self.node.installed), _joined(messages), slowdown)

    def _inside(self, rounds: Sequence[_RoundOnLinks]) -> Iterator[_EndpointShares]:
        """Messages inside nodes, channel by channel; devices of all nodes are numbered consecutively."""
        has_rails = self.network is not None and self.network.topology.endpoints_are_cards and not self.rotate
        for step, c in rounds:
            for members in self.channels if not c.all() else ():
                endpoint = self._endpoint[members]
                source, target = (np.where(end < 0, -1, endpoint[end]) for end in (step.source[~c], step.target[~c]))
                yield _EndpointShares(source, target, step.share[~c] * step.times / len(self.channels))
            if has_rails and c.any():
                yield self._to_rails(step, c & (step.source >= 0) & (step.target >= 0))

    def _to_rails(self, step: Round, crosses: NDArray[np.bool_]) -> _EndpointShares:
        """Messages inside the sender's node to a device on the receiver's rail."""
        devices, cards = self.node.installed, self.node.cards_used
        source, card = step.source[crosses], self._card_of[step.target[crosses]]
        changes = self._card_of[source] != card
        relay = self.group.node_of[source] * devices + -(-card * devices // cards)
        return _EndpointShares(self._endpoint[source][changes], relay[changes], step.share[crosses][changes] * step.times)

    def _between_s(self, rounds: Sequence[_RoundOnLinks]) -> float:
        if self.network is None or not any(c.any() for _, c in rounds):
            return 0.0
        slowdown = self._incast_slowdown(rounds) if self.network.incast else None
        return _busiest_s(self.wiring, self.between(rounds), slowdown, self.cards)

    def _incast_slowdown(self, rounds: Sequence[_RoundOnLinks]) -> Amounts:
        """Slowdown factor of what each card receives because several endpoints send to its endpoint; shape (cards,)."""
        assert self.network is not None
        counts = np.zeros(len(self.wiring))
        parts = len(self.orders) * (len(np.unique(self._card_of)) if self.rotate and self.cards > 1 else 1)
        for step, c in rounds:
            if c.any():
                source, target, _ = self.between([(step, c)])
                ends = np.concatenate([source, target]) if self.wiring.half_duplex else target
                counts = np.maximum(counts, np.bincount(ends[ends >= 0] // self.cards, minlength=len(counts)) / parts)
        return np.repeat(1 + self.network.incast * np.maximum(0, counts - 1), self.cards)

    @property
    def _card_of(self) -> Numbers:
        """The card nearest to each member's device; shape (size,)."""
        return self.node.card_of(self.group.device_of)

    @property
    def cards(self) -> int:
        """Number of cards of an endpoint of the network."""
        return 1 if self.network and self.network.topology.endpoints_are_cards else self.node.cards_used

    @property
    def wiring(self) -> Wiring:
        """Wiring of the network up to the group's last node."""
        assert self.network is not None
        return self.network.wiring(int(self.group.node_numbers[-1]) + 1, self.node.cards_used)

    def _nodes_in_order(self) -> list[Numbers]:
        """The node of each member in each order of the nodes; arrays of shape (size,)."""
        return [self._node_numbers[order] for order in self.orders]

    def between(self, rounds: Sequence[_RoundOnLinks]) -> _EndpointShares:
        """Messages between nodes by card (node · cards + card).

        A message uses the cards nearest to its two ranks, or the receiver's rail if the network has rails. If channels rotate,
        it is spread over all cards that the group uses.
        """
        cards, card_of = self.node.cards_used, self._card_of
        used = np.unique(card_of).tolist()
        messages = []
        choices: Sequence[int | None] = used if self.rotate else (None,)
        for step, c in rounds:
            ends = step.source[c], step.target[c]
            rail = np.where(ends[1] < 0, ends[0], ends[1])
            share = step.share[c] * step.times / len(choices) / len(self.orders)
            for nodes, card in itertools.product(self._nodes_in_order(), choices):
                of_ends = [(card_of[rail] if self.cards == 1 else card_of[end]) if card is None else card for end in ends]
                source, target = (np.where(e < 0, -1, nodes[e] * cards + at) for e, at in zip(ends, of_ends, strict=True))
                messages.append(_EndpointShares(source, target, share))
        return _joined(messages)


def _joined(messages: Sequence[_EndpointShares]) -> _EndpointShares:
    source, target, share = (np.concatenate(column) for column in zip(*messages, strict=True))
    return _EndpointShares(source, target, share)


def _steps(step: Round, crosses: NDArray[np.bool_], at_once: bool) -> tuple[int, int]:
    """Consecutive messages of a round inside a node and between nodes."""
    if at_once:
        return int((~crosses).any()), int(crosses.any())
    # a chunk of the data crosses in proportion to the share of messages that cross, rounded down, but at least once
    between = max(int(crosses.any()), step.times * int(crosses.sum()) // max(1, len(crosses)))
    return step.times - between, between


def _counts(step: Round, chosen: NDArray[np.bool_], endpoint: Numbers, ends: Sequence[str], endpoints: int) -> Numbers:
    """Number of chosen messages of a round at each endpoint; shape (endpoints,). endpoint: of each member. ends: whether
    sources, targets or both count."""
    members = [getattr(step, end)[chosen] for end in ends]
    none = np.zeros(endpoints, dtype=np.int64)
    return sum((np.bincount(endpoint[end[end >= 0]], minlength=endpoints) for end in members), none)


def _most_messages(step: Round, chosen: NDArray[np.bool_], endpoint: Numbers) -> int:
    """Largest number of chosen messages that an endpoint sends and receives in a round with its repetitions."""
    return step.times * int(_counts(step, chosen, endpoint, ("source", "target"), int(endpoint.max()) + 1).max())


def _further(
    link: Link | None, endpoints: int, cards: int, ends: Numbers, positions: Sequence[Numbers], steps: int, times: int
) -> Iterator[FurtherSteps]:
    """Those of a round's steps over a link that take longer routes than the shortest.

    A single round waits for its farthest message. In a round that is repeated, data passes from member to member, so that its
    steps are distributed over the routes as the messages are. ends: members at the messages' ends, shape (2, messages).
    positions: the members' endpoints, by channel.
    """
    if link is None or link.topology.hop_latency_s == 0 or not ends.size:
        return
    per_node = cards if link.topology.endpoints_are_cards else 1
    wiring = link.wiring(endpoints, per_node)
    pairs, counts = np.unique(
        np.concatenate([position[ends] for position in positions], axis=1) * per_node, axis=1, return_counts=True
    )
    hops = np.array([wiring.route(*pair).extra_hops for pair in pairs.T.tolist()])
    if times == 1:
        counts = np.where(np.arange(len(hops)) == hops.argmax(), 1, 0)
    for further in np.unique(hops[(hops > 0) & (counts > 0)]).tolist():
        share = counts[hops == further].sum() / counts.sum()
        yield FurtherSteps(further * link.topology.hop_latency_s, steps * float(share))


def _loads(wiring: Wiring, source: Numbers, target: Numbers, share: Amounts) -> dict[Channel, float]:
    """Load of each channel. source, target: endpoints, negative for the switch; shape (messages,)."""
    result: dict[Channel, float] = {}
    if wiring.access_Bps is not None:
        for end, channel_of in ((source, wiring.out_of), (target, wiring.into)):
            load = np.bincount(end[end >= 0], share[end >= 0])
            for endpoint in np.flatnonzero(load).tolist():
                result[channel_of(endpoint)] = result.get(channel_of(endpoint), 0.0) + float(load[endpoint])
    if wiring.links is not None:
        members = (source >= 0) & (target >= 0)
        columns = (column[members].tolist() for column in (source, target, share))
        result |= wiring.link_loads(zip(*columns, strict=True))
    return result


def _busiest_s(wiring: Wiring, messages: _EndpointShares, slowdown: Amounts | None, cards: int = 1) -> float:
    """Busy seconds of the busiest link. Endpoints of several identical wirings are numbered consecutively.

    slowdown: factor for what each endpoint receives. cards: equal parts of an endpoint's own link; messages are numbered by
    card. Raises InputError if the messages need a switch that the wiring does not have.
    """
    source, target, share = messages
    endpoints = len(wiring)
    busiest_s = 0.0
    if wiring.access_Bps is not None:
        count = 1 + int(max(source.max(), target.max()))
        out, into = (np.bincount(end[end >= 0], share[end >= 0], count) for end in (source, target))
        factor = 1.0 if slowdown is None else slowdown[:count]
        load = (out + into) * factor if wiring.half_duplex else np.maximum(out, into * factor)
        capacity_Bps = wiring.access_Bps[np.arange(count) // cards % endpoints] / cards
        busiest_s = max((load / capacity_Bps).tolist())
    elif (source < 0).any() or (target < 0).any():
        raise InputError("the algorithm needs a switch that all ranks are attached to; use another")
    if wiring.links is None:
        return busiest_s
    members = (source >= 0) & (target >= 0)
    pairs, inverse = np.unique(np.stack([source[members], target[members]]) // cards, axis=1, return_inverse=True)
    size = np.bincount(inverse.ravel(), weights=share[members], minlength=pairs.shape[1])
    by_copy: dict[int, list[tuple[int, int, float]]] = {}
    for a, b, pair_size in zip(*pairs.tolist(), size.tolist(), strict=True):
        by_copy.setdefault(a // endpoints, []).append((a % endpoints, b % endpoints, pair_size))
    loads = (item for own_messages in by_copy.values() for item in wiring.link_loads(own_messages).items())
    return max([busiest_s, *(load / wiring.capacity_Bps(channel) for channel, load in loads)])


def _latency_s(link: Link | None, steps: int, further: Sequence[FurtherSteps], known_s: float) -> float:
    """Seconds of latency of consecutive messages on a link, each without the part that is counted elsewhere."""
    if link is None:
        return 0.0
    nearest = steps - sum(part.steps for part in further)
    return sum(
        (count * max(0.0, link.latency_s + extra_s - known_s) for extra_s, count in further),
        start=nearest * max(0.0, link.latency_s - known_s),
    )


def _farthest_s(link: Link | None, further: Sequence[FurtherSteps]) -> float:
    """Latency in seconds of the farthest message on a link."""
    return link.latency_s + max((part.extra_s for part in further), default=0.0) if link else 0.0
