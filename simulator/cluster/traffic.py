"""What each algorithm of a collective sends: steps that follow one another, and bytes over the busiest wires.

Every cost is derived from these descriptions. Sizes are nccl-tests' `size`: of the whole buffer, that is of what an all_gather
receives and of what a reduce_scatter sends; of what each rank holds in an alltoall; of one message in a sendrecv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

Op = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "sendrecv"]
OPS: Final[tuple[Op, ...]] = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "sendrecv")


@dataclass(frozen=True)
class Group:
    """`ranks` ranks that fill nodes of `per_node` devices one after the other."""

    ranks: int
    per_node: int

    @classmethod
    def of(cls, ranks: int, devices: int) -> Group:
        """`ranks` ranks on nodes of `devices` devices; where they do not fill the last node, it counts as full."""
        return cls(ranks, min(ranks, devices))

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.per_node)


@dataclass(frozen=True)
class Traffic:
    """inside_steps, between_steps: messages that follow one another inside a node and between nodes.

    port_bytes: over a device's link inside its node, in its busier direction. node_bytes: over a node's network cards, in
    their busier direction. crossing: devices of a node that use the network at the same time. remote: messages that each
    rank sends to other nodes at once (pairwise only).
    """

    inside_steps: int
    between_steps: int
    port_bytes: float
    node_bytes: float
    crossing: int
    remote: int = 0


def bus_factor(op: Op, ranks: int) -> float:
    """nccl-tests' bus bandwidth over its algorithm bandwidth: what makes it comparable with the links' speed."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("reduce_scatter", "all_gather", "alltoall") else 1.0


def ring(op: Op, group: Group, size_bytes: float) -> Traffic:
    """Every rank sends to its neighbour; the ring enters and leaves a node once (Patarasuk & Yuan 2009).

    Broadcast and reduce are pipelined along the ring.
    """
    rounds = 2 if op == "all_reduce" else 1
    between = rounds * (group.nodes - 1)
    sent_bytes = bus_factor(op, group.ranks) * size_bytes
    inside = rounds * (group.ranks - 1) - between
    return _traffic(group, inside, between, sent_bytes, sent_bytes)


def tree(op: Op, group: Group, size_bytes: float) -> Traffic:
    """Double binary tree over the nodes, a chain inside each; both halves flow up and down pipelined (Sanders et al. 2009).

    A node is a leaf in one tree and an inner node in the other. Channels take turns at who is where in the chain.
    """
    depth = group.nodes.bit_length() - 1
    chain = group.per_node - 1
    node_bytes = min(2, group.nodes - 1) * size_bytes
    return _traffic(group, 2 * chain, 2 * depth, 2 * chain / group.per_node * size_bytes, node_bytes)


def halving_doubling(op: Op, group: Group, size_bytes: float) -> Traffic:
    """Recursive halving, then doubling, near partners first (Thakur et al. 2005).

    Ranks beyond a power of two first hand their data to a partner, and get the result from it.
    """
    rounds, near = group.ranks.bit_length() - 1, group.per_node.bit_length() - 1
    near = min(near, rounds)
    folded = group.ranks != 2**rounds
    port_bytes = (2 * (1 - 2.0**-rounds) + folded) * size_bytes
    node_bytes = group.per_node * 2 * (2.0**-near - 2.0**-rounds) * size_bytes + folded * size_bytes
    return _traffic(group, 2 * near, 2 * (rounds - near + folded), port_bytes, node_bytes)


def hierarchical(op: Op, group: Group, size_bytes: float) -> Traffic:
    """Reduce-scatter inside each node, rings between nodes over a share of the data each, all-gather inside."""
    chain, nodes = group.per_node - 1, group.nodes
    port_bytes = 2 * chain / group.per_node * size_bytes
    return _traffic(group, 2 * chain, 2 * (nodes - 1), port_bytes, 2 * (nodes - 1) / nodes * size_bytes)


def nvls(op: Op, group: Group, size_bytes: float) -> Traffic:
    """NVSwitch reduces and multicasts: each device sends its buffer once, and its share of the result, and receives alike."""
    share = 1 / group.per_node if op == "all_reduce" else 0.0
    return _traffic(group, 1, 0, (1 + share) * size_bytes, 0.0)


def nvls_tree(op: Op, group: Group, size_bytes: float) -> Traffic:
    """NVLS inside the nodes, the double binary tree between them."""
    between = tree(op, group, size_bytes)
    return _traffic(group, 1, between.between_steps, nvls(op, group, size_bytes).port_bytes, between.node_bytes)


def pairwise(op: Op, group: Group, size_bytes: float) -> Traffic:
    """Every rank sends to every other at once (alltoall), or to the next one (sendrecv)."""
    per_node, others = group.per_node, group.ranks - group.per_node
    spans = int(group.nodes > 1)
    if op == "sendrecv":
        return Traffic(int(per_node > 1), spans, size_bytes * (per_node > 1), size_bytes * spans, 1, spans)
    message_bytes = size_bytes / group.ranks
    port_bytes, node_bytes = (per_node - 1) * message_bytes, per_node * others * message_bytes
    return Traffic(int(per_node > 1), spans, port_bytes, node_bytes, per_node, others)


def _traffic(group: Group, inside: int, between: int, port_bytes: float, node_bytes: float) -> Traffic:
    """Over a node's wires where the group has wires there: a device alone in its node uses no link inside."""
    return Traffic(
        inside,
        between,
        port_bytes if group.per_node > 1 else 0.0,
        node_bytes if group.nodes > 1 else 0.0,
        group.per_node,
    )


Describe = Callable[[Op, Group, float], Traffic]
ALGORITHMS: Final[dict[str, tuple[Describe, tuple[Op, ...]]]] = {
    "ring": (ring, ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")),
    "tree": (tree, ("all_reduce",)),
    "halving_doubling": (halving_doubling, ("all_reduce",)),
    "hierarchical": (hierarchical, ("all_reduce",)),
    "nvls": (nvls, ("all_reduce", "reduce_scatter", "all_gather")),
    "nvls_tree": (nvls_tree, ("all_reduce",)),
    "pairwise": (pairwise, ("alltoall", "sendrecv")),
}
