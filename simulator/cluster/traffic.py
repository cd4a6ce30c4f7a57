"""What a collective's messages come to on a cluster's links: steps that follow one another, and how long wires are busy."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.cluster.algorithms import ALGORITHMS, NETWORK_SWITCH, Group, Op, Round
from simulator.cluster.network import Link, Node
from simulator.cluster.wiring import Channel, Wiring
from simulator.errors import InputError

Members = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """inside_steps, between_steps: messages that follow one another inside a node and between nodes.

    inside_s, between_s: seconds that the busiest wire inside a node, and of the network, is busy at its nominal rate, for each
    byte of the collective's size. further_s: latency of all links beyond the shortest ways. remote: messages that a member
    sends to other nodes, where all are sent at once.
    """

    inside_steps: int
    between_steps: int
    inside_s: float
    between_s: float
    further_s: float
    remote: int = 0


@functools.lru_cache(maxsize=256)
def traffic(algorithm: str, op: Op, group: Group, node: Node, network: Link | None, rotate: bool) -> Traffic:
    """Of a whole collective. rotate: channels take turns at who is where in a node's order, as NCCL's do.

    Raises InputError where the algorithm does not suit the group or the links.
    """
    known = ALGORITHMS[algorithm]
    rounds = known.rounds(op, group)
    one = _Wires(group, node, network, rotate and not known.at_once).traffic(rounds)
    if not known.at_once:
        return one
    crosses = [_crosses(step, group) for step in rounds]
    senders = np.concatenate([step.source[c] for step, c in zip(rounds, crosses, strict=True)])
    return replace(
        one,
        inside_steps=int(any((~c).any() for c in crosses)),
        between_steps=int(any(c.any() for c in crosses)),
        remote=int(np.bincount(senders).max(initial=0)),
    )


@functools.lru_cache(maxsize=256)
def traffic_by_round(algorithm: str, op: Op, group: Group, node: Node, network: Link | None) -> tuple[Traffic, ...]:
    """Of each round, all its repeats together. Raises what `traffic` raises."""
    wires = _Wires(group, node, network, rotate=False)
    return tuple(wires.traffic([step]) for step in ALGORITHMS[algorithm].rounds(op, group))


def channels_of(group: Group, link: Link | None, rotate: bool) -> list[Members]:
    """Orders of the members, node by node, each for an equal part of the data; arrays of shape (size,).

    As the rings of the node's topology pass through its devices; where channels rotate, with each of them first in turn.
    """
    slot = np.arange(group.size) - group.first[group.node_of]
    whole = link is not None and group.is_even and group.per_node == group.devices
    rings = link.topology.rings(group.devices) if link and whole else [list(range(group.per_node))]
    turns = range(group.per_node) if rotate else range(1)
    base, count = group.first[group.node_of], group.members[group.node_of]
    return [base + np.array(ring)[(slot + turn) % count] for ring in rings for turn in turns]


def _crosses(step: Round, group: Group) -> NDArray[np.bool_]:
    """Which messages of a round go between nodes."""
    both = (step.source >= 0) & (step.target >= 0)
    node_of = group.node_of
    crosses = both & (node_of[step.source] != node_of[step.target])
    result: NDArray[np.bool_] = crosses | (step.source == NETWORK_SWITCH) | (step.target == NETWORK_SWITCH)
    return result


class _Wires:
    """The wires that a group uses, and the traffic of rounds on them."""

    def __init__(self, group: Group, node: Node, network: Link | None, rotate: bool) -> None:
        self.group = group
        self.node = node
        self.network = network
        self.rotate = rotate
        self.channels = channels_of(group, node.link, rotate)

    def traffic(self, rounds: Sequence[Round]) -> Traffic:
        """Of rounds that follow one another."""
        crosses = [_crosses(step, self.group) for step in rounds]
        # a piece of the data crosses as often as the share of messages that do, in full; once in a single round
        between = [
            max(int(c.any()), step.times * int(c.sum()) // max(1, len(c))) for step, c in zip(rounds, crosses, strict=True)
        ]
        return Traffic(
            inside_steps=sum(step.times for step in rounds) - sum(between),
            between_steps=sum(between),
            inside_s=self._inside_s(rounds, crosses),
            between_s=self._between_s(rounds, crosses),
            further_s=sum(step.times * self._further_s(step, c) for step, c in zip(rounds, crosses, strict=True)),
        )

    def _further_s(self, step: Round, crosses: NDArray[np.bool_]) -> float:
        """Latency of the links beyond the shortest way that the farthest message of a round passes."""
        group, further_s = self.group, 0.0
        names, devices = group.node_numbers[group.node_of], self.node.devices
        for link, chosen, place, endpoints in (
            (self.node.link, ~crosses, group.device_of, devices),
            (self.network, crosses, names, int(names[-1]) + 1),
        ):
            chosen = chosen & (step.source >= 0) & (step.target >= 0)
            if link is None or link.topology.hop_latency_s == 0 or not chosen.any():
                continue
            cards = min(self.node.cards, devices) if link.topology.tells_cards_apart else 1
            wiring = link.wiring(endpoints, cards)
            pairs = np.unique(np.stack([place[step.source[chosen]], place[step.target[chosen]]]) * cards, axis=1)
            hops = max(wiring.route(*pair).further_hops for pair in pairs.T.tolist())
            further_s = max(further_s, hops * link.topology.hop_latency_s)
        return further_s

    def _inside_s(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]]) -> float:
        found = list(self._inside(rounds, crosses))
        if not found or self.node.link is None:
            return 0.0
        source, target, share = (np.concatenate(column) for column in zip(*found, strict=True))
        return _busiest_s(self.node.link.wiring(self.node.devices), source, target, share)

    def _inside(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]]) -> Iterator[_Messages]:
        """Messages inside nodes, channel by channel; devices are numbered on from node to node."""
        place = self.group.node_of * self.group.devices + self.group.device_of
        for step, crossing in zip(rounds, crosses, strict=True):
            stays = ~crossing
            for members in self.channels if stays.any() else ():
                at = place[members]
                source, target = (np.where(end < 0, -1, at[end]) for end in (step.source[stays], step.target[stays]))
                yield source, target, step.share[stays] * step.times / len(self.channels)

    def _between_s(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]]) -> float:
        if self.network is None or not any(c.any() for c in crosses):
            return 0.0
        return _busiest_s(self.wiring, *self.between(rounds, crosses), self.cards)

    @property
    def _node_cards(self) -> int:
        """Further cards serve the same devices."""
        return min(self.node.cards, self.node.devices)

    @property
    def cards(self) -> int:
        """Cards of an endpoint of the network."""
        return 1 if self.network and self.network.topology.tells_cards_apart else self._node_cards

    @property
    def wiring(self) -> Wiring:
        assert self.network is not None
        return self.network.wiring(int(self.group.node_numbers[-1]) + 1, self._node_cards)

    def between(self, rounds: Sequence[Round], crosses: Sequence[NDArray[np.bool_]]) -> _Messages:
        """Messages between nodes, by card (node · cards + card): a message goes over the cards nearest to its two ranks, or
        where these are told apart over the receiver's rail; where channels rotate it is spread over all that the group uses."""
        cards, group = self._node_cards, self.group
        of_member, card_of = group.node_numbers[group.node_of], group.device_of * cards // self.node.devices
        used = np.unique(card_of).tolist()
        found = []
        for step, c in zip(rounds, crosses, strict=True):
            ends = step.source[c], step.target[c]
            rail = np.where(ends[1] < 0, ends[0], ends[1])
            for card in used if self.rotate else (None,):
                at = [(card_of[rail] if self.cards == 1 else card_of[end]) if card is None else card for end in ends]
                places = (np.where(e < 0, -1, of_member[e] * cards + a) for e, a in zip(ends, at, strict=True))
                found.append((*places, step.share[c] * step.times / (1 if card is None else len(used))))
        source, target, share = (np.concatenate(column) for column in zip(*found, strict=True))
        return source, target, share


