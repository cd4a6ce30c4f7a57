"""Algorithms of collectives in which switches reduce and multicast, or ranks access the memory of others."""

from __future__ import annotations

import numpy as np

from scaleproof.simulator.cluster.collectives.groups import NETWORK_SWITCH, NODE_SWITCH, Group, Op, Round
from scaleproof.simulator.cluster.collectives.link_algorithms import chained, inside_ring, tree
from scaleproof.simulator.common.errors import InputError


def in_network(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter inside each node, sums of the parts in the network's switches (SHARP), and an all-gather inside."""
    inside = inside_ring(group)
    return [*inside, *_over_network(op, group), *inside]


def collnet_direct(op: Op, group: Group) -> list[Round]:
    """NCCL's CollNetDirect: all members of a node send each other their parts at once, and the network's switches (SHARP) sum
    the parts of all nodes. A reduce-scatter is the first half, an all-gather the second."""
    inside = [_to_others(group, 1 / group.per_node, within_nodes=True)] if group.per_node > 1 else []
    scatter, gather = (inside if op != omitted else [] for omitted in ("all_gather", "reduce_scatter"))
    return [*scatter, *_over_network(op, group), *gather]


def collnet_chain(op: Op, group: Group) -> list[Round]:
    """NCCL's CollNetChain: a chain in each node to its first member, sums over nodes by the network's switches (SHARP), and
    the chain back."""
    if group.nodes == 1:
        return chained(group, [])
    return chained(group, [Round.of(group.first, np.full(group.nodes, NETWORK_SWITCH), 1.0)])


def nvls(op: Op, group: Group) -> list[Round]:
    """Reduction and multicast by NVSwitch: each member sends its buffer and its part of the result once, and receives as
    much. Over several nodes the network's switches (SHARP) sum the parts in between."""
    part = 1 / group.per_node
    out = {"all_reduce": 1 + part, "reduce_scatter": 1.0, "all_gather": part}[op]
    into = {"all_reduce": 1 + part, "reduce_scatter": part, "all_gather": 1.0}[op]
    if group.nodes == 1:
        return [_over_node_switch(group, out, into)]
    reduced = [] if op == "all_gather" else [_over_node_switch(group, 1.0, part)]
    multicast = [] if op == "reduce_scatter" else [_over_node_switch(group, part, 1.0)]
    return [*reduced, *_over_network(op, group), *multicast]


def nvls_tree(op: Op, group: Group) -> list[Round]:
    """Reduction by NVSwitch in each node, sums over nodes by two binary trees, and multicast by NVSwitch."""
    between = [step for step in tree(op, group) if (group.node_of[step.source] != group.node_of[step.target]).any()]
    if group.per_node == 1:
        return between
    up = _over_node_switch(group, 1.0, 1 / group.per_node)
    return [up, *between, up.back()]


def symmetric_ll(op: Op, group: Group) -> list[Round]:
    """Every member stores its data in the memory of all others at once: its whole buffer in an all-reduce, which all members
    then reduce themselves, else the part that each needs."""
    return [_to_others(group, 1.0 if op == "all_reduce" else 1 / group.size)]


def symmetric_direct(op: Op, group: Group) -> list[Round]:
    """Every member loads its part from the memory of all others and reduces it (reduce-scatter), stores its part there
    (all-gather), or both (all-reduce)."""
    part = _to_others(group, 1 / group.size)
    return [part, part] if op == "all_reduce" else [part]


def _to_others(group: Group, share: float, within_nodes: bool = False) -> Round:
    """Messages from every member to every other one, of the same node or of all."""
    source, target = (ends.ravel() for ends in np.indices((group.size, group.size)))
    sent = source != target
    if within_nodes:
        sent &= group.node_of[source] == group.node_of[target]
    return Round.of(source[sent], target[sent], share)


def _over_network(op: Op, group: Group) -> list[Round]:
    """Every member's part up to the network's switches, and the sum, or in an all-gather the parts of all nodes, down.

    Raises InputError if the nodes' numbers of members differ.
    """
    if not group.is_even:
        raise InputError("this algorithm needs the same number of ranks on each node; use ring")
    if group.nodes == 1:
        return []
    everyone, switch = np.arange(group.size), np.full(group.size, NETWORK_SWITCH)
    up = 1 / (group.size if op == "all_gather" else group.per_node)
    down = 1 / (group.size if op == "reduce_scatter" else group.per_node)
    return [Round.of(everyone, switch, up), Round.of(switch, everyone, down)]


def _over_node_switch(group: Group, out: float, into: float) -> Round:
    """A round in which every member sends a share `out` to its node's switch and receives `into`."""
    everyone, switch = np.arange(group.size), np.full(group.size, NODE_SWITCH)
    shares = np.repeat([out, into], group.size)
    return Round(np.concatenate([everyone, switch]), np.concatenate([switch, everyone]), shares)
