"""Algorithms of collectives as consecutive rounds of messages between the members of a group.

Costs, link loads and message-by-message programs are derived from these descriptions. A collective's size is nccl-tests'
`size`: the whole buffer, which is what an all_gather receives and what a reduce_scatter sends; each rank's buffer in an
alltoall; one message in a sendrecv; the root's buffer in a gather or a scatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.groups import NETWORK_SWITCH, NODE_SWITCH, Group, Op, Round
from scaleproof.simulator.common.errors import InputError

# ranks of an alltoall; its messages need 2 GiB of memory
_MAX_ALLTOALL_RANKS: Final = 8192


def ring(op: Op, group: Group) -> list[Round]:
    """A ring in which every member sends to the next (Patarasuk & Yuan 2009); broadcast and reduce pass it once."""
    if op in ("broadcast", "reduce"):
        steps = [Round.of([i], [i + 1], 1.0) for i in range(group.size - 1)]
        return steps if op == "broadcast" else [step.back() for step in reversed(steps)]
    everyone = np.arange(group.size)
    lap = Round.of(everyone, (everyone + 1) % group.size, 1 / group.size, times=group.size - 1)
    return [lap, lap] if op == "all_reduce" else [lap]


def whole_ring(op: Op, group: Group) -> list[Round]:
    """An all-reduce around a ring of which each member keeps its part: gloo's reduce_scatter."""
    return ring("all_reduce", group)