def network_loads(algorithm: str, op: Op, group: Group, node: Node, network: Link, rotate: bool) -> dict[Channel, float]:
    """What a collective sends over each channel of the network, as a share of its size. Raises what `traffic` raises."""
    wires = _Wires(group, node, network, rotate)
    rounds = ALGORITHMS[algorithm].rounds(op, group)
    source, target, share = wires.between(rounds, [_crosses(step, group) for step in rounds])
    source, target = (np.where(end < 0, -1, end // wires.cards) for end in (source, target))
    return _loads(wires.wiring, source, target, share)


def _loads(wiring: Wiring, source: Members, target: Members, share: NDArray[np.float64]) -> dict[Channel, float]:
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


_Messages = tuple[Members, Members, NDArray[np.float64]]


def _busiest_s(wiring: Wiring, source: Members, target: Members, share: NDArray[np.float64], cards: int = 1) -> float:
    """Seconds of the busiest wire. Endpoints of several alike wirings are numbered on; below zero is the switch.

    cards: equal parts of an endpoint's own link, which source and target are numbered by.
    """
    endpoints = len(wiring)
    busiest_s = 0.0
    if wiring.access_Bps is not None:
        most = 1 + int(max(source.max(), target.max()))
        out, into = (np.bincount(end[end >= 0], share[end >= 0], most) for end in (source, target))
        load = out + into if wiring.half_duplex else np.maximum(out, into)
        capacity_Bps = wiring.access_Bps[np.arange(most) // cards % endpoints] / cards
        busiest_s = float((load / capacity_Bps).max())
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
