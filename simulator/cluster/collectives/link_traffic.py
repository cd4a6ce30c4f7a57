"""What a collective's messages come to on a cluster's links: steps that follow one another, and how long wires are busy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS, NETWORK_SWITCH, Group, Op, Round
from scaleproof.simulator.cluster.network.links import Link, Node
from scaleproof.simulator.cluster.network.wiring import Channel, Wiring
from scaleproof.simulator.common.errors import InputError

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]
# Operations that one member, the first, gives or gets the data of.
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True)
class Traffic:
    """inside_steps, between_steps: messages that follow one another inside a node and between nodes.

    inside_s, between_s: seconds that the busiest wire inside a node, and of the network, is busy at its nominal rate, for each
    byte of the collective's size. inside_messages, between_messages: most messages that a device, and a node's host, handles.
    further_s: latency of all links beyond the shortest ways. remote: messages that a member sends to other nodes, where all
    are sent at once.
    """

    inside_steps: int
    between_steps: int
    inside_s: float
    between_s: float
    inside_messages: int
    between_messages: int
    further_s: float
    remote: int = 0


def traffic(algorithm: str, op: Op, group: Group, node: Node, network: Link | None, rotate: bool) -> Traffic:
    """Of a whole collective. rotate: channels take turns at who is where in a node's order, as NCCL's do.

    Raises InputError where the algorithm does not suit the group or the links.
    """
    # where all links are alike, seconds are inverse to their bandwidth, so that what is known of one serves for others
    inside, between = (link if link and link.is_uniform else None for link in (node.link, network))
    node = node.model_copy(update={"link": unit(inside)}) if inside else node
    found = _traffic(algorithm, op, group, node, unit(between) if between else network, rotate)
    inside_s = found.inside_s / inside.bandwidth_Bps if inside else found.inside_s
    between_s = found.between_s / between.bandwidth_Bps if between else found.between_s
    return replace(found, inside_s=inside_s, between_s=between_s)


def unit(link: Link) -> Link:
    """A link that is like another but for how fast it is."""
    return link.model_copy(update={"bandwidth_Bps": 1.0, "latency_s": 0.0})


@functools.lru_cache(maxsize=256)
def _traffic(algorithm: str, op: Op, group: Group, node: Node, network: Link | None, rotate: bool) -> Traffic:
    known = ALGORITHMS[algorithm]
    wires = _UsedLinks(op, group, node, network, rotate and not known.at_once)
    return wires.traffic(known.rounds(op, group), known.at_once)


@functools.lru_cache(maxsize=256)
def traffic_by_round(algorithm: str, op: Op, group: Group, node: Node, network: Link | None) -> tuple[Traffic, ...]:
    """Of each round, all its repeats together. Raises what `traffic` raises."""
    wires = _UsedLinks(op, group, node, network, rotate=False)
    return tuple(wires.traffic([step]) for step in ALGORITHMS[algorithm].rounds(op, group))


@functools.lru_cache(maxsize=512)
def network_loads(algorithm: str, op: Op, group: Group, node: Node, network: Link, rotate: bool) -> Mapping[Channel, float]:
    """What a collective sends over each channel of the network, as a share of its size. Raises what `traffic` raises."""
    wires = _UsedLinks(op, group, node, network, rotate)
    rounds = ALGORITHMS[algorithm].rounds(op, group)
    source, target, share = wires.between(rounds, [_crosses(step, group) for step in rounds])
    source, target = (np.where(end < 0, -1, end // wires.cards) for end in (source, target))
    return _loads(wires.wiring, source, target, share)


def channels_of(op: Op, group: Group, link: Link | None, rotate: bool) -> list[Numbers]:
    """Orders of the members, node by node, each for an equal part of the data; arrays of shape (size,).

    As the rings of the node's topology pass through its devices, from the first; where channels rotate, with each of them
    first in turn, but for the root where an operation has one. A sendrecv goes to the next rank, whatever lies between.
    """
    if op == "sendrecv":
        return [np.arange(group.size)]
    slot = np.arange(group.size) - group.first[group.node_of]
    base, count = group.first[group.node_of], group.members[group.node_of]
    whole = link is not None and group.is_even and group.per_node == group.devices
    rings = link.topology.rings(group.devices) if link and whole else [list(range(group.per_node))]
    rings = [[*ring[ring.index(0) :], *ring[: ring.index(0)]] for ring in rings]
    root = (group.node_of == 0) & (op in _ROOTED)
    channels = []
    for ring in rings:
        for turn in range(group.per_node) if rotate else range(1):
            turned = (slot + turn) % count
            among_others = np.where(slot == 0, 0, 1 + (slot - 1 + turn) % np.maximum(count - 1, 1))
            channels.append(base + np.array(ring)[np.where(root, among_others, turned)])
    return channels


def node_orders(op: Op, group: Group, network: Link | None) -> list[Numbers]:
    """Which member stands for each where nodes take turns as the rings of the network's topology pass through them, each for an
    equal part of the data; arrays of shape (size,). As they are numbered, where the group is not on all of the first nodes."""
    everyone = np.arange(group.size)
    if op == "sendrecv" or network is None or not group.is_even or group.node_numbers[-1] + 1 != group.nodes:
        return [everyone]
    rings = [[*ring[ring.index(0) :], *ring[: ring.index(0)]] for ring in network.topology.rings(group.nodes)]
    return [np.array(ring)[group.node_of] * group.per_node + everyone % group.per_node for ring in rings]


def _crosses(step: Round, group: Group) -> NDArray[np.bool_]:
    """Which messages of a round go between nodes."""
    both = (step.source >= 0) & (step.target >= 0)
    node_of = group.node_of
    crosses = both & (node_of[step.source] != node_of[step.target])
    result: NDArray[np.bool_] = crosses | (step.source == NETWORK_SWITCH) | (step.target == NETWORK_SWITCH)
    return result


class _EndpointShares(NamedTuple):
    """By endpoint, below zero a switch; share: of the collective's size."""

    source: Numbers
    target: Numbers
    share: Amounts