def returning_ring(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter around a ring in which each part passes all members and returns to its own: gradients of keys in ring
    attention."""
    everyone = np.arange(group.size)
    return [Round.of(everyone, (everyone + 1) % group.size, 1 / group.size, times=group.size)]


def ring_gather(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter around a ring, then a gather to the first member: gloo's reduce."""
    return [*ring("reduce_scatter", group), *linear("gather", group)]


def tree(op: Op, group: Group) -> list[Round]:
    """A chain in each node and two binary trees between nodes, each for half the data (Sanders et al. 2009).

    The inner nodes of one tree are leaves of the other.
    """
    parents = _parents(group.nodes)
    if group.nodes % 2:
        other = (np.roll(parents, 1) + 1) % group.nodes
        other[np.roll(parents, 1) < 0] = -1
    else:
        other = np.where(parents[::-1] < 0, -1, group.nodes - 1 - parents[::-1])
    return chained(group, _tree_rounds([parents, other], group.first))


def binary_tree(op: Op, group: Group) -> list[Round]:
    """A binary tree over all members: a reduce to the root, then a broadcast."""
    return _there_and_back(_tree_rounds([_parents(group.size)], np.arange(group.size)))


def binomial(op: Op, group: Group) -> list[Round]:
    """A binomial tree: in every round each member that has the data sends it to one that has not; a reduce is the reverse."""
    rounds = []
    for distance in (1 << i for i in range((group.size - 1).bit_length())):
        source = np.arange(min(distance, group.size - distance))
        rounds.append(Round.of(source, source + distance, 1.0))
    return rounds if op == "broadcast" else [step.back() for step in reversed(rounds)]


def halving_doubling(op: Op, group: Group) -> list[Round]:
    """Recursive halving, then doubling, near partners first (Thakur et al. 2005); a reduce_scatter is the first half, an
    all_gather the second.

    Members beyond a power of two first send their data to a partner, and get the result from it.
    """
    levels = group.size.bit_length() - 1
    everyone, share = np.arange(1 << levels), 1.0
    beyond = np.arange(1 << levels, group.size)
    rounds = [Round.of(beyond, beyond - (1 << levels), 1.0)] if len(beyond) else []
    for level in range(levels):
        share /= 2
        rounds.append(Round.of(everyone, everyone ^ (1 << level), share))
    if op == "all_reduce":
        return _there_and_back(rounds)
    if len(beyond):
        rounds.append(Round.of(beyond - (1 << levels), beyond, 1 / group.size))
    return rounds if op == "reduce_scatter" else [step.back() for step in reversed(rounds)]


def hierarchical(op: Op, group: Group) -> list[Round]:
    """A reduce-scatter by a ring in each node, then by rings between the nodes' members of equal number, which each reduce a
    part of the data. An all-gather is the reverse, an all-reduce both. All network cards of a node are used."""
    inside, per_node, nodes = inside_ring(group), group.per_node, group.nodes
    everyone = np.arange(group.size)
    lap = Round.of(everyone, (everyone + per_node) % group.size, 1 / group.size, times=nodes - 1)
    between = [lap] if nodes > 1 else []
    scatter, gather = [*inside, *between], [*between, *inside]
    return {"reduce_scatter": scatter, "all_gather": gather, "all_reduce": scatter + gather}[op]


def torus_axes(op: Op, group: Group) -> list[Round]:
    """Rings along all axes of a torus at once, as XLA uses the links of TPUs: an equal part of the data begins along each axis,
    half of it in either direction, and what is left of it goes on along the next axis.

    Raises InputError if the members are not all places of a box of one torus.
    """
    sizes = group.box
    if not sizes:
        raise InputError("torus_axes needs ranks that fill a box of one torus; use ring")
    box, axes = np.arange(group.size).reshape(sizes), len(sizes)
    scatter = []
    for phase in range(axes):
        steps, source, target, share = max(sizes) - 1, [], [], []
        for axis in range(axes):
            before = math.prod(sizes[(axis - 1 - i) % axes] for i in range(phase))
            sent = (sizes[axis] - 1) / sizes[axis] / before / axes / 2
            for direction in (1, -1):
                source.append(box.ravel())
                target.append(np.roll(box, -direction, axis).ravel())
                share.append(np.full(group.size, sent / steps))
        scatter.append(Round(np.concatenate(source), np.concatenate(target), np.concatenate(share), times=steps))
    gather = [step.back() for step in reversed(scatter)]
    return {"reduce_scatter": scatter, "all_gather": gather, "all_reduce": scatter + gather}[op]


def pat(op: Op, group: Group) -> list[Round]:
    """Parallel aggregated trees (NVIDIA, "PAT", 2025): a binomial tree from every member at once, whose messages to the same
    member are joined, so that an all-gather over n members takes ⌈log2 n⌉ steps. A reduce-scatter is the reverse."""
    everyone = np.arange(group.size)
    distances = [1 << i for i in reversed(range((group.size - 1).bit_length()))]
    # the member at a distance gets what the sender has: its own part, and parts that came over greater distances
    parts = [min(-(-group.size // (2 * distance)), (group.size - distance - 1) // (2 * distance) + 1) for distance in distances]
    rounds = [
        Round.of(everyone, (everyone + distance) % group.size, count / group.size)
        for distance, count in zip(distances, parts, strict=True)
    ]
    return rounds if op == "all_gather" else [step.back() for step in reversed(rounds)]


def pairwise(op: Op, group: Group) -> list[Round]:
    """Concurrent messages from every member to every other (alltoall), or to the next one (sendrecv)."""
    if group.size > _MAX_ALLTOALL_RANKS and op == "alltoall":
        raise InputError(f"an alltoall over {group.size} ranks is too large; give at most {_MAX_ALLTOALL_RANKS}")
    share, distances = (1.0, 1) if op == "sendrecv" else (1 / group.size, group.size - 1)
    source = np.tile(np.arange(group.size), distances)
    distance = np.repeat(np.arange(1, distances + 1), group.size)
    return [Round.of(source, (source + distance) % group.size, share)]


def in_turns(op: Op, group: Group) -> list[Round]:
    """gloo's all-gather and all-to-all between two members, which share a connection.

    Each sends before it announces that it can receive (gloo/allgather.cc, gloo/alltoall.cc). The announcement of the later one
    is queued behind what it sends, and the other waits for it; an all-gather sends two halves. Raises InputError for more
    members.
    """
    if group.size > 2:
        raise InputError("two ranks take turns; use ring or pairwise for more")
    one_way, both_ways = ([0], [1]), ([0, 1], [1, 0])
    if op == "alltoall":
        return [Round.of(*one_way, 1 / 2), Round.of(*one_way, 1 / 2).back()]
    return [Round.of(*one_way, 1 / 4), Round.of(*both_ways, 1 / 4), Round.of(*one_way, 1 / 4).back()]


def linear(op: Op, group: Group) -> list[Round]:
    """Concurrent messages from all other members to the first one (gather), or back (scatter)."""
    others = np.arange(1, group.size)
    gather = Round.of(others, np.zeros_like(others), 1 / group.size)
    return [gather if op == "gather" else gather.back()]


def _there_and_back(rounds: list[Round]) -> list[Round]:
    return [*rounds, *(step.back() for step in reversed(rounds))]


def inside_ring(group: Group) -> list[Round]:
    """A ring in each node, with a part of the data in each step. Raises InputError if the nodes' numbers of members differ."""
    if not group.is_even:
        raise InputError("this algorithm needs the same number of ranks on each node; use ring")
    per_node = group.per_node
    if per_node == 1:
        return []
    everyone = np.arange(group.size)
    after = everyone - everyone % per_node + (everyone + 1) % per_node
    return [Round.of(everyone, after, 1 / per_node, times=per_node - 1)]


def chained(group: Group, between: list[Round]) -> list[Round]:
    """Rounds of chains to the first member of each node and of `between`, then the reverse of both."""
    chain = []
    for slot in range(group.per_node - 1, 0, -1):
        source = group.first[group.members > slot] + slot
        chain.append(Round.of(source, source - 1, 1.0))
    return _there_and_back([*chain, *between])


def _parents(count: int) -> NDArray[np.int64]:
    """Parent of each vertex of a binary tree whose leaves are the odd numbers; −1 for the root 0."""
    numbers = np.arange(count)
    lowest = numbers & -numbers
    above = (numbers ^ lowest) | (lowest << 1)
    parents = np.where(above < count, above, numbers ^ lowest)
    if count:
        parents[0] = -1
    return parents


def _tree_rounds(trees: Sequence[NDArray[np.int64]], members: NDArray[np.int64]) -> list[Round]:
    """Rounds from the leaves to the roots, one per level; the trees share the data evenly.

    trees: parents of the vertices; members: the member at each vertex.
    """
    messages: dict[int, list[tuple[int, int]]] = {}
    for parents in trees:
        for vertex in range(len(parents)):
            depth, above = 0, vertex
            while parents[above] >= 0:
                depth, above = depth + 1, int(parents[above])
            if depth:
                messages.setdefault(depth, []).append((int(members[vertex]), int(members[parents[vertex]])))
    return [
        Round.of([s for s, _ in messages[depth]], [t for _, t in messages[depth]], 1 / len(trees))
        for depth in sorted(messages, reverse=True)
    ]


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


# Operations in which every member ends with a part of the result, or all of it.
_SHARED: Final[tuple[Op, ...]] = ("all_reduce", "reduce_scatter", "all_gather")


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of collectives.

    rounds: its messages for an operation and a group. pipelined: operations whose data passes through all rounds in chunks.
    at_once: whether it is a single round, whose messages all ranks begin at once.
    """

    rounds: Callable[[Op, Group], list[Round]]
    ops: tuple[Op, ...]
    pipelined: tuple[Op, ...] = ()
    at_once: bool = False


ALGORITHMS: Final[dict[str, Algorithm]] = {
    "ring": Algorithm(ring, ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"), ("broadcast", "reduce")),
    "whole_ring": Algorithm(whole_ring, ("reduce_scatter",)),
    "returning_ring": Algorithm(returning_ring, ("reduce_scatter",)),
    "ring_gather": Algorithm(ring_gather, ("reduce",)),
    "in_turns": Algorithm(in_turns, ("all_gather", "alltoall")),
    "tree": Algorithm(tree, ("all_reduce",), ("all_reduce",)),
    "binary_tree": Algorithm(binary_tree, ("all_reduce",), ("all_reduce",)),
    "binomial": Algorithm(binomial, ("broadcast", "reduce")),
    "halving_doubling": Algorithm(halving_doubling, _SHARED),
    "hierarchical": Algorithm(hierarchical, _SHARED),
    "torus_axes": Algorithm(torus_axes, _SHARED, _SHARED),
    "in_network": Algorithm(in_network, ("all_reduce",)),
    "collnet_direct": Algorithm(collnet_direct, _SHARED, _SHARED),
    "collnet_chain": Algorithm(collnet_chain, ("all_reduce",), ("all_reduce",)),
    "nvls": Algorithm(nvls, _SHARED, _SHARED),
    "nvls_tree": Algorithm(nvls_tree, ("all_reduce",), ("all_reduce",)),
    "symmetric_ll": Algorithm(symmetric_ll, _SHARED),
    "symmetric_direct": Algorithm(symmetric_direct, _SHARED),
    "all_pairs": Algorithm(symmetric_direct, ("all_reduce", "all_gather")),
    "symmetric_multimem": Algorithm(nvls, _SHARED),
    "pat": Algorithm(pat, ("reduce_scatter", "all_gather"), ("reduce_scatter", "all_gather")),
    "pairwise": Algorithm(pairwise, ("alltoall", "sendrecv"), at_once=True),
    "linear": Algorithm(linear, ("gather", "scatter"), at_once=True),
}


def names_for(op: Op, among: Iterable[str] = ALGORITHMS) -> list[str]:
    """Names of the algorithms that implement an operation."""
    return [name for name in among if op in ALGORITHMS[name].ops]
