"""Loads: what share of a collective's size passes over the network's channels, however fast these are."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from scaleproof.simulator.cluster import Node
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.cluster.collectives.link_traffic import network_loads, unit
from scaleproof.simulator.cluster.network.links import Link
from scaleproof.simulator.cluster.network.wiring import Channel, Vertex


@dataclass(frozen=True, eq=False)
class Shapes:
    """Nodes and network without how fast they are: what share of a size passes where is the same for all such."""

    node: Node
    network: Link

    @functools.cached_property
    def apart(self) -> int:
        """Endpoints of the network on a node."""
        return self.node.cards_used if self.network.topology.tells_cards_apart else 1


def shapes(node: Node, network: Link) -> Shapes:
    """Those of a node and a network: one object for all that are alike, which is compared sooner than they are."""
    return _alike(node.model_copy(update={"link": node.link and unit(node.link)}), unit(network))


_alike = functools.lru_cache(maxsize=64)(Shapes)


class Load(NamedTuple):
    """A collective and what it loads, as `network_loads` is asked for it."""

    algorithm: str
    op: Op
    group: Group
    shapes: Shapes
    rotates: bool

    @property
    def by_channel(self) -> Mapping[Channel, float]:
        """What it sends over each channel of the network, as a share of its size."""
        return network_loads(self.algorithm, self.op, self.group, self.shapes.node, self.shapes.network, self.rotates)


@functools.lru_cache(maxsize=256)
def of_modelled(load: Load, nodes: tuple[int, ...]) -> Mapping[Channel, float]:
    """Loads of the modelled nodes' own links. Where others are folded into them, each has that of the busiest like it."""
    folded, loads, apart = len(nodes) < load.group.nodes, load.by_channel, load.shapes.apart
    busiest = _busiest(load) if folded else {}
    ways = ("both",) if load.shapes.network.duplex == "half" else ("out", "in")
    result: dict[Channel, float] = {}
    for node, card, way in itertools.product(nodes, range(apart), ways):
        channel = way, node * apart + card
        if share := busiest.get((way, card), 0.0) if folded else loads.get(channel, 0.0):
            result[channel] = share
    return result


@functools.lru_cache(maxsize=256)
def _busiest(load: Load) -> Mapping[tuple[Vertex, int], float]:
    """The most that an endpoint of any node sends, or gets, by way and by its number on the node."""
    result: dict[tuple[Vertex, int], float] = {}
    for (way, end), share in load.by_channel.items():
        like = way, cast(int, end) % load.shapes.apart
        result[like] = max(share, result.get(like, 0.0))
    return result