class _UsedLinks:
    """The wires that a group uses, and the traffic of rounds on them."""

    def __init__(self, op: Op, group: Group, node: Node, network: Link | None, rotate: bool) -> None:
        self.group = group
        self.node = node
        self.network = network
        self.rotate = rotate
        self.channels = channels_of(op, group, node.link, rotate)
        self.orders = node_orders(op, group, network)
        self._node_names = group.node_numbers[group.node_of]
        self._place = group.node_of * group.devices + group.device_of

    def traffic(self, rounds: Sequence[Round], at_once: bool = False) -> Traffic:
        """Of rounds that follow one another, or all go at once."""
        if not rounds:
            return Traffic(0, 0, 0.0, 0.0, 0, 0, 0.0)
        crosses = [_crosses(step, self.group) for step in rounds]
        stays = [~c for c in crosses]
        inside, between = self._steps(rounds, crosses, at_once)
        further_s = [step.times * self._further_s(step, c) for step, c in zip(rounds, crosses, strict=True)]
        remote = [step.source[c & (step.source >= 0)] for step, c in zip(rounds, crosses, strict=True)]
        return Traffic(
            inside_steps=inside,
            between_steps=between,
            inside_s=self._inside_s(rounds, crosses, at_once),
            between_s=self._between_s(rounds, crosses, at_once),
            inside_messages=_handled(rounds, stays, np.arange(self.group.size), at_once),
            between_messages=_handled(rounds, crosses, self.group.node_of, at_once),
            further_s=max(further_s) if at_once else sum(further_s),
            remote=int(np.bincount(np.concatenate(remote)).max(initial=0)) if at_once else 0,
        )

    def _steps(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]], at_once: bool) -> tuple[int, int]:
        if at_once:
            return int(any((~c).any() for c in crosses)), int(any(c.any() for c in crosses))
        # a piece of the data crosses as often as the share of messages that do, in full; once in a single round
        between = [
            max(int(c.any()), step.times * int(c.sum()) // max(1, len(c))) for step, c in zip(rounds, crosses, strict=True)
        ]
        return sum(step.times for step in rounds) - sum(between), sum(between)

    def _further_s(self, step: Round, crosses: NDArray[np.bool_]) -> float:
        """Latency of the links beyond the shortest way that the farthest message of a round passes."""
        both = (step.source >= 0) & (step.target >= 0)
        devices, nodes = self.node.devices, int(self.group.node_numbers[-1]) + 1
        inside = [self.group.device_of[members] for members in self.channels]
        return max(
            _farthest_s(self.node.link, devices, 1, step, both & ~crosses, inside),
            _farthest_s(self.network, nodes, self.node.cards_used, step, both & crosses, self._nodes_in_order()),
        )

    def _inside_s(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]], at_once: bool) -> float:
        found = [messages for messages in self._inside(rounds, crosses) if len(messages.share)]
        if not found or self.node.link is None:
            return 0.0
        messages = _EndpointShares(*(np.concatenate(column) for column in zip(*found, strict=True)))
        slowed = None
        if self.node.link.incast:
            ends = ("source", "target") if self.node.link.duplex == "half" else ("target",)
            stays = [~c for c in crosses]
            counts = list(_counts(rounds, stays, self._place, ends, self.group.nodes * self.group.devices))
            senders = np.sum(counts, axis=0) if at_once else np.max(counts, axis=0)
            slowed = 1 + self.node.link.incast * np.maximum(0, senders - 1)
        return _busiest_s(self.node.link.wiring(self.node.devices), messages, slowed)

    def _inside(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]]) -> Iterator[_EndpointShares]:
        """Messages inside nodes, channel by channel; devices are numbered on from node to node."""
        apart = self.network is not None and self.network.topology.tells_cards_apart and not self.rotate
        for step, c in zip(rounds, crosses, strict=True):
            for members in self.channels if not c.all() else ():
                at = self._place[members]
                source, target = (np.where(end < 0, -1, at[end]) for end in (step.source[~c], step.target[~c]))
                yield _EndpointShares(source, target, step.share[~c] * step.times / len(self.channels))
            if apart and c.any():
                yield self._to_rails(step, c & (step.source >= 0) & (step.target >= 0))

    def _to_rails(self, step: Round, crosses: NDArray[np.bool_]) -> _EndpointShares:
        """The way inside a node to a device on the rail of the rank that a message goes to."""
        devices, cards = self.node.devices, self.node.cards_used
        source, card = step.source[crosses], self._card_of[step.target[crosses]]
        changes = self._card_of[source] != card
        there = self.group.node_of[source] * devices + -(-card * devices // cards)
        return _EndpointShares(self._place[source][changes], there[changes], step.share[crosses][changes] * step.times)

    def _between_s(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]], at_once: bool) -> float:
        if self.network is None or not any(c.any() for c in crosses):
            return 0.0
        slowed = self._slowed_between(rounds, crosses, at_once) if self.network.incast else None
        return _busiest_s(self.wiring, self.between(rounds, crosses), slowed, self.cards)

    def _slowed_between(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]], at_once: bool) -> Amounts:
        """How many times as long each card takes for what it gets, since several send to its endpoint at the same time."""
        assert self.network is not None
        counts = np.zeros(len(self.wiring))
        parts = len(self.orders) * (len(np.unique(self._card_of)) if self.rotate and self.cards > 1 else 1)
        for step, c in zip(rounds, crosses, strict=True):
            if c.any():
                source, target, _ = self.between([step], [c])
                ends = np.concatenate([source, target]) if self.wiring.half_duplex else target
                count = np.bincount(ends[ends >= 0] // self.cards, minlength=len(counts)) / parts
                counts = counts + count if at_once else np.maximum(counts, count)
        return np.repeat(1 + self.network.incast * np.maximum(0, counts - 1), self.cards)

    @property
    def _card_of(self) -> Numbers:
        """The card that each member's device is nearest to."""
        return self.group.device_of * self.node.cards_used // self.node.devices

    @property
    def cards(self) -> int:
        """Cards of an endpoint of the network."""
        return 1 if self.network and self.network.topology.tells_cards_apart else self.node.cards_used

    @property
    def wiring(self) -> Wiring:
        assert self.network is not None
        return self.network.wiring(int(self.group.node_numbers[-1]) + 1, self.node.cards_used)

    def _nodes_in_order(self) -> list[Numbers]:
        """The node of each member, by order of the nodes."""
        return [self._node_names[order] for order in self.orders]

    def between(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]]) -> _EndpointShares:
        """Messages between nodes, by card (node · cards + card): a message goes over the cards nearest to its two ranks, or
        where these are told apart over the receiver's rail; where channels rotate it is spread over all that the group uses."""
        cards, card_of = self.node.cards_used, self._card_of
        used = np.unique(card_of).tolist()
        found = []
        choices: Sequence[int | None] = used if self.rotate else (None,)
        for step, c in zip(rounds, crosses, strict=True):
            ends = step.source[c], step.target[c]
            rail = np.where(ends[1] < 0, ends[0], ends[1])
            share = step.share[c] * step.times / len(choices) / len(self.orders)
            for nodes, card in itertools.product(self._nodes_in_order(), choices):
                at = [(card_of[rail] if self.cards == 1 else card_of[end]) if card is None else card for end in ends]
                places = (np.where(e < 0, -1, nodes[e] * cards + a) for e, a in zip(ends, at, strict=True))
                found.append((*places, share))
        return _EndpointShares(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _counts(
    rounds: Sequence[Round], chosen: Sequence[NDArray[np.bool_]], place: Numbers, ends: Sequence[str], places: int
) -> Iterator[Numbers]:
    """For each round, how many of the chosen messages begin or end at each place."""
    for step, mask in zip(rounds, chosen, strict=True):
        members = [getattr(step, end)[mask] for end in ends]
        yield sum((np.bincount(place[end[end >= 0]], minlength=places) for end in members), np.zeros(places, dtype=np.int64))


def _handled(rounds: Sequence[Round], chosen: Sequence[NDArray[np.bool_]], place: Numbers, at_once: bool) -> int:
    """Most of the chosen messages that one place sends and gets, round after round; at once, all together."""
    counts = list(_counts(rounds, chosen, place, ("source", "target"), int(place.max()) + 1))
    if at_once:
        return int(sum(counts, np.zeros(1, dtype=np.int64)).max())
    return sum(step.times * int(count.max()) for step, count in zip(rounds, counts, strict=True))


def _farthest_s(
    link: Link | None, endpoints: int, cards: int, step: Round, chosen: NDArray[np.bool_], places: Sequence[Numbers]
) -> float:
    """Latency beyond the shortest way of the farthest of the chosen messages; places: the members', by channel."""
    if link is None or link.topology.hop_latency_s == 0 or not chosen.any():
        return 0.0
    apart = cards if link.topology.tells_cards_apart else 1
    wiring = link.wiring(endpoints, apart)
    ends = np.stack([step.source[chosen], step.target[chosen]])
    pairs = np.unique(np.concatenate([place[ends] for place in places], axis=1) * apart, axis=1)
    return max(wiring.route(*pair).further_hops for pair in pairs.T.tolist()) * link.topology.hop_latency_s


def _loads(wiring: Wiring, source: Numbers, target: Numbers, share: Amounts) -> dict[Channel, float]:
    """Bytes over each channel. Below zero is the switch."""
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


def _busiest_s(wiring: Wiring, messages: _EndpointShares, slowed: Amounts | None, cards: int = 1) -> float:
    """Seconds of the busiest wire. Endpoints of several alike wirings are numbered on; below zero is the switch.

    slowed: how many times as long each endpoint takes for what it gets. cards: equal parts of an endpoint's own link, which
    source and target are numbered by.
    """
    source, target, share = messages
    endpoints = len(wiring)
    busiest_s = 0.0
    if wiring.access_Bps is not None:
        most = 1 + int(max(source.max(), target.max()))
        out, into = (np.bincount(end[end >= 0], share[end >= 0], most) for end in (source, target))
        longer = 1.0 if slowed is None else slowed[:most]
        load = (out + into) * longer if wiring.half_duplex else np.maximum(out, into * longer)
        capacity_Bps = wiring.access_Bps[np.arange(most) // cards % endpoints] / cards
        busiest_s = max((load / capacity_Bps).tolist())
    elif (source < 0).any() or (target < 0).any():
        raise InputError("the algorithm needs a switch that all ranks are attached to; use another")
    if wiring.links is None:
        return busiest_s
    members = (source >= 0) & (target >= 0)
    pairs, inverse = np.unique(np.stack([source[members], target[members]]) // cards, axis=1, return_inverse=True)
    size = np.bincount(inverse.ravel(), weights=share[members], minlength=pairs.shape[1])
    alike: dict[int, list[tuple[int, int, float]]] = {}
    for a, b, each in zip(*pairs.tolist(), size.tolist(), strict=True):
        alike.setdefault(a // endpoints, []).append((a % endpoints, b % endpoints, each))
    loads = (load / wiring.capacity_Bps(at) for messages in alike.values() for at, load in wiring.link_loads(messages).items())
    return max([busiest_s, *loads])
